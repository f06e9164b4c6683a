import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { DEPLOY } from './kubectl.js'

/** What the last stage of a Dockerfile says of its image. */
export interface ImageDescription {
  /** as written, ARGs replaced by their defaults */
  base: string
  /** from the other image, and where to */
  copies: { from: string; path: string; to: string }[]
  /** NAME=value */
  env: string[]
  user: string
  command: string[]
}

/** Reads a Dockerfile of deploy/kubernetes/images. @throws Error at an instruction that is not known here */
export function describeImage(name: string): ImageDescription {
  const text = readFileSync(join(DEPLOY, 'images', name), 'utf8')
  const lines = text.replaceAll(/\\\n/g, ' ').split('\n')
  const args: Record<string, string> = {}
  const filled = (value: string) => value.replaceAll(/\$\{(\w+)\}/g, (_, arg: string) => args[arg] ?? '')
  let image: ImageDescription | undefined
  const found = () => {
    if (image === undefined) throw new Error(`${name} does not begin with FROM`)
    return image
  }
  for (const line of lines) {
    const [, instruction, rest = ''] = /^([A-Z]+) +(.*)$/.exec(line) ?? []
    if (instruction === undefined) continue
    const words = rest.trim().split(/ +/)
    if (instruction === 'ARG') args[words[0]!.split('=')[0]!] = words[0]!.split('=').slice(1).join('=')
    else if (instruction === 'FROM') {
      image = { base: filled(words[0]!), copies: [], env: [], user: '', command: [] }
      if (words[1] === 'AS') args[`stage ${words[2]}`] = image.base
    } else if (instruction === 'COPY') {
      const [from, path, to] = words
      found().copies.push({ from: args[`stage ${from!.replace('--from=', '')}`]!, path: path!, to: to! })
    } else if (instruction === 'ENV') found().env.push(...words)
    else if (instruction === 'USER') found().user = words[0]!
    else if (instruction === 'CMD') found().command = JSON.parse(rest)
    else if (instruction !== 'RUN') throw new Error(`${name}: ${instruction} is not known here`)
  }
  return found()
}

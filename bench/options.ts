/** What an option may be, and why. */
export interface Bound {
  min: number
  max: number
  why: string
}

export type Bounds<T> = { [K in keyof T]?: Bound }

/** Numbers by the names of a benchmark's defaults: `--serial=50` or `--serial 50`. */
export function optionsFrom<T extends object>(
  args: readonly string[],
  defaults: T,
  bounds: Bounds<T> = {},
): { options: T } | { problem: string } {
  const options = { ...defaults } as Record<string, number>
  const words = args.flatMap((argument) => argument.split('=', 2))
  for (let at = 0; at < words.length; at += 2) {
    const name = /^--([A-Za-z]+)$/.exec(words[at]!)?.[1]
    if (name === undefined || !(name in options))
      return { problem: `unknown option ${words[at]}; known: --json, ${namesOf(options)}` }
    const text = words[at + 1]
    if (text === undefined || !/^\d+$/.test(text))
      return { problem: `--${name} takes a whole number, not ${text ?? 'nothing'}` }
    const value = Number(text)
    const bound = (bounds as Record<string, Bound | undefined>)[name]
    if (bound && (value < bound.min || value > bound.max))
      return { problem: `--${name} is ${bound.min} to ${bound.max}, not ${text}: ${bound.why}` }
    options[name] = value
  }
  return { options: options as T }
}

function namesOf(options: object): string {
  return Object.keys(options)
    .map((name) => `--${name}=N`)
    .join(', ')
}

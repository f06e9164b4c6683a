import { InvalidArgumentError } from 'commander'
import { durationMs } from '../contract/index.js'

/** Parsers of options. Only the shape is looked at here; bounds are those of the contract, with its words. */

export function parseNumber(text: string): number {
  const number = Number(text)
  if (text.trim() === '' || !Number.isFinite(number))
    throw new InvalidArgumentError(`'${text}' is not a number.`)
  return number
}

export function parsePort(text: string): number {
  const port = parseNumber(text)
  if (!Number.isInteger(port) || port < 1 || port > 65_535)
    throw new InvalidArgumentError(`'${text}' is not a port; use 1 to 65535.`)
  return port
}

/** A duration stays as it was written, so that messages can quote it. */
export function parseDuration(text: string): string | number {
  if (/^-?\d+(\.\d+)?$/.test(text)) return Number(text)
  if (durationMs(text) === undefined)
    throw new InvalidArgumentError(`'${text}' is not a duration; write 90s, 5m, 1.5h or milliseconds.`)
  return text
}

/** For options that may be given several times. */
export function collect(text: string, before: string[]): string[] {
  return [...before, text]
}

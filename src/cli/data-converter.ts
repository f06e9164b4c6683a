import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { DataConverter, PayloadCodec } from '@temporalio/common'
import type { Command } from 'commander'
import { isRecord } from '../contract/index.js'
import { CliError, usageError } from './failure.js'

const REMEDY =
  'export a dataConverter from it, { payloadCodecs: [...] }: docs/cli.md, Encryption, has an example'

export function addDataConverterOption(command: Command): Command {
  return command.option(
    '--data-converter <module>',
    'JavaScript file that exports dataConverter, with the codecs that encrypt payloads (else FIREPOOL_DATA_CONVERTER)',
  )
}

/**
 * The data converter of a user's module: its export `dataConverter`, else its default export.
 * @returns undefined when none is named
 * @throws CliError
 */
export async function loadDataConverter(
  option: string | undefined,
  env: NodeJS.ProcessEnv = process.env,
): Promise<DataConverter | undefined> {
  const file = option || env.FIREPOOL_DATA_CONVERTER
  if (!file) return undefined
  const module = await load(file)
  const found = module.dataConverter ?? module.default
  if (!isRecord(found) || !Array.isArray(found.payloadCodecs) || !found.payloadCodecs.every(isCodec))
    throw usageError(`the data converter ${file} exports no codecs`, REMEDY)
  if (found.payloadConverterPath !== undefined || found.externalStorage !== undefined)
    throw usageError(
      `the data converter ${file} has more than codecs (payloadConverterPath or externalStorage)`,
      'give payloadCodecs alone: the messages of Firepool are plain JSON',
    )
  return { payloadCodecs: found.payloadCodecs }
}

async function load(file: string): Promise<Record<string, unknown>> {
  const path = resolve(file)
  try {
    return (await import(pathToFileURL(path).href)) as Record<string, unknown>
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    const missing = code === 'ERR_MODULE_NOT_FOUND' && message.includes(path)
    throw usageError(
      missing
        ? `the data converter ${path} is not there`
        : `the data converter ${path} cannot be loaded (${message.split('\n')[0]})`,
      'name a JavaScript file with --data-converter or FIREPOOL_DATA_CONVERTER',
    )
  }
}

function isCodec(value: unknown): value is PayloadCodec {
  return isRecord(value) && typeof value.encode === 'function' && typeof value.decode === 'function'
}

/** For a client: what a codec throws says nothing of Firepool, and is seen far from where it was named. */
export function explaining(converter: DataConverter | undefined): DataConverter {
  const { payloadCodecs = [] } = converter ?? {}
  return { payloadCodecs: payloadCodecs.map(explainingCodec) }
}

function explainingCodec(codec: PayloadCodec): PayloadCodec {
  const failed = (doing: string) => (error: unknown) => {
    const text = error instanceof Error ? error.message.split('\n')[0] : String(error)
    throw new CliError(
      'CodecFailed',
      `the codec of the data converter cannot ${doing} (${text})`,
      'use the codec and the keys of the Firepool worker',
    )
  }
  return {
    encode: (payloads, context) => codec.encode(payloads, context).catch(failed('encode our request')),
    decode: (payloads, context) => codec.decode(payloads, context).catch(failed('decode the answer')),
  }
}

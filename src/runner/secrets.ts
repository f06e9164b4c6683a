import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs'
import { join } from 'node:path'
import { FirepoolError, LIMIT, problem } from '../contract/index.js'

/**
 * The secrets of a pod: files of a folder that its operator has mounted or given, one for each, read when a job starts. A value goes
 * into the environment of that job's processes and nowhere else; errors know the name alone.
 */
export class Secrets {
  /** @param folder undefined: this pod has none @param allowed names that jobs of this pool may use */
  constructor(
    private readonly folder: string | undefined,
    private readonly allowed: readonly string[],
  ) {}

  /**
   * Variables with their values.
   * @param wanted the names of the secrets, by variable
   * @throws FirepoolError, with the name of the secret
   */
  environment(wanted: Readonly<Record<string, string>> = {}): Record<string, string> {
    return Object.fromEntries(Object.entries(wanted).map(([variable, name]) => [variable, this.read(name)]))
  }

  private read(name: string): string {
    if (!this.allowed.includes(name))
      throw refusal(
        'SecretNotAllowed',
        name,
        "its pool does not let jobs use it; add the name to 'secrets' of the pool's profile",
      )
    if (this.folder === undefined) throw refusal('SecretMissing', name, MISSING('has no folder of secrets'))
    let bytes: Buffer
    try {
      bytes = readBounded(join(this.folder, name))
    } catch (error) {
      const { code = '' } = error as NodeJS.ErrnoException
      throw refusal('SecretMissing', name, MISSING(`cannot read it (${code || 'no file'})`))
    }
    if (bytes.length > LIMIT.secretBytes)
      throw refusal(
        'SecretUnusable',
        name,
        `it has more than ${LIMIT.secretBytes} bytes; store a shorter one, such as a key to what is long`,
      )
    const text = bytes.toString('utf8')
    if (text.includes('\u0000') || !bytes.equals(Buffer.from(text)))
      throw refusal(
        'SecretUnusable',
        name,
        'it is no text without NUL, as a variable must be; store it as text',
      )
    // An editor ends a file with a line break that is no part of the secret.
    return text.replace(/\r?\n$/, '')
  }
}

const MISSING = (why: string) =>
  `the pod ${why}; put a file of that name into the folder of firepool worker --secrets, or mount a Secret that has it`

function refusal(reason: string, name: string, why: string): FirepoolError {
  const message = `secret '${name}' cannot be given to the job: ${why}. The job did not start.`
  return new FirepoolError(problem('InvalidRequest', message, { reason, secret: name }))
}

/** One byte more than a secret may have shows that it is too large. @throws when it is no file */
function readBounded(path: string): Buffer {
  // A pipe would hold up the whole runner until somebody writes into it.
  const fd = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  try {
    if (!fstatSync(fd).isFile()) throw new Error('no file')
    const bytes = Buffer.alloc(LIMIT.secretBytes + 1)
    return bytes.subarray(0, readSync(fd, bytes))
  } finally {
    closeSync(fd)
  }
}

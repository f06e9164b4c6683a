// An encryption codec as a user would write one: AES-256-GCM, the key's name beside the text. For `--data-converter`, too:
// FIREPOOL_TEST_KEYS is { name: base64 of 32 bytes }, and the first one encrypts.
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto'
import { METADATA_ENCODING_KEY } from '@temporalio/common'
import proto from '@temporalio/proto'

const { Payload } = proto.temporal.api.common.v1
const ENCODING = 'binary/encrypted'
const IV_BYTES = 12
const TAG_BYTES = 16
const bytes = (text) => new TextEncoder().encode(text)

export class EncryptionCodec {
  #keys
  #current

  constructor(keys) {
    this.#keys = new Map(Object.entries(keys).map(([name, key]) => [name, Buffer.from(key, 'base64')]))
    this.#current = [...this.#keys.keys()][0]
  }

  async encode(payloads) {
    return payloads.map((payload) => this.#encrypt(payload))
  }

  async decode(payloads) {
    return payloads.map((payload) =>
      Buffer.from(payload.metadata?.encoding ?? []).toString() === ENCODING
        ? this.#decrypt(payload)
        : payload,
    )
  }

  #encrypt(payload) {
    const iv = randomBytes(IV_BYTES)
    const cipher = createCipheriv('aes-256-gcm', this.#keys.get(this.#current), iv)
    const plain = Payload.encode(payload).finish()
    const data = Buffer.concat([iv, cipher.update(plain), cipher.final(), cipher.getAuthTag()])
    const metadata = { [METADATA_ENCODING_KEY]: bytes(ENCODING), 'encryption-key-id': bytes(this.#current) }
    return { metadata, data }
  }

  #decrypt({ metadata, data }) {
    const name = Buffer.from(metadata['encryption-key-id'] ?? []).toString()
    const key = this.#keys.get(name)
    if (key === undefined) throw new Error(`there is no key '${name}'`)
    const text = Buffer.from(data)
    const decipher = createDecipheriv('aes-256-gcm', key, text.subarray(0, IV_BYTES))
    decipher.setAuthTag(text.subarray(-TAG_BYTES))
    const plain = Buffer.concat([decipher.update(text.subarray(IV_BYTES, -TAG_BYTES)), decipher.final()])
    const { metadata: inner, data: content } = Payload.decode(plain)
    return { metadata: inner, data: content }
  }
}

const keys = process.env.FIREPOOL_TEST_KEYS
export const dataConverter = keys ? { payloadCodecs: [new EncryptionCodec(JSON.parse(keys))] } : undefined

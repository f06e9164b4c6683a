import type { DataConverter, PayloadCodec } from '@temporalio/common'

export declare class EncryptionCodec implements PayloadCodec {
  /** @param keys base64 of 32 bytes each, by name; the first one encrypts */
  constructor(keys: Record<string, string>)
  encode: PayloadCodec['encode']
  decode: PayloadCodec['decode']
}
export declare const dataConverter: DataConverter | undefined

import { DefaultFailureConverter } from '@temporalio/common'

/** For workers with a payload codec: messages and stack traces of failures go through it as well. */
export const failureConverter = new DefaultFailureConverter({ encodeCommonAttributes: true })

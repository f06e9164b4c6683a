import * as http from 'node:http'

/** As long as a real one, so that its check does all its work before it fails. */
const NOBODYS_TOKEN = `e30.${'A'.repeat(86)}`
const WARM_UP_MS = 5_000

/**
 * Calls the runner once as a stranger would, so that the first call of its first caller does not pay for loading and compiling what
 * answers it (measured: the first bind of a pod took five times a later one). Never fails: a slow first call is all it saves.
 */
export function warmUp(address: string): Promise<void> {
  return new Promise((resolve) => {
    const headers = { authorization: `Bearer ${NOBODYS_TOKEN}`, 'content-type': 'application/json' }
    const request = http.request(`${address}/bind`, {
      method: 'POST',
      headers,
      timeout: WARM_UP_MS,
      agent: false,
    })
    request.on('response', (response) => response.resume().on('close', resolve))
    request.on('timeout', () => request.destroy())
    request.on('error', () => resolve())
    request.end('{}')
  })
}

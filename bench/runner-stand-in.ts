/**
 * Stand-ins for the runners of pods that kwok plays, all of them in one process: node --import tsx runner-stand-in.ts KEY ADDRESSES.
 * KEY is the broker's public key. It listens on so many addresses 127.x.0.1, 127.x.0.2, ... on the port of runners, and says
 * which x as its first line. Tokens are verified and leases fenced by the code of the real runner; there are no jobs.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { createServer as listenOn, type Server } from 'node:net'
import { CONTRACT_VERSION, FirepoolError, problem, RUNNER_PORT } from '../dist/contract/index.js'
import { Fence } from '../dist/runner/fence.js'
import { bindRequest, drainRequest, revokeRequest } from '../dist/runner/validation.js'
import { reply, replyProblem, withJson } from '../dist/runner/wire.js'
import { createVerifier, type Verifier } from '../dist/token/token.js'

/** The same of all of them: an address that a pod left is given to the next one. */
const INCARNATION = 'stand-in'
/** More than there can be at once; who was forgotten begins anew, as a runner that was started again. */
const PODS_MAX = 20_000
/** Second part of the addresses; the others are used by this and that on many machines. */
const NETWORKS = { from: 16, to: 254 }

const [brokerKey = '', addresses = '0'] = process.argv.slice(2)

interface StandIn {
  fence: Fence
  verify: Verifier
}

const pods = new Map<string, StandIn>()

/** Which pod is meant, only its token says: whether that is true its own verifier says then. */
function podOf(authorization: string | undefined): StandIn {
  let pod = ''
  try {
    const [head = ''] = (authorization ?? '').replace(/^bearer /i, '').split('.')
    pod = String(JSON.parse(Buffer.from(head, 'base64url').toString('utf8')).pod)
  } catch {
    // Refused by the verifier.
  }
  let found = pods.get(pod)
  if (!found) {
    found = {
      fence: new Fence({ incarnation: INCARNATION, nowMs: performance.now() }),
      verify: createVerifier(brokerKey, pod),
    }
    pods.set(pod, found)
    if (pods.size > PODS_MAX) pods.delete(pods.keys().next().value!)
  }
  return found
}

type Handler = (fence: Fence, body: unknown) => object

const HANDLERS: Record<string, Handler> = {
  'POST /bind': (fence, body) => {
    const decision = fence.bind(bindRequest(body), performance.now())
    if ('problem' in decision) throw new FirepoolError(decision.problem)
    return decision.reply
  },
  'POST /revoke': (fence, body) => {
    fence.revoke(revokeRequest(body).epoch)
    return {}
  },
  'POST /drain': (fence, body) => fence.drain(drainRequest(body), performance.now()),
}

function status({ epoch, state, useSeq, waiting, running }: Fence): object {
  return { v: CONTRACT_VERSION, incarnation: INCARNATION, epoch, state, useSeq, waiting, running }
}

function handle(req: IncomingMessage, res: ServerResponse): void {
  const what = `${req.method} ${req.url}`
  if (what === 'GET /ready') {
    reply(res, 200, { v: CONTRACT_VERSION, pod: INCARNATION, incarnation: INCARNATION })
    return
  }
  const { fence, verify } = podOf(req.headers.authorization)
  const verified = verify(req.headers.authorization, ['broker'], Date.now())
  const handler = HANDLERS[what]
  if ('problem' in verified) replyProblem(res, verified.problem)
  else if (what === 'GET /status') reply(res, 200, status(fence))
  else if (!handler)
    replyProblem(res, problem('InvalidRequest', `a stand-in for a runner does not know ${what}`))
  else
    withJson(
      req,
      (error) => {
        if (error instanceof FirepoolError) replyProblem(res, error.problem)
        else replyProblem(res, problem('PodLost', String(error)))
      },
      (body) => reply(res, 200, handler(fence, body)),
    )
}

/** One server answers on all addresses: what listens only hands connections over. */
async function listenEverywhere(network: number, count: number): Promise<Server[] | null> {
  const http = createServer(handle)
  const listening: Server[] = []
  for (let i = 1; i <= count; i++) {
    const server = listenOn({ noDelay: true }, (socket) => http.emit('connection', socket))
    const isFree = await new Promise<boolean>((resolve) => {
      server.once('error', () => resolve(false))
      server.listen(RUNNER_PORT, `127.${network}.${i >> 8}.${i & 255}`, () => resolve(true))
    })
    if (isFree) listening.push(server)
    else {
      for (const other of listening) other.close()
      return null
    }
  }
  return listening
}

const networks = Array.from({ length: NETWORKS.to - NETWORKS.from + 1 }, (_, i) => NETWORKS.from + i)
// Another benchmark of this machine begins somewhere else.
const first = process.pid % networks.length
for (const network of [...networks.slice(first), ...networks.slice(0, first)]) {
  if (!(await listenEverywhere(network, Number(addresses)))) continue
  process.stdout.write(`127.${network}.0.1/16\n`)
  break
}

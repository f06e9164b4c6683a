// The bare HTTP server that Firepool's runner is compared with: starts /bin/true and answers.
import { spawn } from 'node:child_process'
import http from 'node:http'

const server = http.createServer((request, response) => {
  request.resume()
  request.on('end', () => {
    spawn('/bin/true', [], { stdio: ['ignore', 'pipe', 'pipe'] }).on('close', (code) => {
      response.setHeader('content-type', 'application/json')
      response.end(JSON.stringify({ exitCode: code }))
    })
  })
})
server.listen(0, '127.0.0.1', () => process.send?.(server.address().port))
process.on('disconnect', () => process.exit(0))

// The main flows of the provider's client for JavaScript: create, exec, streams, input, tags, snapshot, terminate.
import assert from 'node:assert'
import { createRequire } from 'node:module'

const { ModalClient } = createRequire(process.env.MODAL_CLIENT)('modal')

const modal = new ModalClient()
const app = await modal.apps.fromName('of-the-client', { createIfMissing: true })
const image = modal.images.fromRegistry('python:3.12-slim')
const sandbox = await modal.sandboxes.create(app, image, { timeoutMs: 120000, env: { NAME: 'value' } })

const split = await sandbox.exec(['sh', '-c', 'echo out; echo err >&2; echo $NAME; exit 3'])
assert.equal(await split.wait(), 3)
assert.equal(await split.stdout.readText(), 'out\nvalue\n')
assert.equal(await split.stderr.readText(), 'err\n')

const cat = await sandbox.exec(['cat'], { mode: 'binary' })
const data = new Uint8Array(256000).map((_, n) => n)
const writer = cat.stdin.getWriter()
await writer.write(data)
await writer.close()
assert.deepEqual(await cat.stdout.readBytes(), data)
assert.equal(await cat.wait(), 0)

const killed = await sandbox.exec(['sh', '-c', 'kill -9 $$'])
assert.equal(await killed.wait(), 137)

await sandbox.setTags({ a: '1', b: '2' })
assert.deepEqual(await sandbox.getTags(), { a: '1', b: '2' })
assert.equal(await sandbox.poll(), null)

const again = await modal.sandboxes.fromId(sandbox.sandboxId)
const echo = await again.exec(['echo', 'again'])
assert.equal(await echo.stdout.readText(), 'again\n')

const snapshot = await sandbox.snapshotFilesystem()
assert.ok(snapshot.imageId.startsWith('im-'))

await sandbox.terminate()
assert.equal(await again.poll(), 137)
console.log('all is well')
process.exit(0)

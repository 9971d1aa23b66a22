// Flows of the official JavaScript SDK against a server, with the three variables set and the packages in the folder
// that SANDBOX_TEST_E2B_NODE names. Prints a line for each flow, and exits with 1 when one of them fails.

import { createRequire } from 'node:module'
import { join } from 'node:path'
import assert from 'node:assert/strict'
import http from 'node:http'

const require = createRequire(join(process.env.SANDBOX_TEST_E2B_NODE, 'flows.js'))
const e2b = require('e2b')
const { Sandbox } = require('@e2b/code-interpreter')

const URL_ = process.env.E2B_API_URL
const flows = []

const flow = (name, run) => flows.push({ name, run, own: false })
const bare = (name, run) => flows.push({ name, run, own: true })
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** Waits until a condition holds. */
async function until(condition, what, seconds = 5) {
  const end = Date.now() + seconds * 1000
  for (;;) {
    if (await condition()) return
    if (Date.now() > end) throw new Error(`timed out: ${what}`)
    await pause(50)
  }
}

/** Sends a request whose Host header is the name of a port. */
function page(host, path) {
  const { hostname, port } = new URL(URL_)
  return new Promise((resolve, reject) => {
    const request = http.request({ hostname, port, path, headers: { Host: host } }, (answer) => {
      let body = ''
      answer.on('data', (piece) => (body += piece))
      answer.on('end', () => resolve({ status: answer.statusCode, body }))
    })
    request.on('error', reject)
    request.end()
  })
}

// Control plane

bare('create has metadata, variables and a lifetime', async () => {
  const s = await Sandbox.create({ timeoutMs: 120_000, metadata: { user: 'ada@x', 'a b': 'c' }, envs: { TOKEN: 't' } })
  const info = await s.getInfo()
  assert.deepEqual(info.metadata, { user: 'ada@x', 'a b': 'c' })
  assert.equal(info.templateId, 'code-interpreter-v1')
  assert.ok(info.endAt - info.startedAt > 100_000)
  assert.equal((await s.commands.run('echo $TOKEN')).stdout, 't\n')
  assert.ok(await s.kill())
})

bare('the plain sandbox has the base template', async () => {
  const s = await e2b.Sandbox.create()
  assert.equal((await s.getInfo()).templateId, 'base')
  await s.kill()
})

bare('list filters by metadata and has pages', async () => {
  const marks = []
  for (let n = 0; n < 3; n++) marks.push(await Sandbox.create({ metadata: { js: 'a&b%' } }))
  const pages = Sandbox.list({ query: { metadata: { js: 'a&b%' } }, limit: 2 })
  const first = await pages.nextItems()
  assert.equal(first.length, 2)
  assert.ok(pages.hasNext)
  const all = first.concat(await pages.nextItems())
  assert.deepEqual(all.map((info) => info.sandboxId).sort(), marks.map((s) => s.sandboxId).sort())
  assert.ok(!pages.hasNext)
  await Promise.all(marks.map((s) => s.kill()))
})

flow('connect finds the same sandbox', async (s) => {
  await s.runCode('kept = 41')
  const other = await Sandbox.connect(s.sandboxId)
  assert.equal((await other.runCode('kept + 1')).text, '42')
})

bare('connect to nothing is not found', async () => {
  await assert.rejects(Sandbox.connect('nosuchsandbox'), e2b.NotFoundError)
})

flow('the lifetime counts from now', async (s) => {
  await s.setTimeout(1_000_000)
  const left = (await s.getInfo()).endAt - Date.now()
  assert.ok(left > 990_000 && left < 1_001_000, `${left}`)
})

bare('kill is told once', async () => {
  const s = await Sandbox.create()
  assert.ok(await s.isRunning())
  assert.ok(await s.kill())
  assert.ok(!(await s.isRunning()))
  assert.ok(!(await Sandbox.kill(s.sandboxId)))
})

flow('pause keeps everything', async (s) => {
  await s.runCode('a = [1, 2]')
  assert.ok(await s.pause())
  assert.ok(!(await s.isRunning()))
  assert.deepEqual((await s.getMetrics()).map((one) => one.memUsed > 0), [true])
  const again = await s.connect()
  assert.equal((await again.runCode('a')).text, '[1, 2]')
})

flow('metrics are measured', async (s) => {
  const [found] = await s.getMetrics()
  assert.ok(found.memUsed > 0)
})

bare('a snapshot is started from', async () => {
  const s = await Sandbox.create()
  await s.files.write('data.txt', 'in the snapshot')
  const snapshot = await s.createSnapshot()
  const other = await Sandbox.create(snapshot.snapshotId)
  assert.equal(await other.files.read('data.txt'), 'in the snapshot')
  assert.ok(await Sandbox.deleteSnapshot(snapshot.snapshotId))
  await Promise.all([s.kill(), other.kill()])
})

bare('forks have files of their own', async () => {
  const s = await Sandbox.create()
  await s.files.write('fork.txt', 'one')
  const [fork] = await s.fork()
  assert.equal(await fork.files.read('fork.txt'), 'one')
  await Promise.all([s.kill(), fork.kill()])
})

bare('a wrong key is refused', async () => {
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), e2b.AuthenticationError)
})

bare('an unknown template is not found', async () => {
  await assert.rejects(Sandbox.create('no-such-template'), /not found/)
})

// Commands

flow('a command has output and status', async (s) => {
  const result = await s.commands.run('echo out; echo err >&2')
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
})

flow('a failing command throws', async (s) => {
  await assert.rejects(s.commands.run('exit 3'), (error) => error instanceof e2b.CommandExitError && error.exitCode === 3)
})

flow('commands have environment and directory', async (s) => {
  const result = await s.commands.run('echo $A; pwd; whoami', { envs: { A: 'ä' }, cwd: '/tmp' })
  assert.equal(result.stdout, 'ä\n/tmp\nuser\n')
})

flow('callbacks hear output', async (s) => {
  let heard = ''
  await s.commands.run('echo 1; sleep .1; echo 2', { onStdout: (data) => (heard += data) })
  assert.equal(heard, '1\n2\n')
})

flow('much output is whole', async (s) => {
  const result = await s.commands.run('seq 1 200000')
  assert.equal(result.stdout.split('\n').length, 200001)
})

flow('background commands are listed and killed', async (s) => {
  const handle = await s.commands.run('sleep 100', { background: true })
  assert.ok((await s.commands.list()).some((one) => one.pid === handle.pid))
  assert.ok(await handle.kill())
  await assert.rejects(handle.wait(), (error) => error.exitCode === -1)
  assert.ok(!(await s.commands.kill(handle.pid)))
})

flow('commands are connected to', async (s) => {
  const handle = await s.commands.run('sleep .4; echo late', { background: true })
  const other = await s.commands.connect(handle.pid)
  assert.equal((await other.wait()).stdout, 'late\n')
  assert.equal((await handle.wait()).stdout, 'late\n')
})

flow('standard input is written and closed', async (s) => {
  const handle = await s.commands.run('cat', { background: true, stdin: true })
  await s.commands.sendStdin(handle.pid, 'one\n')
  await s.commands.closeStdin(handle.pid)
  assert.equal((await handle.wait()).stdout, 'one\n')
})

flow('a time limit ends a command', async (s) => {
  await assert.rejects(s.commands.run('sleep 60', { timeoutMs: 500 }), e2b.TimeoutError)
})

flow('root is refused with advice', async (s) => {
  await assert.rejects(s.commands.run('id', { user: 'root' }), /-p local-docker/)
  await s.files.write('own.txt', 'the user')
  await assert.rejects(s.files.read('own.txt', { user: 'root' }), /-p local-docker/)
  await assert.rejects(s.files.write('own.txt', 'root', { user: 'root' }), /-p local-docker/)
  await assert.rejects(s.files.list('.', { user: 'root' }), /-p local-docker/)
  assert.equal(await s.files.read('own.txt', { user: 'user' }), 'the user')
})

flow('a terminal runs a shell', async (s) => {
  let seen = ''
  const handle = await s.pty.create({ cols: 80, rows: 24, onData: (data) => (seen += Buffer.from(data).toString()) })
  await s.pty.resize(handle.pid, { cols: 101, rows: 30 })
  await s.pty.sendInput(handle.pid, Buffer.from('stty size; echo t=$((20+2)); exit\n'))
  await handle.wait()
  assert.ok(seen.includes('30 101') && seen.includes('t=22'), seen)
})

// Files

flow('files are written and read', async (s) => {
  const info = await s.files.write('dir/a.txt', 'text ä')
  assert.equal(info.path, '/home/user/dir/a.txt')
  assert.equal(await s.files.read('dir/a.txt'), 'text ä')
})

flow('binary files are whole', async (s) => {
  const data = new Uint8Array(300_000).map((_, n) => n % 251)
  await s.files.write('/tmp/b', data.buffer)
  assert.deepEqual(Buffer.from(await s.files.read('/tmp/b', { format: 'bytes' })), Buffer.from(data))
  let size = 0
  for await (const piece of await s.files.read('/tmp/b', { format: 'stream' })) size += piece.length
  assert.equal(size, 300_000)
})

flow('many files are written at once', async (s) => {
  const infos = await s.files.write([{ path: 'm/0', data: '0' }, { path: 'm/1', data: '1' }])
  assert.deepEqual(infos.map((info) => info.path), ['/home/user/m/0', '/home/user/m/1'])
})

flow('missing files are not found', async (s) => {
  await assert.rejects(s.files.read('nope'), e2b.NotFoundError)
  assert.ok(!(await s.files.exists('nope')))
})

flow('entries are listed to a depth', async (s) => {
  await s.files.write('/tmp/d/1/2.txt', 'x')
  const found = await s.files.list('/tmp/d', { depth: 2 })
  assert.deepEqual(found.map((entry) => [entry.path, entry.type]), [['/tmp/d/1', 'dir'], ['/tmp/d/1/2.txt', 'file']])
})

flow('directories are made, entries renamed and removed', async (s) => {
  assert.ok(await s.files.makeDir('new'))
  assert.ok(!(await s.files.makeDir('new')))
  await s.files.write('new/a', 'a')
  assert.equal((await s.files.rename('new/a', 'new/b')).path, '/home/user/new/b')
  await s.files.remove('new')
  assert.ok(!(await s.files.exists('new/b')))
})

flow('directories are watched as a stream', async (s) => {
  await s.files.makeDir('/tmp/w')
  const seen = new Set()
  const handle = await s.files.watchDir('/tmp/w', (event) => seen.add(`${event.type} ${event.name}`), { recursive: true })
  await s.files.write('/tmp/w/a.txt', 'x')
  await s.commands.run('mkdir /tmp/w/sub; sleep .1; echo y > /tmp/w/sub/b; rm /tmp/w/a.txt')
  const wanted = ['create a.txt', 'write a.txt', 'remove a.txt', 'write sub/b']
  await until(() => wanted.every((one) => seen.has(one)), [...seen].join(', '))
  await handle.stop()
})

flow('signed urls open one file', async (s) => {
  await s.files.write('signed.txt', 'by url')
  const url = await s.downloadUrl('signed.txt', { useSignatureExpiration: 10_000 })
  assert.equal(await (await fetch(url)).text(), 'by url')
  assert.equal((await fetch(url.replace('signed.txt', 'other.txt'))).status, 401)
  const form = new FormData()
  form.append('file', new Blob(['up']), 'up.txt')
  assert.equal((await fetch(await s.uploadUrl('up.txt'), { method: 'POST', body: form })).status, 200)
  assert.equal(await s.files.read('up.txt'), 'up')
})

flow('ports have host names', async (s) => {
  await s.files.write('/tmp/site/index.html', 'a page')
  await s.commands.run('cd /tmp/site && exec python3 -m http.server 8123', { background: true })
  await until(async () => (await page(s.getHost(8123), '/index.html')).body === 'a page', 'the page')
  assert.equal((await page(s.getHost(8124), '/')).status, 502)
})

// Code

flow('code has a result and keeps its state', async (s) => {
  await s.runCode('x = 20')
  const result = await s.runCode('print("hi"); x + 1')
  assert.equal(result.text, '21')
  assert.equal(result.logs.stdout.join(''), 'hi\n')
  assert.ok(result.results[0].isMainResult)
})

flow('exceptions are errors', async (s) => {
  const result = await s.runCode('1 / 0')
  assert.equal(result.error.name, 'ZeroDivisionError')
})

flow('code callbacks hear everything', async (s) => {
  const seen = []
  await s.runCode('print("live")\ndisplay(7)\n1 / 0', {
    onStdout: (message) => seen.push(message.line.trim()),
    onResult: (result) => seen.push(result.text),
    onError: (error) => seen.push(error.name),
  })
  assert.deepEqual(seen, ['live', '7', 'ZeroDivisionError'])
})

flow('contexts are apart', async (s) => {
  const context = await s.createCodeContext({ cwd: '/tmp' })
  await s.runCode('y = 1', { context })
  assert.equal((await s.runCode('y', { context })).text, '1')
  assert.equal((await s.runCode('y')).error.name, 'NameError')
  assert.ok((await s.listCodeContexts()).some((one) => one.id === context.id))
  await s.restartCodeContext(context)
  assert.equal((await s.runCode('y', { context })).error.name, 'NameError')
  await s.removeCodeContext(context)
  await assert.rejects(s.runCode('1', { context }), e2b.NotFoundError)
})

flow('a missing language is an error', async (s) => {
  await assert.rejects(s.runCode('1', { language: 'cobol' }), /400/)
})

flow('a run that is given up is interrupted', async (s) => {
  await s.runCode('import time; state = 5')
  await assert.rejects(s.runCode('time.sleep(60)', { timeoutMs: 700 }))
  assert.equal((await s.runCode('state')).text, '5')
})

flow('a run has variables of its own', async (s) => {
  assert.equal((await s.runCode("import os; os.environ['ONCE']", { envs: { ONCE: 'yes' } })).text, 'yes')
})

const wanted = process.argv.slice(2)
let failed = 0
for (const { name, run, own } of flows) {
  if (wanted.length && !wanted.includes(name)) continue
  const begin = Date.now()
  let sandbox
  try {
    if (!own) sandbox = await Sandbox.create()
    await run(sandbox)
    console.log(`ok ${name} ${(Date.now() - begin) / 1000}`)
  } catch (error) {
    failed += 1
    console.log(`FAILED ${name}\n${error.stack ?? error}`)
  } finally {
    await sandbox?.kill()
  }
}
console.log(`${flows.length} flows, ${failed} failed`)
process.exit(failed ? 1 : 0)

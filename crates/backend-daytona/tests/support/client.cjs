// The main flows of the provider's JavaScript client, against a server of the tests.
const assert = require('node:assert')
const { Daytona } = require('@daytona/sdk')

async function main() {
  const daytona = new Daytona()
  const sandbox = await daytona.create({ name: 'from-javascript', envVars: { WORD: 'x y' } })
  const done = await sandbox.process.executeCommand('echo $WORD; exit 3')
  assert.deepEqual([done.result, done.exitCode], ['x y\n', 3])
  await sandbox.process.createSession('s1')
  const command = 'echo out; echo bad >&2'
  const split = await sandbox.process.executeSessionCommand('s1', { command })
  assert.deepEqual([split.stdout, split.stderr, split.exitCode], ['out\n', 'bad\n', 0])
  await sandbox.fs.uploadFile(Buffer.from('one\0two'), '/workspace/a.bin')
  const content = await sandbox.fs.downloadFile('/workspace/a.bin')
  assert.equal(content.toString(), 'one\0two')
  const files = await sandbox.fs.listFiles('/workspace')
  assert.ok(files.some((file) => file.name === 'a.bin'))
  const found = await daytona.get('from-javascript')
  assert.equal(found.id, sandbox.id)
  await sandbox.delete()
  console.log('all is well')
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error)
    process.exit(1)
  },
)

"""The main flows of the client of the bridge in openai-agents, against a server of the tests."""

import asyncio
import io
import sys

from agents.extensions.sandbox.cloudflare import CloudflareSandboxClient, CloudflareSandboxClientOptions


async def main():
    client = CloudflareSandboxClient()
    session = await client.create(options=CloudflareSandboxClientOptions(worker_url=sys.argv[1]))
    async with session:
        assert await session.running()
        done = await session.exec("printf out; printf 'bad\\n' >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code) == (b"out", b"bad\n", 3), done
        done = await session.exec("printf", "%s|", "it's", "two words", "$HOME\\n", shell=False)
        assert done.stdout == b"it's|two words|$HOME\\n|", done

        content = bytes(range(256)) * 1000
        await session.write("data/file.bin", io.BytesIO(content))
        assert (await session.read("data/file.bin")).read() == content

        packed = (await session.persist_workspace()).read()
        await session.exec("rm -rf /workspace/data")
        await session.hydrate_workspace(io.BytesIO(packed))
        assert (await session.read("data/file.bin")).read() == content

        begun = await session.pty_exec_start("read word; echo got $word; exit 4", tty=True, yield_time_s=1)
        ended = await session.pty_write_stdin(session_id=begun.process_id, chars="keys\n", yield_time_s=2)
        assert b"got keys" in begun.output + ended.output, (begun, ended)
    await client.delete(session)
    print("all is well")


asyncio.run(main())

//! What Python programs do every day goes on inside.

use crate::case::{Case, Checked, cases, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{printed, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("stdlib_smoke", [run_code, local], {
        programs_and_pipelines_run;
        threads_share_work;
        processes_share_work;
        event_loops_run_programs_and_servers;
        a_server_of_its_own_is_reached;
        a_database_keeps_rows;
        temporary_files_and_directories_come_and_go;
        encrypted_connections_are_made;
        libraries_are_called;
        what_was_compiled_runs;
        a_virtual_environment_is_made;
    })
}

async fn programs_and_pipelines_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import subprocess
a = subprocess.Popen(['printf', 'b\\\\na\\\\n'], stdout=subprocess.PIPE)
b = subprocess.run(['sort'], stdin=a.stdout, capture_output=True, text=True)
c = subprocess.run('exit 3', shell=True).returncode
(a.wait(), b.stdout, c, subprocess.check_output(['cat'], input=b'x'))";
    ensure_eq!(text(&sandbox, code).await?, r"(0, 'a\nb\n', 3, b'x')");
    Ok(())
}

async fn threads_share_work(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import concurrent.futures, queue, threading
q, lock, done = queue.Queue(), threading.Lock(), []
def work():
    while (item := q.get()) is not None:
        with lock: done.append(item)
threads = [threading.Thread(target=work) for _ in range(8)]
for t in threads: t.start()
for i in range(100): q.put(i)
for t in threads: q.put(None)
for t in threads: t.join()
with concurrent.futures.ThreadPoolExecutor(4) as pool: squares = sum(pool.map(lambda i: i * i, range(10)))
(len(done), sum(done), squares)";
    ensure_eq!(text(&sandbox, code).await?, "(100, 4950, 285)");
    Ok(())
}

async fn processes_share_work(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import concurrent.futures, multiprocessing
from multiprocessing import shared_memory
def square(i): return i * i
def put(q, name):
    block = shared_memory.SharedMemory(name); block.buf[0] = 7; block.close(); q.put('put')
context = multiprocessing.get_context('fork')
with context.Pool(3) as pool: pooled = sum(pool.map(square, range(10)))
q, block = context.Queue(), shared_memory.SharedMemory(create=True, size=16)
child = context.Process(target=put, args=(q, block.name)); child.start()
told = q.get(timeout=20); child.join()
shared = block.buf[0]; block.close(); block.unlink()
with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool: sums = sum(pool.map(square, range(4)))
(pooled, told, shared, child.exitcode, sums)";
    ensure_eq!(text(&sandbox, code).await?, "(285, 'put', 7, 0, 14)");
    Ok(())
}

async fn event_loops_run_programs_and_servers(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import asyncio
async def serve(reader, writer):
    writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()
async def ask(port):
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    writer.write(b'hello\\n'); answer = await reader.readline(); writer.close()
    return answer
async def main():
    server = await asyncio.start_server(serve, '127.0.0.1', 0)
    answers = await asyncio.gather(*(ask(server.sockets[0].getsockname()[1]) for _ in range(20)))
    program = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
    out, _ = await program.communicate(b'through')
    return set(answers), out, program.returncode, await asyncio.to_thread(lambda: 5)
await main()";
    ensure_eq!(text(&sandbox, code).await?, r"({b'HELLO\n'}, b'through', 0, 5)");
    Ok(())
}

async fn a_server_of_its_own_is_reached(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import http.server, socket, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(self.path.encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('localhost', 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
answer = urllib.request.urlopen(f'http://localhost:{server.server_port}/here', timeout=10).read()
server.shutdown(); server.server_close()
a, b = socket.socketpair(socket.AF_UNIX); a.send(b'local')
(answer, b.recv(9))";
    ensure_eq!(text(&sandbox, code).await?, "(b'/here', b'local')");
    Ok(())
}

async fn a_database_keeps_rows(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sqlite3
with sqlite3.connect('rows.db') as db:
    db.execute('pragma journal_mode=wal'); db.execute('create table rows (n)')
    db.executemany('insert into rows values (?)', [(i,) for i in range(1000)])
db.close()
sqlite3.connect('rows.db').execute('select count(*), sum(n) from rows').fetchone()";
    ensure_eq!(text(&sandbox, code).await?, "(1000, 499500)");
    Ok(())
}

async fn temporary_files_and_directories_come_and_go(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, tempfile
with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile('w+', dir=d) as file, tempfile.TemporaryFile() as unnamed:
    file.write('x'); file.flush(); unnamed.write(b'y'); unnamed.seek(0)
    inside = os.stat(file.name).st_size, unnamed.read(), oct(os.stat(d).st_mode & 0o777)
(inside, os.path.exists(d))";
    ensure_eq!(text(&sandbox, code).await?, "((1, b'y', '0o700'), False)");
    Ok(())
}

/// Both ends in memory: no connection is needed for the handshake. A client without trusted certificates refuses the end that
/// shows no certificate.
async fn encrypted_connections_are_made(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import hashlib, ssl
context = ssl.create_default_context()
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
client = context.wrap_bio(incoming, outgoing, server_hostname='example.com')
try: client.do_handshake()
except ssl.SSLWantReadError: pass
greeting = outgoing.read()
incoming.write(b'not a server at all')
try: client.do_handshake()
except ssl.SSLError as e: end = type(e).__name__
(greeting[0], b'example.com' in greeting, end, hashlib.sha256(b'').hexdigest()[:6], len(ssl.RAND_bytes(8)))";
    ensure_eq!(text(&sandbox, code).await?, "(22, True, 'SSLError', 'e3b0c4', 8)");
    Ok(())
}

async fn libraries_are_called(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import ctypes, ctypes.util
libc = ctypes.CDLL(None)
Compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
numbers = (ctypes.c_int * 4)(3, 1, 2, 0)
libc.qsort(numbers, 4, 4, Compare(lambda a, b: a[0] - b[0]))
(libc.strlen(b'four'), list(numbers))";
    ensure_eq!(text(&sandbox, code).await?, "(4, [0, 1, 2, 3])");
    Ok(())
}

async fn what_was_compiled_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = r#"import ctypes, subprocess
open('twice.c', 'w').write('#include <stdio.h>\nint twice(int n) { return 2 * n; }\nint main(void) { printf("%d\\n", twice(21)); return 3; }\n')
subprocess.run(['gcc', '-O1', '-o', 'twice', 'twice.c'], check=True)
subprocess.run(['gcc', '-shared', '-fPIC', '-o', 'twice.so', 'twice.c'], check=True)
done = subprocess.run(['./twice'], capture_output=True, text=True)
(done.stdout, done.returncode, ctypes.CDLL('./twice.so').twice(4))"#;
    ensure_eq!(text(&sandbox, code).await?, r"('42\n', 3, 8)");
    Ok(())
}

async fn a_virtual_environment_is_made(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, subprocess, sys, venv
venv.create('own', with_pip=False)
ask = 'import sys; print(sys.prefix != sys.base_prefix, sys.prefix)'
done = subprocess.run(['own/bin/python', '-c', ask], capture_output=True, text=True, check=True)
print(done.stdout.split()[0], done.stdout.split()[1] == os.path.abspath('own'))";
    ensure_eq!(printed(&sandbox, code).await?, "True True\n");
    Ok(())
}

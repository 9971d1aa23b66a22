# Uses multiprocessing by fork and by spawn, pools, shared memory, threads and asyncio servers in Python.
# has: python3
# hide: s/(line [0-9]+:) +[0-9]+ /\1 PID /

cat > t.py <<'END'
import asyncio, concurrent.futures as cf, multiprocessing as mp, os, queue, signal, socket, subprocess, sys, threading, time
from multiprocessing import shared_memory
def square(n): return n * n
def fill(name): m = shared_memory.SharedMemory(name); m.buf[0] = 7; m.close()
async def serve():
    async def handle(reader, writer): writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"line\n"); print(await reader.read()); server.close()
    child = await asyncio.create_subprocess_exec("sh", "-c", "cat; exit 3", stdin=-1, stdout=-1)
    print(await child.communicate(b"piped"), child.returncode)
    try: await asyncio.wait_for(asyncio.sleep(9), 0.1)
    except asyncio.TimeoutError: print("timed out")
if __name__ == "__main__":
    for method in ["fork", "spawn", "forkserver"]:
        with mp.get_context(method).Pool(2) as pool: print(method, pool.map(square, range(5)))
    memory = shared_memory.SharedMemory(create=True, size=10)
    p = mp.Process(target=fill, args=(memory.name,)); p.start(); p.join(); print(memory.buf[0], p.exitcode); memory.close(); memory.unlink()
    with cf.ProcessPoolExecutor(2) as pool: print(sum(pool.map(square, range(100), chunksize=10)))
    with mp.Manager() as manager: d = manager.dict(); d["k"] = 1; print(dict(d))
    results = queue.Queue(); threads = [threading.Thread(target=lambda: results.put(1)) for _ in range(50)]
    [t.start() for t in threads]; [t.join() for t in threads]; print(results.qsize())
    asyncio.run(serve())
    print("Listing:", end=" "); sys.stdout.flush(); subprocess.run(["echo", "file.txt"]); print("end")
    print(subprocess.run("kill -9 $$", shell=True).returncode, os.path.abspath(__file__) == os.path.join(os.getcwd(), "t.py"))
    signal.signal(signal.SIGALRM, lambda *_: print("alarm")); signal.setitimer(signal.ITIMER_REAL, 0.1); time.sleep(0.3)
    a, b = socket.socketpair(); a.send(b"x"); print(b.recv(1), socket.gethostbyname("localhost"), len(socket.if_nameindex()) > 0)
    threading.Thread(target=lambda: 1 / 0).start(); time.sleep(0.2); sys.stdout.flush(); os.abort()
END
python3 t.py 2> err; echo "status $?"; grep -c ZeroDivisionError err; rm -rf err __pycache__

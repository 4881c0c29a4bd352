"""Python's libraries that use the kernel: files, threads, processes, mappings, time.

The test `python` compares the output with that on Linux, so no line may depend on time or on the
order of threads.
"""
import concurrent.futures
import gc
import hashlib
import json
import mmap
import multiprocessing
import os
import queue
import re
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
import zlib


def work(number):
    return number, hashlib.sha256(bytes(number)).hexdigest()[:8]


def files():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "data")
        with open(path, "wb") as file:
            file.write(b"line\n" * 100_000)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            memory[0:4] = b"LINE"
            print("lines", len(re.findall(rb"(?i)line\n", memory)), memory.find(b"line"))
        print("size", os.stat(path).st_size, sorted(os.listdir(folder)))


def threads():
    jobs, done = queue.Queue(), []
    workers = [threading.Thread(target=lambda: [done.append(n) for n in iter(jobs.get, None)]) for _ in range(4)]
    for worker in workers:
        worker.start()
    for n in range(1000):
        jobs.put(n)
    for _ in workers:
        jobs.put(None)
    for worker in workers:
        worker.join()
    print("jobs", len(done), sum(done))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print("pool", sum(number for number, _ in pool.map(work, range(200))))


def processes():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print("processes", pool.map(work, range(5)))
    ran = subprocess.run([os.sys.executable, "-c", "import sys; print(sys.stdin.read().upper())"],
                         input="text", capture_output=True, text=True, check=True)
    print("subprocess", ran.stdout.strip(), ran.returncode)


def others():
    database = sqlite3.connect(":memory:")
    database.execute("create table t (a, b)")
    database.executemany("insert into t values (?, ?)", [(n, n * n) for n in range(1000)])
    print("sqlite", database.execute("select sum(a), sum(b) from t").fetchone())
    text = json.dumps({"numbers": list(range(10000))})
    print("json", len(json.loads(text)["numbers"]), len(zlib.decompress(zlib.compress(text.encode()))))
    nodes = [[] for _ in range(100_000)]
    for one, other in zip(nodes, nodes[1:]):
        one.append(other)
        other.append(one)
    del nodes, one, other
    print("collected", gc.collect() > 0)
    signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    before = time.monotonic()
    time.sleep(0.1)
    print("slept", time.monotonic() - before >= 0.1)


if __name__ == "__main__":
    files()
    threads()
    processes()
    others()

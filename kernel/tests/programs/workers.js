// Node: workers that share memory and wait for each other, heaps under pressure, files, a child process. The
// test `node` compares the output with that on Linux, so no line may depend on time or on the order of
// workers.
const { Worker, isMainThread, workerData, parentPort } = require("worker_threads");
const fs = require("fs");
const { spawnSync } = require("child_process");
const crypto = require("crypto");
const zlib = require("zlib");

const WORKERS = 4, ROUNDS = 5000;

if (!isMainThread) {
    const { cells, number } = workerData;
    const view = new Int32Array(cells);
    for (let round = 0; round < ROUNDS; round++) {
        Atomics.add(view, 0, 1);
        while (Atomics.load(view, 1) % WORKERS !== number && round < 100) Atomics.wait(view, 1, Atomics.load(view, 1), 1);
        if (round < 100) {
            Atomics.add(view, 1, 1);
            Atomics.notify(view, 1);
        }
    }
    let kept = [];
    for (let n = 0; n < 200000; n++) {
        kept.push({ n, text: "x" + n });
        if (kept.length > 20000) kept = kept.slice(10000);
    }
    const bytes = new Uint8Array(1 << 20).fill(number);
    parentPort.postMessage({ number, last: kept[kept.length - 1].text, bytes }, [bytes.buffer]);
} else {
    const cells = new SharedArrayBuffer(8);
    const started = [...Array(WORKERS).keys()].map(number => new Promise((done, failed) => {
        const worker = new Worker(__filename, { workerData: { cells, number } });
        worker.on("message", done).on("error", failed);
    }));
    Promise.all(started).then(async results => {
        for (const { number, last, bytes } of results) console.log(number, last, bytes.length, bytes[77]);
        console.log("shared", ...new Int32Array(cells));
        const memory = new WebAssembly.Memory({ initial: 1, maximum: 4096 });
        memory.grow(2047);
        new Uint8Array(memory.buffer)[134217727] = 7;
        console.log("wasm", memory.buffer.byteLength, new Uint8Array(memory.buffer)[134217727]);
        const text = "line\n".repeat(200000);
        fs.writeFileSync("/tmp/data", zlib.gzipSync(text));
        const back = zlib.gunzipSync(await fs.promises.readFile("/tmp/data"));
        console.log("gzip", back.length, crypto.createHash("sha256").update(back).digest("hex"));
        const child = spawnSync(process.execPath, ["-e", "process.stdout.write(String(6 * 7)); process.exit(3)"]);
        console.log("child", child.stdout.toString(), child.status);
        const before = Date.now();
        setTimeout(() => console.log("slept", Date.now() - before >= 49), 50);
    });
}

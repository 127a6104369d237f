// Tests against a real server: SPARSEAGG_SERVER=build/dev/service/sparseagg-server node --test js/
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { generateKeyPairSync } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";

import { Client, SparseaggError, hasEnded, homeOf, packKeys, unpackKeys, verifyReceipt } from "./sparseagg.js";

const SPEC = {
  tensors: [{ name: "w", dtype: "DTYPE_FLOAT32", numRows: 100_000, rowWidth: 2 }],
  aggregation: { returnCounts: true },
};

let server;
let client;
let folder;
let publicKey;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "sparseagg-js-"));
  const pair = generateKeyPairSync("ed25519");
  publicKey = pair.publicKey.export({ type: "spki", format: "pem" });
  const keyFile = join(folder, "key.pem");
  writeFileSync(keyFile, pair.privateKey.export({ type: "pkcs8", format: "pem" }));
  const flags = ["--certificate-key", keyFile, "--grpc-address", "127.0.0.1:0", "--metrics-address", "none", "--http-address", "127.0.0.1:0"];
  server = spawn(process.env.SPARSEAGG_SERVER, [...flags, "--log-level", "error"], { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: server.stdout })) {
    const found = / http=(\S+)/.exec(line);
    if (found) {
      client = new Client(`http://${found[1]}/`);
      return;
    }
  }
  throw new Error("the server ended at once");
});

after(() => {
  server.kill();
  rmSync(folder, { recursive: true });
});

test("a receipt is verified, and a changed one refused", { skip: !globalThis.crypto?.subtle }, async () => {
  const { name } = await client.createRound({ ...SPEC, certificate: {} });
  for (let i = 0; i < 5; ++i) {
    await client.submit(name, `c${i}`, { w: { keys: new Uint32Array([i]), values: new Float32Array([1, 2]) } });
  }
  const promise = await client.receipt(name, "c3");
  assert.equal(promise.leafIndex ?? null, null);
  await client.submit(name, "gone", { w: { keys: new Uint32Array([1]), values: new Float32Array([1, 2]) } });
  const withdrawn = await client.receipt(name, "gone");
  await client.withdraw(name, "gone");
  await client.closeRound(name);
  await client.waitRound(name);
  const { envelope, statement } = await client.certificate(name);
  assert.equal(statement.predicate.numSubmissions, 5);
  const other = generateKeyPairSync("ed25519").publicKey.export({ type: "spki", format: "pem" });
  for (let i = 0; i < 5; ++i) {
    const receipt = await client.receipt(name, `c${i}`);
    const { leafIndex, numSubmissions } = await verifyReceipt(receipt, envelope, other + publicKey);
    assert.deepEqual([leafIndex, numSubmissions], [i, 5]);
  }
  const good = await client.receipt(name, "c3");
  const refused = (receipt, text, trusted = publicKey) =>
    assert.rejects(verifyReceipt(receipt, envelope, trusted), (error) => error.code === "UNVERIFIED" && text.test(error.message));
  const leaf = Buffer.from(good.leaf, "base64");
  leaf[leaf.length - 1] ^= 1;
  await refused({ ...good, leaf: leaf.toString("base64") }, /another leaf/);
  await refused({ ...good, leafIndex: "2" }, /not in the certificate's tree/);
  await refused({ ...good, path: good.path.slice(1) }, /not in the certificate's tree/);
  await refused({ ...good, path: [...good.path, good.path[0]] }, /not in the certificate's tree/);
  await refused({ ...good, leafIndex: "11" }, /not in the certificate's tree/);
  await refused({ ...good, treeSize: "6" }, /its tree has 6 leaves/);
  await refused(promise, /no proof of inclusion/);
  await refused(withdrawn, /was withdrawn/);
  await refused(good, /no signature of a trusted key/, other);
  await refused(good, /no public key/, "");
  const message = JSON.parse(envelope);
  const payload = Buffer.from(message.payload, "base64").toString().replace('"numSubmissions":5', '"numSubmissions":6');
  const changed = JSON.stringify({ ...message, payload: Buffer.from(payload).toString("base64") });
  await assert.rejects(verifyReceipt(good, changed, publicKey), /certificate: it has no signature of a trusted key/);
});

test("receipts of a version of a stream", { skip: !globalThis.crypto?.subtle }, async () => {
  const { name } = await client.createStream({ round: { ...SPEC, certificate: {} }, buffer: 3 }, { streamId: "receipts" });
  const update = { w: { keys: new Uint32Array([7]), values: new Float32Array([1, 2]) } };
  for (const [clientId, submissionId] of [["a", "x"], ["b", "x"], ["a", "y"]]) {
    await client.submit(name, clientId, update, { baseVersion: 0, submissionId });
  }
  await client.waitRound("receipts.v1");
  const { envelope } = await client.certificate("receipts.v1");
  for (const [clientId, submissionId, index] of [["a", "x", 0], ["a", "y", 1], ["b", undefined, 2]]) {
    const receipt = await client.receipt("receipts.v1", clientId, { submissionId });
    assert.equal((await verifyReceipt(receipt, envelope, publicKey)).leafIndex, index);
  }
  await assert.rejects(client.receipt("receipts.v1", "a"), (error) => error.code === "FAILED_PRECONDITION" && /several/.test(error.message));
  await client.deleteStream(name);
});

test("a stream from creation to its versions", async () => {
  const spec = { round: { ...SPEC, aggregation: { op: "OP_SUM", weighting: "WEIGHTING_UNIFORM" } }, buffer: 2, stalenessWeights: [1, 0.5] };
  const { name } = await client.createStream(spec, { streamId: "js-stream" });
  assert.equal(name, "streams/js-stream");
  const update = (x) => ({ w: { keys: new Uint32Array([7]), values: new Float32Array([x, 2 * x]) } });
  const versions = client.watchVersions(name, { timeoutMs: 60_000 });
  const first = versions.next(); // asked before there is one
  for (const clientId of ["a", "b"]) await client.submit(name, clientId, update(1), { baseVersion: 0 });
  assert.equal((await first).value.round, "rounds/js-stream.v1");
  const late = await client.submit(name, "a", update(4), { baseVersion: 0 });
  assert.deepEqual([late.streamCommit.version, late.streamCommit.staleness], ["2", "1"]);
  await client.submit(name, "a", update(8), { baseVersion: 1, submissionId: "same" });
  const second = (await versions.next()).value;
  assert.deepEqual([second.version, second.cause, second.numSubmissions], ["2", "CUT_CAUSE_FULL", "2"]);
  assert.deepEqual(Array.from((await client.result(second.round)).w.values), [10, 20]); // 0.5 * 4 + 8
  assert.equal((await client.submit(name, "a", update(8), { baseVersion: 1, submissionId: "same" })).duplicate, true);
  await assert.rejects(client.submit(name, "c", update(1), { baseVersion: 0 }), (error) => error.code === "FAILED_PRECONDITION" && /stale by 2/.test(error.message));
  await assert.rejects(client.submit(name, "c", update(1), { baseVersion: 3 }), { code: "INVALID_ARGUMENT" });
  await client.submit(name, "c", update(3), { baseVersion: 2 });
  assert.equal((await client.cutStream(name, { version: 3 })).version, "4");
  assert.equal((await client.cutStream(name, { version: 3 })).version, "4"); // repeated
  assert.equal((await versions.next()).value.cause, "CUT_CAUSE_CALL");
  const seen = [];
  for await (const { version } of client.watchVersions(name, { after: 1, timeoutMs: 0 })) seen.push(version);
  assert.deepEqual(seen, ["2", "3"]);
  const names = [];
  for await (const stream of client.listStreams()) names.push(stream.name);
  assert.deepEqual(names, [name]);
  await client.deleteStream(name);
  await assert.rejects(client.getStream(name), { code: "NOT_FOUND" });
});

test("a round from creation to result", async () => {
  const round = await client.createRound(SPEC, { roundId: "js" });
  assert.equal(round.state, "ROUND_STATE_OPEN");
  const keys = Uint32Array.from({ length: 5000 }, (_, i) => i * 7);
  const values = Float32Array.from({ length: 10_000 }, (_, i) => i / 8);
  const progress = [];
  const packed = await client.submit("js", "packed", { w: { keys, values } }, {
    chunkBytes: 10_000,
    onProgress: (sent, all) => progress.push(sent / all),
  });
  assert.equal(packed.numTuples, "5000");
  assert.equal(progress.at(-1), 1);
  assert.ok(progress.length > 3);
  await client.submit(round.name, "plain", { w: { keys: [14, 7, 7], values: new Float32Array([1, 1, 2, 2, 3, 3]) } });
  await client.submit(round.name, "gone", { w: { keys: [1], values: new Float32Array([1, 1]) } });
  assert.equal(await client.withdraw(round.name, "gone"), true);
  const ids = [];
  for await (const submission of client.listSubmissions(round.name)) ids.push(submission.clientId);
  assert.deepEqual(ids, ["packed", "plain"]);
  await client.closeRound(round.name);
  assert.ok(hasEnded(await client.waitRound(round.name)));
  const { w } = await client.result(round.name, { pageBytes: 20_000 });
  assert.deepEqual(w.keys, keys);
  const expected = values.slice();
  expected.set([values[2] + 5, values[3] + 5], 2);
  expected.set([values[4] + 1, values[5] + 1], 4);
  assert.deepEqual(w.values, expected);
  assert.deepEqual([...w.counts.subarray(0, 4)], [1, 2, 2, 1]);
  const part = (await client.result(round.name, { begin: 14, end: 22 })).w;
  assert.deepEqual([...part.keys], [14, 21]);
});

test("dense tensors, wide keys and other types", async () => {
  const round = await client.createRound({
    tensors: [
      { name: "dense", dtype: "DTYPE_FLOAT64", numRows: 3, layout: "TENSOR_LAYOUT_DENSE" },
      { name: "hashed", dtype: "DTYPE_INT64", numRows: 0 },
      { name: "seen", dtype: "DTYPE_FLOAT32", numRows: 9, aggregation: { op: "OP_UNION" } },
    ],
  });
  const update = {
    dense: { values: new Float64Array([0.1, 0.2, 0.3]) },
    hashed: { keys: [2 ** 40, 5], values: new BigInt64Array([-1n, 2n ** 60n]) },
    seen: { keys: [3, 1], values: null },
  };
  await client.submit(round.name, "a", update);
  await client.closeRound(round.name);
  await client.waitRound(round.name);
  const result = await client.result(round.name);
  assert.deepEqual([...result.dense.keys], [0, 1, 2]);
  assert.deepEqual([...result.dense.values], [0.1, 0.2, 0.3]);
  assert.deepEqual([...result.hashed.keys], [5n, 2n ** 40n]);
  assert.deepEqual([...result.hashed.values], [2n ** 60n, -1n]);
  assert.deepEqual([...result.seen.keys], [1, 3]);
  assert.deepEqual([result.seen.values, [...result.seen.counts]], [null, [1, 1]]);
});

test("a sealed round takes nothing more, and weights at its close", async () => {
  const round = await client.createRound({ tensors: [{ name: "v", dtype: "DTYPE_FLOAT32", numRows: 9 }] });
  for (const [id, value] of [["a", 1], ["b", 2]]) {
    await client.submit(round.name, id, { v: { keys: [3], values: new Float32Array([value]) } });
  }
  assert.equal((await client.sealRound(round.name)).state, "ROUND_STATE_SEALED");
  const late = client.submit(round.name, "c", { v: { keys: [3], values: new Float32Array([4]) } });
  await assert.rejects(late, { code: "FAILED_PRECONDITION", message: /the round is SEALED/ });
  const clientWeights = [{ clientId: "a", weight: 0.5 }, { clientId: "b", weight: 2 }];
  await client.closeRound(round.name, { clientWeights });
  await client.waitRound(round.name);
  assert.deepEqual([...(await client.result(round.name)).v.values], [4.5]);
});

test("a cut result comes with moments", async () => {
  const round = await client.createRound({
    tensors: [{ name: "w", dtype: "DTYPE_FLOAT32", numRows: "10", rowWidth: 2 }],
    aggregation: { resultTopK: "1", returnMoments: true },
  });
  const values = new Float32Array([1, 1, 2, -3, 0, 1]);
  await client.submit(round.name, "a", { w: { keys: [5, 2, 7], values } });
  await client.closeRound(round.name);
  await client.waitRound(round.name);
  const { w } = await client.result(round.name);
  assert.deepEqual([[...w.keys], [...w.values], [...w.moments]], [[2], [2, -3], [4, 9]]);
  assert.equal(w.summary.numCutKeys, "2");
});

test("errors have the server's code and text", async () => {
  const fails = (promise, code, text) =>
    assert.rejects(promise, (error) => error instanceof SparseaggError && error.code === code && text.test(error.message));
  await fails(client.getRound("none"), "NOT_FOUND", /no round 'none'/);
  await fails(client.createRound({}), "INVALID_ARGUMENT", /tensor/);
  const round = await client.createRound(SPEC);
  const bad = { w: { keys: [100_000], values: new Float32Array(2) } };
  await fails(client.submit(round.name, "a", bad), "INVALID_ARGUMENT", /tensor 'w'.*100000/);
  await assert.rejects(client.submit(round.name, "a", { w: { keys: [-1], values: new Float32Array(2) } }), RangeError);
  for (const keys of [Int32Array.of(1), BigInt64Array.of(1n), Float64Array.of(1)]) {
    await assert.rejects(client.submit(round.name, "a", { w: { keys, values: new Float32Array(2) } }), /BigUint64Array/);
  }
  await assert.rejects(client.submit(round.name, "a", { w: { keys: [1, 2], values: new Float32Array(3) } }), RangeError);
});

test("keys survive packing", () => {
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  for (const [length, step] of [[1, 9], [2, 1], [127, 3], [128, 50], [129, 1], [1000, 2 ** 20], [300, 2 ** 40]]) {
    let key = Math.floor(random() * 100);
    const keys = Array.from({ length }, () => (key += 1 + Math.floor(random() * step)));
    assert.deepEqual(unpackKeys(packKeys(keys), keys[0], length), keys);
  }
  // docs/wire-format.md
  assert.equal(Buffer.from(packKeys([1000, 1001, 1007, 1010])).toString("hex"), "034005");
});

test("a busy server is asked again", async () => {
  let calls = 0;
  const busy = createServer((_, response) => {
    calls += 1;
    const failed = calls < 3;
    response.writeHead(failed ? 429 : 200, { "content-type": "application/json" });
    response.end(JSON.stringify(failed ? { code: "RESOURCE_EXHAUSTED", detail: "busy", retryDelayMs: 1 } : { version: "x" }));
  });
  await new Promise((ready) => busy.listen(0, "127.0.0.1", ready));
  const url = `http://127.0.0.1:${busy.address().port}`;
  assert.equal((await new Client(url).info()).version, "x");
  assert.equal(calls, 3);
  calls = 0;
  await assert.rejects(new Client(url, { retries: 1 }).info(), { code: "RESOURCE_EXHAUSTED", retryDelayMs: 1 });
  busy.close();
  busy.closeAllConnections?.();
  await assert.rejects(new Client(url, { retries: 0 }).info(), { code: "UNREACHABLE" });
});

test("a worker completes tasks and gives failed ones back", async () => {
  const round = await client.createRound(SPEC, { roundId: "worked" });
  const names = await client.createTasks([
    { taskId: "good", payload: "päyload", round: round.name, labels: ["js"] },
    { taskId: "bad", payload: new Uint8Array([0, 255]), labels: ["js"], maxAttempts: 1 },
  ]);
  const stop = new AbortController();
  const events = [];
  await client.work(
    "worker",
    async (task) => {
      if (task.name === "tasks/bad") throw new Error(`bytes ${task.payload}`);
      assert.equal(new TextDecoder().decode(task.payload), "päyload");
      const update = { w: { keys: [1], values: new Float32Array([1, 2]) } };
      return { ...(await client.submit(task.spec.round, "worker", update)), result: "fine" };
    },
    {
      labels: ["js"],
      signal: stop.signal,
      onEvent: (event, task) => {
        if (event !== "waiting") events.push(`${event} ${task.name}`);
        if (events.length === 4) stop.abort();
      },
    },
  );
  assert.deepEqual(events, ["leased tasks/good", "completed tasks/good", "leased tasks/bad", "failed tasks/bad"]);
  const [good, bad] = await Promise.all(names.map((name) => client.getTask(name)));
  assert.deepEqual([good.state, new TextDecoder().decode(good.result)], ["TASK_STATE_COMPLETED", "fine"]);
  assert.deepEqual([bad.state, /bytes 0,255/.test(bad.stateReason)], ["TASK_STATE_FAILED", true]);
  const listed = [];
  for await (const task of client.listTasks({ round: round.name })) listed.push(task.name);
  assert.deepEqual(listed, ["tasks/good"]);
});

test("homes are those of the servers and of Python", () => {
  assert.deepEqual(["", "a", "client-7", "ü"].map((id) => homeOf(id, 4)), [1, 3, 0, 1]);
});

// Tests against a real server: SPARSEAGG_SERVER=build/dev/service/sparseagg-server node --test js/
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
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

/** Starts a server; returns its process and its addresses. */
async function startServer(...args) {
  const flags = ["--grpc-address", "127.0.0.1:0", "--metrics-address", "none", "--http-address", "127.0.0.1:0"];
  const started = spawn(process.env.SPARSEAGG_SERVER, [...flags, "--log-level", "error", ...args], { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of createInterface({ input: started.stdout })) {
    const found = / grpc=(\S+).* http=(\S+)/.exec(line);
    if (found) return { process: started, grpc: found[1], http: found[2] };
  }
  throw new Error("the server ended at once");
}

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "sparseagg-js-"));
  const pair = generateKeyPairSync("ed25519");
  publicKey = pair.publicKey.export({ type: "spki", format: "pem" });
  const keyFile = join(folder, "key.pem");
  writeFileSync(keyFile, pair.privateKey.export({ type: "pkcs8", format: "pem" }));
  server = await startServer("--certificate-key", keyFile);
  client = new Client(`http://${server.http}/`);
});

after(() => {
  server.process.kill();
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
  await refused({ ...good, round: "rounds/other" }, /names another round/);
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
  await assert.rejects(client.submit(name, "c", update(1), { baseVersion: 0 }), (error) => error.reason === "STALE_BASE_VERSION" && error.metadata.staleness === "2");
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

test("uploads of one id are not mixed", async () => {
  const contentOf = (x) => ({ w: { keys: Uint32Array.from({ length: 60_000 }, (_, i) => i), values: new Float32Array(120_000).fill(x) } });
  /** A client whose requests fail after some chunks; `sent`: the numbers of the chunks that arrived. */
  const breaking = (numChunks, sent) =>
    new Client(`http://${server.http}`, {
      retries: 0,
      fetch: (url, options) => {
        const sequence = new URL(url).searchParams.get("sequence");
        if (sequence !== null && sent.length >= numChunks) throw new TypeError("broken");
        if (sequence !== null) sent.push(Number(sequence));
        return fetch(url, options);
      },
    });
  for (const [second, chunkBytes] of [[1, 200_000], [2, 200_000], [1, 400_000], [1, 150_000]]) {
    const { name } = await client.createRound(SPEC);
    const options = { submissionId: "same", chunkBytes: 200_000, pack: false };
    await assert.rejects(breaking(2, []).submit(name, "a", contentOf(1), options), { code: "UNREACHABLE" });
    const sent = [];
    const done = await breaking(99, sent).submit(name, "a", contentOf(second), { ...options, chunkBytes });
    assert.equal(done.duplicate, false);
    const isSame = second === 1 && chunkBytes === 200_000;
    assert.deepEqual(sent.slice(0, 2), isSame && globalThis.crypto?.subtle ? [0, 2] : [0, 1]);
    assert.equal((await client.submit(name, "a", contentOf(second), options)).duplicate, true);
    await assert.rejects(client.submit(name, "a", contentOf(3), options), { code: "ALREADY_EXISTS" });
    await client.closeRound(name);
    await client.waitRound(name);
    const { w } = await client.result(name);
    assert.equal(w.keys.length, 60_000);
    assert.ok(w.values.every((x) => x === second));
  }
});

test("a repeated chunk with other content is refused", async () => {
  const { name } = await client.createRound({ tensors: [{ name: "v", dtype: "DTYPE_FLOAT32", numRows: 9 }] });
  const post = async (path, body, type) => {
    const response = await fetch(`http://${server.http}/v1/${name}/${path}`, { method: "POST", headers: { "content-type": type }, body });
    return [response.status, await response.json()];
  };
  const put = (x) =>
    post("chunks?client_id=a&submission_id=one&last=true&tensor=v&key_encoding=U32&key_bytes=4", Uint8Array.of(3, 0, 0, 0, ...new Uint8Array(Float32Array.of(x).buffer)), "application/octet-stream");
  assert.equal((await put(1))[0], 200);
  assert.equal((await put(1))[0], 200);
  const [status, { code, detail }] = await put(100);
  assert.deepEqual([status, code], [409, "ALREADY_EXISTS"]);
  assert.match(detail, /chunk 0 has other content than the chunk 0 that came before; another submission_id, or/);
  const commit = JSON.stringify({ clientId: "a", submissionId: "one" });
  assert.equal((await post("submissions", commit, "application/json"))[0], 200);
  assert.equal((await put(1))[1].committed, true);
  await client.closeRound(name);
  await client.waitRound(name);
  assert.deepEqual([...(await client.result(name)).v.values], [1]);
});

test("a token is not sent in clear", async () => {
  const sent = [];
  const servers = ["http://b.example", "http://127.0.0.1:9", "https://c.example"].map((httpUrl) => ({ httpUrl }));
  const clientOf = (id) => Array.from({ length: 99 }, (_, i) => `c${i}`).find((each) => homeOf(each, 3) === id);
  const mocked = async (url, { headers }) => {
    sent.push([new URL(url).origin, headers.authorization]);
    if (/rounds\/r$/.test(url)) return Response.json({ state: "ROUND_STATE_SEALED", spec: { tensors: [{ name: "w" }], cluster: { servers, index: 9 } } });
    if (url.includes("/ranges")) {
      const ranges = JSON.stringify({ parts: [{ tensor: "w", server: 0, begin: 0, end: null, blocks: [0] }] });
      const head = JSON.stringify({ sections: [0, 0, 0, 0, 0], page: { slice: { keyEncoding: "KEY_ENCODING_U32" }, summary: {}, ranges } });
      return new Response(new Blob([Uint32Array.of(head.length), head]));
    }
    if (url.includes("/result")) return Response.json({ code: "FAILED_PRECONDITION" }, { status: 400 });
    return url.startsWith("https://a.example") ? new Response(null, { status: 307 }) : Response.json({ withdrawn: true });
  };
  const options = { token: "secret", fetch: mocked, retries: 0 };
  const gateway = new Client("https://a.example", options);
  const refused = { code: "INVALID_ARGUMENT", message: /everybody on the way to http:\/\/b.example could read the token/ };
  await assert.rejects(gateway.withdraw("r", clientOf(0)), refused);
  await assert.rejects(gateway.result("r"), refused);
  await assert.rejects(gateway.withdraw("r", clientOf(1)), { code: "FAILED_PRECONDITION", message: /http:\/\/127.0.0.1:9, on this machine/ });
  assert.equal(await gateway.withdraw("r", clientOf(2)), true);
  assert.deepEqual(new Set(sent.map(([origin]) => origin)), new Set(["https://a.example", "https://c.example"]));
  assert.equal(await new Client("https://a.example", { ...options, insecureToken: true }).withdraw("r", clientOf(0)), true);
  assert.deepEqual(sent.at(-1), ["http://b.example", "Bearer secret"]);
  assert.throws(() => new Client("http://b.example", options), refused);
  for (const url of ["http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1"]) new Client(url, options);
});

test("unknown options are refused", async () => {
  const { name } = await client.createRound(SPEC);
  const tensor = { keys: [1], values: new Float32Array(2) };
  const calls = {
    only: () => client.closeRound(name, { only: ["a"] }),
    id: () => client.createRound(SPEC, { id: "x" }),
    tensor: () => client.result(name, { tensor: "w" }),
    Weight: () => client.submit(name, "a", { w: tensor }, { Weight: 2 }),
    value: () => client.submit(name, "a", { w: { ...tensor, value: 1 } }),
    timeout: () => client.waitRound(name, { timeout: 1 }),
    state: () => client.listRounds({ state: "open" }).next(),
    label: () => client.leaseTask("a", { label: [] }),
    lease: () => client.work("a", () => {}, { lease: 1 }),
    after_version: () => client.watchVersions("s", { after_version: 1 }).next(),
  };
  for (const [option, call] of Object.entries(calls)) {
    await assert.rejects(async () => call(), { name: "TypeError", message: new RegExp(`unknown option "${option}"`) });
  }
  assert.throws(() => new Client("http://127.0.0.1:1", { tokens: "x" }), { name: "TypeError", message: /"tokens"/ });
  for (const url of ["127.0.0.1:8003", "localhost:8003", ""]) assert.throws(() => new Client(url), /begins with http/);
  assert.equal((await client.getRound(name)).state, "ROUND_STATE_OPEN");
});

const hasOpenssl = spawnSync("openssl", ["version"]).status === 0;

test("what is no gateway is named at once", { skip: !hasOpenssl }, async () => {
  const [key, certificate] = ["tls.key", "tls.pem"].map((file) => join(folder, file));
  const names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"];
  const made = spawnSync("openssl", ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2", ...names]);
  assert.equal(made.status, 0, `${made.stderr}`);
  const secure = await startServer("--tls-certificate", certificate, "--tls-key", key);
  try {
    for (const [url, text] of [
      [`https://${secure.http}`, /the certificate of https:\S+ is not trusted; NODE_EXTRA_CA_CERTS names .*self-signed/],
      [`http://${secure.http}`, /closes the connection without an answer: is it a port of https:/],
      [`https://${server.http}`, /there is no TLS at https:/],
      [`http://${server.grpc}`, /there is no HTTP\/1.1 at http:\S+: is it the port of gRPC/],
    ]) {
      let calls = 0;
      const counted = (...args) => ((calls += 1), fetch(...args));
      await assert.rejects(new Client(url, { fetch: counted }).info(), { code: "UNREACHABLE", message: text });
      assert.ok(calls <= 2, `${calls} calls of ${url}`);
    }
    const trusting = `import(${JSON.stringify(new URL("./sparseagg.js", import.meta.url).href)}).then(async ({ Client }) => console.log((await new Client("https://${secure.http}").info()).version))`;
    const environment = { ...process.env, NODE_EXTRA_CA_CERTS: certificate };
    const child = spawn(process.execPath, ["-e", trusting], { env: environment, stdio: ["ignore", "pipe", "inherit"] });
    const lines = [];
    for await (const line of createInterface({ input: child.stdout })) lines.push(line);
    assert.match(lines.join(), /^\d+\./);
  } finally {
    secure.process.kill();
  }
  const nobody = createServer();
  await new Promise((ready) => nobody.listen(0, "127.0.0.1", ready));
  const { port } = nobody.address();
  await new Promise((closed) => nobody.close(closed));
  await assert.rejects(new Client(`http://127.0.0.1:${port}`, { retries: 0 }).info(), /does not answer: fetch failed \(.*ECONNREFUSED/);
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

test("rows of a model are read at one version, and those that changed since another", async () => {
  const tensors = [{ name: "emb", dtype: "DTYPE_FLOAT32", numRows: 100_000, rowWidth: 2 }];
  const init = { kind: "INIT_KIND_UNIFORM", scale: 0.5, seed: "7" };
  const modelSpec = { tensors: [{ ...tensors[0], init }], keepVersions: 2 };
  const { name } = await client._json("POST", "/v1/models", {}, { modelId: "js", spec: modelSpec });
  const model = client.model(name);
  const names = [];
  for await (const each of client.listModels()) names.push(each.name);
  assert.ok(names.includes("models/js"), names.join());
  const keys = Uint32Array.from({ length: 5000 }, (_, i) => (i * 7919) % 100_000);
  const initial = await model.readRows("emb", keys);
  assert.equal(initial.version, "0");
  assert.equal(initial.values.length, 10_000);
  assert.ok(initial.values.every((value) => value !== 0 && Math.abs(value) < 0.5));

  const round = await client.createRound({ tensors });
  await client.submit(round.name, "c", { emb: { keys: [keys[0], keys[4999], 1], values: new Float32Array([1, 2, 3, 4, 5, 6]) } });
  await client.closeRound(round.name);
  await client.waitRound(round.name);
  const waiting = model.wait(0);
  await client._json("POST", "/v1/models/js:apply", {}, { round: round.name, baseVersion: "0" });
  assert.equal((await waiting).version, "1");
  const changed = await model.readRows("emb", keys, { since: 0 });
  assert.equal(changed.version, "1");
  assert.deepEqual([...changed.keys], [keys[0], keys[4999]]);
  const expected = [1, 2, 3, 4].map((d, i) => Math.fround(initial.values[i < 2 ? i : 9996 + i] + d));
  assert.deepEqual([...changed.values], expected);
  assert.deepEqual((await model.readRows("emb", [...keys], { version: 0 })).values, initial.values);
  assert.equal((await model.wait(1, { timeoutMs: 1 })).version, "1");
  await assert.rejects(model.readRows("emb", [100_000]), (error) => error.code === "INVALID_ARGUMENT");
});

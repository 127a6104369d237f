// A first round over HTTP: node first_round.mjs http://HOST:PORT
import { Client } from "../../js/sparseagg.js";

const client = new Client(process.argv[2]);
// An error is a SparseaggError, whose message has the place and the value.
const round = await client.createRound({ tensors: [{ name: "w", dtype: "float32", numRows: 50_000 }] });
await client.submit(round.name, "a", { w: { keys: new Uint32Array([3, 9]), values: new Float32Array([1, 2]) } });
await client.submit(round.name, "b", { w: { keys: new Uint32Array([9]), values: new Float32Array([10]) } });
await client.closeRound(round.name);
await client.waitRound(round.name);
const { w } = await client.result(round.name);
w.keys.forEach((key, i) => console.log(key, w.values[i]));

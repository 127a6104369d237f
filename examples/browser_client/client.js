// The page of a federated client: fetches tasks, trains on the text of the page, and submits.
// ?server=http://HOST:PORT in the address names the server, whose --http-origins has to list the page's origin.
import { Client, hasEnded, randomId } from "../../js/sparseagg.js";
import { Model, planOf, train } from "./next_character.js";

const SERVER = new URLSearchParams(location.search).get("server") ?? "http://127.0.0.1:8003";
const SAMPLE_LENGTH = 160;

const at = (id) => document.getElementById(id);
let stopping = null; // AbortController of the work under way
let completed = 0;

function show(text) {
  at("state").textContent = text;
}

function showProblem(error) {
  at("problem").textContent = error === null ? "" : error.message;
  at("problem").hidden = error === null;
}

function addRow(round, update) {
  const cells = [round.replace("rounds/", ""), update.lossBefore.toFixed(3), update.lossAfter.toFixed(3), `${update.keys.length}`];
  const row = document.createElement("tr");
  cells.forEach((text, i) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (i > 0) cell.className = "number";
    row.append(cell);
  });
  if (completed === 0) at("done").replaceChildren();
  at("done").prepend(row);
  completed += 1;
  at("counts").textContent = `${completed} done`;
}

/** Reads the merged change of a round that has ended, and lets the model write. */
async function showModel(client, round, plan, signal) {
  const state = await client.waitRound(round, { signal });
  if (!hasEnded(state) || state.state !== "ROUND_STATE_DONE") return;
  const rows = (await client.result(round, { tensors: [plan.tensor], signal }))[plan.tensor];
  const model = new Model([...plan.alphabet].length, rows);
  at("sample").textContent = model.write(plan.alphabet, "the ", SAMPLE_LENGTH);
  at("sample").hidden = false;
  at("model-note").textContent =
    `Merged from ${Number(state.numSubmissions).toLocaleString("en")} clients in ${round.replace("rounds/", "round ")}:`;
}

async function runTask(client, clientId, text, task, signal) {
  const plan = planOf(task.payload);
  const round = task.spec.round;
  show(`Training for ${round.replace("rounds/", "round ")} …`);
  await new Promise((resolve) => setTimeout(resolve)); // the page shows the line first
  const start = plan.model ? (await client.result(plan.model, { tensors: [plan.tensor], signal }))[plan.tensor] : undefined;
  const update = train(text, plan, start);
  show("Sending the update …");
  const submission = await client.submit(
    round,
    clientId,
    { [plan.tensor]: { keys: update.keys, values: update.values } },
    { weight: update.examples, signal, onProgress: (sent, all) => (at("progress").value = all > 0 ? sent / all : 1) },
  );
  addRow(round, update);
  showModel(client, round, plan, stopping.signal).catch(showUnlessStopped);
  return { submissionId: submission.submissionId };
}

function showUnlessStopped(error) {
  if (stopping !== null && !stopping.signal.aborted) showProblem(error);
}

async function start() {
  const clientId = at("name").value.trim();
  const text = at("text").value;
  stopping = new AbortController();
  at("start").disabled = true;
  at("stop").disabled = false;
  showProblem(null);
  const words = { waiting: "Waiting for a task …", completed: "Done, and counted" };
  try {
    const client = new Client(SERVER, { token: at("token").value.trim() || undefined, retries: 20 });
    await client.work(clientId, (task, signal) => runTask(client, clientId, text, task, signal), {
      signal: stopping.signal,
      labels: ["next-character", `client=${clientId}`], // a coordinator may mean this client
      onEvent: (event, task, error) => {
        if (words[event]) show(words[event]);
        if (event === "leased") at("progress").value = 0;
        if (event === "failed") showProblem(error);
      },
    });
    show("Stopped");
  } catch (error) {
    show("Stopped by an error");
    showProblem(error);
    if (error.code === "UNAUTHENTICATED") at("token-field").hidden = false;
  }
  at("start").disabled = false;
  at("stop").disabled = true;
}

at("status").href = SERVER;
at("name").value = `browser-${randomId().slice(0, 6)}`;
at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
at("stop").addEventListener("click", () => stopping?.abort());

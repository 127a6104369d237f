// The status page: asks the server every two seconds, and shows rounds, streams, models, tasks and the engine.
import { Client, hasEnded } from "/sparseagg.js";
import { addressed, collect, countSubmissions, cutText, partsOf, roundCard, stateCell } from "/detail.js";
import {
  at, axisEnd, bytesText, chart, element, facts, idOf, line, linkTo, memoryText, number, replaceChanged, secondsOf,
  secondsSince, span, table, timeText, word,
} from "/view.js";

const INTERVAL_MS = 2000;
const SHOWN_ROUNDS = 20;
const SHOWN_TASKS = 30;
const SHOWN_STREAMS = 20; // and models
const TOKEN = "sparseagg-token";

let client = clientOf(sessionStorage.getItem(TOKEN) ?? undefined);
let paused = false;
let showsAll = false;
let shownState = ""; // of the filter; empty: all
let rounds = []; // of the last answer
let lastAnswer = null; // its time
let lastReceived = null; // of the server, at the last answer
let lastTime = 0;
let lastCommits = new Map(); // by stream, with the time of the measurement

/** The page has come from the same address, which --insecure alone serves in clear beyond the loopback. */
function clientOf(token) {
  return new Client("", { token, insecureToken: true, retries: 0 });
}

const stateOf = (round) => word(round.state);

function showList() {
  const words = at("search").value.trim().toLowerCase();
  const fits = (round) =>
    (shownState === "" || stateOf(round) === shownState) &&
    [idOf(round.name), ...round.spec.tensors.map(({ name }) => name)].some((text) => text.toLowerCase().includes(words));
  const newest = rounds.filter(fits).reverse();
  const shown = newest.slice(0, showsAll ? undefined : SHOWN_ROUNDS);
  replaceChanged(at("rounds"), shown.map((round) => roundCard(round, true)));
  for (const chip of document.querySelectorAll("#filter button")) {
    const { state } = chip.dataset;
    chip.lastElementChild.textContent = number(rounds.filter((round) => state === "" || stateOf(round) === state).length);
  }
  at("none-fits").hidden = newest.length > 0 || rounds.length === 0;
  at("more").hidden = newest.length <= SHOWN_ROUNDS;
  at("filter").hidden = at("how").hidden = rounds.length === 0;
  at("no-rounds").hidden = rounds.length > 0;
}

/** What the server has done since its start and over ten minutes. `activity`: undefined where the caller may not know. */
function showActivity(activity, limit) {
  at("open-rounds").textContent = number(rounds.filter((round) => !hasEnded(round)).length);
  at("charts").hidden = activity === undefined;
  if (activity === undefined) return;
  const total = (name) => Number(activity[name] ?? 0);
  at("ended-rounds").textContent = number(total("numEndedRounds"));
  at("submissions").textContent = number(total("numSubmissions"));
  at("refused").textContent = number(total("numRefused"));
  at("received").textContent = bytesText(total("receivedBytes"));
  const start = new Date(activity.startTime).toLocaleString("sv-SE");
  at("since").textContent = `Since the server started, ${start}. Deleted rounds count, too.`;

  const now = performance.now();
  const received = total("receivedBytes");
  const rate = (1000 * Math.max(0, received - (lastReceived ?? received))) / Math.max(1, now - lastTime);
  lastReceived = received;
  lastTime = now;
  const interval = secondsOf(activity.historyInterval);
  const overTenMinutes = (label, values, highest, text) => {
    const points = values.map((value, i) => [(i + 1 - values.length) * interval, value]);
    return chart(label, points, [interval - 600, 0], highest, text, ["10 minutes ago", "now"]);
  };
  const totals = (activity.receivedBytesHistory ?? []).map(Number);
  const rates = [...totals.slice(1).map((bytes, i) => (bytes - totals[i]) / interval), rate];
  const highest = Math.max(...rates);
  const label = "Bytes received a second over the last ten minutes";
  const text = (bytes) => `${bytesText(bytes)}/s`;
  replaceChanged(at("rate-chart"), [overTenMinutes(label, rates, axisEnd(Math.max(1000, highest), 10), text)]);
  at("rate").textContent = text(rate);
  at("peak").textContent = `highest ${text(highest)}`;

  const used = total("residentBytes");
  at("memory-card").hidden = used === 0; // of administrators
  const memory = [...(activity.residentBytesHistory ?? []).map(Number), used];
  const most = Math.max(...memory);
  const scale = Math.min(limit || Infinity, axisEnd(most, 2));
  const drawn = overTenMinutes("Memory in use over the last ten minutes", memory, scale, memoryText);
  replaceChanged(at("memory-chart"), [drawn]);
  at("memory").textContent = memoryText(used);
  at("memory-limit").textContent = limit ? `of memory, at most ${memoryText(limit)}` : "of memory";
  at("memory-peak").textContent = `highest ${memoryText(most)}`;
}

function stalenessText(counts) {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all === 0) return "–";
  const mean = counts.reduce((sum, count, staleness) => sum + count * staleness, 0) / all;
  return `mean ${mean.toFixed(1)}, most ${counts.findLastIndex((count) => count > 0)}`;
}

function lastCutText({ lastCutCause, lastCutTime }) {
  return lastCutTime ? `${cutText(lastCutCause)}, ${timeText(Math.round(secondsSince(lastCutTime)))} ago` : "–";
}

/** Puts a table in its place, and hides its section if it has no rows. */
function showTable(id, heads, rows) {
  at(`${id}-section`).hidden = rows.length === 0;
  replaceChanged(at(id), [table(at(`${id}-title`).textContent, heads, rows)]);
}

function showStreams(streams) {
  const now = performance.now();
  const commits = new Map();
  const rows = streams.map((stream) => {
    const key = stream.name + stream.createTime;
    const count = Number(stream.numCommits);
    const last = lastCommits.get(key);
    commits.set(key, { count, now });
    const rate = last ? (1000 * Math.max(0, count - last.count)) / Math.max(1, now - last.now) : null;
    return [
      linkTo(stream.name),
      Number(stream.version),
      `${number(stream.numBuffered)} of ${number(stream.spec.buffer)}`,
      rate === null ? "–" : Number(rate.toPrecision(3)),
      Number(stream.numRefused),
      stalenessText((stream.stalenessCounts ?? []).map(Number)),
      lastCutText(stream),
    ];
  });
  lastCommits = commits;
  showTable("streams", ["Stream", "#Version", "#Buffered", "#Commits/s", "#Refused", "Staleness", "Last cut"], rows);
}

function showModels(models) {
  const rows = models.map((model) => [
    linkTo(model.name),
    Number(model.version),
    model.tensors.reduce((sum, { numRows }) => sum + Number(numRows), 0),
    memoryText(model.memoryBytes),
    [linkTo(model.spec.stream), model.waitingReason ? span("error", ` waits: ${model.waitingReason}`) : ""],
  ]);
  showTable("models", ["Model", "#Version", "#Rows touched", "#Memory", "Stream"], rows);
}

function showTasks(tasks) {
  const rows = tasks.slice(-SHOWN_TASKS).reverse().map((task) => [
    linkTo(task.name),
    stateCell(task),
    linkTo(task.spec?.round),
    task.lease?.clientId || "–",
    Number(task.attempts),
  ]);
  showTable("tasks", ["Task", "State", "Round", "Worker", "#Attempts"], rows);
}

function showServer(info) {
  const isNote = (text) => text.startsWith("note: ");
  const warnings = [...(info.warnings ?? [])].sort((one, other) => isNote(one) - isNote(other));
  const lines = warnings.map((text) => line(isNote(text) ? "faint" : "error", text.replace("note: ", "")));
  replaceChanged(at("warnings"), lines); // what stays is not read aloud again
  at("warnings").hidden = lines.length === 0;
  at("server").textContent = `${info.version} · ${info.engineDescription}`;
  const { limits } = info;
  const shown = {
    Address: location.origin,
    Version: info.version,
    Engine: `${info.engine}: ${info.engineDescription}`,
    "Memory limit": memoryText(limits.memoryLimitBytes),
    "Largest message": memoryText(limits.maxMessageBytes),
    "Open rounds, at most": number(limits.maxOpenRounds),
    "Submissions of a round, at most": number(limits.maxSubmissions),
    "Connections, at most": number(limits.maxConnections),
    "An ended round is kept, at most": timeText(secondsOf(limits.maxResultTtl)),
    "An upload may pause": timeText(secondsOf(limits.uploadTimeout)),
  };
  replaceChanged(at("limits"), [facts("Server", shown)]);
}

async function showAll(info) {
  const none = () => []; // not every role may see all, and an older server has no models
  const [streams, models, listed, tasks] = await Promise.all([
    collect(client.listStreams(), SHOWN_STREAMS),
    collect(client.listModels(), SHOWN_STREAMS).catch(none),
    collect(client.listRounds(), 5000),
    collect(client.listTasks(), 5000).catch(none),
  ]);
  rounds = listed;
  countSubmissions(rounds, true);
  return () => {
    showStreams(streams);
    showModels(models);
    showActivity(info.activity, Number(info.limits.memoryLimitBytes));
    showList();
    showTasks(tasks);
  };
}

async function showOne(target) {
  const parts = await partsOf(client, target);
  return () => {
    at("one-title").textContent = target.id;
    at("one-kind").textContent = target.kind;
    replaceChanged(at("one-parts"), parts);
  };
}

async function update() {
  const { hash } = location;
  const target = addressed(hash);
  try {
    const info = await client.info({ withActivity: true });
    const show = await (target ? showOne(target) : showAll(info));
    if (location.hash !== hash) return; // the reader has gone on meanwhile
    showServer(info);
    show();
    document.title = target ? `${target.id} – sparseagg` : "sparseagg – status";
    at("one").hidden = target === null;
    at("content").classList.toggle("one", target !== null);
    lastAnswer = new Date();
    at("content").hidden = false;
    at("content").classList.remove("stale");
    at("sign-in").hidden = true;
    at("problem").hidden = true;
    at("updated").textContent = `Updated ${lastAnswer.toLocaleTimeString("sv-SE")}.`;
  } catch (error) {
    const needsToken = error.code === "UNAUTHENTICATED";
    if (at("sign-in").hidden && needsToken) {
      at("sign-in").hidden = false;
      at("token").focus();
    }
    at("problem").textContent = needsToken && !client.token ? "This server needs a token." : error.message;
    at("problem").hidden = false;
    const seen = lastAnswer ? `last seen ${lastAnswer.toLocaleTimeString("sv-SE")}` : "no answer";
    at("server").textContent = needsToken ? "" : seen;
    at("content").classList.add("stale"); // what it shows is of then
  }
}

/** A line to copy, with the address of this server. */
function copyable(command) {
  const text = element("pre", { textContent: command });
  const button = element("button", { className: "quiet", type: "button", textContent: "Copy" });
  button.addEventListener("click", async () => {
    getSelection().selectAllChildren(text);
    await navigator.clipboard?.writeText(command); // beyond the loopback, only pages of https have it
    if (navigator.clipboard) button.textContent = "Copied";
  });
  return element("li", {}, text, button);
}

function showFirstSteps() {
  const post = (path, message) =>
    `curl ${location.origin}/v1/rounds${path} ${client.token ? '-H "authorization: Bearer $TOKEN" ' : ""}` +
    `-H 'content-type: application/json' -d '${JSON.stringify(message)}'`;
  const update = { tensor: "w", keyEncoding: "U32", keys: "AwAAAAkAAAA=", values: "AACAPwAAAEA=" }; // 3: 1.0, 9: 2.0
  at("first").replaceChildren(
    copyable(post("", { roundId: "first", spec: { tensors: [{ name: "w", dtype: "float32", numRows: 1000 }] } })),
    copyable(post("/first/batches", { clientIds: "me", submissionId: "one", numKeys: "AgAAAA==", slices: [update] })),
    copyable(post("/first:close", {})),
  );
}

async function run() {
  for (;;) {
    if (!paused && !document.hidden) await update();
    await new Promise((resolve) => setTimeout(resolve, INTERVAL_MS));
  }
}

at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", `${paused}`);
});
at("more").addEventListener("click", () => {
  showsAll = !showsAll;
  at("more").setAttribute("aria-pressed", `${showsAll}`);
  showList();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // #main may be a round
  at("main").focus();
});
at("search").addEventListener("input", showList);
at("filter").addEventListener("submit", (event) => event.preventDefault());
for (const chip of document.querySelectorAll("#filter button")) {
  chip.addEventListener("click", () => {
    shownState = chip.dataset.state;
    for (const each of document.querySelectorAll("#filter button")) each.setAttribute("aria-pressed", `${each === chip}`);
    showList();
  });
}
addEventListener("hashchange", async () => {
  await update();
  const title = at(at("one").hidden ? "rounds-title" : "one-title");
  title.scrollIntoView();
  if (title.tabIndex === -1) title.focus();
});
at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token").value.trim());
  client = clientOf(at("token").value.trim());
  showFirstSteps();
  update();
});
showFirstSteps();
run();

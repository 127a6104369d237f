// The status page: asks the server every two seconds, and shows streams, rounds, tasks and the engine.
import { Client, hasEnded } from "/sparseagg.js";

const INTERVAL_MS = 2000;
const SHOWN_ROUNDS = 20;
const SHOWN_TASKS = 30;
const SHOWN_STREAMS = 20;
const SHOWN_SUBMISSIONS = 200;
const TOKEN = "sparseagg-token";

const at = (id) => document.getElementById(id);
let client = clientOf(sessionStorage.getItem(TOKEN) ?? undefined);
let paused = false;
let showsAll = false;
let shownState = ""; // of the filter; empty: all
let rounds = []; // of the last answer
let lastAnswer = null; // its time
let listedState = ""; // of the round whose submissions are listed
let lastReceived = null; // of the server, at the last answer
let lastTime = 0;
let lastCommits = new Map(); // by stream, with the time of the measurement

/** The page has come from the same address, which --insecure alone serves in clear beyond the loopback. */
function clientOf(token) {
  return new Client("", { token, insecureToken: true, retries: 0 });
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Puts children in the place of a parent's, of which equal ones stay: with them a selection, and a reader's place. */
function replaceChanged(parent, children) {
  const titles = [...(parent.parentElement.tHead?.rows[0].cells ?? [])].map((title) => title.textContent);
  for (const child of children) titles.forEach((title, i) => child.cells[i].setAttribute("data-label", title));
  const added = Math.max(0, children.length - parent.children.length);
  parent.prepend(...children.slice(0, added)); // the newest come first
  children.slice(added).forEach((child, i) => {
    const old = parent.children[added + i];
    if (old.isEqualNode(child)) return;
    const focused = [...old.querySelectorAll("a, button")].indexOf(document.activeElement);
    old.replaceWith(child);
    child.querySelectorAll("a, button")[focused]?.focus({ preventScroll: true }); // who reads by keyboard stays here
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function inUnits(bytes, step, units) {
  let unit = 0;
  while (bytes >= step && unit < units.length - 1) {
    bytes /= step;
    ++unit;
  }
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toPrecision(3)} ${units[unit]}`;
}

// Data in powers of 1000, memory in powers of 1024, as in `sparseagg top`.
const bytesText = (bytes) => inUnits(bytes, 1000, ["B", "kB", "MB", "GB", "TB"]);
const memoryText = (bytes) => inUnits(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);

function timeText(seconds) {
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toPrecision(3)} ms`;
  if (seconds < 120) return `${seconds.toPrecision(3)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

const secondsOf = (duration) => Number((duration ?? "0s").replace("s", ""));
const shortState = (state, prefix) => state.replace(prefix, "").toLowerCase();

function stateBadge(state, prefix) {
  const name = shortState(state, prefix);
  return element("span", { className: `state ${name}`, textContent: name });
}

function timelineOf(round) {
  const stages = (round.timeline?.stages ?? [])
    .map(({ stage, busy, wait }) => ({ stage, busy: secondsOf(busy), wait: secondsOf(wait) }))
    .filter(({ busy, wait }) => busy + wait > 0);
  const all = stages.reduce((sum, { busy, wait }) => sum + busy + wait, 0);
  if (all === 0) return [];
  const bar = element("div", { className: "bar" });
  bar.setAttribute("aria-hidden", "true"); // the list says the same
  const legend = element("ul", { className: "legend" });
  legend.setAttribute("aria-label", "Stages");
  for (const { stage, busy, wait } of stages) {
    for (const [seconds, kind] of [[busy, ""], [wait, " wait"]]) {
      const part = element("span", { className: stage + kind });
      part.style.width = `${(100 * seconds) / all}%`;
      bar.append(part);
    }
    const waits = wait > 0 ? `, ${timeText(wait)} waiting` : "";
    legend.append(element("li", { className: stage, textContent: `${stage} ${timeText(busy)}${waits}` }));
  }
  return [bar, legend];
}

const idOf = (round) => round.name.replace("rounds/", "");

/** A round: an entry of the list, or the head of its own page, with a legend of its bar. */
function roundCard(round, isEntry) {
  const ended = hasEnded(round);
  const id = idOf(round);
  const title = element("h3", {}, element("a", { href: `#${encodeURIComponent(id)}`, textContent: id }));
  const submissions = Number(round.numSubmissions);
  const facts = [
    plural(submissions, "submission"),
    `${Number(round.numTuples).toLocaleString("en")} tuples`,
    bytesText(Number(round.numBytes)),
    round.spec.tensors.map(({ name }) => name).join(", "),
  ];
  const { servers = [], index = 0 } = round.spec.cluster ?? {};
  if (servers.length > 0) facts.push(`server ${index + 1} of ${servers.length} of a cluster`);
  if (Number(round.numUploads) > 0) facts.push(`${plural(Number(round.numUploads), "upload")} under way`);
  const open = secondsOf(round.timeline?.open);
  const result = round.state === "ROUND_STATE_DONE" ? `, result in ${timeText(secondsOf(round.timeline?.finish))}` : "";
  const when = ended
    ? `open ${timeText(open)}${result}`
    : `open for ${timeText(open || Math.max(0, (Date.now() - Date.parse(round.createTime)) / 1000))}`;
  const card = element(
    isEntry ? "li" : "div",
    { className: isEntry ? "card" : "" },
    element(
      "div",
      { className: "row" },
      ...(isEntry ? [title] : []),
      stateBadge(round.state, "ROUND_STATE_"),
      element("span", { className: "faint end", textContent: when }),
    ),
    element("p", { className: "facts faint", textContent: facts.join(" · ") }),
  );
  if (Number(round.numRefused) > 0) {
    card.append(element("p", { className: "error", textContent: `${plural(Number(round.numRefused), "submission")} refused` }));
  }
  const clipped = Number(round.clip?.numClipped ?? 0);
  if (clipped > 0) {
    const by = [["L2 norm", round.clip.numL2], ["value", round.clip.numLinf], ["number of keys", round.clip.numMaxKeys]];
    const reasons = by.filter(([, count]) => Number(count) > 0).map(([bound, count]) => `${bound} ${count}`);
    const text = `${plural(clipped, "submission")} clipped: ${reasons.join(", ")}`;
    card.append(element("p", { className: "faint", textContent: text }));
  }
  const refusal = round.recentRefusals?.at(-1);
  if (refusal && isEntry) {
    const reason = `the latest, of ${refusal.clientId}: ${refusal.code}: ${refusal.reason}`;
    card.append(element("p", { className: "error", textContent: reason }));
  }
  if (round.stateReason) card.append(element("p", { className: "error", textContent: round.stateReason }));
  card.append(...timelineOf(round).slice(0, isEntry ? 1 : 2));
  return card;
}

const certificateTexts = new Map(); // by round, of the buttons that were pressed

/** A button that saves the certificate of a round; its text then says how much that states, or why there is none. */
function certificateButton(name, id) {
  const textContent = certificateTexts.get(name) ?? "Certificate";
  const button = element("button", { type: "button", className: "quiet", textContent });
  button.addEventListener("click", async () => {
    try {
      const { envelope, statement } = await client.certificate(name);
      const link = element("a", { download: `${id}-certificate.json` });
      link.href = URL.createObjectURL(new Blob([envelope], { type: "application/json" }));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href)); // the download has begun by then
      certificateTexts.set(name, `Certificate of ${plural(statement.predicate.numSubmissions, "submission")}`);
    } catch (error) {
      certificateTexts.set(name, `No certificate: ${error.message}`);
    }
    button.textContent = certificateTexts.get(name);
  });
  return button;
}

/** A row of a table; numbers to the right. */
function cells(...texts) {
  const made = texts.map((text) =>
    element("td", { className: typeof text === "number" || text === "–" ? "number" : "", textContent: text.toLocaleString("en") }),
  );
  return element("tr", {}, ...made);
}

const shareText = (share) => `${Number((100 * share).toPrecision(3))} %`;

/** The page of one round, which the address names behind #. */
async function showOne(round) {
  at("one-title").textContent = idOf(round);
  const card = roundCard(round, false);
  if (round.spec.certificate && hasEnded(round)) card.append(certificateButton(round.name, idOf(round)));
  replaceChanged(at("one-card"), [card]);
  const results = new Map((round.results ?? []).map((summary) => [summary.name, summary]));
  const rows = round.spec.tensors.map((tensor) => {
    const result = results.get(tensor.name);
    const all = Number(tensor.numRows ?? 0);
    const found = result ? Number(result.numKeys) : NaN;
    return cells(
      tensor.name,
      shortState(tensor.layout ?? "TENSOR_LAYOUT_SPARSE", "TENSOR_LAYOUT_"),
      shortState(tensor.dtype, "DTYPE_"),
      all || "any",
      Number(tensor.rowWidth || 1),
      result ? found : "–",
      result && all ? shareText(found / all) : "–",
    );
  });
  replaceChanged(at("one-tensors"), rows);
  const refusals = (round.recentRefusals ?? []).map(({ clientId, code, reason }) => cells(clientId, code, reason)).reverse();
  replaceChanged(at("one-refusals"), refusals.length > 0 ? refusals : [cells("none", "", "")]);
  const state = [round.name, round.createTime, round.state, round.numSubmissions, round.numTuples].join(" ");
  if (state === listedState) return; // the list on the page is of this state
  try {
    const found = await collect(client.listSubmissions(round.name), SHOWN_SUBMISSIONS);
    const lines = found.map(({ clientId, numTuples, numBytes, weight }) =>
      cells(clientId, Number(numTuples), bytesText(Number(numBytes)), Number(weight ?? 1)),
    );
    replaceChanged(at("one-submissions"), lines);
    const all = Number(round.numSubmissions);
    at("one-note").textContent = `${found.length < all ? `The first ${found.length} of ` : ""}${plural(all, "submission")}, by client.`;
    listedState = state;
  } catch (error) {
    replaceChanged(at("one-submissions"), []);
    listedState = "";
    at("one-note").textContent = error.message; // not every role may see who has submitted
  }
}

function showView() {
  const round = rounds.find((each) => `#${encodeURIComponent(idOf(each))}` === location.hash);
  at("one-round").hidden = round === undefined;
  at("content").classList.toggle("one", round !== undefined);
  if (round !== undefined) return showOne(round);
  showList();
  return undefined;
}

function showList() {
  const words = at("search").value.trim().toLowerCase();
  const fits = (round) =>
    (shownState === "" || shortState(round.state, "ROUND_STATE_") === shownState) &&
    [idOf(round), ...round.spec.tensors.map(({ name }) => name)].some((text) => text.toLowerCase().includes(words));
  const newest = rounds.filter(fits).reverse();
  replaceChanged(at("rounds"), newest.slice(0, showsAll ? undefined : SHOWN_ROUNDS).map((round) => roundCard(round, true)));
  at("none-fits").hidden = newest.length > 0 || rounds.length === 0;
  at("more").hidden = newest.length <= SHOWN_ROUNDS;
  at("no-rounds").hidden = rounds.length > 0;
}

/** Draws values, the latest at the right edge of a chart with room for `most` of them. */
function draw(chart, values, most, highest) {
  const points = values.map((value, i) => `${(120 * (most - values.length + i)) / (most - 1)},${39 - (37 * value) / highest}`);
  const line = points.join("L");
  chart.querySelector(".line").setAttribute("d", points.length > 1 ? `M${line}` : "");
  chart.querySelector(".area").setAttribute("d", points.length > 1 ? `M${points[0].split(",")[0]},40L${line}L120,40Z` : "");
}

/** What the server has done since its start and over ten minutes. `activity`: undefined where this caller may not know. */
function showActivity(activity, limit) {
  at("open-rounds").textContent = rounds.filter((round) => !hasEnded(round)).length.toLocaleString("en");
  at("charts").hidden = activity === undefined;
  if (activity === undefined) return;
  const total = (name) => Number(activity[name] ?? 0);
  at("ended-rounds").textContent = total("numEndedRounds").toLocaleString("en");
  at("submissions").textContent = total("numSubmissions").toLocaleString("en");
  at("refused").textContent = total("numRefused").toLocaleString("en");
  at("received").textContent = bytesText(total("receivedBytes"));
  at("since").textContent = `Since the start of the server, ${new Date(activity.startTime).toLocaleString()}; with what was deleted since.`;

  const now = performance.now();
  const rate = lastReceived === null ? 0 : (1000 * Math.max(0, total("receivedBytes") - lastReceived)) / Math.max(1, now - lastTime);
  lastReceived = total("receivedBytes");
  lastTime = now;
  const interval = secondsOf(activity.historyInterval);
  const most = 600 / interval;
  const totals = (activity.receivedBytesHistory ?? []).map(Number);
  const rates = totals.slice(1).map((bytes, i) => (bytes - totals[i]) / interval);
  const highest = Math.max(...rates, rate);
  draw(at("rate-chart"), [...rates, rate], most, highest || 1);
  at("rate").textContent = `${bytesText(rate)}/s`;
  at("peak").textContent = `highest ${bytesText(highest)}/s`;

  const used = total("residentBytes");
  at("memory-card").hidden = used === 0; // of administrators
  const memory = [...(activity.residentBytesHistory ?? []).map(Number), used];
  draw(at("memory-chart"), memory, most, limit || Math.max(...memory));
  at("memory").textContent = memoryText(used);
  at("memory-limit").textContent = limit ? `of memory in use, of at most ${memoryText(limit)}` : "of memory in use";
  at("memory-peak").textContent = `highest ${memoryText(Math.max(...memory))}`;
}

function stalenessText(counts) {
  const all = counts.reduce((sum, count) => sum + count, 0);
  if (all === 0) return "–";
  const mean = counts.reduce((sum, count, staleness) => sum + count * staleness, 0) / all;
  return `mean ${mean.toFixed(1)}, most ${counts.findLastIndex((count) => count > 0)}`;
}

function cutText({ lastCutCause, lastCutTime }) {
  if (!lastCutTime) return "–";
  const ago = Math.max(0, (Date.now() - Date.parse(lastCutTime)) / 1000);
  return `${shortState(lastCutCause, "CUT_CAUSE_")}, ${ago < 120 ? `${Math.round(ago)} s` : timeText(ago)} ago`;
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
    return cells(
      stream.name.replace("streams/", ""),
      Number(stream.version),
      `${Number(stream.numBuffered).toLocaleString("en")} of ${Number(stream.spec.buffer).toLocaleString("en")}`,
      rate === null ? "–" : Number(rate.toPrecision(3)),
      stalenessText((stream.stalenessCounts ?? []).map(Number)),
      cutText(stream),
    );
  });
  lastCommits = commits;
  replaceChanged(at("streams"), rows);
  at("streams-section").hidden = rows.length === 0;
}

function showTasks(tasks) {
  const rows = tasks.slice(-SHOWN_TASKS).reverse().map((task) =>
    element(
      "tr",
      {},
      element("td", { textContent: task.name.replace("tasks/", "") }),
      element("td", {}, stateBadge(task.state, "TASK_STATE_"), task.stateReason ? ` ${task.stateReason}` : ""),
      element("td", { textContent: (task.spec?.round ?? "").replace("rounds/", "") || "–" }),
      element("td", { textContent: task.lease?.clientId || "–" }),
      element("td", { className: "number", textContent: `${task.attempts}` }),
    ),
  );
  replaceChanged(at("tasks"), rows);
  at("tasks-card").hidden = rows.length === 0;
  at("no-tasks").hidden = rows.length > 0;
}

function showServer(info) {
  const warnings = (info.warnings ?? []).join(" · ");
  if (at("warnings").textContent !== warnings) at("warnings").textContent = warnings; // else it would be read aloud again
  at("warnings").hidden = warnings === "";
  at("server").textContent = `${info.version} · ${info.engineDescription}`;
  const limits = info.limits;
  const facts = [
    ["Version", info.version],
    ["Engine", `${info.engine}: ${info.engineDescription}`],
    ["Memory limit", memoryText(Number(limits.memoryLimitBytes))],
    ["Largest message", memoryText(Number(limits.maxMessageBytes))],
    ["Open rounds, at most", Number(limits.maxOpenRounds).toLocaleString("en")],
    ["Submissions of a round, at most", Number(limits.maxSubmissions).toLocaleString("en")],
    ["An ended round is kept", timeText(secondsOf(limits.maxResultTtl))],
    ["An upload may pause", timeText(secondsOf(limits.uploadTimeout))],
  ];
  replaceChanged(
    at("limits"),
    facts.map(([name, value]) =>
      element("tr", {}, Object.assign(element("th", { textContent: name }), { scope: "row" }), element("td", { textContent: value })),
    ),
  );
}

async function collect(generator, most) {
  const found = [];
  for await (const each of generator) {
    found.push(each);
    if (found.length >= most) break;
  }
  return found;
}

async function update() {
  try {
    const [info, streams, listed, tasks] = await Promise.all([
      client.info({ withActivity: true }),
      collect(client.listStreams(), SHOWN_STREAMS),
      collect(client.listRounds(), 5000),
      collect(client.listTasks(), 5000).catch(() => []), // not every role may see tasks
    ]);
    showServer(info);
    showStreams(streams);
    rounds = listed;
    lastAnswer = new Date();
    showActivity(info.activity, Number(info.limits.memoryLimitBytes));
    await showView();
    showTasks(tasks);
    at("content").hidden = false;
    at("content").classList.remove("stale");
    at("sign-in").hidden = true;
    at("problem").hidden = true;
    at("updated").textContent = `Updated ${new Date().toLocaleTimeString()}.`;
  } catch (error) {
    const needsToken = error.code === "UNAUTHENTICATED";
    if (at("sign-in").hidden && needsToken) {
      at("sign-in").hidden = false;
      at("token").focus();
    }
    at("problem").textContent = needsToken && !client.token ? "This server needs a token." : error.message;
    at("problem").hidden = false;
    at("server").textContent = needsToken ? "" : lastAnswer ? `last seen ${lastAnswer.toLocaleTimeString()}` : "no answer";
    at("content").classList.add("stale"); // what it shows is of then
  }
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
  await showView();
  const title = at(at("one-round").hidden ? "rounds-title" : "one-title");
  title.scrollIntoView();
  if (title.tabIndex === -1) title.focus();
});
at("first-curl").textContent =
  `curl ${location.origin}/v1/rounds -H 'content-type: application/json' \\\n` +
  `  -d '{"spec": {"tensors": [{"name": "w", "dtype": "float32", "numRows": 1000}]}}'`;
at("first-python").textContent =
  'import sparseagg as sa\n' +
  'client = sa.Client("HOST:8001")  # the address of gRPC\n' +
  'client.create_round(sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=1000)]))';
at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token").value.trim());
  client = clientOf(at("token").value.trim());
  update();
});
run();

// The page of one round, stream, model or task, which the address names behind #.
import { hasEnded } from "/sparseagg.js";
import {
  axisEnd, badge, bytesText, chart, element, facts, idOf, line, linkTo, memoryText, moment, number, optionsText, part,
  plural, secondsOf, secondsSince, span, table, timelineOf, timeText, word,
} from "/view.js";

const SHOWN_SUBMISSIONS = 200;
const SHOWN_VERSIONS = 100;
const KEPT_POINTS = 500; // of the submissions of a round over time
const counted = new Map(); // by round, what the page has seen of its submissions: [time, number], …
const certificateTexts = new Map(); // by round, of the buttons that were pressed
let listed = {}; // the submissions of the round that is shown, and the state of it in which they were asked for

export async function collect(generator, most) {
  const found = [];
  for await (const each of generator) {
    found.push(each);
    if (found.length >= most) break;
  }
  return found;
}

/** Notes how many submissions rounds have, for the chart of one; of `all` rounds also forgets the others. */
export function countSubmissions(rounds, all) {
  const keys = new Set(rounds.map((round) => round.name + round.createTime));
  for (const key of counted.keys()) if (all && !keys.has(key)) counted.delete(key);
  for (const round of rounds) {
    const key = round.name + round.createTime;
    if (hasEnded(round) && !counted.has(key)) continue;
    const points = counted.get(key) ?? [];
    counted.set(key, points);
    if (hasEnded(round) && points.at(-1)[1] === Number(round.numSubmissions)) continue;
    points.push([Date.now(), Number(round.numSubmissions)]);
    if (points.length > KEPT_POINTS) points.splice(0, points.length, ...points.filter((_, i) => i % 2 === 1));
  }
}

const reasonClass = ({ state }) => (/FAILED$/.test(state) ? "error" : "faint"); // a cancellation is no fault

/** The state of a version or a task, and why. */
export function stateCell({ state, stateReason }) {
  return [badge(state), stateReason ? span(reasonClass({ state }), ` ${stateReason}`) : ""];
}


/** "1 of 3 needed"; of a round that has them: "reached, 3 needed". */
function quorumText({ spec, numSubmissions }) {
  const isReached = Number(numSubmissions) >= Number(spec.minSubmissions);
  return `${isReached ? "reached, " : `${number(numSubmissions)} of `}${number(spec.minSubmissions)} needed`;
}

/** A round: an entry of the list, or the head of its own page, with a legend of its bar. */
export function roundCard(round, isEntry) {
  const ended = hasEnded(round);
  const { spec } = round;
  const { servers = [], index = 0 } = spec.cluster ?? {};
  const figures = [
    plural(round.numSubmissions, "submission"),
    !ended && Number(round.numSubmissions) < Number(spec.minSubmissions) ? quorumText(round) : "",
    plural(round.numTuples, "tuple"),
    bytesText(round.numBytes),
    spec.tensors.map(({ name }) => name).join(", "),
    servers.length > 0 ? `server ${index + 1} of ${servers.length} of a cluster` : "",
    Number(round.numUploads) > 0 ? `${plural(round.numUploads, "upload")} under way` : "",
  ];
  const open = secondsOf(round.timeline?.open);
  const result = round.state === "ROUND_STATE_DONE" ? `, result in ${timeText(secondsOf(round.timeline?.finish))}` : "";
  const when = ended ? `${timeText(open)}${result}` : `for ${timeText(open || secondsSince(round.createTime))}`;
  const card = element(isEntry ? "li" : "div", { className: "card" });
  const row = element("div", { className: "row" });
  if (isEntry) row.append(element("h3", {}, linkTo(round.name)));
  row.append(badge(round.state), ...(spec.privacy ? [badge("private")] : []), span("faint end", `open ${when}`));
  card.append(row, line("facts faint", figures.filter(Boolean).join(" · ")));
  const refusal = round.recentRefusals?.at(-1);
  if (Number(round.numRefused) > 0) {
    const latest = refusal && isEntry ? `; the latest, of ${refusal.clientId}: ${refusal.code}: ${refusal.reason}` : "";
    card.append(line("error", `${plural(round.numRefused, "submission")} refused${latest}`));
  }
  const clipped = Number(round.clip?.numClipped ?? 0);
  if (clipped > 0) {
    const { numL2, numLinf, numMaxKeys } = round.clip;
    const by = [["L2 norm", numL2], ["value", numLinf], ["number of keys", numMaxKeys]];
    const reasons = by.filter(([, count]) => Number(count) > 0).map(([bound, count]) => `${bound} ${number(count)}`);
    card.append(line("faint", `${plural(clipped, "submission")} clipped: ${reasons.join(", ")}`));
  }
  if (round.stateReason) card.append(line(reasonClass(round), round.stateReason));
  card.append(...timelineOf(round).slice(0, isEntry ? 1 : 2));
  return card;
}

/** A button that saves the certificate of a round; its text then says how much that states, or why there is none. */
function certificateButton(client, name) {
  const textContent = certificateTexts.get(name) ?? "Certificate";
  const button = element("button", { type: "button", className: "quiet", textContent });
  button.addEventListener("click", async () => {
    try {
      const { envelope, statement } = await client.certificate(name);
      const link = element("a", { download: `${idOf(name)}-certificate.json` });
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

const shareText = (share) => `${Number((100 * share).toPrecision(3))} %`;

function clipText({ l2, linf, maxKeys, onClip }) {
  const bounds = [l2 && `L2 norm ${l2}`, linf && `values ±${linf}`, maxKeys && plural(maxKeys, "key")].filter(Boolean);
  return `${bounds.join(", ")}; beyond: ${word(onClip) === "reject" ? "refused" : "clipped"}`;
}

/** What a round computes, and its limits: entries of facts. */
function specFacts(spec) {
  const { aggregation = {}, clip, privacy } = spec;
  const most = Number(spec.maxSubmissions);
  return {
    Operation: word(aggregation.op, "sum"),
    Weighting: word(aggregation.weighting, "uniform"),
    Options: optionsText(aggregation, ["op", "weighting"]),
    "Closes itself": most > 0 && !spec.stayOpen ? `at ${plural(most, "submission")}` : null,
    Clip: clip ? clipText(clip) : "none",
    Privacy: privacy ? optionsText(privacy) : "none",
    Certificate: spec.certificate ? "signed" : null,
  };
}

function deadlineText({ spec, createTime, closeTime }) {
  if (!spec.deadline) return "none";
  const end = Date.parse(createTime) + 1000 * secondsOf(spec.deadline);
  const left = (end - Date.now()) / 1000;
  return [moment(new Date(end).toISOString()), closeTime || left < 0 ? "" : `, in ${timeText(left)}`];
}

/** What a private round does to its result. */
function privacyText({ keys }) {
  const rows =
    word(keys) === "public"
      ? "It has the public keys alone."
      : "Rows that few clients have sent are missing on purpose: a key is in it only if its noisy score is high enough.";
  return `All values of the result have noise, so that it does not tell who took part. ${rows}`;
}

/** Why else a result has fewer rows than the keys that clients have sent; empty: nothing was left out. */
function missingRows({ spec, results = [] }) {
  const why = [];
  const least = Number(spec.aggregation?.minContributors ?? 1);
  if (least > 1) why.push(`Keys of fewer than ${number(least)} submissions are left out.`);
  const cut = results.reduce((sum, { numCutKeys }) => sum + Number(numCutKeys ?? 0), 0);
  if (cut > 0) why.push(`${plural(cut, "row")} of small norm ${cut === 1 ? "is" : "are"} cut.`);
  return why.join(" ");
}

function tensorTable({ spec, results = [] }) {
  const found = new Map(results.map((summary) => [summary.name, summary]));
  const rows = spec.tensors.map((tensor) => {
    const all = Number(tensor.numRows ?? 0);
    const keys = found.has(tensor.name) ? Number(found.get(tensor.name).numKeys) : null;
    const own = [optionsText(tensor.aggregation), tensor.clip && clipText(tensor.clip)].filter(Boolean).join(", ");
    return [
      tensor.name,
      word(tensor.layout, "sparse"),
      word(tensor.dtype),
      all || "any",
      Number(tensor.rowWidth || 1),
      keys ?? "–",
      keys !== null && all ? shareText(keys / all) : "–",
      own || "as the round",
    ];
  });
  const heads = ["Layout", "Type", "#Rows", "#Values of a row", "#Rows of the result", "#Share", "Aggregation"];
  return table("Tensors", ["Tensor", ...heads], rows);
}

const refusalPart = (refusals, all) =>
  part(
    "one-refusals",
    "Refused",
    Number(all) === 0
      ? null
      : table(
          "Refused",
          ["Time", "Client", "Code", "Reason"],
          refusals.map(({ time, clientId, code, reason }) => [moment(time) ?? "–", clientId, code, reason]).reverse(),
        ),
    refusals.length < Number(all) ? `The latest ${refusals.length} of ${number(all)}.` : "",
  );

function submissionChart(round) {
  const points = counted.get(round.name + round.createTime) ?? [];
  if (points.length < 2) return null;
  const highest = axisEnd(Math.max(2, ...points.map(([, count]) => count)), 10);
  const range = [points[0][0], points.at(-1)[0]];
  const ends = range.map((time) => new Date(time).toLocaleTimeString("sv-SE"));
  const drawn = chart("Submissions since this page was opened", points, range, highest, number, ends);
  return element("div", { className: "card" }, drawn);
}

/** The parts of a page in two columns, where there is room for them. */
const columns = (...parts) => element("div", { className: "columns" }, ...parts);

async function submissionPart(client, round) {
  const state = [round.name, round.createTime, round.state, round.numSubmissions, round.numTuples].join(" ");
  if (state !== listed.state) {
    listed = { state, note: "" };
    try {
      listed.found = await collect(client.listSubmissions(round.name), SHOWN_SUBMISSIONS);
    } catch (error) {
      listed = { state: "", found: [], note: error.message }; // not every role may see who has submitted
    }
  }
  const { found } = listed;
  const all = Number(round.numSubmissions);
  const note = `${found.length < all ? `The first ${found.length} of ` : ""}${plural(all, "submission")}, by client.`;
  const rows = found.map(({ clientId, numTuples, numBytes, weight, clientWeight }) => [
    clientId,
    Number(numTuples),
    bytesText(numBytes),
    `${weight ?? 1}${clientWeight === undefined ? "" : ` × ${clientWeight}`}`,
  ]);
  const content = found.length > 0 ? table("Submissions", ["Client", "#Tuples", "#Size", "#Weight"], rows) : "";
  return part("one-submissions", "Submissions", content, listed.note || note);
}

async function roundParts(client, round) {
  countSubmissions([round], false);
  const head = roundCard(round, false);
  if (round.spec.privacy) head.append(line("private", privacyText(round.spec.privacy)));
  if (round.spec.certificate && hasEnded(round)) head.append(certificateButton(client, round.name));
  const { timeline = {} } = round;
  const times = {
    Created: moment(round.createTime),
    Deadline: deadlineText(round),
    Closed: moment(round.closeTime),
    Ended: moment(round.endTime),
    Expires: moment(round.expireTime),
    "Merged in": round.state === "ROUND_STATE_DONE" ? timeText(secondsOf(timeline.finish)) : null,
    Engine: round.engine,
  };
  const spec = { Quorum: Number(round.spec.minSubmissions) > 0 ? quorumText(round) : "none", ...specFacts(round.spec) };
  return [
    head,
    columns(
      part("one-spec", "Spec", facts("Spec", spec)),
      element(
        "div",
        {},
        part("one-times", "Times", facts("Times", times)),
        part("one-chart", "Submissions over time", submissionChart(round), "Since this page was opened."),
      ),
    ),
    part("one-tensors", "Tensors", tensorTable(round), missingRows(round)),
    refusalPart(round.recentRefusals ?? [], round.numRefused),
    await submissionPart(client, round),
  ];
}

async function streamParts(client, stream) {
  const { spec } = stream;
  const version = Number(stream.version);
  const after = Math.max(0, version - 1 - SHOWN_VERSIONS);
  const versions = await collect(client.watchVersions(stream.name, { after, timeoutMs: 0 }), SHOWN_VERSIONS);
  const weights = spec.stalenessWeights?.length > 0 ? spec.stalenessWeights : [1];
  const counts = (stream.stalenessCounts ?? []).map(Number);
  const now = {
    "Being filled": `version ${number(version)}: ${number(stream.numBuffered)} of ${plural(spec.buffer, "commit")}`,
    Commits: `${number(stream.numCommits)} since the start of the server`,
    Refused: number(stream.numRefused),
    "Uploads under way": number(stream.numUploads),
    "Latest cut": stream.lastCutTime ? [moment(stream.lastCutTime), `, ${cutText(stream.lastCutCause)}`] : "none",
    Created: moment(stream.createTime),
  };
  const limits = {
    "Cut by time": spec.maxInterval ? `${timeText(secondsOf(spec.maxInterval))} after the first commit` : "no",
    "Of one client": spec.onePerClient ? "one commit in a version" : "any number of commits",
  };
  const rows = versions
    .map((each) => [
      linkTo(each.round),
      Number(each.version),
      stateCell(each),
      Number(each.numSubmissions),
      cutText(each.cause),
      moment(each.cutTime) ?? "–",
    ])
    .reverse();
  const heads = ["Round", "#Version", "State", "#Submissions", "Cut", "At"];
  const staleness = table(
    "Staleness",
    ["Staleness", "#Weight", "#Commits"],
    weights.map((weight, i) => [i, weight, counts[i] ?? 0]),
  );
  return [
    columns(
      part("one-now", "Now", facts("Now", now)),
      element(
        "div",
        {},
        part("one-spec", "Spec", facts("Spec", { ...specFacts(spec.round), ...limits })),
        part("one-staleness", "Staleness", staleness, "Since the start of the server. Larger ones are refused."),
      ),
    ),
    part("one-versions", "Latest versions", rows.length > 0 ? table("Versions", heads, rows) : null),
    part("one-tensors", "Tensors", tensorTable({ spec: spec.round })),
    refusalPart(stream.recentRefusals ?? [], stream.numRefused),
  ];
}

export const cutText = (cause) => ({ full: "full", timer: "by time", call: "by a call" })[word(cause)] ?? "–";

function modelParts(client, model) {
  const { spec } = model;
  const now = {
    Version: number(model.version),
    "Oldest to read": number(model.oldestVersion),
    Memory: memoryText(model.memoryBytes),
    "Made by": spec.stream ? ["stream ", linkTo(spec.stream)] : "rounds that a coordinator applies",
    Waits: model.waitingReason ? span("error", model.waitingReason) : null,
    Created: moment(model.createTime),
  };
  const settings = {
    Optimizer: word(spec.optimizer?.kind, "sgd"),
    Options: optionsText(spec.optimizer, ["kind"]),
    "Older versions kept": Number(spec.keepVersions) || "2, or as many as the stream needs",
    Reads: word(spec.reads, "keys"),
  };
  const tensors = spec.tensors.map((tensor, i) => {
    const init = optionsText(tensor.init, ["kind", "seed"]);
    return [
      tensor.name,
      `${word(tensor.dtype)} × ${number(tensor.rowWidth || 1)}`,
      Number(model.tensors[i].numRows),
      Number(tensor.numRows) || "any",
      Number(model.tensors[i].numRemoved),
      `${model.learningRates?.[i] ?? "–"}`,
      init && Number(tensor.init.scale) ? `${word(tensor.init.kind)}, ${init}` : "zeros",
      word(tensor.optimizer?.kind, "the model's"),
    ];
  });
  const heads = ["Tensor", "Row", "#Rows touched", "#Of", "#Removed", "#Learning rate", "First values", "Optimizer"];
  const versions = (model.versions ?? [])
    .map((each) => [`${each.version}`, linkTo(each.round), Number(each.numRows), each.emptyReason || "–"])
    .reverse();
  return [
    columns(part("one-now", "Now", facts("Now", now)), part("one-spec", "Spec", facts("Spec", settings))),
    part("one-tensors", "Tensors", table("Tensors", heads, tensors)),
    part("one-versions", "Versions", table("Versions", ["Version", "Round", "#Rows touched", "Why empty"], versions)),
  ];
}

/** Bytes of a task as text, if they are one, shortened; else how many they are. */
function contentOf(bytes) {
  if (!bytes?.length) return null;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    const shown = text.length > 2000 ? `${text.slice(0, 2000)}…` : text;
    if (!/[\0-\x08\x0e-\x1f]/.test(text)) return element("code", { textContent: shown });
  } catch {
    // no text
  }
  return bytesText(bytes.length);
}

function taskParts(client, task) {
  const { spec, lease } = task;
  const remaining = secondsOf(lease?.remaining);
  const now = {
    State: stateCell(task),
    Attempts: `${number(task.attempts)} of ${number(spec.maxAttempts)}`,
    Worker: lease?.clientId,
    "Lease ends": remaining > 0 ? [moment(lease.expireTime), `, in ${timeText(remaining)}`] : null,
    Submission: task.submissionId,
    Result: contentOf(task.result),
    Created: moment(task.createTime),
    Ended: moment(task.endTime),
    Expires: moment(task.expireTime),
  };
  const settings = {
    Round: spec.round ? linkTo(spec.round) : "none",
    Owner: task.owner,
    Labels: spec.labels?.join(", "),
    Priority: number(spec.priority),
    Deadline: spec.deadline ? deadlineText({ ...task, closeTime: task.endTime }) : "none",
    Payload: contentOf(spec.payload),
  };
  return [columns(part("one-now", "Now", facts("Now", now)), part("one-spec", "Spec", facts("Spec", settings)))];
}

const KINDS = {
  round: { get: (client, id) => client.getRound(id), parts: roundParts },
  stream: { get: (client, id) => client.getStream(id), parts: streamParts },
  model: { get: (client, id) => client.model(id).info(), parts: modelParts },
  task: { get: (client, id) => client.getTask(id), parts: taskParts },
};

/** What an address names behind #: kind and id; null: all. Of rounds the id alone. */
export function addressed(hash) {
  if (hash.length < 2) return null;
  const [, kind = "round", id] = /^#(?:(stream|model|task)s\/)?(.*)$/.exec(hash);
  try {
    return { kind, id: decodeURIComponent(id) };
  } catch {
    return { kind, id }; // a % that stands for itself
  }
}

/** Asks for what the address names; returns the parts of its page. */
export async function partsOf(client, { kind, id }) {
  try {
    return await KINDS[kind].parts(client, await KINDS[kind].get(client, id));
  } catch (error) {
    if (error.code !== "NOT_FOUND" && error.code !== "INVALID_ARGUMENT") throw error;
    return [line("card", `This ${kind} is deleted or expired; or there was none of this name.`)];
  }
}

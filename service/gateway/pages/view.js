// What the pages are made of: elements, texts of numbers and times, tables, bars and charts.

export const at = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export const span = (className, textContent) => element("span", { className, textContent });
export const line = (className, textContent) => element("p", { className, textContent });

const CONTAINERS = "section, .scroll, .columns, .columns > div, table, tbody"; // whose children are compared one by one

/** Puts children in the place of a parent's, of which equal ones stay: with them a selection, and a reader's place. */
export function replaceChanged(parent, children) {
  const added = Math.max(0, children.length - parent.children.length);
  parent.prepend(...children.slice(0, added)); // the newest come first
  children.slice(added).forEach((child, i) => {
    const old = parent.children[added + i];
    if (old.isEqualNode(child)) return;
    if (child.matches(CONTAINERS) && old.tagName === child.tagName && old.id === child.id) {
      old.hidden = child.hidden;
      replaceChanged(old, [...child.children]);
      return;
    }
    const focused = [...old.querySelectorAll("a, button")].indexOf(document.activeElement);
    old.replaceWith(child);
    child.querySelectorAll("a, button")[focused]?.focus({ preventScroll: true }); // who reads by keyboard stays here
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

export const number = (value) => Number(value ?? 0).toLocaleString("en");
export const plural = (count, noun) => `${number(count)} ${noun}${Number(count) === 1 ? "" : "s"}`;

function inUnits(bytes, step, units) {
  let unit = 0;
  while (bytes >= step && unit < units.length - 1) {
    bytes /= step;
    ++unit;
  }
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : Number(bytes.toPrecision(3))} ${units[unit]}`;
}

// Data in powers of 1000, memory in powers of 1024, as in `sparseagg top`.
export const bytesText = (bytes) => inUnits(Number(bytes), 1000, ["B", "kB", "MB", "GB", "TB"]);
export const memoryText = (bytes) => inUnits(Number(bytes), 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);

export const secondsOf = (duration) => Number((duration ?? "0s").replace("s", ""));
export const secondsSince = (time) => Math.max(0, (Date.now() - Date.parse(time)) / 1000);

export function timeText(seconds) {
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 10) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** A time of the server with its date, in the reader's zone: "2026-11-30 13:41:14". */
export function moment(time) {
  if (!time) return null;
  return element("time", { dateTime: time, textContent: new Date(time).toLocaleString("sv-SE") }); // Swedes write it so
}

const ENUM = /^([A-Z]+_)?(STATE|CAUSE|LAYOUT|DTYPE|OP|WEIGHTING|NUMERICS|POLICY|DIVISOR|SELECTION|KIND)_/;

/** The word for a value of an enum: "by weight"; `otherwise` if it is not given. */
export const word = (value, otherwise = "") =>
  /UNSPECIFIED$/.test(value ?? "UNSPECIFIED")
    ? otherwise
    : `${value}`.replace(ENUM, "").replaceAll("_", " ").toLowerCase();

/** What a message sets, in words, without the fields of `skip`: "l2 1, max keys 4000". */
export function optionsText(message, skip = []) {
  return Object.entries(message ?? {})
    .filter(([name, value]) => !skip.includes(name) && value !== false && typeof value !== "object" && word(value))
    .map(([name, value]) => {
      const words = name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
      return value === true ? words : `${words} ${typeof value === "number" ? value : word(value)}`;
    })
    .join(", ");
}

export function badge(state) {
  const name = word(state);
  return span(`state ${name}`, name);
}

/** The id in a name such as "rounds/news-41". */
export const idOf = (name) => name.replace(/^[a-z]+\//, "");

/** A link to the page of what a name names; of rounds the address is the id alone. */
export function linkTo(name) {
  if (!name) return "–";
  const kind = name.startsWith("rounds/") ? "" : name.slice(0, name.indexOf("/") + 1);
  return element("a", { href: `#${kind}${encodeURIComponent(idOf(name))}`, textContent: idOf(name) });
}

/** A table whose columns with a title of "#" before it are of numbers, which stand on the right. */
export function table(label, heads, rows) {
  const titles = heads.map((head) => head.replace("#", ""));
  const cell = (name, content, i) =>
    element(
      name,
      { className: heads[i].startsWith("#") ? "number" : "" },
      element("span", {}, ...[typeof content === "number" ? number(content) : content].flat()),
    );
  const head = titles.map((title, i) => Object.assign(cell("th", title, i), { scope: "col" }));
  const body = rows.map((row) => element("tr", {}, ...row.map((content, i) => cell("td", content, i))));
  for (const line of body) titles.forEach((title, i) => line.cells[i].setAttribute("data-label", title));
  const made = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  made.setAttribute("aria-label", label);
  return element("div", { className: "card scroll" }, made);
}

/** A table of names and what they have; without those that have nothing. */
export function facts(label, entries) {
  const rows = Object.entries(entries)
    .filter(([, content]) => content !== null && content !== undefined && content !== "")
    .map(([name, content]) =>
      element("tr", {}, element("th", { scope: "row", textContent: name }), element("td", {}, ...[content].flat())),
    );
  const made = element("table", { className: "pairs" }, element("tbody", {}, ...rows));
  made.setAttribute("aria-label", label);
  return element("div", { className: "card scroll" }, made);
}

/** A part of a page, with a title; hidden if there is nothing in it. */
export function part(id, title, content, note = "") {
  const head = element("h3", { className: "sub", textContent: title });
  return element("section", { id, hidden: content === null }, head, ...(note ? [line("note", note)] : []), content ?? "");
}

/** The end of an axis for values up to `value` > 0: a power of two; or 1, 2 or 4 times a power of ten. */
export function axisEnd(value, base) {
  if (base === 2) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 10].find((digit) => digit * power >= value);
}

/**
 * A chart of points [x, y] over an axis from 0 to `highest`, whose values `text` writes. `ends`: what stands below its
 * left and its right end, for the smallest and the largest x of `range`.
 */
export function chart(label, points, [first, last], highest, text, ends) {
  const placeOf = ([x, y]) => [(120 * (x - first)) / (last - first || 1), 39 - (38 * y) / highest];
  const places = points.map((point) => placeOf(point).map((each) => each.toFixed(2)).join());
  const line = places.length > 1 ? `M${places.join("L")}` : "";
  const area = line && `${line}L${places.at(-1).split(",")[0]},39L${places[0].split(",")[0]},39Z`;
  const made = element("div", { className: "chart" });
  // Of numbers alone.
  made.innerHTML =
    `<svg viewBox="0 0 120 40" preserveAspectRatio="none" role="img">` +
    `<path class="grid" d="M0 1H120M0 20H120M0 39H120"/>` +
    `<path class="area" d="${area}"/><path class="line" d="${line}"/></svg>`;
  made.firstElementChild.setAttribute("aria-label", label);
  const scale = [highest, highest / 2, 0].map((value) => span("", text(value)));
  made.prepend(element("div", { className: "scale" }, ...scale));
  made.append(element("div", { className: "ends" }, ...ends.map((end) => span("", end))));
  return made;
}

/** The bar and the legend of where the time of a round went; nothing if it took none. */
export function timelineOf(round) {
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
      const piece = element("span", { className: stage + kind });
      piece.style.width = `${(100 * seconds) / all}%`;
      bar.append(piece);
    }
    const waits = wait > 0 ? `, ${timeText(wait)} waiting` : "";
    legend.append(element("li", { className: stage, textContent: `${stage} ${timeText(busy)}${waits}` }));
  }
  return [bar, legend];
}

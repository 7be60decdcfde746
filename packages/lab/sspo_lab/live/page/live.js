// The live page: asks the server for what is new every two seconds, and draws it.
// Whatever a model or a recipe wrote reaches the page through textContent alone, so it is never read as HTML.
"use strict";

const EVERY = 2000; // milliseconds
const WIDTH = 360, HEIGHT = 210, LEFT = 58, RIGHT = 16, TOP = 8, BOTTOM = 34; // of a panel
const WINDOW = 0.08; // the smoothing window, as a share of the run, as in curves.png
const ROUNDING = 1e-9; // a smaller difference, as a share of the values, is not drawn: numbers cannot mark steps of it
const WIDE = 30; // an axis may become logarithmic if its largest value is more than this times the smallest
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]; // Okabe and Ito's
const DASHES = ["", "7 3", "3 3", "1 3", "9 3 1 3", "9 3 1 3 1 3", "14 3"];
const LINES = ["solid", "dashed", "short dashes", "dots", "dash and dot", "dash and two dots", "long dashes"];

const LARGEST = 1e300; // larger values are not drawn, because the axis would overflow
const ENDS = 4000; // characters at the beginning of a text, and as many at its end; the rest of a longer one is left out

// Each panel has numbers of metrics.jsonl: the first is a line, others are dashed. One without numbers has pass@1 of each
// set. The number "seconds" is the sum of all "seconds/*". Without on-policy updates are those whose ratios are 1 by
// construction there.
const PANELS = [
  { title: "reward", unit: "reward", keys: ["reward/mean"] },
  { title: "held-out pass@1, greedy", unit: "share of prompts" },
  { title: "response length", unit: "tokens", keys: ["response/tokens_mean"] },
  { title: "token entropy", unit: "nats", keys: ["policy/entropy"] },
  { title: "gradient norm", unit: "norm", keys: ["policy/grad_norm"], mayBeLogarithmic: true },
  { title: "KL(π_old ‖ π_θ) *", unit: "nats", keys: ["policy/kl_old"], mayBeLogarithmic: true, offPolicy: true },
  { title: "tokens of low weight *", unit: "share of tokens", keys: ["token_weight/below_half", "token_weight/zero"],
    names: ["w < ½", "w = 0, clipped"], offPolicy: true },
  { title: "effective sample size *", unit: "share of sequences", keys: ["sequence_weight/effective_sample_size"],
    offPolicy: true },
  { title: "KL(engine ‖ trainer)", unit: "nats", keys: ["engine/kl"], mayBeLogarithmic: true },
  { title: "cut at the length limit", unit: "share of responses", keys: ["response/truncated"] },
  { title: "staleness", unit: "updates", keys: ["rollout/staleness", "rollout/staleness_max"], names: ["mean", "largest"] },
  { title: "time of an update", unit: "seconds", keys: ["seconds", "seconds/rollout"], names: ["all", "rollout"] },
].map((panel) => ({ keys: [], names: [], ...panel }));
const COLUMNS = PANELS.flatMap((panel) => panel.keys.map((key) => ({ key, offPolicy: panel.offPolicy })));

let panels = [], runs = [], drawn = 0;
const byId = (id) => document.getElementById(id);

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "circle", "rect"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children); // strings become text
  return element;
}

// ---------------------------------------------------------------- what the server has

async function ask(path, options = {}) {
  const response = await fetch(`${path}?${new URLSearchParams(options)}`).catch(() => {
    throw new Error("the server does not answer: start it again with the same command");
  });
  const text = await response.text();
  if (!response.ok) throw new Error(text);
  const has = (name) => response.headers.get(name) === "1";
  return { text, known: response.headers.get("X-Known"), isNew: has("X-New"), hasMore: has("X-More") };
}

// Returns the JSON object of each line, or null for a line that has none. Python writes NaN and infinities, which JSON
// does not have: they become null, but not within strings.
function parse(text) {
  const plain = (line) => line.replace(/"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b/g, (found) => found[0] === '"' ? found : "null");
  return text.split("\n").slice(0, -1).filter((line) => line.trim()).map((line) => {
    for (const form of [line, plain(line)]) {
      try {
        const found = JSON.parse(form);
        return found !== null && typeof found === "object" && !Array.isArray(found) ? found : null;
      } catch { /* the next form */ }
    }
    return null;
  });
}

const numberOf = (value) => typeof value === "number" && Math.abs(value) < LARGEST ? value : null;

// Returns the update and the numbers of all panels; null for one that is missing or cannot be drawn.
function valuesOf(row) {
  const seconds = Object.keys(row).filter((key) => key.startsWith("seconds/")).map((key) => numberOf(row[key]));
  const known = seconds.some((value) => value !== null) ? { ...row, seconds: seconds.reduce((sum, value) => sum + value, 0) } : row;
  const onPolicy = row["policy/kl_old"] === 0;
  return [row.update, ...COLUMNS.map(({ key, offPolicy }) => offPolicy && onPolicy ? null : numberOf(known[key]))];
}

// Returns pass@1 of each set of an evaluation, with the ends of its interval if it has one.
function passesOf(row) {
  const sets = {};
  for (const key of Object.keys(row).filter((key) => /(^|\/)pass@1$/.test(key))) {
    sets[key.slice(0, -"pass@1".length).replace(/\/$/, "")] = ["", "/low", "/high"].map((end) => numberOf(row[key + end]));
  }
  return { update: row.update, sets };
}

// Asks for the rows after those that the page has. The server says so if those have changed: the run was resumed.
async function follow(run, path, form) {
  const store = run[path];
  const part = await ask(path, { run: run.number, known: store.known });
  if (part.isNew) Object.assign(store, { rows: [], skipped: 0 });
  const found = parse(part.text);
  const rows = found.filter((row) => row !== null && Number.isFinite(row.update));
  for (const row of rows) store.rows.push(form(row));
  store.known = part.known;
  store.skipped += found.length - rows.length;
  run.changed ||= part.isNew || rows.length > 0;
  return part.hasMore;
}

async function refresh(run) {
  const more = await Promise.all([follow(run, "metrics", valuesOf), follow(run, "evaluations", passesOf)]);
  const kind = document.querySelector("input[name=kind]:checked").value;
  if (byId("hold").checked && run.shown === kind) return more.some(Boolean);
  const found = await ask(kind, { run: run.number, known: run.shown === kind ? run.version : "" });
  if (found.isNew) {
    Object.assign(run, { shown: kind, version: found.known });
    showResponses(run, parse(found.text).filter((row) => row !== null));
  }
  return more.some(Boolean);
}

async function poll() {
  let more = false;
  if (!document.hidden) {
    const results = await Promise.allSettled(runs.map(refresh));
    more = results.some((result) => result.value === true);
    const failed = results.filter((result) => result.status === "rejected").map((result) => result.reason.message);
    const skipped = runs.filter((run) => run.metrics.skipped + run.evaluations.skipped > 0)
      .map((run) => `${run.name}: ${run.metrics.skipped + run.evaluations.skipped} lines cannot be read`);
    showProblem([...new Set([...failed, ...skipped])].join("; "));
    if (runs.some((run) => run.changed) && (!more || Date.now() - drawn > EVERY)) draw(); // a long run comes in parts
  }
  setTimeout(poll, more ? 0 : EVERY);
}

function showProblem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

// ---------------------------------------------------------------- curves

// Returns the curves of a panel: {run, name, dash, points: [[update, value]]}, or with ends: [update, value, low, high].
function curvesOf(panel) {
  const found = [], setsOf = (run) => run.evaluations.rows.flatMap((row) => Object.keys(row.sets));
  const sets = panel.columns.length ? [] : [...new Set(runs.flatMap(setsOf))]; // of all runs: a set has one line in each
  for (const run of runs.filter((run) => run.visible)) {
    if (panel.columns.length) {
      panel.columns.forEach((column, place) => {
        const points = [];
        for (const row of run.metrics.rows) if (row[column] !== null) points.push([row[0], row[column]]);
        found.push({ run, name: panel.names[place] || "", dash: place, points });
      });
    } else {
      sets.forEach((set, place) => {
        const rows = run.evaluations.rows.filter((row) => row.sets[set] && row.sets[set][0] !== null);
        found.push({ run, name: set, dash: place, ends: true, points: rows.map((row) => [row.update, ...row.sets[set]]) });
      });
    }
  }
  return found.filter((curve) => curve.points.length);
}

// Returns the mean over a window around each value. The values are cut into blocks as wide as a window, so that a window
// is the end of one block and the beginning of the next: a difference of two running sums would lose the small values
// after a large one.
function smoothed(points) {
  const half = Math.ceil(points.length * WINDOW / 2), width = 2 * half + 1, last = points.length - 1;
  const beginnings = points.map(([, value]) => value), ends = [...beginnings]; // sums within the block up to and from each
  for (let place = 1; place <= last; place++) if (place % width) beginnings[place] += beginnings[place - 1];
  for (let place = last - 1; place >= 0; place--) if ((place + 1) % width) ends[place] += ends[place + 1];
  const block = (place) => Math.floor(place / width);
  return points.map(([update], place) => {
    const from = Math.max(0, place - half), to = Math.min(last, place + half);
    const atEnd = block(from) === block(to); // unless it is a whole block
    const sum = from % width === 0 ? beginnings[to] : atEnd ? ends[from] : ends[from] + beginnings[to];
    return [update, sum / (to - from + 1)];
  });
}

function scales(panel, curves) {
  let last = 1, low = Infinity, high = -Infinity;
  for (const run of runs) if (run.visible) last = Math.max(last, lastUpdate(run));
  for (const { points } of curves) {
    for (const [, value] of points) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  const logarithmic = panel.mayBeLogarithmic && low > 0 && high > WIDE * low;
  const of = logarithmic ? Math.log10 : (value) => value;
  if (!panel.columns.length) [low, high] = [0, 1];
  let [bottom, top] = [of(low), of(high)];
  const size = Math.max(Math.abs(bottom), Math.abs(top));
  const margin = top - bottom > ROUNDING * size ? 0.05 * (top - bottom) : 0.1 * size || 0.5;
  [bottom, top] = [bottom - margin, top + margin];
  return {
    last, logarithmic, bottom, top,
    x: (update) => LEFT + (WIDTH - LEFT - RIGHT) * update / last,
    y: (value) => TOP + (HEIGHT - TOP - BOTTOM) * (top - of(value)) / (top - bottom),
  };
}

// Returns the path of a curve. Of the points in half a pixel's width only the lowest, the highest and the last are drawn.
function pathOf(points, scale) {
  const columns = [];
  for (const [update, value] of points) {
    const x = Math.round(scale.x(update) * 2) / 2, y = scale.y(value), last = columns.at(-1);
    if (last?.x === x) Object.assign(last, { low: Math.min(last.low, y), high: Math.max(last.high, y), end: y });
    else columns.push({ x, low: y, high: y, end: y });
  }
  const ys = ({ low, high, end }) => low === high ? [low] : [low, high, end];
  return `M${columns.flatMap((column) => ys(column).map((y) => `${column.x} ${y.toFixed(1)}`)).join("L")}`;
}

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  return multiples([1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999), low, high);
}

function multiples(step, low, high) {
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(k * step);
  return found;
}

const isExtreme = (value) => Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6;
const exponential = (value, digits) => value.toExponential(digits).replace(/\.?0+e/, "e");

function format(value) {
  if (value === 0 || value === null) return value === 0 ? "0" : "none";
  return isExtreme(value) ? exponential(value, 2) : String(Number(value.toPrecision(3)));
}

// Returns the label of one of an axis's marks, with as many digits as tell them apart.
function formatMark(value, marks) {
  const apart = Math.abs(marks.at(-1) - marks[0]) / Math.max(1, marks.length - 1);
  if (value === 0 || !apart) return format(value);
  const places = 1 - Math.floor(Math.log10(apart));
  if (isExtreme(value)) return exponential(value, Math.max(0, places + Math.floor(Math.log10(Math.abs(value)))));
  return String(Number(value.toFixed(Math.max(0, places))));
}

// Runs of one colour differ by width, because the dashes tell the numbers of a panel apart.
const strokeOf = (run) => ({ stroke: run.colour, "stroke-width": 1.8 + 1.8 * run.round, opacity: 1 / (1 + run.round / 2) });

function drawPanel(panel) {
  const curves = curvesOf(panel), svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  svg.setAttribute("aria-label", panel.title);
  panel.curves = curves;
  panel.scale = null;
  panel.svg.replaceWith(svg);
  panel.svg = svg;
  panel.readout.textContent = "";
  if (!curves.length) {
    const begun = runs.some((run) => run.metrics.rows.length);
    const why = panel.offPolicy && begun ? "no values of off-policy updates" : "no values yet";
    svg.append(make("text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle", class: "empty" }, why));
    return;
  }
  const scale = panel.scale = scales(panel, curves);
  drawAxes(panel, scale, svg);
  readOut(panel, null);
  for (const { run, dash, points, ends } of curves) {
    const stroke = run.colour, dashes = DASHES[dash % DASHES.length];
    const raw = { class: "curve", stroke, "stroke-width": 0.8, opacity: 0.35 };
    const line = { class: "curve", ...strokeOf(run), "stroke-dasharray": dashes };
    if (ends) {
      for (const [update, , low, high] of points) {
        if (low === null || high === null) continue;
        const x = scale.x(update);
        svg.append(make("line", { x1: x, x2: x, y1: scale.y(low), y2: scale.y(high), stroke, opacity: 0.4 }));
      }
    } else svg.append(make("path", { ...raw, d: pathOf(points, scale) }));
    svg.append(make("path", { ...line, d: pathOf(ends ? points : smoothed(points), scale) }));
    if (ends || points.length <= 2) {
      for (const [update, value] of points) {
        svg.append(make("circle", { cx: scale.x(update), cy: scale.y(value), r: 2.5, fill: stroke }));
      }
    }
  }
}

function drawAxes(panel, scale, svg) {
  const bottom = HEIGHT - BOTTOM, middle = (TOP + bottom) / 2;
  const { bottom: low, top: high, logarithmic } = scale, decades = Math.ceil((high - low) / 4);
  const marks = logarithmic ? multiples(decades, low, high).map((power) => 10 ** power) : ticks(low, high, 4);
  const label = (value) => logarithmic ? format(value) : formatMark(value, marks);
  for (const value of marks) {
    const y = scale.y(value);
    svg.append(make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "grid" }));
    svg.append(make("text", { x: LEFT - 5, y: y + 4, "text-anchor": "end" }, label(value)));
  }
  for (const update of ticks(0, scale.last, 5).filter(Number.isInteger)) {
    const x = scale.x(update);
    svg.append(make("line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, class: "axis" }));
    svg.append(make("text", { x, y: bottom + 15, "text-anchor": "middle" }, String(update)));
  }
  svg.append(make("path", { d: `M${LEFT} ${TOP}V${bottom}H${WIDTH - RIGHT}`, class: "curve axis" }));
  svg.append(make("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "update"));
  const turned = { x: 11, y: middle, transform: `rotate(-90 11 ${middle})`, "text-anchor": "middle" };
  svg.append(make("text", turned, panel.unit));
}

function readOut(panel, event) {
  panel.svg.querySelector(".cross")?.remove();
  panel.readout.textContent = "";
  if (!panel.scale) return;
  if (!event) {
    const names = [...new Map(panel.curves.map(({ dash, name }) => [dash, name]))].sort(([one], [other]) => one - other);
    const text = names.map(([dash, name]) => `${LINES[dash % LINES.length]}: ${name}`).join(", ");
    if (names.length > 1) panel.readout.textContent = text;
    return;
  }
  const box = panel.svg.getBoundingClientRect(), { scale } = panel;
  const wanted = ((event.clientX - box.left) * WIDTH / box.width - LEFT) / (WIDTH - LEFT - RIGHT) * scale.last;
  let update = null;
  panel.curves.forEach(({ run, name, points }, place) => {
    const [found, value] = points[nearest(points, wanted)];
    if (update === null || Math.abs(found - wanted) < Math.abs(update - wanted)) update = found;
    const text = make("span", {}, `${place ? " · " : ""}${name ? `${name} ` : ""}${format(value)}`);
    text.style.color = run.colour;
    panel.readout.append(text);
  });
  panel.readout.prepend(`update ${update}: `);
  const x = scale.x(update);
  panel.svg.append(make("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM, class: "cross" }));
}

function nearest(points, update) {
  let [from, to] = [0, points.length - 1];
  while (to - from > 1) {
    const middle = (from + to) >> 1;
    if (points[middle][0] < update) from = middle; else to = middle;
  }
  return Math.abs(points[from][0] - update) <= Math.abs(points[to][0] - update) ? from : to;
}

const lastUpdate = (run) => Math.max(run.metrics.rows.at(-1)?.[0] ?? 0, run.evaluations.rows.at(-1)?.update ?? 0);

function draw() {
  drawn = Date.now();
  for (const panel of panels) drawPanel(panel);
  for (const run of runs) {
    run.changed = false;
    const of = run.num_updates === null ? "" : ` of ${run.num_updates}`;
    run.state.textContent = run.metrics.rows.length ? `update ${lastUpdate(run)}${of}` : "no update yet";
  }
}

// ---------------------------------------------------------------- responses

// The colour of a token weight: none at 1, orange below, blue above.
function tint(weight) {
  const share = Math.min(1, weight < 1 ? 1 - weight : weight - 1);
  return weight < 1 ? `rgba(213, 94, 0, ${0.8 * share})` : `rgba(0, 114, 178, ${0.6 * share})`;
}

function pieceOf([text, weight]) {
  const span = make("span", weight === null ? { class: "none" } : { title: `weight ${weight}` }, text);
  if (weight !== null) span.style.backgroundColor = tint(weight);
  return span;
}

function showResponses(run, rows) {
  const update = rows.length && rows[0].update !== undefined ? `: update ${rows[0].update}` : "";
  const title = make("h2", {}, `${run.name}${update}`);
  title.style.borderColor = run.colour;
  const none = run.shown === "rollouts" ? "no rollouts yet" : "no evaluation yet";
  run.column.replaceChildren(title, ...(rows.length ? rows.map(articleOf) : [make("p", { class: "note" }, none)]));
}

// Returns a rollout, or the first answer of a row of an evaluation, in the form of a rollout.
function rolloutOf(row) {
  if (!row.answers) return row;
  const { text, reward, tokens, finish_reason } = row.answers[0];
  const left = text.length - 2 * ENDS;
  const shown = left > 0 ? `${text.slice(0, ENDS)}\n[${left} characters are left out]\n${text.slice(-ENDS)}` : text;
  const sum = Object.values(reward).reduce((total, part) => total + part, 0);
  return { ...row, reward: sum, parts: reward, tokens, finish_reason, pieces: [[shown, null]] };
}

function articleOf(row) {
  try {
    return row.note ? noteOf(row.note) : articleOfRollout(rolloutOf(row));
  } catch {
    return noteOf("a response that cannot be read: was it written by another program?");
  }
}

const noteOf = (text) => make("article", {}, make("div", { class: "facts" }, text));

function articleOfRollout(row) {
  const parts = Object.entries(row.parts).map(([name, value]) => `${name} ${format(value)}`).join(" + ");
  const facts = [`reward ${format(row.reward)}${parts ? ` = ${parts}` : ""}`];
  if (row.advantage !== undefined) facts.push(`advantage ${format(row.advantage)}`);
  if (typeof row.sequence_weight === "number") facts.push(`sequence weight ${format(row.sequence_weight)}`);
  facts.push(`${row.tokens} tokens`, row.finish_reason === "length" ? "cut at the limit" : row.finish_reason);
  facts.push(`gold ${row.gold}`, row.set ? `${row.set}: ${row.id}` : row.id);
  const text = make("pre", { class: "response" }, ...row.pieces.map(pieceOf));
  return make("article", {}, make("div", { class: "facts" }, facts.join(" · ")),
    make("pre", { class: "prompt" }, row.prompt), text);
}

// ---------------------------------------------------------------- start

function build(found) {
  panels = PANELS.map((panel) => ({
    ...panel, columns: panel.keys.map((key) => COLUMNS.findIndex((column) => column.key === key) + 1), svg: make("svg"), readout: make("span", { class: "readout" }),
  }));
  for (const panel of panels) {
    const figure = make("figure", {}, make("figcaption", {}, panel.title, panel.readout), panel.svg);
    figure.addEventListener("mousemove", (event) => readOut(panel, event));
    figure.addEventListener("mouseleave", () => readOut(panel, null));
    byId("panels").append(figure);
  }
  const store = () => ({ rows: [], known: "", skipped: 0 });
  runs = found.map((run, number) => ({
    ...run, number, colour: COLOURS[number % COLOURS.length], round: Math.floor(number / COLOURS.length), visible: true, changed: true, shown: "", version: "", metrics: store(), evaluations: store(),
    state: make("span", { class: "state" }), column: make("div"),
  }));
  for (const run of runs) {
    const box = make("input", { type: "checkbox", checked: "" });
    box.addEventListener("change", () => {
      run.visible = box.checked;
      run.column.hidden = !box.checked;
      draw();
    });
    const line = make("svg", { viewBox: "0 0 28 8" }, make("path", { d: "M0 4H28", ...strokeOf(run) }));
    byId("legend").append(make("label", {}, box, line, make("strong", {}, run.name), run.state));
    byId("responses").append(run.column);
  }
  for (const weight of [0, 0.5, 1, 1.5, 2]) {
    const sample = make("span", {}, weight === 2 ? "2 or more" : String(weight));
    sample.style.backgroundColor = tint(weight);
    byId("scale").append(sample);
  }
  document.title = `${runs.map((run) => run.name).join(", ")} – megatron-sspo`;
}

async function start() {
  try {
    build(JSON.parse((await ask("runs")).text));
  } catch (error) {
    showProblem(error.message);
    setTimeout(start, EVERY);
    return;
  }
  poll();
}

start();

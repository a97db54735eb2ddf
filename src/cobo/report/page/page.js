"use strict";
// Draws the page from the JSON in it. Names come from users: they are only ever put in as text.

let data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const NOBODY = 255, MOST_LABELS = 24, FRAME = 60;
const BLUES = ["f7fbff", "deebf7", "c6dbef", "9ecae1", "6baed6", "4292c6", "2171b5", "08519c", "08306b"];
const NIGHT = ["0f1a26", "0d2f57", "08519c", "2171b5", "4292c6", "6baed6", "9ecae1", "c6dbef", "deebf7"];
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const state = { run: null, at: 0, timer: null, pair: null, hidden: new Set(), sorted: {}, chosen: false };

// Small things

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ink = (wanted) => (wanted === "black" ? colour("--ink") : wanted); // black lines are white in the dark
const again = (g) => Math.max(0, Math.floor(g / data.colours.length)); // how often all colours were used before
const groupColour = (g) => (g < 0 ? colour("--nobody") : ink(data.colours[g % data.colours.length]));
const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

// Cut in the middle: names often differ in their last letters only.
function short(text, most) {
  const letters = [...text], half = Math.floor((most - 1) / 2);
  return letters.length > most ? [...letters.slice(0, most - 1 - half), "…", ...letters.slice(-half)].join("") : text;
}
function brief(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  if (size >= 1e7) return value.toExponential(1);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size === 0 || size >= 0.001 ? String(Number(value.toPrecision(4))) : value.toExponential(1);
}

const measured = (value) => (value === null ? "-" : value.toFixed({ accuracy: 1, perplexity: 2, loss: 3 }[data.score]));

// A finger that taps does not move.
function pointed(node, read) {
  for (const kind of ["pointerdown", "pointermove"]) node.addEventListener(kind, read);
}

// Tables

function table(heads, rows, caption, words = new Set([0])) {
  const head = make("tr", {}, ...heads.map((text, k) => make("th", { scope: "col", class: words.has(k) ? "text" : "" }, text)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell, k) =>
    make(k ? "td" : "th", k ? { class: words.has(k) ? "text" : "" } : { scope: "row" }, cell))));
  return make("table", {}, make("caption", { class: "hidden" }, caption), make("thead", {}, head), make("tbody", {}, ...body));
}

// Heads become buttons. What is not known ("-") is last, whichever way. A table that comes in the place of another is
// sorted as that one was, and its head has the focus if that one's had it.
function sortable(id, node, words = new Set([0])) {
  const heads = [...node.tHead.rows[0].cells], titles = heads.map((head) => head.textContent);
  const sort = (k, up) => {
    state.sorted[id] = [titles[k], up];
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    heads[k].setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => {
      const text = row.cells[k].textContent;
      return words.has(k) ? text : parseFloat(text.replace(/,/g, ""));
    };
    const rows = [...node.tBodies[0].rows].map((row) => [key(row), row]);
    const known = rows.filter(([value]) => !Number.isNaN(value));
    known.sort(([a], [b]) => (up ? 1 : -1) * (words.has(k) ? a.localeCompare(b, "en", { numeric: true }) : a - b));
    node.tBodies[0].append(...known.map(([, row]) => row), ...rows.filter(([value]) => Number.isNaN(value)).map(([, row]) => row));
  };
  heads.forEach((head, k) => {
    const button = make("button", { type: "button" }, titles[k]);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      sort(k, before ? before === "descending" : words.has(k));
    });
  });
  const [title, up] = state.sorted[id] ?? [], focused = document.activeElement;
  if (titles.includes(title)) sort(titles.indexOf(title), up);
  const again = byId(id).contains(focused) ? titles.indexOf(focused.textContent) : -1;
  byId(id).replaceChildren(node);
  if (again >= 0) heads[again].firstChild.focus({ preventScroll: true });
}

// The options of a <select>, left alone if they are these already.
function offer(id, values, words = (value) => String(value)) {
  const before = [...byId(id).options].map((option) => option.value), chosen = byId(id).value;
  if (before.join("\n") === values.join("\n")) return;
  byId(id).replaceChildren(...values.map((value) => make("option", { value }, words(value))));
  if (values.map(String).includes(chosen)) byId(id).value = chosen;
}

// What is in a <details> is made when it is opened.
function behind(id, build) {
  const details = byId(id), place = details.querySelector("div");
  const fill = () => place.replaceChildren(...(details.open ? [build()] : []));
  details.addEventListener("toggle", fill);
  return fill;
}

function methodsTable() {
  const { heads, rows, notes } = data.table;
  const some = heads.map((_, k) => k).filter((k) => rows.some((row) => row.cells[k] !== "-"));
  const node = table(some.map((k) => heads[k]), rows.map((row) => some.map((k) => row.cells[k])), "Methods and their scores");
  [...node.tBodies[0].rows].forEach((tr, k) => {
    const { best, told, going } = rows[k];
    if (best) tr.className = "best";
    if (best) tr.cells[0].append(" ", make("span", { class: "badge first" }, "best"));
    if (told) tr.cells[0].append(" ", make("span", { class: "badge" }, `told ${told}`));
    if (going) tr.cells[0].append(" ", make("span", { class: "badge" }, "so far"));
  });
  sortable("methods", node);
  byId("methods-notes").textContent = notes;
}

// W

function decoded(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function cellsOf(run) {
  run.cells ??= decoded(run.graph.weights);
  const size = run.graph.labels.length ** 2;
  return run.cells.subarray(state.at * size, (state.at + 1) * size);
}

const truthOf = (graph) => decoded(data.truths[graph.truth]);

// 255 colours from nothing to the largest weight.
function ramp() {
  const stops = (dark.matches ? NIGHT : BLUES).map((hex) => [0, 2, 4].map((k) => parseInt(hex.slice(k, k + 2), 16)));
  return Array.from({ length: NOBODY }, (_, v) => {
    const place = (v / (NOBODY - 1)) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
    return stops[low].map((c, k) => Math.round(c + (place - low) * (stops[low + 1][k] - c)));
  });
}

function fitted(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return pen;
}

// A group is a colour and, from the ninth on, also a ring or another shape: 64 that can be told apart.
function mark(pen, g, x, y, r) {
  const [corners, turn] = [[0, 0], [4, Math.PI / 4], [3, -Math.PI / 2], [4, 0]][Math.floor(again(g) / 2) % 4];
  const outline = (size) => {
    pen.beginPath();
    if (!corners) pen.arc(x, y, size, 0, 2 * Math.PI);
    for (let k = 0; k < corners; k++) pen.lineTo(x + size * Math.cos(turn + (2 * Math.PI * k) / corners), y + size * Math.sin(turn + (2 * Math.PI * k) / corners));
    pen.closePath();
  };
  outline(r + 1);
  pen.fillStyle = colour("--card");
  pen.fill();
  const ring = again(g) % 2 === 1;
  outline(ring ? 0.75 * r : r);
  pen.fillStyle = pen.strokeStyle = groupColour(g);
  pen.lineWidth = 0.5 * r;
  pen[ring ? "stroke" : "fill"]();
}

function dot(g) {
  const node = make("canvas", { class: "mark", "aria-hidden": "true" });
  mark(fitted(node, 14, 14), g, 7, 7, 5);
  return node;
}

// What stands along the axes, [words, the row that they are at]: who each row is or, where letters have no room for
// that in any size, which group.
function axes(canvas, { labels, groups, grouped }) {
  const pen = canvas.getContext("2d"), width = canvas.parentElement.clientWidth;
  const laid = (words, size) => {
    pen.font = `${size}px system-ui, sans-serif`;
    const widest = Math.min(120, Math.ceil(Math.max(...words.map(([text]) => pen.measureText(text).width))) + 8);
    const edge = widest + 8, plot = Math.min(width - edge, 460);
    return { words, size, width, widest, edge, plot, cell: plot / labels.length };
  };
  const all = labels.map((label, k) => [short(label, 15), k + 0.5]);
  const room = [12, 11, 10, 9, 8].map((size) => laid(all, size)).find(({ cell, size }) => cell >= size);
  if (room || grouped) return { ...(room ?? laid(all, 8)), named: true };
  const first = groups.flatMap((g, k) => (k && groups[k - 1] === g ? [] : [k]));
  const words = first.map((k, i) => [groups[k] < 0 ? "have left" : `group ${groups[k] + 1}`, (k + (first[i + 1] ?? labels.length)) / 2]);
  return { ...laid(words, 12), named: false };
}

function heatMap(canvas, graph, cells) {
  const n = graph.labels.length, { words, size, width, widest, edge, plot, cell } = axes(canvas, graph);
  const pen = fitted(canvas, width, plot + edge);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(picture(n, cells), 0, 0, n, n, edge, 0, plot, plot);
  pen.strokeStyle = colour("--line");
  pen.strokeRect(edge + 0.5, 0.5, plot - 1, plot - 1);
  graph.groups.forEach((g, k) => {
    pen.fillStyle = groupColour(g);
    pen.fillRect(widest, k * cell, 5, Math.max(1, cell - 0.5));
    pen.fillRect(edge + k * cell, plot + 3, Math.max(1, cell - 0.5), 5);
    if (again(g) % 2 === 0) return;
    pen.fillStyle = colour("--card"); // two lines in place of one
    pen.fillRect(widest + 1.5, k * cell, 2, cell);
    pen.fillRect(edge + k * cell, plot + 4.5, cell, 2);
  });
  names(pen, words, size, widest, edge, plot, cell);
  canvas.dataset.edge = edge;
  canvas.dataset.plot = plot;
}

function picture(n, cells) {
  const small = make("canvas", { width: n, height: n }), pen = small.getContext("2d");
  const image = pen.createImageData(n, n), colours = ramp();
  const nobody = colour("--nobody").slice(1).match(/../g).map((hex) => parseInt(hex, 16));
  cells.forEach((value, k) => image.data.set([...(value === NOBODY ? nobody : colours[value]), 255], 4 * k));
  pen.putImageData(image, 0, 0);
  return small;
}

// What would be written over others, or over the edge, is left out.
function names(pen, words, size, widest, edge, plot, cell) {
  pen.font = `${size}px system-ui, sans-serif`;
  pen.fillStyle = colour("--ink");
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  let free = -0.5;
  for (const [text, row] of words) {
    const end = row * cell + size / 2;
    if (end - size < free || end > plot + 0.5) continue;
    free = end - 0.5;
    pen.fillText(text, widest - 5, row * cell);
    pen.save();
    pen.translate(edge + row * cell, plot + 12);
    pen.rotate(-Math.PI / 2);
    pen.fillText(text, 0, 0);
    pen.restore();
  }
}

function net(canvas, graph, cells) {
  const n = graph.labels.length, width = canvas.parentElement.clientWidth, height = Math.min(width, 440);
  const pen = fitted(canvas, width, height), few = n <= MOST_LABELS;
  const pad = graph.grouped ? 72 : few ? 46 : 16;
  const at = graph.places.map(([x, y]) => [pad + ((x + 1) / 2) * (width - 2 * pad), pad / 2 + 8 + ((y + 1) / 2) * (height - pad - 16)]);
  const weight = (i, j) => { const w = cells[i * n + j]; return w === NOBODY ? 0 : w / (NOBODY - 1); };
  const edges = [];
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < i; j++) {
      const w = (weight(i, j) + weight(j, i)) / 2;
      if (w >= 0.04) edges.push([i, j, w]);
    }
  }
  const light = Math.max(0.08, Math.min(1, 120 / edges.length)); // very many lines would be one grey
  pen.strokeStyle = colour("--soft");
  for (const [i, j, w] of edges) {
    pen.globalAlpha = light * (0.2 + 0.7 * w);
    pen.lineWidth = 0.5 + (few ? 4 : 1.5) * w;
    pen.beginPath();
    pen.moveTo(...at[i]);
    pen.lineTo(...at[j]);
    pen.stroke();
  }
  pen.globalAlpha = 1;
  const largest = Math.max(...graph.sizes);
  const radii = graph.sizes.map((size) => (graph.grouped ? 4 + 14 * Math.sqrt(size / largest) : few ? 8 : 5));
  at.forEach(([x, y], k) => mark(pen, graph.groups[k], x, y, radii[k]));
  if (few) netLabels(pen, graph, at, radii, width, height);
}

// Below a node or above it, away from the others of its group if it can be, and where nothing else is; else beside it,
// or nowhere.
function netLabels(pen, graph, at, radii, width, height) {
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "center";
  const taken = at.map(([x, y], k) => [x - radii[k] - 1, y - radii[k] - 1, x + radii[k] + 1, y + radii[k] + 1]);
  at.forEach(([x, y], k) => {
    const text = short(graph.labels[k], 15), half = pen.measureText(text).width / 2 + 2, far = radii[k] + 9;
    const ys = at.filter((_, j) => graph.groups[j] === graph.groups[k]).map((place) => place[1]);
    const away = y < ys.reduce((a, b) => a + b) / ys.length - 1 ? -1 : 1;
    const inside = (place) => Math.min(Math.max(place, half), width - half);
    const places = [[inside(x), y + away * far], [inside(x), y - away * far], [x + half + far - 5, y], [x - half - far + 5, y]];
    const boxes = places.map(([px, py]) => [px - half, py - 8, px + half, py + 8]);
    const free = ([a, b, c, d]) => a >= 0 && b >= 0 && c <= width && d <= height && !taken.some(([p, q, r, t]) => a < r && p < c && b < t && q < d);
    const best = boxes.findIndex(free);
    if (best < 0) return;
    taken.push(boxes[best]);
    netLabel(pen, text, ...places[best]);
  });
}

function netLabel(pen, text, x, y) {
  pen.lineWidth = 4;
  pen.lineJoin = "round";
  pen.strokeStyle = colour("--card");
  pen.strokeText(text, x, y);
  pen.fillStyle = colour("--ink");
  pen.fillText(text, x, y);
}

function drawGraph() {
  const { graph } = state.run;
  if (!graph) return;
  const cells = cellsOf(state.run);
  heatMap(byId("weights"), graph, cells);
  net(byId("net"), graph, cells);
  const round = graph.rounds[state.at].toLocaleString("en");
  byId("at").textContent = round;
  byId("slider").setAttribute("aria-valuetext", `round ${round}`);
  sayPair();
}

function drawTruth() {
  const { graph } = state.run;
  const known = Boolean(graph) && graph.truth !== null;
  byId("truth-figure").hidden = !known;
  if (known) heatMap(byId("truth"), graph, truthOf(graph));
  const colours = ramp();
  byId("ramp").style.background = `linear-gradient(to right, ${[0, 63, 127, 190, 254].map((v) => `rgb(${colours[v]})`).join(", ")})`;
  byId("top").textContent = graph ? String(Number(graph.scale.toFixed(2))) : "";
}

// Which pair is under the pointer; what is said of it stays true when the round changes.
function readPair(event) {
  const { graph } = state.run, n = graph.labels.length, box = event.target.getBoundingClientRect();
  const edge = Number(event.target.dataset.edge), cell = Number(event.target.dataset.plot) / n;
  const i = Math.floor((event.clientY - box.top) / cell), j = Math.floor((event.clientX - box.left - edge) / cell);
  if (i < 0 || j < 0 || i >= n || j >= n) return;
  state.pair = { truth: event.target.id === "truth", names: [graph.labels[i], graph.labels[j]] };
  sayPair();
}

function sayPair() {
  const { graph } = state.run, [i, j] = (state.pair?.names ?? []).map((name) => graph.labels.indexOf(name));
  if (!(i >= 0 && j >= 0)) return void (byId("pair").textContent = "Point at a cell to read it.");
  const { truth, names: [row, column] } = state.pair, place = i * graph.labels.length + j;
  const weight = truth ? weightText(truthOf(graph)[place], 1) : weightText(cellsOf(state.run)[place], graph.scale);
  byId("pair").textContent = `${row} learns from ${column}: ${weight}${truth ? ", as an oracle knows" : ""}`;
}

const weightText = (value, scale) => (value === NOBODY ? "-" : ((value / (NOBODY - 1)) * scale).toFixed(2));

function weightsTable() {
  const { graph } = state.run;
  if (!graph) return "";
  const n = graph.labels.length, cells = cellsOf(state.run);
  const rows = graph.labels.map((label, i) => [label, ...Array.from({ length: n }, (_, j) => weightText(cells[i * n + j], graph.scale))]);
  return table(["learns from", ...graph.labels], rows, `W at round ${graph.rounds[state.at]}`);
}

function graphWords() {
  const { method, graph, away, round, rounds, left_out } = state.run;
  if (left_out) return "W of this run is left out, as W of all would be too much for one page: of each method the first seed has it.";
  if (!graph && round < rounds) return `Of ${method} there is no W yet; methods that learn one show it from their first checkpoint on.`;
  if (!graph) return `${method} learns no weights between clients, so there is no W to show.`;
  const said = [];
  if (!axes(byId("weights"), graph).named) said.push("The axes name groups, as there is no room for all clients; point at a cell to read who it is of.");
  if (graph.grouped) said.push(`${count(state.run.clients.length, "client")} are too many for a row each: rows are the groups found in the end, weights are means between their clients.`);
  if (graph.rounds.length < graph.recorded) said.push(`Thinned: ${graph.rounds.length} of ${graph.recorded} recorded rounds are shown, evenly.`);
  if (graph.rounds.length === 1) said.push(`W was recorded once only, at round ${graph.rounds[0]}.`);
  if (away.length) said.push(`${count(away.length, "client")} had left before the end (grey).`);
  return said.join(" ");
}

function groupsList() {
  const { graph, found, clients } = state.run;
  if (!graph) return [];
  return found.slice(0, 60).map((members, g) => {
    const who = graph.grouped ? "" : `: ${members.map((k) => clients[k]).join(", ")}`;
    return make("li", {}, dot(g), `group ${g + 1}, ${count(members.length, "client")}${who}`);
  }).concat(found.length > 60 ? [make("li", {}, `and ${found.length - 60} more`)] : []);
}

// Which run is shown

// The run to begin with: of CoBo (or the best), or else any with a W; one that is going on, if there is.
function usual() {
  const shown = data.runs.filter((run) => run.graph), mine = shown.filter((run) => run.method === data.leading);
  const some = mine.length ? mine : shown.length ? shown : data.runs.filter((run) => run.method === data.leading);
  return some.find((run) => run.round < run.rounds) ?? some[0];
}

function choose(method, seed) {
  const before = state.run, mine = data.runs.filter((run) => run.method === method);
  state.run = mine.find((run) => run.seed === seed) ?? mine[0];
  offer("seed", mine.map((run) => run.seed));
  byId("seed").value = state.run.seed;
  byId("method").value = method;
  const { graph } = state.run, last = graph ? graph.rounds.length - 1 : 0;
  const same = before?.graph && graph && before.method === method && before.seed === state.run.seed;
  const moved = same && state.at < before.graph.rounds.length - 1; // otherwise it follows the last round
  state.at = moved ? nearest(graph.rounds, before.graph.rounds[state.at]) : last;
  if (!same) stop();
  byId("slider").max = last;
  byId("slider").value = state.at;
  byId("play").hidden = byId("slider").parentElement.hidden = last === 0;
  byId("graph").hidden = !graph;
  byId("graph-words").textContent = graphWords();
  if (!same) state.pair = null;
  drawTruth();
  drawGraph();
  if (state.timer === null) fillWeights();
  byId("groups").replaceChildren(...groupsList());
  clientsTable();
}

const nearest = (rounds, wanted) => rounds.reduce((best, round, k) => (Math.abs(round - wanted) < Math.abs(rounds[best] - wanted) ? k : best), 0);

function go(at) {
  state.at = at;
  byId("slider").value = at;
  drawGraph();
}

function stop() {
  clearInterval(state.timer);
  state.timer = null;
  byId("play").textContent = "Play";
}

function pause() {
  stop();
  fillWeights();
}

function play() {
  const last = () => state.run.graph.rounds.length - 1; // there may come more meanwhile
  if (state.timer !== null) return pause();
  if (state.at === last()) go(0);
  byId("play").textContent = "Pause";
  state.timer = setInterval(() => {
    if (state.at < last()) go(state.at + 1);
    if (state.at === last()) pause();
  }, FRAME);
}

function clientsTable() {
  const { method, seed, round, rounds, clients, mine, alone, peers, found, away, truth } = state.run;
  const better = data.score === "accuracy" ? 1 : -1, unit = data.score === "accuracy" ? "accuracy, %" : data.score;
  const heads = ["client"], columns = [(k) => clients[k]], words = new Set([0]);
  const group = [];
  found?.forEach((members, g) => members.forEach((k) => { group[k] = String(g + 1); }));
  if (found) heads.push("group found") && columns.push((k) => group[k] ?? "-");
  if (truth) words.add(heads.push("true group") - 1) && columns.push((k) => truth[k]);
  if (alone) heads.push("alone") && columns.push((k) => measured(alone[k]));
  heads.push(alone ? `with ${method}` : unit);
  columns.push((k) => measured(mine[k]));
  if (alone) heads.push("gain") && columns.push((k) => gain(mine[k], alone[k], better));
  if (peers) words.add(heads.push("learns most from") - 1) && columns.push((k) => peers[k].map(([j, w]) => `${clients[j]} ${w.toFixed(2)}`).join(", ") || "-");
  const rows = clients.map((_, k) => columns.map((column) => column(k)));
  sortable("clients", table(heads, rows, "Clients", words), words);
  const lost = mine.filter((value, k) => value === null && !away.includes(k)).length;
  byId("clients-words").textContent = [
    `${method}, seed ${seed}${round < rounds ? `, at round ${round.toLocaleString("en")} of ${rounds.toLocaleString("en")}` : ""}: ${unit}${better < 0 ? " (lower is better)" : ""}.`,
    alone ? "Alone is Local with the same seed." : method === "local" ? "" : noGain(seed),
    lost ? `${count(lost, "client")} ${lost === 1 ? "has" : "have"} no ${data.score} that is a number in the end.` : "",
  ].join(" ");
}

function noGain(seed) {
  const begun = data.runs.some((run) => run.method === "local" && run.seed === seed);
  return begun ? "There is a gain to show when both this run and Local with the same seed are finished."
    : "Local with the same seed is not in this folder, so there is no gain to show.";
}

function gain(mine, alone, better) {
  if (mine === null || alone === null) return "-";
  const value = better * (mine - alone);
  return make("span", { class: value < 0 ? "worse" : "" }, (value >= 0 ? "+" : "") + measured(value));
}

// Curves

function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((k) => k * power >= rough);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high * (1 + 1e-9); k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) for (const k of [1, 2, 5]) found.push(k * 10 ** e);
  const inside = found.filter((v) => v >= low && v <= high);
  return inside.length > 6 ? inside.filter((v) => /^1/.test(v.toExponential())) : inside;
}

function extent(values) {
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  return [low, high];
}

// Lines {name, colour, style or dash, width, x, y, std} in a box of their own; gaps where a value is null.
function chart(host, lines, { xlabel, ylabel, range = null, height = 270, most = 5, hint = "Point at the lines to read them." }) {
  const width = Math.max(220, host.clientWidth), left = 52, bottom = 40, top = 10, right = 22;
  const xs = lines.flatMap((line) => line.x), ys = lines.flatMap((line) => line.y.filter((v) => v !== null));
  if (!ys.length) return host.replaceChildren(make("p", { class: "soft" }, "Nothing is chosen."));
  const [x0, x1] = extent(xs), log = !range && Math.min(...ys) > 0 && Math.max(...ys) > 20 * Math.min(...ys) && ylabel !== "accuracy, %";
  const edges = lines.flatMap(({ y, std }) => (std ? y.flatMap((v, k) => (v === null ? [] : [v - std[k], v + std[k]])) : []));
  let [y0, y1] = extent([...ys, ...edges.filter((v) => !log || v > 0)]);
  const room = log ? (y1 / y0) ** 0.05 : 0.06 * (y1 - y0);
  [y0, y1] = range ?? (log ? [y0 / room, y1 * room] : [y0 - room, y1 + room]);
  const sx = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const share = (y) => (log ? Math.log(Math.max(y, 1e-300) / y0) / Math.log(y1 / y0) : (y - y0) / (y1 - y0));
  const sy = (y) => top + (1 - share(y)) * (height - top - bottom);
  const node = svg("svg", { width, height, role: "img", "aria-label": `${ylabel} against ${xlabel}; its numbers are in the table below` });
  const id = `clip-${chart.made = (chart.made ?? 0) + 1}`;
  node.append(svg("clipPath", { id }, svg("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom })));
  for (const y of log ? logTicks(y0, y1) : ticks(y0, y1, most)) {
    node.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: sy(y), y2: sy(y) }));
    node.append(svg("text", { x: left - 6, y: sy(y) + 4, "text-anchor": "end" }, brief(y)));
  }
  for (const x of ticks(x0, x1, width < 420 ? 3 : 5)) node.append(svg("text", { x: sx(x), y: height - bottom + 18, "text-anchor": "middle" }, brief(x)));
  node.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, xlabel));
  const inside = svg("g", { "clip-path": `url(#${id})` });
  for (const line of lines) if (line.std) inside.append(svg("path", { d: band(line, sx, sy), fill: ink(line.colour), "fill-opacity": 0.16 }));
  for (const line of lines) inside.append(stroke(line, sx, sy));
  node.append(inside);
  host.replaceChildren(make("figcaption", {}, ylabel), node, readout(node, inside, lines, sx, [top, height - bottom], xlabel, hint));
}

function band(line, sx, sy) {
  const parts = [[]];
  line.y.forEach((y, k) => (y === null ? parts.push([]) : parts.at(-1).push(k)));
  const edge = (part, way) => part.map((k) => `${sx(line.x[k]).toFixed(1)},${sy(line.y[k] + way * line.std[k]).toFixed(1)}`);
  return parts.filter((part) => part.length).map((part) => `M${[...edge(part, 1), ...edge(part, -1).reverse()].join("L")}Z`).join("");
}

function stroke(line, sx, sy) {
  const shown = line.x.map((x, k) => (line.y[k] === null ? null : [sx(x), sy(line.y[k])]));
  if (shown.filter(Boolean).length === 1) {
    const [x, y] = shown.find(Boolean);
    return svg("circle", { cx: x, cy: y, r: 4, fill: ink(line.colour) });
  }
  const dot = (k) => (shown[k - 1] || shown[k + 1] ? "" : "h0"); // seen also between two gaps
  const d = shown.map((point, k) => point && `${shown[k - 1] ? "L" : "M"}${point[0].toFixed(1)},${point[1].toFixed(1)}${dot(k)}`).filter(Boolean).join("");
  return svg("path", { d, fill: "none", stroke: ink(line.colour), "stroke-width": line.width, "stroke-linejoin": "round", "stroke-linecap": "round", "stroke-dasharray": line.dash ?? { solid: "none", dashed: "6 4", dotted: "1 5" }[line.style] });
}

// The values at the place of the pointer, in words under the chart.
function readout(node, inside, lines, sx, [y1, y2], xlabel, hint) {
  const said = make("p", { class: "readout" }, hint);
  const rule = svg("line", { class: "rule", y1, y2, x1: -9, x2: -9 });
  inside.append(rule);
  pointed(node, (event) => {
    const wanted = event.clientX - node.getBoundingClientRect().left;
    const near = (line) => line.x.reduce((best, x, k) => (Math.abs(sx(x) - wanted) < Math.abs(sx(line.x[best]) - wanted) ? k : best), 0);
    const x = lines[0].x[near(lines[0])];
    rule.setAttribute("x1", sx(x));
    rule.setAttribute("x2", sx(x));
    said.textContent = `${xlabel} ${brief(x)}: ${lines.map((line) => `${line.name} ${brief(line.y[near(line)])}`).join(", ")}`;
  });
  return said;
}

function curveLines(score, axis) {
  const found = Object.entries(data.curves[score]).filter(([method, line]) => !state.hidden.has(method) && line[axis]);
  return found.map(([name, line]) => ({ name, ...data.looks[name], x: line[axis], y: line.mean, std: line.std }));
}

const scoreName = (score) => (score === "accuracy" ? "accuracy, %" : score);
const curveScores = () => Object.keys(data.curves).filter((score) => score !== "accuracy" || !data.curves.perplexity);

function drawCurves() {
  const axis = byId("axis").value, places = curveScores().map(() => make("figure", {}));
  byId("curves").replaceChildren(...places);
  curveScores().forEach((score, k) => {
    const range = byId("near").checked ? data.near[score] : null;
    chart(places[k], curveLines(score, axis), { xlabel: data.axes[axis], ylabel: scoreName(score), range });
  });
}

function curvesTable() {
  const axis = byId("axis").value, rows = [];
  for (const score of curveScores()) {
    for (const { name, x, y, std } of curveLines(score, axis)) {
      x.forEach((at, k) => rows.push([name, score, brief(at), brief(y[k]), std ? brief(std[k]) : "-"]));
    }
  }
  return table(["method", "score", data.axes[axis], "mean", "± over seeds"], rows, "Curves", new Set([0, 1]));
}

function prepareCurves() {
  const scores = curveScores(), methods = [...new Set(scores.flatMap((score) => Object.keys(data.curves[score])))];
  const axes = Object.keys(data.axes).filter((axis) => scores.some((score) => Object.values(data.curves[score]).some((line) => line[axis])));
  offer("axis", axes, (axis) => data.axes[axis]);
  const listed = [...byId("legend").querySelectorAll("label")].map((label) => label.textContent);
  if (listed.join("\n") !== methods.join("\n")) legend(methods);
  const banded = scores.some((score) => Object.values(data.curves[score]).some((line) => line.std));
  byId("curves-words").textContent = !scores.length ? "Nobody was evaluated with a score that is a number, so there are no curves."
    : `Mean over clients${banded ? " and seeds; bands are one standard deviation over seeds" : ""}.`;
  byId("curves-data").hidden = !scores.length;
}

function legend(methods) {
  byId("legend").querySelectorAll("label").forEach((label) => label.remove());
  for (const method of methods) {
    const box = make("input", { type: "checkbox" }), swatch = make("span", { class: `swatch ${data.looks[method].style}` });
    box.checked = !state.hidden.has(method);
    swatch.style.borderColor = data.looks[method].colour === "black" ? "currentColor" : data.looks[method].colour;
    box.addEventListener("change", () => {
      state.hidden[box.checked ? "delete" : "add"](method);
      drawCurves();
      fillCurves();
    });
    byId("legend").append(make("label", {}, box, swatch, method));
  }
}

// Rows of W on a simplex

function drawDomains() {
  const domain = data.domains;
  byId("domains-section").hidden = !domain;
  if (!domain) return;
  const { names, rounds, lines, half_life } = domain;
  byId("domains-words").textContent = `How much each client learns from each, ${domain.method}: moving average with a half-life of ${count(half_life, "round")}, mean over seeds; dashed is a client's own weight.`;
  const look = (j, own) => ({ name: names[j], colour: data.colours[j % data.colours.length], dash: own ? "6 4" : again(j) ? "9 3 2 3" : "none", width: 1.8 });
  byId("domains-legend").replaceChildren(...names.map((name, j) => {
    const line = svg("path", { d: "M1,5H25", stroke: ink(look(j).colour), "stroke-width": 2.5, "stroke-dasharray": look(j).dash });
    return make("li", {}, svg("svg", { width: 26, height: 10, class: "mark", "aria-hidden": "true" }, line), name);
  }));
  const panels = names.map(() => make("figure", {}));
  byId("domains").replaceChildren(...panels);
  const range = [0, 1.05 * lines.flat(2).reduce((a, b) => Math.max(a, b), 0)];
  names.forEach((name, i) => {
    const found = names.map((_, j) => ({ ...look(j, i === j), x: rounds, y: lines[i][j], std: null })).filter((line) => line.y.some((v) => v !== null));
    chart(panels[i], found, { xlabel: "rounds", ylabel: short(name, 30), range, height: 190, most: 4, hint: "" });
  });
}

function domainsTable() {
  const { names, lines } = data.domains;
  const rows = names.map((name, i) => [name, ...names.map((_, j) => brief(lines[i][j].at(-1)))]);
  return table(["in the end learns from", ...names], rows, "Weights of each client in the end");
}

// All of it

function redraw() {
  if (!data.runs.length) return;
  drawTruth();
  drawGraph();
  drawCurves();
  drawDomains();
  byId("graph-words").textContent = graphWords();
  byId("groups").replaceChildren(...groupsList());
}

const fillWeights = behind("weights-data", weightsTable);
const fillCurves = behind("curves-data", curvesTable);
const fillDomains = behind("domains-data", domainsTable);
behind("methods-said", () => make("dl", {}, ...Object.entries(data.table.said).flatMap(([head, said]) => [make("dt", {}, head), make("dd", {}, said)])));

// Names are in the data once, for all runs of the same clients.
function unpack(run) {
  Object.assign(run, data.people[run.people]);
  if (run.graph) run.graph.labels ??= [...run.found.flat(), ...run.away].map((k) => run.clients[k]);
}

// The page from its data; again, and keeping what the reader has chosen, when there are newer ones.
function fill() {
  byId("about").textContent = data.about;
  byId("finding").textContent = data.finding;
  byId("scores").textContent = data.scores;
  byId("notes").replaceChildren(...data.notes.map((note) => make("li", {}, note)));
  byId("main").hidden = !data.runs.length;
  if (!data.runs.length) return;
  data.runs.forEach(unpack);
  byId("command").textContent = data.command;
  byId("settings").textContent = data.settings;
  byId("environment").replaceChildren(table(["what", "which"], Object.entries(data.environment).map(([key, value]) => [key, String(value)]), "Environment"));
  byId("near").parentElement.hidden = !Object.values(data.near).some(Boolean);
  offer("method", [...new Set(data.runs.map((run) => run.method))]);
  methodsTable();
  prepareCurves();
  const { method, seed } = (state.chosen && data.runs.find((run) => run.method === state.run.method)) ? state.run : usual();
  choose(method, seed);
  drawCurves();
  drawDomains();
  fillCurves();
  if (data.domains) fillDomains();
}

byId("method").addEventListener("change", (event) => { state.chosen = true; choose(event.target.value, state.run.seed); });
byId("seed").addEventListener("change", (event) => { state.chosen = true; choose(state.run.method, Number(event.target.value)); });
byId("slider").addEventListener("input", (event) => { state.chosen = true; stop(); go(Number(event.target.value)); });
byId("slider").addEventListener("change", fillWeights); // not at each step: it is a table of all pairs
byId("play").addEventListener("click", () => { state.chosen = true; play(); });
byId("axis").addEventListener("change", () => { drawCurves(); fillCurves(); });
byId("near").addEventListener("change", drawCurves);
for (const id of ["weights", "truth"]) pointed(byId(id), readPair);
fill();
dark.addEventListener("change", redraw);
let width = document.body.clientWidth;
window.addEventListener("resize", () => {
  if (document.body.clientWidth === width) return; // a phone's address bar comes and goes
  width = document.body.clientWidth;
  redraw();
});

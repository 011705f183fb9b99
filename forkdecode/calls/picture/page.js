"use strict";
const data = JSON.parse(document.getElementById("tree").textContent);
const nodes = data.nodes;
const $ = (id) => document.getElementById(id);
const BLOCK = data.blocks ? data.blocks.size : data.block_size;
const WIDTH = 290, HEIGHT = BLOCK ? 72 : 60, ACROSS = WIDTH + 56, DOWN = HEIGHT + 10;
const NEVER = Infinity;
/** A parent stands in the middle of its children; in large trees beside the first, where one sees both. */
const CENTRED = nodes.length <= 60;
const number = (value) => value.toLocaleString("en");
const short = (value) => (Math.abs(value) < 1e5 ? String(Math.round(value * 1000) / 1000) : value.toExponential(3));

for (const node of nodes) node.children = [];
nodes.forEach((node, place) => {
  node.place = place;
  node.depth = node.parent === null ? 0 : nodes[node.parent].depth + 1;
  node.start = node.parent === null ? 0 : nodes[node.parent].start + nodes[node.parent].tokens;
  if (node.parent !== null) nodes[node.parent].children.push(node);
});

const state = { step: data.steps.length - 1, folded: new Set(), pruned: true, chosen: null, zoom: 1, x: 20, y: 20 };
let laid = [], boxes = new Map(), timer = null;

// -- where nodes stand: they keep their places over all steps ------------------------------------

function layout() {
  laid = [];
  let line = 0;
  const todo = nodes.filter((node) => node.parent === null && shown(node)).reverse().map((node) => [node, false]);
  while (todo.length) {
    const [node, back] = todo.pop();
    const kids = state.folded.has(node) ? [] : node.children.filter(shown);
    if (!back && kids.length) {
      todo.push([node, true]);
      for (let i = kids.length; i-- > 0; ) todo.push([kids[i], false]);
      continue;
    }
    node.x = node.depth * ACROSS;
    const last = CENTRED ? kids.length - 1 : 0;
    node.y = kids.length ? (kids[0].y + kids[last].y) / 2 : DOWN * line++;
    laid.push(node);
  }
}

const shown = (node) => state.pruned || node.gone === null;

function size() {
  let width = WIDTH, height = HEIGHT;
  for (const node of laid) {
    width = Math.max(width, node.x + WIDTH);
    height = Math.max(height, node.y + HEIGHT);
  }
  return [width, height];
}

// -- what is there at a step -----------------------------------------------------------------------

const born = (node) => node.born <= state.step;
const gone = (node) => node.gone !== null && node.gone <= state.step;
const grows = (node) => node.kind === "generated" && (node.ended === null ? NEVER : node.ended) > state.step;
const grown = (node) => node.grown.filter((step) => step <= state.step).length;
const textOf = (node) => (node.pieces.length ? node.pieces.slice(0, grown(node)).join("") : node.text);
const tokensOf = (node) => (node.pieces.length ? grown(node) : grows(node) ? 0 : node.tokens);

const blocks = { at: -1, ref: 0, table: 0, refs: new Map(), tables: new Map() };
function moveBlocks() {
  if (!data.blocks) return data.block_size && shareBlocks();
  if (blocks.at > state.step) Object.assign(blocks, { ref: 0, table: 0, refs: new Map(), tables: new Map() });
  const { refs, tables } = data.blocks;
  for (; blocks.ref < refs.length && refs[blocks.ref][0] <= state.step; blocks.ref++) {
    const [, block, count] = refs[blocks.ref];
    if (count) blocks.refs.set(block, count);
    else blocks.refs.delete(block);
  }
  for (; blocks.table < tables.length && tables[blocks.table][0] <= state.step; blocks.table++)
    blocks.tables.set(tables[blocks.table][1], tables[blocks.table][2]);
  blocks.at = state.step;
}

/** Blocks that nobody recorded: those that paths need, and how many nodes' paths have all of each, or end in it. */
function shareBlocks() {
  const all = nodes.map((node) => (born(node) && !gone(node) ? 1 : 0)), ends = all.slice();
  for (let at = nodes.length; at-- > 0; ) {
    const { parent } = nodes[at];
    if (parent === null) continue;
    all[parent] += all[at];
    if (!tokensOf(nodes[at])) ends[parent] += ends[at];
  }
  blocks.refs.clear();
  for (const node of nodes) {
    const own = born(node) ? tokensOf(node) : 0, end = node.start + own, table = [];
    for (let at = Math.floor(node.start / BLOCK); own && at * BLOCK < end; at++) {
      const count = ((at + 1) * BLOCK <= end ? all : ends)[node.place], name = `${at} of ${node.name}`;
      table.push(name);
      if (count) blocks.refs.set(name, count);
    }
    blocks.tables.set(node.place, table);
  }
}

const SHADES = [[1, "#a5b4fc", "1"], [2, "#34d399", "2"], [3, "#facc15", "3-4"], [5, "#fb923c", "5-8"], [9, "#ef4444", "9 or more"]];
const shade = (count) => SHADES.reduce((found, [least, colour]) => (count >= least ? colour : found), "#9ca3af55");

// -- drawing: only what is in sight ------------------------------------------------------------------

function element(kind, name, text) {
  const made = document.createElement(kind);
  made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function draw() {
  const { zoom, x, y } = state, view = $("view");
  $("canvas").style.transform = `translate(${x}px, ${y}px) scale(${zoom})`;
  $("canvas").classList.toggle("far", zoom < 0.3);
  const left = -x / zoom, top = -y / zoom;
  const right = left + view.clientWidth / zoom, bottom = top + view.clientHeight / zoom;
  const seen = new Set(), kept = [], lost = [];
  for (const node of laid) {
    if (!born(node)) continue;
    const parent = node.parent === null ? null : nodes[node.parent];
    if (parent && Math.max(node.y, parent.y) + HEIGHT >= top && Math.min(node.y, parent.y) <= bottom && node.x >= left && parent.x <= right) {
      const from = [parent.x + WIDTH, parent.y + HEIGHT / 2], to = [node.x, node.y + HEIGHT / 2], half = (from[0] + to[0]) / 2;
      (gone(node) ? lost : kept).push(`M${from}C${half},${from[1]} ${half},${to[1]} ${to}`);
    }
    if (node.x > right || node.x + WIDTH < left || node.y > bottom || node.y + HEIGHT < top) continue;
    seen.add(node);
    if (!boxes.has(node)) boxes.set(node, $("canvas").appendChild(box(node)));
  }
  for (const [node, made] of boxes)
    if (!seen.has(node)) {
      made.remove();
      boxes.delete(node);
    }
  $("kept").setAttribute("d", kept.join(""));
  $("lost").setAttribute("d", lost.join(""));
}

function box(node) {
  const made = element("div", "node " + node.kind);
  made.dataset.node = node.name;
  made.style.left = node.x + "px";
  made.style.top = node.y + "px";
  made.style.height = HEIGHT + "px";
  made.classList.toggle("gone", gone(node));
  made.classList.toggle("growing", grows(node) && !gone(node));
  made.classList.toggle("done", node.reason === "eos" && !grows(node));
  made.classList.toggle("chosen", node === state.chosen);
  const head = made.appendChild(element("div", "head"));
  if (node.children.length) head.appendChild(fold(node));
  head.appendChild(element("span", "name", node.name));
  head.appendChild(element("span", "why", gone(node) ? "pruned" : grows(node) ? "growing" : node.reason || ""));
  const score = node.score !== null ? node.score : node.logprob;
  if (score !== null && !grows(node)) head.appendChild(element("b", "score", short(score)));
  const text = made.appendChild(element("div", "text", textOf(node).replaceAll("\n", "\u23ce")));
  text.dir = "auto";
  made.appendChild(element("div", "foot", foot(node)));
  const strip = made.appendChild(element("div", "blocks"));
  for (const block of (blocks.tables.get(node.place) || []).slice(0, 32)) {
    const cell = strip.appendChild(element("i", ""));
    const count = blocks.refs.get(block) || 0;
    cell.style.background = shade(count);
    cell.title = `block ${block}: ${count} references`;
    cell.dataset.refs = count;
  }
  made.addEventListener("click", () => choose(node));
  return made;
}

function fold(node) {
  const made = element("button", "fold", (state.folded.has(node) ? "+" : "\u2212") + node.children.length);
  made.type = "button";
  made.addEventListener("click", (event) => {
    event.stopPropagation();
    if (!state.folded.delete(node)) state.folded.add(node);
    redraw();
  });
  return made;
}

function foot(node) {
  const parts = [`${number(tokensOf(node))} tokens`];
  if (node.computed !== null && node.computed) parts.push(`path: ${number(node.computed)} computed`);
  if (node.shared !== null) parts.push(`${number(node.shared)} shared`);
  return parts.join(" \u00b7 ");
}

function count() {
  const there = nodes.filter(born);
  let own = 0, path = 0, shared = 0;
  for (const node of there) {
    if (node.kind === "generated") own += tokensOf(node);
    path += node.computed || 0;
    shared += node.shared || 0;
  }
  const lost = there.filter(gone).length, growing = there.filter((node) => grows(node) && !gone(node)).length;
  const said = [`${number(there.length)} nodes`, `${number(lost)} pruned`, `${number(growing)} growing`];
  said.push(`${number(own)} tokens generated`, `${number(path)} of paths computed`, `${number(shared)} shared`);
  if (BLOCK) {
    const all = [...blocks.refs.values()];
    said.push(`${number(all.length)} blocks of ${BLOCK}, ${number(all.filter((n) => n > 1).length)} shared`);
  }
  $("counts").textContent = said.join(", ");
}

function redraw() {
  for (const made of boxes.values()) made.remove();
  boxes.clear();
  moveBlocks();
  layout();
  draw();
  count();
  details();
  $("step").value = state.step;
  $("label").textContent = data.steps[state.step] || "";
}

function choose(node) {
  state.chosen = state.chosen === node ? null : node;
  redraw();
}

function details() {
  const node = state.chosen, panel = $("details");
  panel.hidden = !node;
  if (!node) return;
  panel.replaceChildren(element("h2", "", node.name));
  const list = panel.appendChild(element("dl", ""));
  const say = (name, value) => {
    if (value === null || value === "") return;
    list.appendChild(element("dt", "", name));
    list.appendChild(element("dd", "", String(value)));
  };
  say("kind", node.kind);
  say("state", gone(node) ? "pruned" : grows(node) ? "growing" : "at rest");
  say("ended by", grows(node) ? null : node.reason);
  say("item", grows(node) ? null : node.item);
  say("score", node.score);
  say("log-probability", grows(node) ? null : node.logprob);
  say("own tokens", tokensOf(node));
  say("path computed", node.computed);
  say("path shared", node.shared);
  say("came", data.steps[node.born]);
  if (node.gone !== null) say("pruned", data.steps[node.gone]);
  if (blocks.tables.has(node.place))
    say("blocks", blocks.tables.get(node.place).map((b) => `${b}\u00d7${blocks.refs.get(b) || 0}`).join(" "));
  const text = (name, value) => {
    panel.appendChild(element("h3", "", name));
    panel.appendChild(element("pre", "", value)).dir = "auto";
  };
  text("Text", textOf(node));
  const path = [];
  for (let at = node; at; at = at.parent === null ? null : nodes[at.parent]) path.unshift(textOf(at));
  if (path.length > 1) text("Path", path.join(""));
}

// -- moving about ---------------------------------------------------------------------------------

function fit() {
  const [width, height] = size(), view = $("view");
  state.zoom = Math.min(1, (view.clientWidth - 40) / width, (view.clientHeight - 40) / height);
  [state.x, state.y] = [20, 20];
  draw();
}

/** At first all of it if it can be read so, else from the first root on. */
function begin() {
  fit();
  if (state.zoom >= 0.6) return;
  const root = nodes.find((node) => node.parent === null);
  state.zoom = 0.6;
  if (CENTRED) state.y = $("view").clientHeight / 2 - (root.y + HEIGHT / 2) * state.zoom;
  draw();
}

function zoomAt(factor, x, y) {
  const zoom = Math.min(2, Math.max(0.01, state.zoom * factor)), by = zoom / state.zoom;
  Object.assign(state, { zoom, x: x - (x - state.x) * by, y: y - (y - state.y) * by });
  draw();
}

function go(step) {
  state.step = Math.min(data.steps.length - 1, Math.max(0, step));
  redraw();
}

function play() {
  if (timer !== null) {
    clearInterval(timer);
    timer = null;
  } else {
    if (state.step >= data.steps.length - 1) go(0);
    timer = setInterval(() => (state.step < data.steps.length - 1 ? go(state.step + 1) : play()), 250);
  }
  $("play").textContent = timer === null ? "Play" : "Pause";
}

function start() {
  $("notes").textContent = data.notes;
  $("step").max = Math.max(0, data.steps.length - 1);
  if (BLOCK) {
    $("legend").appendChild(element("span", "", "references of a block:"));
    for (const [, colour, name] of SHADES) {
      const item = $("legend").appendChild(element("span", ""));
      item.appendChild(element("i", "")).style.background = colour;
      item.appendChild(document.createTextNode(name));
    }
  }
  $("step").addEventListener("input", () => go(Number($("step").value)));
  $("play").addEventListener("click", play);
  $("fit").addEventListener("click", fit);
  $("read").addEventListener("click", () => zoomAt(1 / state.zoom, 20, 20));
  $("pruned").addEventListener("change", () => {
    state.pruned = $("pruned").checked;
    redraw();
  });
  const view = $("view");
  let held = null;
  view.addEventListener("pointerdown", (event) => { held = [event.clientX - state.x, event.clientY - state.y]; });
  window.addEventListener("pointermove", (event) => {
    if (!held) return;
    [state.x, state.y] = [event.clientX - held[0], event.clientY - held[1]];
    draw();
  });
  window.addEventListener("pointerup", () => { held = null; });
  view.addEventListener("wheel", (event) => {
    event.preventDefault();
    const place = view.getBoundingClientRect();
    zoomAt(Math.exp(-event.deltaY / 400), event.clientX - place.left, event.clientY - place.top);
  }, { passive: false });
  view.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) go(state.step + by);
  });
  window.addEventListener("resize", draw);
  redraw();
  if (nodes.length) begin();
}

start();

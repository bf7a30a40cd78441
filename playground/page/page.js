// The script of the page: it draws the events that the program reports, and passes on what the reader presses.
"use strict";

const $ = (id) => document.getElementById(id);
const clients = ["A", "B", "C"];
const lane = 44; // height of a lane
const bottom = 4 * lane + 66; // the lane of the number is higher: it has two rows
const laneOf = { A: 0, B: 1, C: 2, Redis: 3, Number: 4 };
const seconds = (ns) => ns / 1e9;
const lease = 5; // seconds; see world.Lease

const short = {
  ErrExpired: "its lease ran out", ErrUnreachable: "no answer from Redis", ErrTakenOver: "another owner",
  ErrRemoved: "Redis has forgotten it", ErrRefused: "Redis refused",
};
const grave = new Set(["lost", "lost-update", "refused", "two-owners", "flushed", "killed"]);

let scenarios = [];
let visit = 0; // number of the world that is shown
let current; // the scenario; undefined for free play
let playing = false;

// --- The timeline ---

const chart = $("chart");
let scale, bars, end, drawn, follow;

function svg(name, attributes, parent = chart, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  parent.append(e);
  return e;
}

const X = (t) => 8 + t * scale;
const Y = (who) => laneOf[who] * lane + lane / 2;
const ahead = () => Math.min(150, $("scroll").clientWidth * 0.3); // room for labels after the present
const layers = {};

function clear() {
  scale = Math.max(24, Math.min(46, $("scroll").clientWidth / 22));
  bars = {};
  end = 0;
  drawn = 0;
  follow = true;
  chart.replaceChildren();
  const defs = svg("defs", {});
  const stripes = svg("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, defs);
  svg("rect", { width: 2.5, height: 6, style: "fill:var(--stop)" }, stripes);
  for (const name of ["rules", "band", "bars", "over", "marks", "labels"]) layers[name] = svg("g", {});
  layers.now = svg("line", { class: "now", y1: 0, y2: bottom });
  chart.setAttribute("height", bottom + 22);
  layers.lines = [1, 2, 3, 4, bottom / lane].map((i) => svg("line", { class: "rule", x1: 0, y1: i * lane, y2: i * lane }, layers.rules));
  grow(0);
}

// grow makes the timeline last until t, and keeps the present in view.
function grow(t) {
  end = Math.max(end, t);
  const width = Math.max($("scroll").clientWidth, X(end) + ahead());
  chart.setAttribute("width", width);
  for (const l of layers.lines) l.setAttribute("x2", width);
  for (; drawn <= (width - 8) / scale; drawn++) {
    if (drawn % 2 === 0) svg("text", { class: "axis", x: X(drawn), y: bottom + 16 }, layers.rules, drawn + " s");
  }
  layers.now.setAttribute("x1", X(end));
  layers.now.setAttribute("x2", X(end));
  for (const b of Object.values(bars)) b.rect.setAttribute("width", Math.max(1, (end - b.from) * scale));
  if (follow) $("scroll").scrollLeft = Math.max(0, X(end) + ahead() - $("scroll").clientWidth);
}

function open(who, kind, t) {
  close(who, kind, t);
  const y = Y(who);
  const [top, height] = { held: [y - 11, 22], over: [y - 11, 22], waiting: [y - 8, 16], paused: [y - 15, 30], cut: [y + 18, 3] }[kind];
  const rect = svg("rect", { class: `bar ${kind} ${who}`, "data-kind": kind, "data-client": who, x: X(t), y: top, height, width: 1, rx: 2 }, layers[kind === "paused" ? "over" : "bars"]);
  bars[who + kind] = { rect, from: t };
}

function close(who, kind, t) {
  const b = bars[who + kind];
  if (!b) return false;
  b.rect.setAttribute("width", Math.max(2, (t - b.from) * scale));
  delete bars[who + kind];
  return true;
}

// leave ends the bar of a hold.
function leave(who, t) {
  close(who, "held", t);
  close(who, "over", t);
}

// label writes a text where no other text of its lane ends later.
function label(who, t, text, style = "") {
  const y = Y(who);
  const e = svg("text", { class: "halo " + style, x: X(t) + 8, y: y - 8 }, layers.labels, text);
  const row = (layers.labels[who] ??= [0, 0]);
  const i = row[0] <= X(t) ? 0 : row[1] <= X(t) ? 1 : row[0] <= row[1] ? 0 : 1;
  const x = Math.max(X(t) + 8, row[i]);
  e.setAttribute("x", x);
  e.setAttribute("y", i === 0 ? y - 10 : y + 14);
  row[i] = x + e.getComputedTextLength() + 10;
}

// write draws a write, in the lower row with its label if the reader should not miss it.
function write(e, t, letter, style, text) {
  const g = svg("g", { class: e.client, "data-kind": e.kind, "data-client": e.client }, layers.marks);
  const x = X(t);
  const y = laneOf.Number * lane + (text ? 48 : 18);
  if (style === "open") svg("rect", { class: "mark open", x: x - 9, y: y - 9, width: 18, height: 18, rx: 3 }, g);
  else svg("circle", { class: "mark " + style, cx: x, cy: y, r: 9 }, g);
  svg("text", { class: style === "open" ? "out" : "in", x, y: y + 4 }, g, letter);
  svg("title", {}, g, e.text);
  if (text) svg("text", { class: "halo warn", x: x + 14, y: y + 4 }, layers.labels, text);
}

function tick(e, t) {
  const y = Y(e.client);
  const far = e.kind === "renewed" ? 11 : 16;
  svg("line", { class: `mark ${e.kind} ${e.client}`, "data-kind": e.kind, "data-client": e.client, x1: X(t), x2: X(t), y1: y - far, y2: y + far }, layers.marks);
}

function flag(e, who, t, text, style = "warn") {
  const g = svg("g", { "data-kind": e.kind, "data-client": e.client ?? "", "data-cause": e.name ?? "", class: e.client ?? "" }, layers.marks);
  svg("path", { class: "mark " + (style === "warn" ? "bad" : "open"), d: `M${X(t)} ${Y(who) - 7}l7 7l-7 7l-7 -7z` }, g);
  svg("title", {}, g, e.text);
  label(who, t, text, style);
}

const draw = {
  waiting: (e, t) => open(e.client, "waiting", t),
  held: (e, t) => { close(e.client, "waiting", t); open(e.client, "held", t); },
  "gave-up": (e, t) => close(e.client, "waiting", t),
  renewed: tick,
  "not-renewed": tick,
  retried: (e, t) => { tick(e, t); label(e.client, t, "asks again"); },
  lost: (e, t) => { leave(e.client, t); flag(e, e.client, t, "lost: " + (short[e.name] ?? "")); },
  released: (e, t) => leave(e.client, t),
  unconfirmed: (e, t) => { leave(e.client, t); flag(e, e.client, t, "release not confirmed"); },
  paused: (e, t) => open(e.client, "paused", t),
  resumed: (e, t) => close(e.client, "paused", t),
  cut: (e, t) => open(e.client, "cut", t),
  healed: (e, t) => close(e.client, "cut", t),
  killed: (e, t) => {
    leave(e.client, t);
    for (const kind of ["waiting", "paused", "cut"]) close(e.client, kind, t);
    flag(e, e.client, t, "killed");
  },
  started: (e, t) => flag(e, e.client, t, "started", "plain"),
  flushed: (e, t) => flag(e, "Redis", t, "loses its data"),
  shown: (e, t) => flag(e, "Redis", t, e.holds + (e.holds === 1 ? " hold" : " holds"), "plain"),
  "reply-lost": (e, t) => flag(e, "Redis", t, `its reply to ${e.client} will be lost`, "plain"),
  "two-owners": (e, t) => { flag(e, "Redis", t, "two owners"); svg("rect", { class: "mark both", "data-kind": e.kind, x: X(t) - 3, y: 0, width: 6, height: bottom }, layers.band); },
  accepted: (e, t) => write(e, t, e.client, "disc"),
  refused: (e, t) => write(e, t, "×", "open", `${e.client} is refused`),
  "lost-update": (e, t) => write(e, t, "!", "bad", `${e.client}: lost update`),
};

// --- The list of events ---

let last; // the latest entry: repeated failures are counted in it

function list(e, t) {
  if (last && e.kind === "not-renewed" && last.kind === e.kind && last.client === e.client) {
    last.words.textContent = `${e.text} (${++last.times} times)`;
    return;
  }
  const li = document.createElement("li");
  li.dataset.kind = e.kind;
  const time = document.createElement("time");
  time.textContent = t.toFixed(2) + " s";
  const words = document.createElement("span");
  words.textContent = e.text;
  if (grave.has(e.kind)) words.className = "bad";
  li.append(time, words);
  $("log").prepend(li);
  if (e.kind !== "accepted" && e.kind !== "renewed") last = { words, kind: e.kind, client: e.client, times: 1 };
}

// --- What the program sends ---

function receive(number, kind, json) {
  if (number !== visit) return;
  const what = JSON.parse(json);
  switch (kind) {
    case "event": {
      const t = seconds(what.at);
      grow(t);
      draw[what.kind]?.(what, t);
      list(what, t);
      break;
    }
    case "verdicts":
      playing = false;
      what.forEach((v, i) => { $("claims").children[i].className = v.true ? "true" : "false"; });
      outcome(what.every((v) => v.true) ? "Each claim is true of what has just happened." : "A claim is not true of what has just happened.");
      $("scenario").dataset.over = "verdicts";
      break;
    case "interrupted":
      if (playing) outcome("You have taken over, so the claims are not checked.");
      playing = false;
      break;
    default:
      outcome("The program has failed: " + what);
  }
}

function outcome(text) { $("outcome").textContent = text; }

// --- What the reader presses ---

function act(what, client) {
  playground.act(what, client);
}

function button(text, what, client, parent) {
  const b = document.createElement("button");
  b.type = "button";
  b.textContent = text;
  b.dataset.act = what;
  b.addEventListener("click", () => act(what, client));
  if (client) b.setAttribute("aria-label", `${text}: client ${client}`);
  parent.append(b);
  return b;
}

function card(title, style) {
  const div = document.createElement("div");
  div.className = "card " + style;
  div.innerHTML = "<h3></h3><p class=state></p><div class=buttons></div>";
  div.firstChild.textContent = title;
  $("clients").append(div);
  return { state: div.children[1], buttons: div.lastChild, div };
}

const cards = {};

function build() {
  for (const c of clients) {
    const k = (cards[c] = card("Client " + c, c));
    const rest = document.createElement("div");
    rest.className = "lease";
    rest.innerHTML = "<i></i>";
    k.div.insertBefore(rest, k.buttons);
    k.rest = rest.firstChild;
    k.lock = button("Lock", "lock", c, k.buttons);
    k.pause = button("Stop for 8 s", "pause", c, k.buttons);
    k.cut = button("Cut network", "cut", c, k.buttons);
    k.lose = button("Lose next reply", "lose-reply", c, k.buttons);
    k.kill = button("Kill", "kill", c, k.buttons);
  }
  cards.Redis = card("Redis and the number", "wide");
  button("Lose Redis’ data", "lose-data", "", cards.Redis.buttons).removeAttribute("aria-label");
  cards.fence = button("Fence", "fence", "", cards.Redis.buttons);
}

function set(b, text, what) {
  if (b.dataset.act === what) return;
  const client = b.getAttribute("aria-label").slice(-1);
  const fresh = b.cloneNode();
  fresh.textContent = text;
  fresh.dataset.act = what;
  fresh.setAttribute("aria-label", `${text}: client ${client}`);
  fresh.addEventListener("click", () => act(what, client));
  const focused = document.activeElement === b;
  b.replaceWith(fresh);
  if (focused) fresh.focus();
  return fresh;
}

// show shows what the clients do now.
function show(s, t) {
  for (const c of clients) {
    const k = cards[c];
    const now = s.clients[c];
    k.lock = set(k.lock, now.Busy ? "Unlock" : "Lock", now.Busy ? "unlock" : "lock") ?? k.lock;
    k.cut = set(k.cut, now.Cut ? "Heal network" : "Cut network", now.Cut ? "heal" : "cut") ?? k.cut;
    k.kill = set(k.kill, now.Alive ? "Kill" : "Start again", now.Alive ? "kill" : "start") ?? k.kill;
    k.lock.disabled = k.cut.disabled = !now.Alive;
    k.pause.disabled = !now.Alive || now.Paused;
    k.lose.disabled = !now.Alive || now.Busy;
    if (now.Holds && now.Left <= 0 && close(c, "held", t)) open(c, "over", t); // it is stopped, and does not know
    const does = !now.Alive ? "is dead" : now.Paused ? "is stopped" : now.Holds && now.Left > 0 ? "holds the lock, and works" : now.Busy ? "waits for the lock" : "is idle";
    const text = does + (now.Cut ? ", and is cut off" : "");
    if (k.state.textContent !== text) k.state.textContent = text;
    k.rest.style.width = now.Holds ? (100 * seconds(now.Left)) / lease + "%" : 0;
  }
  const lost = s.updates - s.value;
  const text = `The number is ${s.value}, after ${s.updates} updates` + (lost > 0 ? `: ${lost} lost.` : ".");
  if (cards.Redis.state.textContent !== text) cards.Redis.state.textContent = text;
  const fence = s.fence ? "Turn the fence off" : "Turn the fence on";
  if (cards.fence.textContent !== fence) cards.fence.textContent = fence;
}

let idleSince = 0;

// frame lets the present move while anything goes on.
function frame() {
  const json = playground.status();
  if (json) {
    const s = JSON.parse(json);
    if (s.visit === visit) {
      const t = seconds(s.age);
      const busy = playing || Object.values(s.clients).some((c) => c.Busy || c.Paused || c.Cut);
      if (busy) idleSince = t;
      if (t - idleSince < 1.5) grow(t);
      show(s, t);
    }
  }
  setTimeout(() => requestAnimationFrame(frame), 50);
}

function begin() {
  const name = location.hash.slice(1);
  current = scenarios.find((s) => s.Name === name);
  visit++;
  playing = current !== undefined;
  idleSince = 0;
  last = undefined;
  clear();
  $("log").replaceChildren();
  $("claims").replaceChildren();
  delete $("scenario").dataset.over;
  outcome("");
  $("title").textContent = current ? current.Title : "Free play";
  $("story").textContent = current ? current.Story : "Let A lock, then B. Stop, cut off or kill the one that holds the lock, or let Redis lose its data. A client that is stopped while it works stops at the worst moment: after its last check of the lease, before its write.";
  for (const text of current?.Claims ?? []) {
    const li = document.createElement("li");
    li.textContent = text;
    $("claims").append(li);
  }
  $("again").hidden = !current;
  for (const a of document.querySelectorAll("nav a")) {
    if (a.hash === (current ? "#" + name : "#play")) a.setAttribute("aria-current", "true");
    else a.removeAttribute("aria-current");
  }
  playground.open(visit, current ? name : "", receive);
}

async function load() {
  const go = new Go();
  const program = fetch("playground.wasm");
  let loaded;
  try {
    loaded = await WebAssembly.instantiateStreaming(program, go.importObject);
  } catch { // the server has not said that it is WebAssembly
    loaded = await WebAssembly.instantiate(await (await fetch("playground.wasm")).arrayBuffer(), go.importObject);
  }
  go.run(loaded.instance);
}

async function main() {
  await load();
  scenarios = JSON.parse(playground.scenarios);
  for (const [name, title] of [...scenarios.map((s) => [s.Name, s.Title]), ["play", "Free play"]]) {
    const li = document.createElement("li");
    const a = document.createElement("a");
    a.href = "#" + name;
    a.textContent = title;
    li.append(a);
    $("scenarios").append(li);
  }
  build();
  $("replay").disabled = false;
  $("replay").addEventListener("click", begin);
  addEventListener("hashchange", begin);
  $("scroll").addEventListener("scroll", () => {
    const s = $("scroll");
    follow = s.scrollLeft + s.clientWidth > s.scrollWidth - 40;
  });
  if (!location.hash) history.replaceState(null, "", "#paused");
  begin();
  frame();
}

main().catch((err) => {
  $("title").textContent = "The page could not be started";
  $("story").textContent = String(err);
});

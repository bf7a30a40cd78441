// The pages of rlockui. What others wrote (names, labels) comes into the document as text only.
"use strict";

const $ = id => document.getElementById(id);
const pages = ["locks", "lock", "waits", "clients", "nodes"];
const labels = ["Lock", "Type", "Holder", "Held for", "Lease", "Token", "Waiters", "Hand-overs", "Losses"];
let source = null; // of the events; null while the tab is hidden
let retry = 0;     // timer of a new connection
let skew = 0;      // clock of the browser less the clock of the server, ms
let rows = 200;
let page = "locks", lockID = "";
let last = null;   // latest view
let asks = null;   // hold that the dialog is about

// el makes an element. Children are elements or texts.
function el(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs || {})) {
    if (value !== null && value !== undefined && value !== false) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.filter(c => c !== null && c !== undefined && c !== ""));
  return e;
}

function setText(e, text) { if (e.textContent !== text) e.textContent = text; }

// fill replaces the children of an element, unless they are the same: the focus stays then.
function fill(parent, children) {
  const fresh = el("div", null, ...children);
  if (fresh.childNodes.length === parent.childNodes.length && [...fresh.childNodes].every((c, i) => c.isEqualNode(parent.childNodes[i]))) return;
  const focused = parent.contains(document.activeElement) ? document.activeElement.getAttribute("data-key") : null;
  parent.replaceChildren(...fresh.childNodes);
  if (focused) for (const e of parent.querySelectorAll("[data-key]")) if (e.getAttribute("data-key") === focused) e.focus();
}

function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 120) return s + " s";
  if (s < 7200) return Math.floor(s / 60) + " min";
  if (s < 172800) return Math.floor(s / 3600) + " h";
  return Math.floor(s / 86400) + " d";
}

function now() { return Date.now() - skew; }

// timed makes a text that changes each second: how long ago a time was, or how far away it is.
function timed(ms, kind, before) {
  const e = el("span", {"data-ms": ms, "data-kind": kind, "data-before": before || ""});
  tick(e);
  return e;
}

function tick(e) {
  const ms = Number(e.getAttribute("data-ms"));
  const d = e.getAttribute("data-kind") === "rest" ? ms - now() : now() - ms;
  setText(e, e.getAttribute("data-before") + span(d));
}

const tag = (text, kind) => el("span", {class: "tag " + (kind || "")}, text);
const lockLink = (id, name) => el("a", {href: "#/lock/" + id, "data-key": "lock" + id}, name);

function holderText(h) {
  if (!h.who && !h.host) return h.hold;
  return h.who + "@" + h.host + " (pid " + h.pid + ")";
}

function tags(r) {
  const all = [];
  if (r.gone) all.push(tag("client gone", "danger"));
  if (r.overdue) all.push(tag("not renewed", "danger"));
  if (r.inCycle) all.push(tag("cycle", "danger"));
  return all;
}

function cells(r) {
  const holders = r.holders.map(holderText).join(", ") + (r.holdersTotal > r.holders.length ? " and " + (r.holdersTotal - r.holders.length) + " more" : "");
  return [
    [lockLink(r.id, r.name)],
    [r.type + (r.mode === "shared" ? ", shared" : "") + (r.votes ? ", " + r.votes + " votes" : "")],
    r.holders.length ? [el("span", null, ...tags(r), holders)] : ["free"],
    r.holders.length ? [timed(r.since, "age", r.sinceExact ? "" : "\u2265 ")] : ["\u2013"],
    r.ends ? [timed(r.ends, "rest")] : ["\u2013"],
    [r.token || "\u2013"],
    [String(r.waiters)],
    [r.handOvers + (r.perMinute ? " (" + r.perMinute + "/min)" : "")],
    [String(r.lost)],
  ];
}

// drawRows updates the table in place: a row that stays keeps its elements, and the focus.
function drawRows(all) {
  const body = $("rows"), known = new Map();
  const ids = new Set(all.map(r => r.id));
  for (const tr of [...body.children]) {
    if (ids.has(tr.getAttribute("data-id"))) known.set(tr.getAttribute("data-id"), tr);
    else tr.remove(); // first: a row that is moved loses the focus
  }
  let at = body.firstElementChild;
  for (const r of all) {
    let tr = known.get(r.id);
    if (!tr) tr = el("tr", {role: "row", "data-id": r.id}, ...labels.map(l => el("td", {role: "cell", "data-label": l})));
    cells(r).forEach((content, i) => {
      fill(tr.children[i], content);
      tr.children[i].toggleAttribute("data-empty", content[0] === "0" || content[0] === "\u2013"); // not shown in a narrow window
    });
    if (tr === at) at = at.nextElementSibling;
    else body.insertBefore(tr, at);
  }
}

function facts(list, pairs) {
  const all = [];
  for (const [name, value] of pairs) if (value) all.push(el("dt", null, name), el("dd", null, value));
  fill(list, all);
}

function drawLocks(v) {
  facts($("sums"), [["held", String(v.held)], ["waiters", String(v.waiters)], ["hand-overs seen", String(v.handOvers)], ["losses seen", String(v.lost)]]);
  let text = v.matched + (v.matched === 1 ? " lock" : " locks");
  if (v.locks.length < v.matched) text += ", the first " + v.locks.length + " are shown";
  if (v.truncated) text += ". There are more locks than a poll reads: only some are known";
  setText($("matched"), v.read ? text + "." : "Waiting for the first poll.");
  drawRows(v.locks);
  $("more").hidden = v.locks.length >= v.matched || v.locks.length >= 1000;
}

function drawLock(v) {
  const l = v.lock;
  if (!l || !l.known) {
    setText($("l-name"), v.read ? "This lock is not known: it is free, or was not read" : "Waiting for the first poll");
    for (const id of ["l-facts", "l-holders", "l-waits", "l-events"]) fill($(id), []);
    $("ask").hidden = true;
    return;
  }
  setText($("l-name"), l.name);
  const held = l.holders.length > 0;
  facts($("l-facts"), [
    ["Type", l.type], ["State", held ? el("span", null, ...tags(l), l.mode) : "free"],
    ["Held for", held && timed(l.since, "age", l.sinceExact ? "" : "at least ")], ["Rest of the lease", l.ends && timed(l.ends, "rest")],
    ["Token", l.token], ["Votes", l.votes && String(l.votes)], ["Waiters", String(l.waiters)],
    ["Hand-overs seen", l.handOvers + ", " + l.perMinute + " per minute"], ["Losses seen", String(l.lost)],
  ]);
  fill($("l-holders"), l.holders.map(h => {
    const li = el("li", null, el("strong", null, holderText(h)), " ", h.gone ? tag("client gone", "danger") : "", h.shared ? tag("reader") : "", h.count > 1 ? tag("entered " + h.count + " times") : "", el("br"), el("code", null, h.hold));
    if (v.writes && l.canEnd) li.append(el("br"), el("button", {type: "button", class: "danger", "data-key": h.ref, "data-ref": h.ref, "data-who": holderText(h)}, "End this hold\u2026"));
    return li;
  }));
  $("ask").hidden = !(v.writes && l.canEnd && held);
  fill($("l-waits"), l.waits.length ? l.waits.map(edge) : [el("li", {class: "dim"}, v.hasGraph ? l.waiters ? "Redis shows it for some types only, and for a Lock, FencedLock or ReadWriteLock once a wait has lasted for a longest poll." : "Nobody." : "Not shown without Options.Redis.")]);
  fill($("l-events"), l.events.map(e => el("li", {class: e.kind}, el("time", {datetime: new Date(e.at).toISOString()}, new Date(e.at).toLocaleTimeString()), el("span", null, e.text))));
}

function edge(w) {
  return el("li", {class: w.inCycle ? "cycle" : null}, el("strong", null, w.waiter), " waits for ", lockLink(w.lockId, w.lock), ", held by ", el("strong", null, w.holder), ", for ", timed(w.since, "age"));
}

function drawWaits(v) {
  let note = "Which client waits for which, as subscriptions in Redis show it: for a FairLock, FairReadWriteLock, PriorityLock, Election and a fair PermitSemaphore, and for a Lock, FencedLock and ReadWriteLock once a wait has lasted for a longest poll (5 s).";
  if (!v.hasGraph) note = "Not shown without Options.Redis.";
  else if (v.graphError) note = "Redis has refused: " + v.graphError;
  else if (v.waitsTotal > v.waits.length) note += " The first " + v.waits.length + " of " + v.waitsTotal + " are shown.";
  if (v.waitsTruncated) note += " There are more waits than a poll keeps: only some are known.";
  setText($("graph-note"), note);
  $("h-cycles").hidden = !v.cycles.length;
  fill($("cycles"), v.cycles.map(c => {
    const li = el("li", {class: "cycle"}, "For ", timed(c.since, "age"), ": ");
    for (const s of c.steps) li.append(el("strong", null, s.waiter), " waits for ", lockLink(s.lockId, s.lock), " of ");
    li.append(el("strong", null, c.steps[0].waiter), ". If the same code holds the one and waits for the other, nobody goes on: this is a deadlock.");
    return li;
  }));
  fill($("edges"), v.waits.length ? v.waits.map(edge) : v.hasGraph ? [el("li", {class: "dim"}, "Nobody waits.")] : []);
  drawGraph(v);
}

function svg(tag, attrs, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attrs)) e.setAttribute(name, value);
  if (text) e.textContent = text;
  return e;
}

const cut = (text, n) => Array.from(text).length > n ? Array.from(text).slice(0, n - 1).join("") + "\u2026" : text;

// drawGraph draws up to twelve clients on a circle, those in cycles first. The lists have the same, and all.
function drawGraph(v) {
  const edges = [].concat(...v.cycles.map(c => c.steps), v.waits.filter(w => !w.inCycle));
  const at = new Map();
  const drawn = edges.filter(w => {
    if (!w.holderClient || w.holderClient === w.waiterClient) return false;
    const fresh = [w.waiterClient, w.holderClient].filter(c => !at.has(c));
    if (at.size + fresh.length > 12) return false;
    for (const c of fresh) at.set(c, c === w.waiterClient ? w.waiter : w.holder);
    return true;
  });
  if (!drawn.length) { $("graph").replaceChildren(); return; }
  const g = svg("svg", {viewBox: "0 0 640 420", role: "img", "aria-label": "Clients as circles, with an arrow from each that waits to the holder"});
  for (const id of ["arrow", "cycle-arrow"]) {
    const arrow = svg("marker", {id: id, viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 8, markerHeight: 8, orient: "auto"});
    arrow.append(svg("path", {d: "M0 0L10 5L0 10z"}));
    g.append(arrow);
  }
  const spot = new Map([...at.keys()].map((c, i) => {
    const a = 2 * Math.PI * i / at.size - Math.PI / 2;
    return [c, [320 + 210 * Math.cos(a), 200 + 150 * Math.sin(a)]];
  }));
  for (const w of drawn) {
    const [x1, y1] = spot.get(w.waiterClient), [x2, y2] = spot.get(w.holderClient);
    const mx = (x1 + x2) / 2 + (y2 - y1) * .25, my = (y1 + y2) / 2 - (x2 - x1) * .25;
    const d = Math.hypot(x2 - mx, y2 - my) || 1;
    g.append(svg("path", {d: `M${x1} ${y1}Q${mx} ${my} ${x2 - (x2 - mx) / d * 14} ${y2 - (y2 - my) / d * 14}`, "marker-end": w.inCycle ? "url(#cycle-arrow)" : "url(#arrow)", class: w.inCycle ? "cycle" : ""}));
    g.append(svg("text", {x: (x1 + x2) / 8 + mx * .75, y: (y1 + y2) / 8 + my * .75, class: Math.abs(y2 - y1) < 40 ? "lock" : y2 > y1 ? "lock right" : "lock left"}, cut(w.lock, 24)));
  }
  for (const [c, [x, y]] of spot) g.append(svg("circle", {cx: x, cy: y, r: 10}), svg("text", {x: x, y: y + (y < 200 ? -18 : 28)}, cut(at.get(c), 30)));
  $("graph").replaceChildren(g);
}

function drawClients(v) {
  setText($("clients-note"), v.clientsTotal + " clients hold or wait" + (v.clients.length < v.clientsTotal ? ", " + v.clients.length + " are shown" : "") +
    (v.hasGraph ? ". A client is gone if it has not written for five minutes which process it is." : ". Whether a client is gone is not known without Options.Redis."));
  fill($("people"), v.clients.map(c => el("li", null,
    el("strong", null, c.who || c.host ? holderText(c) : "unknown process"), " ",
    c.state === "gone" ? tag("gone", "danger") : c.state === "seen" ? tag("seen", "good") : tag("unknown"), el("br"),
    c.holds + " held, " + c.waits + " waited for", c.wrote ? el("span", {class: "dim"}, ", wrote ", timed(c.wrote, "age"), " ago") : "", el("br"), el("code", null, c.client))));
}

function drawNodes(v) {
  fill($("servers"), v.nodes.map(n => el("li", null, el("strong", null, n.name), " ", n.error ? tag("problem", "danger") : tag("answers", "good"), el("br"),
    n.error || (v.nodes.length > 1 ? "answers in " + n.tookMs + " ms" : ""), el("br"), n.holds + " holds, " + n.losses + " losses")));
}

function draw(v) {
  setText($("title"), v.title);
  document.title = (v.lock && v.lock.known ? v.lock.name + " \u2013 " : "") + v.title;
  $("error").hidden = !v.error;
  setText($("error"), v.error ? "Redis could not be read since " + new Date(v.failed).toLocaleTimeString() + ", what is shown is older: " + v.error : "");
  $("n-cycles").hidden = !v.cycles.length;
  setText($("n-cycles"), v.cycles.length ? v.cycles.length + (v.cycles.length === 1 ? " cycle" : " cycles") : "");
  ({locks: drawLocks, lock: drawLock, waits: drawWaits, clients: drawClients, nodes: drawNodes})[page](v);
}

function status(text, bad) {
  setText($("status"), text);
  $("status").className = bad ? "bad" : "";
}

// connect opens the stream for what is shown. While the tab is hidden there is none, and Redis gets no requests.
function connect() {
  clearTimeout(retry);
  if (source) source.close();
  source = null;
  if (document.hidden) { status("paused"); return; }
  const params = new URLSearchParams();
  for (const [name, value] of [["q", $("q").value], ["only", $("only").value], ["sort", $("sort").value], ["rows", rows], ["lock", lockID]]) if (value) params.set(name, value);
  const mine = source = new EventSource("events?" + params);
  mine.onmessage = e => {
    if (mine !== source) return;
    last = JSON.parse(e.data);
    skew = Date.now() - last.now;
    status(last.error ? "no answer from Redis" : "live", Boolean(last.error));
    draw(last);
  };
  mine.onerror = () => {
    if (mine !== source) return;
    status("disconnected, trying again", true);
    if (mine.readyState === EventSource.CLOSED) retry = setTimeout(connect, 3000 + Math.random() * 2000);
  };
}

function route() {
  const [, name, id] = location.hash.split("/");
  page = pages.includes(name) ? name : "locks";
  lockID = page === "lock" && /^[0-9a-f]{20}$/.test(id || "") ? id : "";
  for (const p of pages) $(p).hidden = p !== page;
  for (const a of document.querySelectorAll("nav a")) {
    if (a.getAttribute("data-page") === (page === "lock" ? "locks" : page)) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  setText($("l-result"), "");
  if (last) draw(last);
  connect();
}

async function write(action, hold) {
  setText($("l-result"), "\u2026");
  try {
    const reply = await fetch("write", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({action: action, lock: lockID, hold: hold})});
    const body = await reply.json();
    let text = action === "force-unlock" ? "The hold was ended." : "The holders were asked. Each decides.";
    if (!body.done) text = "There was no such hold any more.";
    setText($("l-result"), body.error ? "Not done: " + body.error : text);
  } catch (err) {
    setText($("l-result"), "It is not known whether it was done: " + err.message);
  }
}

let typing = 0;
$("q").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { rows = 200; connect(); }, 250); });
for (const id of ["only", "sort"]) $(id).addEventListener("change", () => { rows = 200; connect(); });
$("find").addEventListener("submit", e => { e.preventDefault(); connect(); });
$("more").addEventListener("click", () => { rows = Math.min(rows + 200, 1000); connect(); });
$("ask").addEventListener("click", () => write("request-release", ""));
$("l-holders").addEventListener("click", e => {
  const b = e.target.closest("button[data-ref]");
  if (!b) return;
  asks = b.getAttribute("data-ref");
  setText($("sure-what"), $("l-name").textContent + ", held by " + b.getAttribute("data-who"));
  $("sure").showModal();
});
$("sure-no").addEventListener("click", () => $("sure").close());
$("sure-yes").addEventListener("click", () => { $("sure").close(); write("force-unlock", asks); });
document.querySelector(".skip").addEventListener("click", e => { e.preventDefault(); $("main").focus(); });
document.addEventListener("keydown", e => {
  if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) return;
  if (page !== "locks") return;
  e.preventDefault();
  $("q").focus();
});
document.addEventListener("visibilitychange", connect);
window.addEventListener("hashchange", () => { route(); window.scrollTo(0, 0); $("main").focus(); });
window.addEventListener("pagehide", () => { if (source) source.close(); source = null; });
window.addEventListener("pageshow", e => { if (e.persisted) connect(); });
setInterval(() => { for (const e of document.querySelectorAll("[data-ms]")) tick(e); }, 1000);
route();

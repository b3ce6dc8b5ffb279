// The parts of the page beside the drawing: totals, a port's chart and queues, busiest ports, runs, QPs, events.

import { bits, bytes, svg } from "./drawing.js";

export const $ = (id) => document.getElementById(id);
const SHOWN_QPS = 200, SHOWN_NEWS = 100, BUSIEST = 10;
const DOWN = 2;

export function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function table(head, rows) {
  const made = element("thead"), body = element("tbody"), line = element("tr");
  for (const name of head) line.append(element("th", name, { scope: "col" }));
  made.append(line);
  for (const cells of rows) {
    const row = element("tr");
    for (const cell of cells) {
      const box = element("td");
      box.append(cell instanceof Node ? cell : String(cell));
      row.append(box);
    }
    body.append(row);
  }
  return [made, body];
}

function button(text, press, plain = true) {
  const made = element("button", text, { type: "button" });
  if (plain) made.className = "plain";
  made.addEventListener("click", press);
  return made;
}

export function totals(found) {
  $("totals").hidden = !found;
  if (!found) return;
  const show = (id, text, bad) => { $(id).textContent = text; $(id).className = bad ? "bad" : ""; };
  show("total-bgp", `${found.established} of ${found.expected}`, found.established < found.expected);
  show("total-down", found.links_down, found.links_down > 0);
  show("total-bits", bits(found.bits_s));
  show("total-marks", `${Math.round(found.marks_s)}/s`);
  show("total-pauses", `${Math.round(found.pauses_s)}/s${found.paused_ports ? `, ${found.paused_ports} ports paused` : ""}`);
  show("total-drops", `${Math.round(found.drops_s)}/s`, found.drops_s > 0);
}

export function chart(history, scale) { // use above, queue below, pauses as a band between
  const wide = 600, high = 84, now = history.when[history.when.length - 1] || 0, span = 120;
  const x = (when) => wide - (now - when) / span * wide;
  const most = Math.max(scale, ...history.depth, 1);
  const top = svg("svg", { class: "chart", viewBox: `0 0 ${wide} ${2 * high + 72}`, role: "img" });
  const use = history.use.map((value, at) => `${x(history.when[at]).toFixed(1)},${(22 + high - Math.min(1050, value) / 1050 * high).toFixed(1)}`);
  const base = 48 + 2 * high;
  const depth = history.depth.map((value, at) => `${x(history.when[at]).toFixed(1)},${(base - value / most * high).toFixed(1)}`);
  top.append(svg("text", { x: 2, y: 16 }, "utilization, 0 to 100 %"), svg("rect", { class: "frame", x: 0, y: 22, width: wide, height: high }));
  top.append(svg("polyline", { class: "value", points: use.join(" ") }));
  top.append(svg("text", { x: 2, y: 42 + high }, `queue, 0 to ${bytes(most)}; dashed: its threshold`), svg("rect", { class: "frame", x: 0, y: 48 + high, width: wide, height: high }));
  if (depth.length) top.append(svg("polygon", { class: "area", points: `${x(history.when[0]).toFixed(1)},${base} ${depth.join(" ")} ${wide},${base}` }));
  const limit = base - scale / most * high;
  top.append(svg("line", { class: "limit", x1: 0, x2: wide, y1: limit, y2: limit }));
  history.flags.forEach((flags, at) => {
    if (flags & 17) top.append(svg("rect", { class: "pause", x: x(history.when[at]) - 2.5, y: base - 4, width: 2.5, height: 4 }));
  });
  top.append(svg("text", { x: 2, y: base + 18 }, "2 min ago"), svg("text", { class: "end", x: wide - 2, y: base + 18 }, "now; red: paused"));
  const last = history.use.length - 1;
  top.setAttribute("aria-label", last < 0 ? "nothing read yet" :
    `Last two minutes: utilization now ${(history.use[last] / 10).toFixed(0)} %, highest ${(Math.max(...history.use) / 10).toFixed(0)} %; queue now ${bytes(history.depth[last])}, deepest ${bytes(Math.max(...history.depth))}`);
  return top;
}

export function port(found, scale, change, show) {
  const body = $("port-body");
  $("port-title").textContent = `Link ${found.port} to ${found.peer}`;
  const held = document.activeElement && body.contains(document.activeElement) ? document.activeElement.dataset.name : "";
  const row = element("form");
  const link = button(found.down ? "Set link up" : "Take link down", () => change(found.port, found.down ? "up" : "down"), false);
  const other = button(`Show ${found.peer}`, () => show(found.peer));
  link.dataset.name = "link"; link.id = "link-button"; other.dataset.name = "other";
  row.append(link, other);
  const state = found.down ? "down" : "up";
  const figures = { queue: (r) => bytes(r.depth), highest: (r) => bytes(r.high_water), packets: (r) => r.packets, bytes: (r) => r.bytes,
    marks: (r) => r.marks, trims: (r) => r.trims, drops: (r) => r.drops, "pauses in": (r) => r.pfc_received, "pauses out": (r) => r.pfc_sent,
    "paused ms": (r) => r.paused ? "now" : r.paused_ms };
  const rows = Object.entries(figures).map(([name, of]) => [name, ...found.rows.map(of)]); // a column for each class: few fit every width
  const queues = element("table", "", { id: "port-queues" });
  queues.append(...table(["class", ...found.rows.map((r) => `${r.class} ${r.kind}`)], rows));
  const scroll = element("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Queues of ${found.port}` });
  scroll.dataset.name = "queues";
  scroll.append(queues);
  const about = `${state}; ${bits(found.rate_bps)}, MTU ${found.mtu}${found.bgp ? `; BGP ${found.bgp}` : ""}. Numbers: what ${found.port} sends.`;
  body.replaceChildren(row, element("p", about, { class: "note" }), chart(found.history, scale), scroll);
  if (held) body.querySelector(`[data-name="${held}"]`)?.focus();
}

export function busiest(ports, rows, show) {
  const box = $("busiest");
  if (box.contains(document.activeElement)) return; // nothing moves below the keyboard's focus
  const sorted = rows.map((row, id) => [id, row]).filter(([id, row]) => id > 0 && row && (row[0] || row[1]))
    .sort((a, b) => b[1][0] - a[1][0] || b[1][1] - a[1][1]).slice(0, BUSIEST);
  const cells = sorted.map(([id, [use, depth, high, flags]]) => [button(ports[id - 1].ref, () => show(ports[id - 1].ref)),
    flags & DOWN ? "down" : `${(use / 10).toFixed(0)} %`, bytes(depth), bytes(high)]);
  box.replaceChildren(...table(["port", "util", "queue", "highest queue"], cells.length ? cells : [["all links are idle", "", "", ""]]));
}

export function te(found) {
  $("te").hidden = !found;
  if (!found) return;
  const when = new Date(found.at * 1000).toLocaleTimeString();
  $("te-note").textContent = `Entries changed ${found.changes} time${found.changes === 1 ? "" : "s"}, last by ${found.by} at ${when}. Packets since the first change.`;
  $("te-entries").replaceChildren(...table(["switch", "entries", "to port", "to backup", "fell back", "no entry"], found.switches));
}

export function faults(found, clear) {
  const rows = found.faults.map((each) => [each.where, each.what, each.effect || "no effect is seen now",
    button("Clear", () => clear(each.where))]);
  const box = $("fault-rows");
  if (!box.contains(document.activeElement)) { // nothing moves below the keyboard's focus
    box.replaceChildren(...table(["place", "fault", "effect", "end"], rows.length ? rows : [["no fault is set", "", "", ""]]));
  }
  const select = $("fault-kind");
  if (!select.options.length) {
    select.replaceChildren(...Object.keys(found.kinds).map((name) => element("option", name, { value: name })));
  }
  const keys = found.kinds[select.value] || [];
  $("fault-note").textContent = keys.length ? `Values of ${select.value}: ${keys.map((key) => `${key}=...`).join(", ")}` : `${select.value} takes no values.`;
}

export function runs(found) {
  const rows = (found?.last || []).map((run) => {
    const best = run.rows?.length ? run.rows.reduce((a, b) => (b[0] > a[0] ? b : a)) : null;
    const verdict = run.agree === null || run.agree === undefined ? "-" : run.agree ? "agree" : "differ";
    return [run.id, run.what, best ? best[3].toPrecision(3) : "-", best ? (best[1] / 1000).toLocaleString("en", { maximumSignificantDigits: 3 }) : "-",
      run.wrong ?? "-", verdict, run.mmr ? run.mmr.toFixed(2) : "-", run.why || (run.ok ? "done" : "")];
  });
  $("runs").replaceChildren(...table(["run", "what", "busbw GB/s (emulated)", "ms", "wrong", "paths", "MMR", "outcome"],
    rows.length ? rows : [["no run yet", "", "", "", "", "", "", ""]]));
}

export function action(found) {
  const busy = found.state === "running";
  const out = $(`${found.kind}-outcome`);
  out.className = found.state === "failed" ? "bad" : found.state === "done" ? "good" : "";
  out.textContent = busy ? `${found.what}: in progress` : found.text;
  if (found.kind === "run") {
    $("run-output").hidden = !found.lines.length;
    $("run-output").textContent = found.lines.join("\n");
    $("run-output").scrollTop = $("run-output").scrollHeight; // the table is below the list of ranks
    $("start").disabled = busy;
    $("stop").disabled = !busy;
  }
}

// The QP; for a flow without one, its protocol and destination port (Flow.qpn in heddle/traffic/flow.py).
function number(qp) {
  if (qp.qpn < 1 << 24) return `0x${qp.qpn.toString(16)}`;
  return `${qp.qpn >>> 24 === 6 ? "TCP" : "UDP"} ${qp.qpn & 0xffff}`;
}

export function qps(found, filter, choose) {
  const words = filter.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const name = (qp) => `${qp.src} ${qp.dst} ${number(qp)} ${qp.sport} ${qp.path.join(" ")}`.toLowerCase();
  const all = found.qps.filter((qp) => words.every((word) => name(qp).includes(word)));
  const rows = all.slice(0, SHOWN_QPS).map((qp) => [button(number(qp), () => choose(qp)), qp.src, qp.dst, qp.sport,
    qp.packets, qp.why ? "not proven" : qp.counted ? "agree" : "no packets"]);
  $("qps").replaceChildren(...table(["QP", "from", "to", "UDP port", "packets", "path"], rows));
  const more = all.length > SHOWN_QPS ? `; the first ${SHOWN_QPS} are shown` : "";
  $("qp-note").textContent = `Run ${found.run}: ${found.agree ? "all paths agree" : "not all paths agree"}. ${all.length} of ${found.qps.length} QPs${more}.`;
}

export function qpPath(qp) {
  const idle = qp.counted ? "" : " (predicted: it sent no packet)";
  const text = `${qp.qpn < 1 << 24 ? "QP " : ""}${number(qp)} from ${qp.src} to ${qp.dst}: ${qp.path.join(" > ")}${idle}`;
  $("qp-path").textContent = qp.why ? `${text}\n${qp.why}` : text;
}

export function news(items, show) { // oldest first, put on top one by one
  const box = $("news");
  for (const item of items) {
    const line = element("li", "", { class: item.good ? "good" : ["drop", "link", "bgp"].includes(item.kind) ? "bad" : "" });
    const when = new Date(item.when * 1000);
    line.append(element("time", when.toLocaleTimeString(), { datetime: when.toISOString() }), document.createTextNode(`${item.text} `));
    if (item.port) line.append(button("show", () => show(item.port)));
    if (item.port) line.lastChild.setAttribute("aria-label", `show ${item.port}`);
    box.prepend(line);
  }
  while (box.children.length > SHOWN_NEWS) box.lastChild.remove();
}

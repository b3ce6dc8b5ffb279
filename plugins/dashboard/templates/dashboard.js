// The live page: one stream of events from the server; everything shown comes from it or is asked for on a click.

import { Drawing } from "./drawing.js";
import * as panels from "./panels.js";

const { $ } = panels;
const SECTIONS = ["fabric", "port", "faults", "run", "busy", "paths", "events"];
const page = { lab: null, plan: null, number: 0, rows: [], port: null, stream: null, qps: null, up: false };
const drawing = new Drawing($("drawing"), showPort);

async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, options);
  const found = await answer.json();
  if (answer.status === 401) login(found.error);
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

function connection(text, lost = false) {
  $("connection").textContent = text;
  $("connection").className = lost ? "lost" : "";
}

function trouble(text) {
  $("trouble").hidden = !text;
  if ($("trouble").textContent !== text) $("trouble").textContent = text;
}

function login(why) {
  $("login").hidden = false;
  connection(why || "a token is needed", true);
}

async function send(token) {
  const answer = await fetch("/api/login", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
  $("login-outcome").textContent = answer.ok ? "" : "This is not the token.";
  if (answer.ok) { $("login").hidden = true; await labs(); }
}

// The labs: the list is asked for again and again, so that one that comes up is found.
async function labs() {
  let found;
  try { found = (await ask("/api/labs")).labs; } catch { return; }
  const names = found.map((each) => each.lab);
  const wanted = new URLSearchParams(location.search).get("lab");
  if (wanted && !names.includes(wanted)) names.unshift(wanted);
  const select = $("lab");
  if ([...select.options].map((each) => each.value).join() !== names.join()) {
    select.replaceChildren(...names.map((name) => panels.element("option", name, { value: name })));
  }
  if (page.lab === null || !names.includes(page.lab)) {
    const ready = found.find((each) => each.state === "running" && !each.trouble) || found[0];
    const lab = wanted || (page.lab === null && ready ? ready.lab : page.lab);
    if (lab) follow(lab); else trouble("No lab is running.\n./inv up zone starts one; this page shows it as soon as it is up.");
  } else if (!page.stream || page.stream.readyState === EventSource.CLOSED) {
    follow(page.lab);
  }
  select.value = page.lab || "";
}

function follow(lab) {
  if (page.stream) page.stream.close();
  if (lab !== page.lab) Object.assign(page, { plan: null, number: 0, rows: [], port: null, qps: null, up: false });
  page.lab = lab;
  document.title = `${lab} - Heddle dashboard`;
  const stream = page.stream = new EventSource(`/api/labs/${encodeURIComponent(lab)}/events`);
  const on = (kind, take) => stream.addEventListener(kind, (event) => take(JSON.parse(event.data)));
  on("hello", (found) => { connection("live"); $("news").replaceChildren(); panels.news(found.news, showPort); state(found); });
  on("state", state);
  on("update", update);
  on("news", (items) => panels.news(items, showPort));
  on("action", (found) => { panels.action(found); if (found.kind !== "run" && found.state !== "running") { refreshPort(); refreshFaults(); } });
  stream.onerror = async () => {
    connection("connection lost: trying again", true);
    if (stream.readyState === EventSource.CLOSED) { // refused: the answer says why
      try { await ask(`/api/labs/${encodeURIComponent(lab)}/plan`); } catch (error) { trouble(error.message); }
    }
  };
}

async function state(found) {
  page.up = found.up;
  trouble(found.up ? "" : found.trouble === "not read yet" ? "" : `${found.trouble}\nThis page shows the lab as soon as it can be read again.`);
  for (const id of SECTIONS) $(id).classList.toggle("stale", !found.up);
  $("start").disabled = !found.up;
  if (!found.up) { panels.totals(null); panels.te(null); return; }
  if (found.plan !== page.number) {
    try { page.plan = await ask(`/api/labs/${encodeURIComponent(page.lab)}/plan`); } catch (error) { trouble(error.message); return; }
    page.number = page.plan.plan;
    shape();
  }
  page.rows = [...found.rows];
  drawing.update(Object.fromEntries(found.rows.map((row, id) => [id, row])));
  update({ rows: {}, totals: found.totals, missing: found.missing, runs: found.runs, te: found.te });
  refreshFaults();
}

function shape() {
  for (const id of SECTIONS) $(id).hidden = false;
  drawing.plan(page.plan);
  $("scale").textContent = `All rates are emulated: k = ${page.plan.k}, so they are 1/${page.plan.k} of hardware rates. Compare ratios only. Each half of a link is what its end sends.`;
  $("port-names").replaceChildren(...page.plan.ports.map((port) => panels.element("option", "", { value: port.ref })));
  if (!$("collective").options.length) {
    $("collective").replaceChildren(...page.plan.collectives.map((name) => panels.element("option", name, { value: name })));
  }
  if (page.port) drawing.mark([page.port]);
}

function update(found) {
  if (!page.plan) return;
  for (const [id, row] of Object.entries(found.rows)) page.rows[id] = row;
  drawing.update(found.rows);
  if (found.totals) panels.totals(found.totals);
  if (found.runs) { panels.runs(found.runs); }
  if (found.te !== undefined) panels.te(found.te);
  if (found.missing) {
    $("total-bgp").title = found.missing.join("\n");
  }
  panels.busiest(page.plan.ports, page.rows, showPort);
}

// One port: its queues are asked for once a second while it is shown.
async function showPort(ref) {
  page.port = ref;
  $("pick-port").value = ref;
  $("link-outcome").textContent = "";
  drawing.mark([ref]);
  await refreshPort();
}

async function refreshPort() {
  if (!page.port || !page.up || !page.plan || document.hidden) return;
  try {
    const found = await ask(`/api/labs/${encodeURIComponent(page.lab)}/ports/${encodeURIComponent(page.port)}`);
    const place = page.plan.ports.find((each) => each.ref === found.port);
    panels.port(found, place ? place.scale : 1, change, showPort);
  } catch (error) { $("link-outcome").textContent = error.message; $("link-outcome").className = "bad"; page.port = null; }
}

async function refreshFaults() {
  if (!page.up || !page.plan || document.hidden) return;
  try { panels.faults(await ask(`/api/labs/${encodeURIComponent(page.lab)}/faults`), clear); } catch { /* the next one asks again */ }
}

function clear(where) { return press("clear", { where }, $("fault-outcome")); }

async function press(name, body, out) {
  out.className = "";
  out.textContent = "asked";
  try { panels.action(await ask(`/api/labs/${encodeURIComponent(page.lab)}/${name}`, body)); }
  catch (error) { out.textContent = error.message; out.className = "bad"; }
}

function change(ref, wanted) { return press("link", { port: ref, state: wanted }, $("link-outcome")); }

function chooseQp(qp) {
  drawing.mark([...qp.ports, qp.src], true);
  panels.qpPath(qp);
}

$("pick").addEventListener("submit", (event) => { event.preventDefault(); if ($("pick-port").value) showPort($("pick-port").value.trim()); });
$("run-form").addEventListener("submit", (event) => {
  event.preventDefault();
  press("run", { collective: $("collective").value, size: $("size").value.trim(), qps: Number($("qps-count").value), iters: Number($("iters").value) }, $("run-outcome"));
});
$("fault-form").addEventListener("submit", (event) => {
  event.preventDefault();
  press("fault", { kind: $("fault-kind").value, where: $("fault-where").value.trim(), values: $("fault-values").value.trim() }, $("fault-outcome"));
});
$("fault-kind").addEventListener("change", refreshFaults);
$("fault-clear").addEventListener("click", () => clear(""));
$("stop").addEventListener("click", () => ask(`/api/labs/${encodeURIComponent(page.lab)}/stop`, {}));
$("qp-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("qp-note").textContent = "comparing prediction, kernel lookup and counters";
  try { page.qps = await ask(`/api/labs/${encodeURIComponent(page.lab)}/qps`); panels.qps(page.qps, $("qp-filter").value, chooseQp); }
  catch (error) { $("qp-note").textContent = error.message; }
});
$("qp-filter").addEventListener("input", () => { if (page.qps) panels.qps(page.qps, $("qp-filter").value, chooseQp); });
$("lab").addEventListener("change", () => {
  history.pushState(null, "", `?lab=${encodeURIComponent($("lab").value)}`);
  follow($("lab").value);
});
$("login").addEventListener("submit", (event) => { event.preventDefault(); send($("token").value.trim()); });

// How it looks: kept in this browser.
function kept(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(`heddle-${name}`);
    localStorage.setItem(`heddle-${name}`, value);
  } catch { /* storage is switched off */ }
  return null;
}
function toggle(id, wanted, set) {
  const put = (on) => { $(id).setAttribute("aria-pressed", String(on)); set(on); };
  put(wanted);
  $(id).addEventListener("click", () => { const on = $(id).getAttribute("aria-pressed") !== "true"; put(on); kept(id, on ? "1" : "0"); });
}
toggle("theme", kept("theme") ? kept("theme") === "1" : matchMedia("(prefers-color-scheme: dark)").matches,
  (on) => { document.documentElement.dataset.theme = on ? "dark" : "light"; });
toggle("large", kept("large") === "1", (on) => document.documentElement.classList.toggle("large", on));
toggle("fit", kept("fit") !== "0", (on) => drawing.fit(on));

const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) {
  history.replaceState(null, "", location.pathname + location.search); // not into history, nor onto a projector
  send(token);
} else {
  labs();
}
setInterval(labs, 3000);
setInterval(refreshPort, 1000);
setInterval(refreshFaults, 3000);

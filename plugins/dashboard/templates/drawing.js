// The fabric as SVG: nodes, links in two halves (each half is what that end sends), queues at their ends.

const NS = "http://www.w3.org/2000/svg";
const PAUSED = 1, DOWN = 2; // flags of a port, PortFlag in plugins/dashboard/livefigures.py

export function svg(name, attributes = {}, text = "") {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

export function bits(value) {
  const units = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toPrecision(3)} ${units[at]}`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toPrecision(3)} ${units[at]}`;
}

export function level(use) { // thousandths -> the class of its colour and width
  if (use < 1) return "idle";
  return `use${Math.min(6, 1 + Math.floor(use / 170))}`;
}

export class Drawing {
  constructor(box, pick) {
    this.box = box;
    this.pick = pick;
    this.halves = [];
    this.dots = [];
    this.titles = [];
    this.marked = new Set();
    this.rows = [];
  }

  plan(plan) {
    this.ports = plan.ports;
    this.halves = [null]; this.dots = [null]; this.titles = [null]; this.rows = []; this.marked = new Set();
    this.grow = Math.max(1, plan.width / 400); // queues and names of a large fabric, so that they are seen
    const room = 9 * this.grow;
    const top = svg("svg", { viewBox: `${-room} 0 ${plan.width + room + 1} ${plan.height}`, role: "img", "aria-label":
      `Fabric ${plan.lab}: ${plan.nodes.length} nodes, ${plan.links.length} links` });
    top.setAttribute("width", Math.max(900, plan.width * (plan.width > 400 ? 3.5 : 6)));
    const [hosts, leaves] = plan.rows; // hosts and the switches that they are connected to
    for (const [left, width, label] of plan.boxes) {
      const y = (leaves || hosts)[0] - 4.5, end = hosts[0] + 8;
      top.append(svg("rect", { class: "box", x: left, y, width, height: end - y, rx: 1 }));
      if (label) top.append(svg("text", { class: "label", x: left + width / 2, y: end - 2, "font-size": 2.2 }, label));
    }
    for (const [y, title] of plan.rows) top.append(svg("text", { class: "row", x: 1 - room, y, "font-size": (2.2 * this.grow).toFixed(2) }, title));
    const lines = svg("g"), hits = svg("g"), dots = svg("g");
    for (const port of plan.ports) {
      const far = plan.ports[port.peer - 1], middle = { x: (port.x + far.x) / 2, y: (port.y + far.y) / 2 };
      const at = { x1: port.x, y1: port.y, x2: middle.x, y2: middle.y };
      const half = svg("line", { ...at, class: "half idle" });
      const hit = svg("line", { ...at, class: "hit", "data-port": port.ref });
      const title = svg("title", {}, port.ref);
      hit.append(title);
      const dot = svg("circle", { class: "queue", cx: port.x, cy: port.y, r: 0 });
      lines.append(half); hits.append(hit); dots.append(dot);
      this.halves.push(half); this.dots.push(dot); this.titles.push(title);
    }
    hits.addEventListener("click", (event) => this.pick(event.target.dataset.port));
    top.append(lines, hits);
    for (const node of plan.nodes) {
      top.append(svg("rect", { class: `node ${node.role}`, x: node.x - node.width / 2, y: node.y - node.height / 2,
        width: node.width, height: node.height, rx: .6 }));
      const font = Math.min(.52 * node.height, 1.5 * node.width / node.name.length);
      top.append(svg("text", { x: node.x, y: node.y, "font-size": font.toFixed(2) }, node.name));
    }
    top.append(dots);
    this.box.replaceChildren(top);
  }

  update(rows) { // port id -> [use in thousandths, depth, high water, flags]
    for (const [id, row] of Object.entries(rows)) {
      if (!this.halves[id]) continue;
      const [use, depth, , flags] = row, port = this.ports[id - 1];
      this.rows[id] = row;
      const chosen = this.marked.has(Number(id)) ? " chosen" : "";
      this.halves[id].setAttribute("class", `half ${flags & DOWN ? "down" : level(use)}${chosen}`);
      const dot = this.dots[id];
      dot.setAttribute("r", depth || flags & PAUSED ? (this.grow * (.5 + 1.3 * Math.min(1, depth / port.scale))).toFixed(2) : 0);
      dot.setAttribute("class", flags & PAUSED ? "queue paused" : "queue");
      this.titles[id].textContent = `${port.ref} to ${this.ports[port.peer - 1].ref}: ${flags & DOWN ? "down" :
        `${(use / 10).toFixed(0)} % of ${bits(port.rate)}`}, queue ${bytes(depth)}${flags & PAUSED ? ", paused" : ""}`;
    }
  }

  mark(refs, whole = false) { // show these ports as chosen; whole: with the other halves of their links
    const before = this.marked;
    const wanted = new Set(refs);
    this.marked = new Set(this.ports.flatMap((port, at) => wanted.has(port.ref) ? (whole ? [at + 1, port.peer] : [at + 1]) : []));
    for (const id of new Set([...before, ...this.marked])) {
      this.halves[id].classList.toggle("chosen", this.marked.has(id));
    }
    const [first] = this.marked;
    if (first && !this.box.classList.contains("fit")) { // bring it into sight, without moving the page
      const half = this.halves[first].getBoundingClientRect(), box = this.box.getBoundingClientRect();
      this.box.scrollBy(half.x + half.width / 2 - box.x - box.width / 2, half.y + half.height / 2 - box.y - box.height / 2);
    }
  }

  fit(wanted) { this.box.classList.toggle("fit", wanted); }
}

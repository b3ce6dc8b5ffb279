// The server's drawing of the fabric: colours of halves of links (each is what that end sends), queues at their ends.

const NS = "http://www.w3.org/2000/svg";
const PAUSED = 1, DOWN = 2; // flags of a port, PortFlag in plugins/dashboard/reading.py

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

function parsed(text) {
  return document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);
}

function corners([x1, y1, x2, y2], wide, narrow) { // Line.corners in heddle/views/picturelayout.py
  const far = Math.hypot(x2 - x1, y2 - y1) || 1, a = (y2 - y1) / far / 2, b = (x1 - x2) / far / 2;
  return [[x1 + a * wide, y1 + b * wide], [x1 - a * wide, y1 - b * wide], [x2 - a * narrow, y2 - b * narrow], [x2 + a * narrow, y2 + b * narrow]]
    .map((corner) => corner.map((each) => each.toFixed(1)).join(",")).join(" ");
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
    Object.assign(this, { ports: plan.ports, loads: plan.loads, widths: plan.widths, halves: [], ends: [], titles: [], rows: [], marked: new Set() });
    const top = parsed(plan.svg), dots = svg("g");
    const place = new Map(plan.ports.map((port, at) => [port.ref, at + 1]));
    for (const link of top.querySelectorAll(".link")) link.removeAttribute("tabindex"); // the list of ports has them
    for (const half of top.querySelectorAll(".half")) this.halves[place.get(half.dataset.port)] = half;
    for (const reach of top.querySelectorAll(".reach")) {
      this.ends[place.get(reach.dataset.port)] = ["x1", "y1", "x2", "y2"].map((name) => Number(reach.getAttribute(name)));
      this.titles[place.get(reach.dataset.port)] = reach.appendChild(svg("title", {}, reach.dataset.port));
      reach.addEventListener("click", () => this.pick(reach.dataset.port));
    }
    this.dots = this.ends.map(([cx, cy]) => dots.appendChild(svg("circle", { class: "queue", cx, cy, r: 0 })));
    top.append(dots);
    const least = Math.min(...[...top.querySelectorAll(".node rect")].map((rect) => rect.getAttribute("width")));
    top.setAttribute("width", top.viewBox.baseVal.width * Math.max(.8, 40 / least)); // names of nodes are readable
    this.box.replaceChildren(top);
    this.top = top;
    document.getElementById("loads").replaceChildren(parsed(plan.legend));
  }

  update(rows) { // port id -> [use in thousandths, depth, high water, flags]
    const scale = this.top?.getScreenCTM()?.a || 1; // as many pixels wide, however large the fabric
    for (const [id, row] of Object.entries(rows)) {
      if (!this.halves[id]) continue;
      const [use, depth, , flags] = row, port = this.ports[id - 1];
      this.rows[id] = row;
      const chosen = this.marked.has(Number(id)) ? " chosen" : "";
      const load = Math.min(1000, use); // a burst may be counted in the next interval; no link sends above its rate
      const [, step] = this.loads.findLast(([least]) => load >= least), [thin, thick] = this.widths;
      this.halves[id].setAttribute("class", `half ${flags & DOWN ? "down" : step}${chosen}`);
      this.halves[id].setAttribute("points", corners(this.ends[id], (thin + load / 1000 * (thick - thin)) / scale, thin / scale));
      const dot = this.dots[id];
      dot.setAttribute("r", depth || flags & PAUSED ? (4 + 10 * Math.min(1, depth / port.scale)).toFixed(1) : 0);
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

  fit(wanted) {
    this.box.classList.toggle("fit", wanted);
    this.update(this.rows);
  }
}

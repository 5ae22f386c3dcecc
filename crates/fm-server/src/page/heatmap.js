// Layers × experts: who is in memory, and who is used, read and evicted just now.

import { count, el } from "./dom.js";

const RESIDENT = 1, USED = 2, READ = 4, EVICTED = 8;

/**
 * Parts of glows that are left a frame later. Where memory is short, whoever is evicted has been read just before:
 * that is seen first, and what became of it then.
 */
const FADE = { used: 0.86, read: 0.86, evicted: 0.91 };
const GONE = { used: 0, read: 0, evicted: 0 };

/** Of the whole map, in CSS pixels. */
const HEIGHT_MAX = 480;

/** Between two frames, in milliseconds. The processor belongs to the model. */
const FRAME = 125;

/** What a map says, `(expert, flags)` for each that something happened to. */
export function readMap(map, tell) {
  let at = 0;
  for (const [, times, letter] of map.matchAll(/(\d*)([.a-p])/g)) {
    const until = at + (times === "" ? 1 : Number(times));
    if (letter === ".") at = until;
    const flags = letter.charCodeAt(0) - 97;
    for (; at < until; at++) tell(at, flags);
  }
}

export class Heatmap {
  /** `experts`: how many each layer has. */
  constructor(experts) {
    this.rows = experts.map((size, layer) => ({ layer, size })).filter((row) => row.size > 0);
    let first = 0;
    for (const row of this.rows) {
      row.first = first;
      first += row.size;
    }
    this.total = first;
    this.columns = Math.max(1, ...this.rows.map((row) => row.size));
    this.resident = new Uint8Array(first);
    this.glow = { used: new Float32Array(first), read: new Float32Array(first), evicted: new Float32Array(first) };
    this.uses = new Uint32Array(first);
    this.reads = new Uint32Array(first);
    this.cursor = null;
    this.build();
  }

  build() {
    this.canvas = el("canvas", { tabIndex: 0, role: "img" });
    this.detail = el("p.muted.small.detail", { textContent: "Point at an expert." });
    const swatch = (kind, name) => el("li", {}, el(`i.${kind}`), name);
    const legend = el("ul.legend", {}, swatch("absent", "on disk"), swatch("resident", "in memory"),
      swatch("used", "used"), swatch("read", "read"), swatch("evicted", "evicted"));
    this.element = el("figure.heatmap", {}, this.canvas, legend, this.detail);
    this.small = document.createElement("canvas");
    this.small.width = this.columns;
    this.small.height = Math.max(1, this.rows.length);
    this.canvas.onpointermove = (event) => this.point(event);
    this.canvas.onkeydown = (event) => this.move(event);
    new ResizeObserver(() => this.resize()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    this.recolour();
  }

  /** Takes the colours of the theme. */
  recolour() {
    const style = getComputedStyle(this.canvas);
    const colour = (name) => {
      const probe = el("i", { hidden: true });
      probe.style.color = `var(--map-${name})`;
      document.body.append(probe);
      const numbers = getComputedStyle(probe).color.match(/\d+(\.\d+)?/g).map(Number);
      probe.remove();
      return numbers;
    };
    const names = ["absent", "resident", "used", "read", "evicted"];
    this.colours = Object.fromEntries(names.map((name) => [name, colour(name)]));
    this.gap = style.backgroundColor;
    this.draw();
  }

  /** What happened to every expert since the last time. */
  update(map) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (calm) this.fade(GONE);
    readMap(map, (at, flags) => {
      if (at >= this.total) return;
      this.resident[at] = flags & RESIDENT;
      this.note(at, flags & USED, this.glow.used, this.uses);
      this.note(at, flags & READ, this.glow.read, this.reads);
      if (flags & EVICTED) this.glow.evicted[at] = 1;
    });
    this.summarise();
    this.draw();
    if (!calm) this.animate();
  }

  note(at, happened, glow, counter) {
    if (!happened) return;
    glow[at] = 1;
    counter[at] += 1;
  }

  animate() {
    this.timer ??= setInterval(() => {
      if (!this.fade(FADE)) {
        clearInterval(this.timer);
        this.timer = undefined;
      }
      this.draw();
    }, FRAME);
  }

  /** Says whether anything glows still. */
  fade(parts) {
    let glows = false;
    for (const [kind, glow] of Object.entries(this.glow)) {
      for (let at = 0; at < glow.length; at++) {
        glow[at] = glow[at] > 0.03 ? glow[at] * parts[kind] : 0;
        glows ||= glow[at] > 0;
      }
    }
    return glows;
  }

  /** Cells are squares where there is room, and high enough to be seen where there is not. */
  resize() {
    const rows = Math.max(1, this.rows.length);
    const width = Math.round(this.element.clientWidth * devicePixelRatio);
    this.cell = width / this.columns;
    const tallest = (HEIGHT_MAX * devicePixelRatio) / rows;
    this.tall = Math.max(2, Math.floor(Math.min(Math.max(this.cell, 4 * devicePixelRatio), tallest)));
    this.canvas.width = width;
    this.canvas.height = rows * this.tall;
    this.draw();
  }

  draw() {
    if (!this.cell || !this.colours) return;
    this.paint();
    const { canvas } = this;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(this.small, 0, 0, canvas.width, canvas.height);
    if (this.cell >= 5) this.rule(context);
    if (this.cursor) this.mark(context);
  }

  /** A pixel for every expert. */
  paint() {
    const context = this.small.getContext("2d");
    const image = context.createImageData(this.small.width, this.small.height);
    const { absent, resident, used, read, evicted } = this.colours;
    this.rows.forEach((row, y) => {
      for (let x = 0; x < row.size; x++) {
        const at = row.first + x, pixel = 4 * (y * this.columns + x);
        const base = this.resident[at] ? resident : absent;
        for (let part = 0; part < 3; part++) {
          let value = base[part];
          value += (evicted[part] - value) * this.glow.evicted[at];
          value += (used[part] - value) * this.glow.used[at];
          value += (read[part] - value) * this.glow.read[at];
          image.data[pixel + part] = value;
        }
        image.data[pixel + 3] = 255;
      }
    });
    context.putImageData(image, 0, 0);
  }

  /** Lines between cells that are large enough for them. */
  rule(context) {
    context.fillStyle = this.gap;
    const { width, height } = this.canvas;
    for (let x = 1; x < this.columns; x++) context.fillRect(Math.round(x * this.cell) - 1, 0, 1, height);
    for (let y = 1; y < this.rows.length; y++) context.fillRect(0, y * this.tall - 1, width, 1);
  }

  mark(context) {
    const { x, y } = this.cursor;
    context.strokeStyle = getComputedStyle(this.canvas).color;
    context.lineWidth = 2;
    context.strokeRect(x * this.cell, y * this.tall, this.cell - 1, this.tall - 1);
  }

  summarise() {
    const inMemory = this.resident.reduce((sum, one) => sum + one, 0);
    const shape = `${count(this.rows.length)} layers of up to ${count(this.columns)} experts`;
    this.canvas.ariaLabel = `${shape}; ${count(inMemory)} of ${count(this.total)} in memory`;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const part = (at, size) => Math.min(0.999, Math.max(0, at / size));
    this.choose(Math.floor(part(event.clientX - box.left, box.width) * this.columns),
      Math.floor(part(event.clientY - box.top, box.height) * this.rows.length));
  }

  move(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const { x, y } = this.cursor ?? { x: -step[0], y: -step[1] };
    this.choose(x + step[0], y + step[1]);
  }

  choose(x, y) {
    const row = this.rows[Math.min(this.rows.length - 1, Math.max(0, y))];
    if (!row) return;
    x = Math.min(row.size - 1, Math.max(0, x));
    const at = row.first + x;
    this.cursor = { x, y: this.rows.indexOf(row) };
    const place = this.resident[at] ? "in memory" : "on disk";
    const seen = `seen used ${count(this.uses[at])} and read ${count(this.reads[at])} times`;
    this.detail.textContent = `Layer ${row.layer}, expert ${x}: ${place}, ${seen}.`;
    this.draw();
  }
}

// The machine: speeds, texts, memory and bandwidth against their limits, and the heatmap.

import { enterKey, Locked } from "./api.js";
import { action, byId, bytes, count, el, percent, plural, rate } from "./dom.js";
import { Heatmap } from "./heatmap.js";

/** Points of the line of speeds: a minute. */
const POINTS = 240;

const SVG = "http://www.w3.org/2000/svg";

/** A figure with a bar: how much of how much. */
class Meter {
  constructor(name, title) {
    this.value = el("span.value", { textContent: "–" });
    this.bar = el("div.track", { role: "meter", ariaLabel: name, ariaValueMin: 0, ariaValueMax: 100 }, el("i"));
    this.element = el("div.meter", { title }, el("span.name", { textContent: name }), this.value, this.bar);
  }

  /** `part` is nothing where no limit is known. */
  set(text, part) {
    this.value.textContent = text;
    this.bar.hidden = part === null;
    const shown = Math.min(1, Math.max(0, part ?? 0));
    this.bar.ariaValueNow = Math.round(100 * shown);
    this.bar.ariaValueText = text;
    this.bar.style.setProperty("--part", shown.toFixed(3));
  }
}

/** Two lines over the last minute. */
class Lines {
  constructor() {
    this.element = document.createElementNS(SVG, "svg");
    this.element.setAttribute("viewBox", `0 0 ${POINTS} 40`);
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("aria-hidden", "true");
    this.lines = ["prefill", "decode"].map((kind) => {
      const line = document.createElementNS(SVG, "polyline");
      line.setAttribute("class", kind);
      this.element.append(line);
      return { kind, line, points: [] };
    });
  }

  add(rates) {
    for (const { kind, line, points } of this.lines) {
      points.push(rates[kind]);
      if (points.length > POINTS) points.shift();
      const most = Math.max(1, ...points);
      const at = (value, index) => `${POINTS - points.length + index},${(38 - (36 * value) / most).toFixed(1)}`;
      line.setAttribute("points", points.map(at).join(" "));
    }
  }
}

export class Machine {
  constructor() {
    this.root = byId("machine");
    this.speed = { decode: el("b", { textContent: "–" }), prefill: el("b", { textContent: "–" }) };
    this.lines = new Lines();
    this.texts = el("ul.texts");
    this.meters = {
      memory: new Meter("Memory", "Held by this process, of its budget"),
      disk: new Meter("Disk", "Experts read, of what the disk was measured to reach"),
      dram: new Meter("DRAM", "Weights read from memory, of what memory was measured to reach"),
      hits: new Meter("Hits", "Experts that needed no read, of those asked for"),
    };
    this.lossy = el("p.lossy.small");
    this.about = el("p.muted.small");
    this.state = el("p.state", { textContent: "Connecting…", role: "status" });
  }

  /** A server has been found. */
  meet(machine) {
    this.machine = machine;
    const same = this.heatmap?.total === machine.experts.reduce((sum, size) => sum + size, 0);
    if (!same) this.heatmap = new Heatmap(machine.experts);
    byId("model").textContent = machine.model;
    const facts = [machine.family, machine.numerics, plural(machine.threads, "thread"), `reader ${machine.reader}`,
      `context of ${count(machine.context)} tokens`, `slots of ${bytes(machine.slot_bytes)}`, this.age(machine.limits)];
    this.about.textContent = facts.filter(Boolean).join(" · ");
    this.lossy.textContent = `Lossy: ${machine.lossy.join("; ")}`;
    this.lossy.hidden = machine.lossy.length === 0;
    this.state.hidden = true;
    if (!same) this.lay();
    this.heatmap.recolour();
  }

  age({ age_s: age, disk_bytes_per_s: disk, memory_bytes_per_s: memory }) {
    if (disk === null && memory === null) return null;
    return age < 90 ? null : `limits measured ${age < 7200 ? `${count(age / 60)} min` : `${count(age / 3600)} h`} ago`;
  }

  lay() {
    const speed = (name, kind) => el(`div.speed.${kind}`, {}, this.speed[kind], el("span", { textContent: name }));
    const { memory, disk, dram, hits } = this.meters;
    this.root.replaceChildren(
      el("h2", { textContent: "The machine" }),
      this.state,
      el("section.speeds", {}, speed("tok/s written", "decode"), speed("tok/s read", "prefill"), this.lines.element),
      this.texts,
      el("section.meters", {}, ...[memory, disk, dram, hits].map((meter) => meter.element)),
      el("h3", { textContent: "Experts" }),
      this.heatmap.element,
      this.lossy,
      this.about,
    );
  }

  lost(error) {
    this.state.hidden = false;
    const open = error instanceof Locked ? action("Enter it", () => enterKey()) : "";
    this.state.replaceChildren(error?.message ?? "The server has ended.", " ", open);
    if (!this.machine) this.root.replaceChildren(this.state);
    byId("pulse").textContent = "–";
  }

  look(look, rates) {
    this.state.hidden = true;
    this.speed.decode.textContent = rate(rates.decode);
    this.speed.prefill.textContent = rate(rates.prefill);
    byId("pulse").textContent = rate(rates.decode > 0 ? rates.decode : rates.prefill);
    this.lines.add(rates);
    this.showTexts(look);
    this.measure(look, rates);
    if (look.map !== "") this.heatmap.update(look.map);
  }

  measure(look, rates) {
    const { budget_bytes: budget, limits } = this.machine;
    const { memory, disk, dram, hits } = this.meters;
    const held = look.held_bytes;
    if (held === null) memory.set(`budget ${bytes(budget)}`, null);
    else memory.set(`${bytes(held)} of ${bytes(budget)}`, held / budget);
    const why = this.machine.holds_everything ? "memory holds all experts" : "limit not measured";
    this.bandwidth(disk, rates.disk, limits.disk_bytes_per_s, why);
    this.bandwidth(dram, rates.memory, limits.memory_bytes_per_s, "limit not measured");
    if (rates.hits === null) hits.set("–", 0);
    else hits.set(percent(rates.hits), rates.hits);
  }

  /** Without a limit, `why` there is none. */
  bandwidth(meter, used, limit, why) {
    const gigabytes = (value) => (value / 1e9).toFixed(2);
    if (limit === null) meter.set(`${gigabytes(used)} GB/s, ${why}`, null);
    else meter.set(`${gigabytes(used)} of ${gigabytes(limit)} GB/s`, used / limit);
  }

  showTexts({ texts, waiting }) {
    const queued = waiting > 0 ? `, ${count(waiting)} waiting` : "";
    const busy = texts.filter(([, started]) => started).length;
    const head = busy + waiting === 0 ? "Nobody is writing." : `${plural(busy, "text")} in the making${queued}`;
    this.texts.replaceChildren(el("li.muted", { textContent: head }), ...texts.slice(0, 12).map(textLine));
  }
}

/** One text: how far its prompt is, or how much is written. */
function textLine([id, started, done, total, prompt, written]) {
  const part = total > 0 ? done / total : 0;
  const reading = started && written === 0;
  const state = !started ? `waits with ${plural(prompt, "token")}`
    : reading ? `reads ${percent(part)} of ${plural(prompt, "token")}`
      : `has written ${plural(written, "token")}`;
  const bar = el("div.track", { ariaHidden: "true" }, el("i"));
  bar.style.setProperty("--part", reading ? part.toFixed(3) : "1");
  return el(reading ? "li.reading" : started ? "li.writing" : "li", {}, el("span", { textContent: `No. ${id + 1} ${state}` }), reading ? bar : null);
}

// How answers are written: what is sent beside the messages.

import { action, byId, el } from "./dom.js";
import { defined, EXAMPLE } from "./tools.js";

const KEPT = "flash-moe.settings";

/** `[field of the request, label, smallest, largest, step]` */
const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.05],
  ["top_p", "Top p", 0, 1, 0.01],
  ["top_k", "Top k", 0, 1000, 1],
  ["min_p", "Min p", 0, 1, 0.01],
  ["max_tokens", "Most tokens of an answer", 1, 1000000, 1],
  ["seed", "Seed", 0, 2 ** 53 - 1, 1],
  ["thinking_budget", "Most tokens of thinking", 0, 1000000, 1],
];

let kept = load();

/** What is set holds for this page where nothing can be kept. */
let unkept = false;

/** What the model likes. */
let own = {};

// Another tab has changed something.
addEventListener("storage", ({ key }) => {
  if (key !== KEPT && key !== null) return;
  kept = load();
  lay();
});

function load() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

function keep(name, value) {
  // What another tab has set meanwhile stays.
  if (!unkept) kept = load();
  if (value === "" || value === null) delete kept[name];
  else kept[name] = value;
  write();
}

function write() {
  try {
    localStorage.setItem(KEPT, JSON.stringify(kept));
    unkept = false;
  } catch {
    unkept = true;
  }
}

/** What a request carries beside its messages. */
export function manner() {
  const fields = Object.fromEntries(NUMBERS.filter(([name]) => typeof kept[name] === "number").map(([name]) => [name, kept[name]]));
  if (kept.thinking) fields.enable_thinking = kept.thinking === "on";
  return fields;
}

export const systemPrompt = () => kept.system ?? "";

/** What the model may call. Definitions that are none are a trouble of whoever asks for an answer: it would come without them. */
export const tools = () => defined(kept.tools ?? "");

/** Builds the drawer. */
export function lay() {
  const fields = [system(), thinking(), ...NUMBERS.map(number), toolDefinitions()];
  byId("fields").replaceChildren(...fields);
  suggest(own);
  byId("settings").onclose = putBack;
  byId("reset").onclick = () => {
    kept = {};
    write();
    lay();
  };
}

/** What did not fit was never sent: what is sent is shown instead. */
function putBack() {
  for (const input of document.querySelectorAll("#fields input:invalid")) {
    input.value = kept[input.dataset.name] ?? "";
    input.setCustomValidity("");
  }
}

function system() {
  const area = el("textarea", { rows: 4, value: kept.system ?? "", placeholder: "None, or the server's own" });
  area.oninput = () => keep("system", area.value);
  return el("label.whole", {}, "System prompt", area);
}

/** A text that stays as it is while it is wrong: nobody wants to lose what is half written. */
function toolDefinitions() {
  const area = el("textarea", { rows: 4, value: kept.tools ?? "", spellcheck: false, placeholder: "None" });
  area.dataset.name = "tools";
  const note = el("p.small", { id: "tools-note", role: "status" });
  area.setAttribute("aria-describedby", note.id);
  const example = action("Insert an example", () => {
    area.value = JSON.stringify(EXAMPLE, null, 2);
    area.oninput();
    area.focus();
  });
  const judge = () => {
    example.hidden = area.value.trim() !== "";
    const { text, wrong } = judged(area.value);
    note.textContent = text;
    area.ariaInvalid = String(wrong);
    note.classList.toggle("wrong", wrong);
  };
  area.oninput = () => {
    keep("tools", area.value);
    judge();
  };
  judge();
  const label = el("label", {}, "Tools that the model may call: a JSON list, as OpenAI's API takes it", area);
  return el("div.whole", {}, label, note, example);
}

function judged(text) {
  try {
    const names = defined(text).map((tool) => tool.function.name);
    const none = "The model asks for a call, and you write what it gives.";
    return { text: names.length > 0 ? `The model may call ${names.join(", ")}.` : none, wrong: false };
  } catch (trouble) {
    return { text: trouble.message, wrong: true };
  }
}

function thinking() {
  const option = (value, text) => el("option", { value, textContent: text });
  const select = el("select", {}, option("", "as the model likes"), option("on", "on"), option("off", "off"));
  select.value = kept.thinking ?? "";
  select.onchange = () => keep("thinking", select.value);
  return el("label", {}, "Thinking", select);
}

function number([name, label, min, max, step]) {
  const input = el("input", { type: "number", inputMode: "decimal", min, max, step: "any", value: kept[name] ?? "" });
  input.dataset.name = name;
  const whole = step >= 1;
  input.oninput = () => {
    input.setCustomValidity("");
    const fits = input.validity.valid && !(whole && !Number.isInteger(input.valueAsNumber || 0));
    const range = max >= 1000000 ? `from ${min}` : `between ${min} and ${max}`;
    input.setCustomValidity(fits ? "" : `A ${whole ? "whole " : ""}number ${range}.`);
    if (!fits) return input.reportValidity();
    return keep(name, input.value === "" ? null : input.valueAsNumber);
  };
  return el("label", {}, label, input);
}

/** Shows what the model likes where nothing is said. */
export function suggest(sampling) {
  own = sampling;
  for (const input of document.querySelectorAll("#fields input")) {
    const value = own[input.dataset.name];
    input.placeholder = value === undefined ? "" : String(Number(value.toFixed(4)));
  }
}

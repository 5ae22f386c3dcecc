// The calls of an answer: what is called with which arguments, and what came of it.

import { action, el } from "./dom.js";
import { isWhole, open } from "./tools.js";

/** JSON with lines, or the text it is so far. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function show(element, text) {
  // What is the same stays: who has marked some of it keeps the mark.
  if (element.textContent !== text) element.textContent = text;
}

/** One call: a line that unfolds. */
class CallView {
  constructor(changed) {
    this.name = el("code");
    this.brief = el("span.brief.muted", { ariaHidden: "true" });
    this.text = el("pre", { tabIndex: 0 });
    this.note = el("p.muted.small", { textContent: "It was cut, so there is nothing to answer." });
    this.came = el("div.came");
    this.area = el("textarea", { rows: 2, spellcheck: false, placeholder: "What the tool says" });
    this.field = el("label.small", { hidden: true }, "Result", this.area);
    this.result = el("pre", { tabIndex: 0 });
    const change = action("Change the result", () => {
      this.changing = true;
      changed();
      this.area.focus();
    });
    this.given = el("div", {}, el("p.muted.small", { textContent: "Result" }), this.result, change);
    this.came.append(this.note, this.field, this.given);
    this.element = el("details.call", {}, el("summary", {}, "Calls ", this.name, " ", this.brief), this.text, this.came);
  }

  get wanted() {
    return !this.field.hidden;
  }

  update(call, running) {
    const whole = isWhole(call), given = call.result !== undefined;
    show(this.name, call.name || "a tool");
    show(this.brief, call.text);
    show(this.text, pretty(call.text));
    this.note.hidden = running || whole;
    const wanted = !running && whole && (!given || this.changing === true);
    if (wanted && !this.wanted) {
      this.element.open = true;
      this.area.value = call.result ?? "";
      this.area.ariaLabel = `Result of ${call.name}`;
    }
    this.field.hidden = !wanted;
    this.given.hidden = !given || wanted;
    show(this.result, call.result ?? "");
  }
}

/** All calls of a message. `reply(results)` goes on with what they gave, a text or nothing for each. */
export class CallsView {
  constructor(message, reply) {
    this.message = message;
    this.reply = reply;
    this.views = [];
    this.send = el("button.strong", { type: "submit" });
    this.foot = el("footer", {}, this.send);
    this.element = el("form.calls", { hidden: true }, this.foot);
    this.element.onsubmit = (event) => {
      event.preventDefault();
      this.answer();
    };
    this.element.onkeydown = (event) => this.key(event);
  }

  get wanted() {
    return this.views.filter((view) => view.wanted);
  }

  update() {
    const { calls = [], running } = this.message;
    while (this.views.length < calls.length) {
      const view = new CallView(() => this.update());
      this.views.push(view);
      this.foot.before(view.element);
    }
    this.views.forEach((view, at) => view.update(calls[at], running === true));
    this.element.hidden = calls.length === 0;
    const { length } = this.wanted;
    this.foot.hidden = length === 0;
    this.send.textContent = length > 1 ? "Send the results" : "Send the result";
  }

  /** What is to be said of calls that wait, and nothing if none does. */
  waiting() {
    const names = open(this.message).map(({ name }) => name);
    return names.length > 0 ? `Calls ${names.join(", ")}. What does it give?` : "";
  }

  focus() {
    this.wanted[0]?.area.focus();
  }

  answer() {
    this.reply(this.views.map((view, at) => (view.wanted ? view.area.value : this.message.calls[at].result)));
  }

  /** Enter goes to the next result that is missing, and sends where none is. */
  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.tagName !== "TEXTAREA") return;
    event.preventDefault();
    const empty = this.wanted.find(({ area }) => area.value.trim() === "");
    if (empty) empty.area.focus();
    else this.answer();
  }
}

// How messages look: a question that can be edited, an answer that grows.

import { CallsView } from "./calls.js";
import { action, announce, copy, count, el, percent, plural, rate, seconds } from "./dom.js";
import { Markdown } from "./markdown.js";
import { open } from "./tools.js";

/** What somebody asked. `edit(text)` asks something else in its place. */
export class QuestionView {
  constructor(message, edit) {
    this.message = message;
    this.send = edit;
    this.element = el("article.question", { ariaLabel: "You" });
    this.rest();
  }

  rest() {
    const text = el("div.text", { textContent: this.message.content });
    this.change = action("Edit", () => this.edit());
    const tools = el("footer.tools", {}, this.change, action("Copy", (button) => copy(this.message.content, button)));
    this.element.replaceChildren(text, tools);
  }

  edit(text = this.message.content) {
    const area = el("textarea", { value: text, ariaLabel: "Edit the message", rows: 3 });
    const send = () => area.value.trim() !== "" && this.send(area.value);
    area.onkeydown = (event) => {
      if (event.key === "Escape") this.cancel();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
      else if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
    };
    const buttons = el("footer", {}, action("Cancel", () => this.cancel()), action("Send", send));
    this.element.replaceChildren(area, buttons);
    area.focus();
  }

  cancel() {
    this.rest();
    this.change.focus();
  }
}

/** What the model answers. `again()` asks for another answer, `reply(results)` goes on with what its calls gave. */
export class AnswerView {
  constructor(message, again, reply) {
    this.message = message;
    this.thought = el("div.thought");
    this.thinking = el("details.thinking", { hidden: true }, el("summary"), this.thought);
    this.calls = new CallsView(message, reply);
    this.markdown = new Markdown();
    this.wait = el("p.wait.muted", { textContent: "…", ariaHidden: "true" });
    this.trouble = el("p.trouble", { hidden: true });
    this.facts = el("span.facts.muted.small");
    const copyText = action("Copy", (button) => copy(this.message.content, button));
    this.tools = el("footer.tools", {}, this.facts, action("Again", again), copyText);
    this.element = el("article.answer", { ariaLabel: "Answer" }, this.thinking, this.markdown.element, this.calls.element,
      this.wait, this.trouble, this.tools);
    this.update();
  }

  /** Shows what has come. */
  update() {
    const { message } = this;
    const running = message.running === true;
    this.element.ariaBusy = String(running);
    this.showThinking(message, running);
    this.wait.hidden = !running || message.content !== "" || Boolean(message.thinking ?? message.calls);
    const complete = this.markdown.update(message.content);
    if (running && complete !== "") announce(complete);
    this.calls.update();
    this.showTrouble(message.trouble);
    this.tools.hidden = running;
    this.facts.textContent = running ? "" : facts(message);
  }

  /** The answer has ended. */
  end() {
    this.update();
    const last = this.markdown.element.lastChild?.textContent ?? "";
    announce(this.message.trouble?.message ?? `${last} ${this.calls.waiting() || "End of the answer."}`);
  }

  showThinking({ thinking, content, thought_ms: ms }, running) {
    this.thinking.hidden = !thinking;
    if (!thinking) return;
    const thinks = running && content === "";
    this.thinking.firstChild.textContent = thinks ? "Thinking…" : ms ? `Thought for ${seconds(ms)}` : "Thought";
    if (this.thought.textContent !== thinking) this.thought.textContent = thinking;
  }

  showTrouble(trouble) {
    this.trouble.hidden = !trouble;
    if (!trouble) return;
    this.trouble.replaceChildren(el("strong", { textContent: trouble.message }), " ", trouble.hint ?? "");
  }
}

/** One line of figures. */
function facts(message) {
  const { timings, finish, stopped } = message;
  const ends = { length: "ended at its limit", tool_calls: open(message).length > 0 ? "waits for a tool" : "called a tool" };
  const words = [];
  if (timings) {
    words.push(plural(timings.written_tokens, "token"), `${rate(timings.decode_tok_s)} tok/s`);
    words.push(`first after ${seconds(timings.ttft_ms)}`, `${percent(timings.hit_rate)} hits`);
    if (timings.cached_tokens > 0) words.push(`${count(timings.cached_tokens)} of ${count(timings.prompt_tokens)} prompt tokens cached`);
  }
  if (stopped) words.push("stopped");
  else if (ends[finish]) words.push(ends[finish]);
  return words.join(" · ");
}

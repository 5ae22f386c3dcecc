// The conversation that is shown, and the answer that is on its way.

import { announce, byId, el } from "./dom.js";
import { receive } from "./answer.js";
import * as conversations from "./conversations.js";
import { AnswerView, QuestionView } from "./message.js";
import { NO_RESULT, open } from "./tools.js";

/** Between two looks at an answer that grows, in milliseconds. */
const REDRAW = 60;

/** So near to the end of the page, it follows what comes. */
const NEAR = 80;

const IDEAS = ["Write a story about a robot who loves music.", "What is 7 plus 5?", "What is the capital of France?"];

export class Chat {
  /** `changed()` is called when the list of conversations may look different. */
  constructor(changed) {
    this.changed = changed;
    this.box = byId("messages");
    this.prompt = byId("prompt");
    this.button = byId("send");
    this.model = "flash-moe";
    this.running = null;
    byId("composer").onsubmit = (event) => {
      event.preventDefault();
      if (this.running) this.stop();
      else this.send(this.prompt.value);
    };
    this.prompt.oninput = () => this.fit();
    this.prompt.onkeydown = (event) => this.key(event);
    addEventListener("pagehide", () => this.running && conversations.save(this.running.chat));
    this.open(null);
  }

  /** Shows a conversation; without one, begins a new one. */
  open(id) {
    const kept = id && (this.running?.chat.id === id ? this.running.chat : conversations.load(id));
    this.chat = kept || conversations.fresh();
    this.show();
    this.prompt.focus({ preventScroll: true });
    this.changed(this.chat.id);
  }

  show() {
    this.views = this.chat.messages.map((message, at) => this.view(message, at));
    const nodes = this.views.map(({ element }) => element);
    this.box.replaceChildren(...(nodes.length > 0 ? nodes : [this.welcome()]));
    this.box.scrollTop = this.box.scrollHeight;
    this.showButton();
  }

  view(message, at) {
    if (message.role === "user") return new QuestionView(message, (text) => this.askAgain(at, text));
    return new AnswerView(message, () => this.answerAgain(at), (results) => this.reply(at, results));
  }

  welcome() {
    const idea = (text) => el("button", { textContent: text, onclick: () => this.send(text) });
    return el("section.welcome", {}, el("h2", { textContent: "What shall it think about?" }), ...IDEAS.map(idea));
  }

  showButton() {
    this.button.textContent = this.running ? "Stop" : "Send";
    this.button.classList.toggle("stop", Boolean(this.running));
  }

  /** Asks something else in the place of a message: what came after it is gone. */
  askAgain(at, text) {
    this.stop();
    this.chat.messages.length = at;
    this.show();
    this.send(text);
  }

  async send(text) {
    if (text.trim() === "") return;
    if (this.running) await this.stop();
    this.prompt.value = "";
    this.fit();
    // What the model will be told is what is shown.
    this.chat.messages.flatMap(open).forEach((call) => (call.result = NO_RESULT));
    this.chat.messages.push({ role: "user", content: text });
    await this.answer();
  }

  /** Another answer in the place of one: what came after it is gone. */
  answerAgain(at) {
    this.stop();
    this.chat.messages.length = at;
    this.answer();
  }

  /** Goes on with what the calls of an answer gave. */
  reply(at, results) {
    this.stop();
    this.chat.messages.length = at + 1;
    this.chat.messages[at].calls.forEach((call, index) => (call.result = results[index]));
    this.answer();
    this.prompt.focus({ preventScroll: true });
  }

  /** The model's turn. */
  async answer() {
    const { chat } = this;
    const answer = { role: "assistant", content: "", running: true };
    chat.messages.push(answer);
    this.show();
    conversations.save(chat);
    this.changed(chat.id);
    announce("Answering.");
    await this.follow(chat, answer);
  }

  /** Waits for an answer, and shows it as it grows. */
  async follow(chat, answer) {
    const controller = new AbortController();
    const running = { chat, controller };
    this.running = running;
    this.showButton();
    running.done = receive({ chat, model: this.model }, answer, controller.signal, () => this.grow(answer));
    await running.done;
    if (this.running === running) this.running = null;
    this.end(answer);
    this.showButton();
    // Whoever deleted it meanwhile does not want it back.
    if (chat === this.chat || conversations.load(chat.id)) conversations.save(chat);
    this.changed(this.chat.id);
  }

  end(answer) {
    const view = this.viewOf(answer);
    view?.end();
    if (view && open(answer).length > 0) {
      this.box.scrollTop = this.box.scrollHeight;
      // Who has begun to write something else is not taken away from it.
      if (this.prompt.value === "" && document.activeElement === this.prompt) view.calls.focus();
    }
  }

  viewOf(message) {
    return this.views.find((view) => view.message === message);
  }

  grow(answer) {
    this.redraw ??= setTimeout(() => {
      this.redraw = undefined;
      const { scrollHeight, scrollTop, clientHeight } = this.box;
      const follows = scrollHeight - scrollTop - clientHeight < NEAR;
      this.viewOf(answer)?.update();
      if (follows) this.box.scrollTop = this.box.scrollHeight;
    }, REDRAW);
  }

  /** Ends the answer that is on its way; the server hears of it at its next step. */
  async stop() {
    const { running } = this;
    if (!running) return;
    running.controller.abort();
    this.running = null;
    await running.done;
  }

  /** Edits the latest question. */
  editLatest() {
    const view = this.views.findLast(({ message }) => message.role === "user");
    view?.edit();
  }

  key(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.send(this.prompt.value);
    } else if (event.key === "ArrowUp" && this.prompt.value === "") {
      event.preventDefault();
      this.editLatest();
    }
  }

  /** As high as its text, up to a third of the window. */
  fit() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${Math.min(this.prompt.scrollHeight, innerHeight / 3)}px`;
  }
}

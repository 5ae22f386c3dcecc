// The conversation that is shown, and the answer that is on its way.

import { announce, byId, el } from "./dom.js";
import { body, receive } from "./answer.js";
import * as conversations from "./conversations.js";
import { AnswerView, QuestionView } from "./message.js";

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
    return new AnswerView(message, () => this.askAgain(at - 1, this.chat.messages[at - 1].content));
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
    const { chat } = this;
    this.prompt.value = "";
    this.fit();
    chat.messages.push({ role: "user", content: text });
    const asked = body(chat, this.model);
    const answer = { role: "assistant", content: "", running: true };
    chat.messages.push(answer);
    this.show();
    conversations.save(chat);
    this.changed(chat.id);
    announce("Answering.");
    await this.follow(chat, asked, answer);
  }

  /** Waits for an answer, and shows it as it grows. */
  async follow(chat, asked, answer) {
    const controller = new AbortController();
    const running = { chat, controller };
    this.running = running;
    this.showButton();
    running.done = receive(asked, answer, controller.signal, () => this.grow(answer));
    await running.done;
    if (this.running === running) this.running = null;
    this.viewOf(answer)?.end();
    this.showButton();
    // Whoever deleted it meanwhile does not want it back.
    if (chat === this.chat || conversations.load(chat.id)) conversations.save(chat);
    this.changed(this.chat.id);
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

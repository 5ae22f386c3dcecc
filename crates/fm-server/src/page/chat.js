// The conversation that is shown, and the answers that are on their way.

import { announce, byId, el, toast } from "./dom.js";
import { receive } from "./answer.js";
import * as conversations from "./conversations.js";
import { AnswerView, QuestionView } from "./message.js";
import { NO_RESULT, open, told } from "./tools.js";

/** Between two looks at an answer that grows, in milliseconds. */
const REDRAW = 60;

/** So near to the end of the page, it follows what comes. */
const NEAR = 80;

/** Whether a message says something, so that the model is told of it later on. */
const says = (message) => told(message).length > 0;

const IDEAS = ["Write a story about a robot who loves music.", "What is 7 plus 5?", "What is the capital of France?"];

export class Chat {
  /** `changed()` is called when the list of conversations may look different. */
  constructor(changed) {
    this.changed = changed;
    this.box = byId("messages");
    this.prompt = byId("prompt");
    this.button = byId("send");
    this.model = "flash-moe";
    /** Answers on their way, by the conversation that they belong to: the server writes several at once. */
    this.runs = new Map();
    byId("composer").onsubmit = (event) => {
      event.preventDefault();
      if (this.running) this.stop();
      else this.send(this.prompt.value);
    };
    this.prompt.oninput = () => this.fit();
    this.prompt.onkeydown = (event) => this.key(event);
    // No server has to do with it that the answers of a page that is left end.
    addEventListener("pagehide", () => [...this.runs.keys()].forEach((id) => this.cut(id)));
    conversations.listen((id) => this.hear(id));
    this.open(null);
  }

  /** The answer of the conversation that is shown. */
  get running() {
    return this.runs.get(this.chat.id);
  }

  /** Shows a conversation; without one, begins a new one. */
  open(id) {
    const kept = id && (this.runs.get(id)?.chat ?? conversations.load(id));
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

  /** Asks something else in the place of a message. */
  askAgain(at, text) {
    return this.instead(at, [{ role: "user", content: text }], text);
  }

  /** Another answer in the place of one. */
  answerAgain(at) {
    return this.instead(at, []);
  }

  /** Goes on with what the calls of an answer gave. */
  reply(at, results) {
    const message = this.chat.messages[at];
    const calls = message.calls.map((call, index) => ({ ...call, result: results[index] }));
    return this.instead(at, [{ ...message, calls }]);
  }

  /** Goes on from a place with other messages: what was there is gone as soon as an answer has come. */
  async instead(at, messages, edited) {
    const { chat } = this;
    await this.quiet(chat);
    const before = chat.messages;
    chat.messages = [...before.slice(0, at), ...messages];
    const loses = before.slice(at + messages.length).some(says);
    this.answer(chat, loses ? { messages: before, at, edited } : null);
    if (chat === this.chat) this.prompt.focus({ preventScroll: true });
  }

  async send(text) {
    if (text.trim() === "") return;
    const { chat } = this;
    this.prompt.value = "";
    this.fit();
    // Whoever goes on after a question does not want back what was there before it.
    if (this.running) this.running.before = null;
    await this.quiet(chat);
    // What the model will be told is what is shown.
    chat.messages.flatMap(open).forEach((call) => (call.result = NO_RESULT));
    chat.messages.push({ role: "user", content: text });
    this.answer(chat);
  }

  /** The model's turn; with what was there before, for the case that it says nothing. */
  answer(chat, before = null) {
    const answer = { role: "assistant", content: "", running: true };
    chat.messages.push(answer);
    const run = { chat, answer, before, controller: new AbortController() };
    this.runs.set(chat.id, run);
    this.keep(run);
    this.changed(this.chat.id);
    if (chat === this.chat) {
      this.show();
      announce("Answering.");
    }
    run.done = this.follow(run);
  }

  /** Waits for an answer, and shows it as it grows. */
  async follow(run) {
    const { chat, answer } = run;
    await receive({ chat, model: this.model }, answer, run.controller.signal, () => this.grow(answer));
    this.runs.delete(chat.id);
    if (run.before && !says(answer) && (answer.trouble || answer.stopped)) this.restore(run);
    else this.end(answer);
    this.showButton();
    // Whoever deleted it meanwhile does not want it back.
    if (chat === this.chat || conversations.load(chat.id)) conversations.save(chat);
    this.changed(this.chat.id);
  }

  /** Keeps a conversation as it is if nothing more comes. */
  keep({ chat, answer, before }) {
    conversations.save(before && !says(answer) ? { ...chat, messages: before.messages } : chat);
  }

  /** No answer has come in the place of what was there: it is there again, with what was wrong. */
  restore({ chat, answer: { trouble }, before: { messages, at, edited } }) {
    chat.messages = messages;
    if (chat !== this.chat) return trouble && toast(`“${chat.title}”: ${trouble.message}`);
    this.show();
    if (edited) this.views[at].edit(edited);
    const view = this.views.slice(at).find((other) => other instanceof AnswerView);
    view?.showTrouble(trouble);
    view?.trouble.scrollIntoView({ block: "nearest" });
    return trouble && announce(trouble.message);
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
    if (!this.viewOf(answer)) return;
    this.redraw ??= setTimeout(() => {
      this.redraw = undefined;
      const { scrollHeight, scrollTop, clientHeight } = this.box;
      const follows = scrollHeight - scrollTop - clientHeight < NEAR;
      this.viewOf(this.running?.answer)?.update();
      if (follows) this.box.scrollTop = this.box.scrollHeight;
    }, REDRAW);
  }

  /** Ends the answer that is on its way where it is shown; the server hears of it at its next step. */
  stop() {
    this.running?.controller.abort();
  }

  /** Waits until no answer is on its way in a conversation. */
  async quiet({ id }) {
    for (let run = this.runs.get(id); run; run = this.runs.get(id)) {
      run.controller.abort();
      await run.done;
    }
  }

  /** Ends the answer of a conversation, and keeps at once what has come: nobody waits for the rest. */
  cut(id) {
    const run = this.runs.get(id);
    if (!run) return;
    run.controller.abort();
    this.keep(run);
  }

  /** Another tab has written a conversation, or changed the list. */
  hear(id) {
    this.changed(this.chat.id);
    if (id !== this.chat.id) return;
    if (this.running) return toast("Another tab goes on with this conversation too: what ends last is kept.");
    this.chat = conversations.load(id) ?? this.chat;
    const writes = [...this.box.querySelectorAll("textarea:not([hidden] *)")].some(({ value }) => value !== "");
    // It is not taken away from whoever writes into it.
    if (writes) return toast("Another tab has gone on with this conversation.", "Show it", () => this.show());
    return this.show();
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

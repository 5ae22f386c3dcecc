// The list of conversations.

import { byId, el, toast } from "./dom.js";
import * as conversations from "./conversations.js";

export class Sidebar {
  /** `open(id)` shows a conversation, or a new one; `cut(id)` ends the answer that it waits for. */
  constructor(open, cut) {
    this.open = open;
    this.cut = cut;
    this.current = null;
    this.renaming = false;
    byId("new-chat").onclick = () => open(null);
  }

  show(current = this.current) {
    this.current = current;
    // Whoever writes a title goes on.
    if (this.renaming) return;
    const rows = conversations.list().map((entry) => this.row(entry));
    byId("chat-list").replaceChildren(...rows);
  }

  row({ id, title }) {
    const name = el("button.quiet.title", { textContent: title, title, onclick: () => this.open(id) });
    name.dataset.id = id;
    if (id === this.current) name.ariaCurrent = "true";
    const tool = (text, act) => el("button.quiet.small", { textContent: text, ariaLabel: `${text}: ${title}`, onclick: act });
    const tools = el("div.tools", {}, tool("Rename", () => this.rename(row, id, title)),
      tool("Export", () => this.export(id)), tool("Delete", () => this.remove(id)));
    const row = el("li", {}, name, tools);
    return row;
  }

  rename(row, id, title) {
    const input = el("input", { value: title, ariaLabel: "Title", maxLength: 60 });
    const end = () => {
      input.onblur = null;
      this.renaming = false;
      conversations.rename(id, input.value);
      // The other rows stay: a click on one of them, which ends this, is still to come.
      const entry = conversations.list().find((other) => other.id === id);
      row.replaceWith(...(entry ? [this.row(entry)] : []));
    };
    input.onblur = end;
    input.onkeydown = (event) => {
      event.stopPropagation();
      if (event.key === "Escape") input.value = title;
      if (!["Enter", "Escape"].includes(event.key) || event.isComposing) return;
      event.preventDefault();
      end();
      this.show();
      byId("chat-list").querySelector(`[data-id="${id}"]`)?.focus();
    };
    row.replaceChildren(input);
    this.renaming = true;
    input.select();
  }

  export(id) {
    const chat = conversations.load(id);
    if (!chat) return;
    const file = conversations.file(chat);
    const link = el("a", { href: URL.createObjectURL(file), download: file.name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  remove(id) {
    this.cut(id);
    const chat = conversations.remove(id);
    if (id === this.current) this.open(null);
    this.show();
    if (chat) {
      toast(`“${chat.title}” is deleted.`, "Undo", () => {
        conversations.save(chat);
        this.show();
      });
    }
  }
}

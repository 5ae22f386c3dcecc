// The list of conversations.

import { byId, el, toast } from "./dom.js";
import * as conversations from "./conversations.js";

export class Sidebar {
  /** `open(id)` shows a conversation, or a new one. */
  constructor(open) {
    this.open = open;
    this.current = null;
    byId("new-chat").onclick = () => open(null);
  }

  show(current = this.current) {
    this.current = current;
    const rows = conversations.list().map((entry) => this.row(entry));
    byId("chat-list").replaceChildren(...rows);
  }

  row({ id, title }) {
    const name = el("button.quiet.title", { textContent: title, title, onclick: () => this.open(id) });
    if (id === this.current) name.ariaCurrent = "true";
    const tool = (text, act) => el("button.quiet.small", { textContent: text, ariaLabel: `${text}: ${title}`, onclick: act });
    const tools = el("div.tools", {}, tool("Rename", () => this.rename(row, id, title)),
      tool("Export", () => this.export(id)), tool("Delete", () => this.remove(id)));
    const row = el("li", {}, name, tools);
    return row;
  }

  rename(row, id, title) {
    const input = el("input", { value: title, ariaLabel: "Title", maxLength: 60 });
    input.onkeydown = (event) => {
      if (event.key === "Escape") input.value = title;
      if (event.key === "Enter" || event.key === "Escape") input.blur();
      event.stopPropagation();
    };
    input.onblur = () => {
      conversations.rename(id, input.value);
      this.show();
    };
    row.replaceChildren(input);
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

// The page: puts its parts together, and listens to keys that belong to none of them.

import { isKey, setKeyDialog } from "./api.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { watch } from "./feed.js";
import { Machine } from "./machine.js";
import * as settings from "./settings.js";
import { Sidebar } from "./sidebar.js";

setKeyDialog(askForKey);
settings.lay();
const machine = new Machine();
const sidebar = new Sidebar(open, (id) => chat.cut(id));
const chat = new Chat((id) => sidebar.show(id));

watch({
  machine(told) {
    machine.meet(told);
    chat.model = told.model;
    settings.suggest(told.sampling);
  },
  look: (look, rates) => machine.look(look, rates),
  lost: (error) => machine.lost(error),
});

function open(id) {
  chat.open(id);
  showChats(false);
}

/** The key, or nothing if nobody wants to enter it. `wrong` says that another one was. */
function askForKey(wrong) {
  const dialog = byId("ask-key");
  const input = byId("key");
  input.value = "";
  byId("key-cancel").onclick = () => dialog.close("");
  dialog.querySelector("form").onsubmit = (event) => {
    input.value = input.value.trim();
    if (isKey(input.value)) return;
    event.preventDefault();
    byId("key-trouble").textContent = "A key has only letters, digits and signs of ASCII. This one has another, "
      + "maybe one that cannot be seen: copy it again, or type it.";
    input.select();
  };
  dialog.returnValue = "";
  dialog.showModal();
  byId("key-trouble").textContent = wrong ? "That was not the key." : "";
  return new Promise((done) => {
    dialog.onclose = () => done(dialog.returnValue === "key" ? input.value : null);
  });
}

function showChats(open) {
  document.body.classList.toggle("chats-open", open);
  byId("open-chats").ariaExpanded = String(open);
}

function showMachine(open) {
  document.body.dataset.view = open ? "machine" : "chat";
  byId("open-machine").ariaPressed = String(open);
}

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  machine.heatmap?.recolour();
  try {
    localStorage.setItem("flash-moe.theme", theme);
  } catch {
    // It holds for this page.
  }
}

byId("open-chats").onclick = () => showChats(!document.body.classList.contains("chats-open"));
byId("open-machine").onclick = () => showMachine(document.body.dataset.view !== "machine");
byId("open-settings").onclick = () => byId("settings").showModal();
byId("theme").onclick = switchTheme;

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, dialog");
  if (event.key === "Escape" && !event.target.closest("dialog")) {
    chat.stop();
    showChats(false);
  } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    showMachine(false);
    byId("prompt").focus();
  }
});

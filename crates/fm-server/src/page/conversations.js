// Conversations, kept in this browser: an index, and every conversation under a key of its own.

import { plural, toast } from "./dom.js";

const INDEX = "flash-moe.chats";
const CHAT = "flash-moe.chat.";

/** Conversations that are kept; the ones that were left the longest go first. */
const KEPT_MAX = 100;

/** Letters of a title. */
const TITLE_MAX = 60;

/** What a browser does not keep lives as long as the page: texts by their keys, and what the index would say of them. */
const unkept = new Map();
let unlisted = [];

/** Calls `heard(id)` when another tab has written a conversation, and without an id when it has changed the list. */
export function listen(heard) {
  addEventListener("storage", ({ key }) => {
    if (key === null || key === INDEX) heard();
    else if (key.startsWith(CHAT)) heard(key.slice(CHAT.length));
  });
}

function read(key, otherwise) {
  try {
    return JSON.parse(unkept.get(key) ?? localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Says whether there was room. */
function write(key, value) {
  const text = JSON.stringify(value);
  try {
    localStorage.setItem(key, text);
    unkept.delete(key);
    return true;
  } catch {
    unkept.set(key, text);
    return false;
  }
}

/** Whether an earlier state of a conversation is kept at least. */
function isKept(id) {
  try {
    return localStorage.getItem(CHAT + id) !== null;
  } catch {
    return false;
  }
}

function forget(id) {
  unkept.delete(CHAT + id);
  try {
    localStorage.removeItem(CHAT + id);
  } catch {
    // Nothing was kept.
  }
}

/** `{ id, title, updated }`, the latest first. */
export function list() {
  const index = read(INDEX, []);
  const listed = (entry) => typeof entry?.id === "string" && !unlisted.some(({ id }) => id === entry.id);
  const entries = Array.isArray(index) ? index.filter(listed) : [];
  return [...unlisted, ...entries].sort((one, other) => other.updated - one.updated);
}

/** Writes the index, without what would be gone with the page, and says whether there was room. */
function writeIndex(entries) {
  unlisted = entries.filter(({ id }) => unkept.has(CHAT + id));
  const kept = entries.filter(({ id }) => !unkept.has(CHAT + id) || isKept(id));
  kept.splice(KEPT_MAX).forEach(({ id }) => forget(id));
  return write(INDEX, kept);
}

export const fresh = () => ({ id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`, title: "", messages: [] });

/** A conversation, or nothing if it is gone or damaged. */
export function load(id) {
  const found = read(CHAT + id, null);
  if (!Array.isArray(found?.messages)) return null;
  // The page was left in the middle of these.
  const broken = found.messages.filter(({ running }) => running);
  broken.forEach((message) => Object.assign(message, { running: false, stopped: true }));
  return { ...found, title: titleOf(id) ?? found.title };
}

/** The index has the title: whoever renames a conversation may not be the one who goes on with it. */
const titleOf = (id) => list().find((entry) => entry.id === id)?.title;

/** Keeps a conversation; makes room by forgetting the oldest others, unless there is not enough without all of them. */
export function save(chat) {
  chat.title = titleOf(chat.id) ?? (chat.title || titled(chat.messages[0]?.content ?? ""));
  const entries = [{ id: chat.id, title: chat.title, updated: Date.now() }, ...list().filter(({ id }) => id !== chat.id)];
  // Room that was not there without all of the others is not looked for again.
  const known = unkept.has(CHAT + chat.id);
  const gone = makeRoom(chat, entries, known ? [] : entries.slice(1));
  if (gone > 0) toast(`There was no room for it: ${plural(gone, "old conversation")} had to go.`);
  if (gone !== null) return;
  writeIndex(entries);
  if (!known) toast("This browser does not keep this conversation: what is new goes with this page, unless Export saves it.");
}

/** Says how many of the oldest of `others` had to go, or nothing if it does not fit without all of them. */
function makeRoom(chat, entries, others) {
  const gone = [];
  const left = [...entries];
  const mayGo = others.filter(({ id }) => !unkept.has(CHAT + id));
  while (!write(CHAT + chat.id, chat) || !writeIndex(left)) {
    const oldest = mayGo.pop();
    if (!oldest) {
      gone.forEach(([id, other]) => other && write(CHAT + id, other));
      return null;
    }
    left.splice(left.indexOf(oldest), 1);
    gone.push([oldest.id, read(CHAT + oldest.id, null)]);
    forget(oldest.id);
  }
  return gone.length;
}

export function rename(id, title) {
  if (title.trim() === "") return;
  writeIndex(list().map((entry) => (entry.id === id ? { ...entry, title: title.trim().slice(0, TITLE_MAX) } : entry)));
}

/** Forgets a conversation and returns it, for whoever regrets it. */
export function remove(id) {
  const chat = load(id);
  forget(id);
  writeIndex(list().filter((entry) => entry.id !== id));
  return chat;
}

function titled(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_MAX ? `${line.slice(0, TITLE_MAX - 1)}…` : line || "Untitled";
}

/** The file of a conversation. */
export function file(chat) {
  const name = chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").toLowerCase().replace(/^-|-$/g, "") || "conversation";
  return new File([JSON.stringify(chat, null, 2)], `${name}.json`, { type: "application/json" });
}

// Conversations, kept in this browser: an index, and every conversation under a key of its own.

const INDEX = "flash-moe.chats";
const CHAT = "flash-moe.chat.";

/** Conversations that are kept; the ones that were left the longest go first. */
const KEPT_MAX = 100;

/** Letters of a title. */
const TITLE_MAX = 60;

/** What a browser does not keep lives as long as the page. */
const unkept = new Map();

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
  return Array.isArray(index) ? index.filter((entry) => typeof entry?.id === "string") : [];
}

export const fresh = () => ({ id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`, title: "", messages: [] });

/** A conversation, or nothing if it is gone or damaged. */
export function load(id) {
  const found = read(CHAT + id, null);
  if (!Array.isArray(found?.messages)) return null;
  // The page was left in the middle of these.
  const broken = found.messages.filter(({ running }) => running);
  broken.forEach((message) => Object.assign(message, { running: false, stopped: true }));
  return found;
}

/** Keeps a conversation; makes room by forgetting the oldest others, unless there is not enough without all of them. */
export function save(chat) {
  if (chat.title === "") chat.title = titled(chat.messages[0]?.content ?? "");
  const others = list().filter(({ id }) => id !== chat.id);
  while (others.length >= KEPT_MAX) forget(others.pop().id);
  const gone = [];
  let kept = write(CHAT + chat.id, chat);
  while (!kept && others.length > 0) {
    const oldest = others.pop();
    gone.push([oldest, read(CHAT + oldest.id, null)]);
    forget(oldest.id);
    kept = write(CHAT + chat.id, chat);
  }
  if (!kept) {
    gone.reverse().forEach(([entry, other]) => other && write(CHAT + entry.id, other) && others.push(entry));
  }
  write(INDEX, [{ id: chat.id, title: chat.title, updated: Date.now() }, ...others]);
}

export function rename(id, title) {
  const chat = load(id);
  if (!chat || title.trim() === "") return;
  chat.title = title.trim().slice(0, TITLE_MAX);
  write(CHAT + id, chat);
  write(INDEX, list().map((entry) => (entry.id === id ? { ...entry, title: chat.title } : entry)));
}

/** Forgets a conversation and returns it, for whoever regrets it. */
export function remove(id) {
  const chat = load(id);
  forget(id);
  write(INDEX, list().filter((entry) => entry.id !== id));
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

// The server: requests with a key, streams of events, and errors that say what to do.

const KEPT = "flash-moe.key";

/** Something went wrong, in words, with what can be done about it. */
export class Trouble extends Error {
  constructor(message, hint) {
    super(message);
    this.hint = hint;
  }
}

/** The server wants a key, and nobody gave one. */
export class Locked extends Trouble {
  constructor() {
    super("This server wants a key.", "Send again to enter it.");
  }
}

/** Whether a text can be a key: a header takes no other letters. */
export const isKey = (text) => /^[\x21-\x7e]+$/.test(text);

/** The browser keeps it for this tab, unless it keeps nothing. */
let key = kept();

function kept() {
  try {
    const found = sessionStorage.getItem(KEPT) ?? "";
    return isKey(found) ? found : null;
  } catch {
    return null;
  }
}

let ask = async () => null;
let asking = null;
let declined = false;
let waiting = [];

/** `dialog(wrong)` gets a key from the user, or nothing; `wrong` says that there was one already. */
export function setKeyDialog(dialog) {
  ask = dialog;
}

/** Asks for the key, and says whether there is one now. */
export async function enterKey(wrong = false) {
  // The feed and a message may both be refused: one dialog answers both.
  const given = await (asking ??= ask(wrong).finally(() => (asking = null)));
  declined = given === null;
  if (declined) return false;
  key = given;
  try {
    sessionStorage.setItem(KEPT, key);
  } catch {
    // It holds for this page.
  }
  waiting.forEach((done) => done());
  waiting = [];
  return true;
}

/** Waits until somebody has entered a key. */
export const keyEntered = () => new Promise((done) => waiting.push(done));

/** A response that is not an error. Asks for the key as long as it is the wrong one. */
export async function request(path, { body, signal } = {}) {
  for (;;) {
    const sent = key;
    const response = await reach(path, body, signal);
    if (response.ok) return response;
    if (response.status !== 401) throw await trouble(response);
    if (key !== sent) continue;
    // Who does not want to enter it is asked again when they send something, and by no feed.
    const asks = body || !declined;
    if (!asks || !(await enterKey(sent !== null))) throw new Locked();
  }
}

async function reach(path, body, signal) {
  const headers = {};
  if (key !== null) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  const method = body ? "POST" : "GET";
  try {
    return await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer.", "Is flash-moe serve still running? Then send again.");
  }
}

async function trouble(response) {
  const told = await response.json().catch(() => null);
  return explained(told?.error, response.status, response.headers.get("retry-after"));
}

/** The server's error object with a hint. */
export function explained(error, status = 500, again = null) {
  const message = error?.message ?? `The server answered with status ${status}.`;
  return new Trouble(message, hint(error?.code, status, again));
}

function hint(code, status, again) {
  if (code === "context_length_exceeded") return "Begin a new conversation, or shorten this one by editing a message.";
  if (status === 429) return `Others are served first. Try again in ${again ?? 5} s.`;
  if (status === 503) return "The server is ending. Start it again, then send again.";
  if (status === 403) return "Open the page under the address that the server printed.";
  if (status === 413) return "The conversation has grown too long: begin a new one.";
  if (status >= 500) return "The server goes on: send again. Its log may say more.";
  return "Change what it names, in the settings or in the message, and send again.";
}

/** The events of a response: `{ name, data }`, as they come. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      // A line ends with \n only: JSON may have every other letter that ends one elsewhere.
      const field = (name) => block.split("\n").find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      const data = field("data");
      // Comments keep the connection alive and say nothing.
      if (data !== undefined) yield { name: field("event"), data };
    }
  }
}

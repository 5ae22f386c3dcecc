// Elements, and words for numbers. Text of a model only ever becomes text nodes.

/** An element: `el("p.muted", { title }, ...children)`. Children are nodes or text. */
export function el(kind, properties = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length > 0) element.classList.add(...classes);
  Object.assign(element, properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A small button that hears of itself. */
export function action(text, act) {
  const button = el("button.quiet.small", { type: "button", textContent: text });
  button.onclick = () => act(button);
  return button;
}

/** Says something once to those who listen instead of looking. */
export function announce(text) {
  const announcer = byId("announcer");
  announcer.append(el("p", { textContent: text }));
  // Bound: what was said long ago has been heard.
  while (announcer.children.length > 20) announcer.firstChild.remove();
}

/** Puts a text on the clipboard, and says so on the button. */
export async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Browsers keep the clipboard from pages that came without TLS from another machine.
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

/** Shows a line for a while, with something to do about it. */
export function toast(text, action, act) {
  const line = byId("toast");
  const button = action && el("button", { textContent: action, onclick: () => { act(); line.hidden = true; } });
  line.replaceChildren(text, " ", button ?? "");
  line.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => (line.hidden = true), 8000);
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const count = (number) => whole.format(number);
export const rate = (number) => (number >= 100 || number === 0 ? whole : tenth).format(number);
export const percent = (share) => `${whole.format(100 * share)} %`;
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const seconds = (ms) => (ms < 9950 ? `${(ms / 1000).toFixed(2)} s` : `${whole.format(ms / 1000)} s`);

/** Bytes as people buy them. */
export function bytes(number) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(number, 1)) / 3));
  return `${(number / 1000 ** at).toFixed(at > 2 ? 2 : 0)} ${units[at]}`;
}

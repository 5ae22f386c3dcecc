// Markdown within a line: text → nodes. Whatever is not understood stays the text it is.

import { el } from "./dom.js";

/** Emphasis within emphasis. */
const DEPTH_MAX = 6;

/** Longer runs of text are shown as they are: nobody writes them, and they would take long. */
const LENGTH_MAX = 20000;

const SPECIAL = /[\\`*_~[\]!<\n]|https?:\/\//g;
/** A label, and a target with a title or none, or a title alone: blanks are never tried twice, which would take long. */
const LINK = new RegExp([
  /!?\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(/,
  /(?:\s*(?!\s)<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+"[^"\n]*")?|\s+"[^"\n]*")\s*\)/,
].map(({ source }) => source).join(""), "y");
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const BARE = /https?:\/\/[^\s<>"`]*[^\s<>"'`.,;:!?)\]*_]/y;
const TICKS = /`+/y;
const WORD = /[\p{L}\p{N}]/u;

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

/** A link's target if it is one that may be followed: never a script, never a place on this server. */
export function safeTarget(target) {
  const url = URL.parse ? URL.parse(target) : parsed(target);
  return url && ["https:", "http:", "mailto:"].includes(url.protocol) ? url.href : null;
}

function parsed(target) {
  try {
    return new URL(target);
  } catch {
    return null;
  }
}

/** Nodes of a text. */
export function inline(text, depth = 0) {
  if (text.length > LENGTH_MAX) return [document.createTextNode(text)];
  const nodes = [];
  // Marks that nothing ends from here on: without it, a text of nothing but marks would take for ever.
  const hopeless = new Set();
  let at = 0;
  let plain = "";
  const put = (node, next) => {
    if (plain !== "") nodes.push(document.createTextNode(plain));
    plain = "";
    nodes.push(node);
    at = next;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const special = SPECIAL.exec(text);
    const until = special ? special.index : text.length;
    plain += text.slice(at, until);
    at = until;
    if (!special) break;
    const found = element(text, at, depth, hopeless);
    if (found) {
      put(...found);
    } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      plain += text[at];
      at += 1;
    }
  }
  if (plain !== "") nodes.push(document.createTextNode(plain));
  return nodes;
}

/** What begins at a place, with where it ends. */
function element(text, at, depth, hopeless) {
  switch (text[at]) {
    case "\n": return [el("br"), at + 1];
    case "`": return code(text, at);
    case "!":
    case "[": return link(text, at, depth);
    case "<": return address(ANGLE, text, at);
    case "h": return WORD.test(text[at - 1] ?? "") ? null : address(BARE, text, at);
    case "*":
    case "_":
    case "~": return marked(text, at, depth, hopeless);
    default: return null;
  }
}

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function code(text, at) {
  const [ticks] = match(TICKS, text, at);
  let end = text.indexOf(ticks, at + ticks.length);
  // As many on the other side, no more.
  while (end >= 0 && text[end + ticks.length] === "`") {
    while (text[end] === "`") end++;
    end = text.indexOf(ticks, end);
  }
  if (end < 0) return null;
  const inside = text.slice(at + ticks.length, end).replace(/\n/g, " ");
  const padded = inside.length > 2 && inside.startsWith(" ") && inside.endsWith(" ") && inside.trim() !== "";
  return [el("code", { textContent: padded ? inside.slice(1, -1) : inside }), end + ticks.length];
}

function anchor(target, ...children) {
  const properties = { href: target, target: "_blank", rel: "noopener noreferrer nofollow", title: target };
  return el("a", properties, ...children);
}

function link(text, at, depth) {
  const found = match(LINK, text, at);
  if (!found) return null;
  const [whole, label, target = ""] = found;
  const safe = safeTarget(target);
  if (safe === null) return [el("span", { textContent: whole }), at + whole.length];
  // A link within a link would be nobody's; an image is shown as what it is called.
  const words = depth < DEPTH_MAX ? inline(label, DEPTH_MAX) : [label];
  const bare = words.map((node) => (node.nodeName === "A" ? node.textContent : node));
  return [anchor(safe, ...(label === "" ? [target] : bare)), at + whole.length];
}

function address(pattern, text, at) {
  const found = match(pattern, text, at);
  const target = found && safeTarget(found[1] ?? found[0]);
  return target ? [anchor(target, found[1] ?? found[0]), at + found[0].length] : null;
}

/** Emphasis, from its mark to the next one that can end it. */
function marked(text, at, depth, hopeless) {
  const row = MARKS.find(([mark]) => text.startsWith(mark, at));
  if (!row || depth >= DEPTH_MAX || hopeless.has(row[0])) return null;
  const [mark, tag] = row;
  const start = at + mark.length;
  const inWord = mark[0] === "_" && WORD.test(text[at - 1] ?? "");
  if (inWord || /\s/.test(text[start] ?? " ")) return null;
  for (let end = text.indexOf(mark, start + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
    if (ends(text, end, mark)) {
      return [el(tag, {}, ...inline(text.slice(start, end), depth + 1)), end + mark.length];
    }
  }
  hopeless.add(mark);
  return null;
}

function ends(text, end, mark) {
  if (/\s/.test(text[end - 1])) return false;
  const after = text[end + mark.length] ?? "";
  if (mark[0] === "_") return !WORD.test(after) && after !== "_";
  // One star is no half of two.
  return mark.length === 2 ? after !== mark[0] : after !== mark && text[end - 1] !== mark;
}

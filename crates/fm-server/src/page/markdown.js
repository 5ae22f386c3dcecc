// Markdown as models write it: text → blocks → nodes. While an answer streams, blocks that have not
// changed keep their nodes.

import { copy, el } from "./dom.js";
import { inline } from "./inline.js";

/** Lists and quotes within each other. */
const DEPTH_MAX = 8;

// None of these may try the same blanks twice: a model that writes nothing but blanks would stop the page.
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(?!\s)/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,8})([-*+]|\d{1,9}[.)])( +|$)/;

/** Of a line without blanks behind it. */
const DIVIDER = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/;

/** What some take for the end of a line: a heading has none. */
const ENDS_LINE = /[\r\u2028\u2029]/;

/** Blocks of a text: plain data, `{ kind, … }`. */
export function blocks(text, depth = 0) {
  const lines = text.split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at++;
      continue;
    }
    const [block, next] = block_at(lines, at, depth);
    found.push(block);
    at = next;
  }
  return found;
}

function block_at(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return fence(lines, at);
  const head = heading(line);
  if (head) return [head, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < DEPTH_MAX && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEPTH_MAX && ITEM.test(line)) return list(lines, at, depth);
  if (line.includes("|") && DIVIDER.test((lines[at + 1] ?? "").trimEnd())) return table(lines, at);
  return paragraph(lines, at);
}

/** A heading without the marks around it, or nothing. */
function heading(line) {
  const found = line.match(HEADING);
  if (!found) return null;
  const inside = line.slice(found[0].length).trimEnd();
  let end = inside.length;
  while (inside[end - 1] === "#") end--;
  const text = inside.slice(0, end).trimEnd();
  return ENDS_LINE.test(text) ? null : { kind: "heading", level: found[1].length, text };
}

function fence(lines, at) {
  const [, mark, info] = lines[at].match(FENCE);
  const indent = lines[at].search(/\S/);
  const end = (line) => new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}\\s*$`).test(line);
  let until = at + 1;
  while (until < lines.length && !end(lines[until])) until++;
  const inside = lines.slice(at + 1, until).map((line) => line.slice(Math.min(indent, Math.max(0, line.search(/\S|$/)))));
  return [{ kind: "code", language: info.trim().split(/\s/)[0], text: inside.join("\n") }, until + 1];
}

function quote(lines, at, depth) {
  let until = at;
  while (until < lines.length && QUOTE.test(lines[until])) until++;
  const inside = lines.slice(at, until).map((line) => line.replace(QUOTE, ""));
  return [{ kind: "quote", blocks: blocks(inside.join("\n"), depth + 1) }, until];
}

/** Items of one kind, until a line that belongs to none of them. */
function list(lines, at, depth) {
  const [, indent, mark] = lines[at].match(ITEM);
  const ordered = /\d/.test(mark);
  const items = [];
  while (at < lines.length) {
    const found = lines[at].match(ITEM);
    const ours = found && found[1].length <= indent.length + 1 && /\d/.test(found[2]) === ordered && !RULE.test(lines[at]);
    if (!ours) break;
    const [item, next] = list_item(lines, at, found);
    items.push(blocks(item.join("\n"), depth + 1));
    at = next;
  }
  return [{ kind: "list", start: ordered ? Number.parseInt(mark, 10) : null, items }, at];
}

/** The lines of an item, without their indentation. */
function list_item(lines, at, found) {
  const width = found[1].length + found[2].length + 1;
  const item = [lines[at].slice(found[0].length)];
  let until = at + 1;
  for (; until < lines.length; until++) {
    const line = lines[until];
    const depth = line.search(/\S/);
    const blank = depth < 0;
    const inside = depth >= Math.min(width, found[1].length + 2);
    const follows = blank && (lines[until + 1] ?? "").search(/\S/) >= found[1].length + 2;
    const continues = !blank && lines[until - 1].trim() !== "" && plain(line);
    if (!inside && !follows && !continues) break;
    item.push(blank ? "" : line.slice(Math.min(depth, width)));
  }
  while (until < lines.length && lines[until].trim() === "") until++;
  return [item, until];
}

/** Whether a line begins nothing of its own. */
function plain(line) {
  return heading(line) === null && ![FENCE, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

function table(lines, at) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const align = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const head = cells(lines[at]);
  let until = at + 2;
  while (until < lines.length && lines[until].includes("|")) until++;
  const rows = lines.slice(at + 2, until).map((line) => cells(line).slice(0, head.length));
  return [{ kind: "table", head, align, rows }, until];
}

function paragraph(lines, at) {
  let until = at + 1;
  while (until < lines.length && lines[until].trim() !== "" && plain(lines[until])) until++;
  const text = lines.slice(at, until).map((line) => line.trim()).join("\n");
  return [{ kind: "paragraph", text }, until];
}

/** The node of a block. */
function node(block) {
  switch (block.kind) {
    case "code": return code(block);
    // The page has headings of its own above those of an answer.
    case "heading": return el(`h${Math.min(6, block.level + 2)}`, {}, ...inline(block.text));
    case "rule": return el("hr");
    case "quote": return el("blockquote", {}, ...block.blocks.map(node));
    case "list": return list_node(block);
    case "table": return table_node(block);
    default: return el("p", {}, ...inline(block.text));
  }
}

function code({ language, text }) {
  const button = el("button.quiet.small", { type: "button", textContent: "Copy", onclick: () => copy(text, button) });
  const head = el("header", {}, el("span.muted.small", { textContent: language || "text" }), button);
  return el("div.code", {}, head, el("pre", { tabIndex: 0 }, el("code", { textContent: text })));
}

function list_node({ start, items }) {
  const loose = (item) => item.length === 1 && item[0].kind === "paragraph";
  const children = (item) => (loose(item) ? inline(item[0].text) : item.map(node));
  const rows = items.map((item) => el("li", {}, ...children(item)));
  return start === null ? el("ul", {}, ...rows) : el("ol", { start }, ...rows);
}

function table_node({ head, align, rows }) {
  const cell = (tag) => (text, at) => el(align[at] ? `${tag}.${align[at]}` : tag, {}, ...inline(text));
  const row = (cells, tag) => el("tr", {}, ...cells.map(cell(tag)));
  const body = el("tbody", {}, ...rows.map((cells) => row(cells, "td")));
  return el("div.table", { tabIndex: 0 }, el("table", {}, el("thead", {}, row(head, "th")), body));
}

/** A text that grows. */
export class Markdown {
  constructor() {
    this.element = el("div.markdown");
    this.shown = [];
  }

  /** Shows a text; returns the words of blocks that are complete now and were not before. */
  update(text) {
    const before = this.shown.length;
    const found = blocks(text).map((block) => ({ block, key: JSON.stringify(block) }));
    const same = found.findIndex(({ key }, at) => this.shown[at] !== key);
    const from = same < 0 ? found.length : same;
    while (this.element.children.length > from) this.element.lastChild.remove();
    this.element.append(...found.slice(from).map(({ block }) => node(block)));
    this.shown = found.map(({ key }) => key);
    const complete = [...this.element.children].slice(Math.max(0, before - 1), found.length - 1);
    return complete.map((block) => block.textContent).join("\n");
  }
}

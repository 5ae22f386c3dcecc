// One answer on its way: a request, and what its events add to a message.

import { events, explained, request, Trouble } from "./api.js";
import * as settings from "./settings.js";
import { told } from "./tools.js";

/** What the server is asked for. */
function body(chat, model) {
  const system = settings.systemPrompt();
  const head = system.trim() === "" ? [] : [{ role: "system", content: system }];
  const tools = settings.tools();
  return {
    model, messages: [...head, ...chat.messages.flatMap(told)], session_id: chat.id,
    stream: true, stream_options: { include_usage: true }, ...(tools.length > 0 && { tools }), ...settings.manner(),
  };
}

/**
 * Asks for what comes after the last message of a conversation, writes it into `message` until it has ended, and calls
 * `grown` when something has come.
 */
export async function receive({ chat, model }, message, signal, grown) {
  const started = performance.now();
  try {
    const response = await request("v1/chat/completions", { body: body(chat, model), signal });
    let whole = false;
    for await (const { data } of events(response)) {
      whole ||= data === "[DONE]";
      if (data === "[DONE]") continue;
      add(message, JSON.parse(data), performance.now() - started);
      grown();
    }
    if (!whole) throw new Trouble("The answer broke off.", "Is the server still running? Then ask again.");
  } catch (error) {
    // A page that is left loses its connections before it hears of it, and comes to no next task: that is no error.
    if (!signal.aborted) await new Promise((done) => setTimeout(done));
    if (signal.aborted) message.stopped = true;
    else message.trouble = said(error);
  }
  message.running = false;
}

function said(error) {
  if (error instanceof Trouble) return { message: error.message, hint: error.hint };
  return { message: "The answer broke off.", hint: "Is the server still running? Then ask again." };
}

/** Adds a chunk of the stream. */
function add(message, chunk, elapsed) {
  if (chunk.error) throw explained(chunk.error);
  if (chunk.timings) message.timings = chunk.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: thinking, tool_calls: calls } = choice.delta ?? {};
  if (thinking) {
    message.thought_from ??= elapsed;
    message.thinking = (message.thinking ?? "") + thinking;
  }
  if (content) {
    if (message.thinking && message.content === "") message.thought_ms = Math.round(elapsed - message.thought_from);
    message.content += content;
  }
  calls?.forEach((call) => addCall(message, call));
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

/** A piece of a tool call: its name comes first, its arguments letter by letter. */
function addCall(message, { index = 0, id, function: piece }) {
  message.calls ??= [];
  while (message.calls.length <= index) message.calls.push({ name: "", text: "" });
  const call = message.calls[index];
  call.id ??= id;
  call.name += piece?.name ?? "";
  call.text += piece?.arguments ?? "";
}

// What the model may call: definitions that somebody writes in the settings, and what messages say of calls.

import { Trouble } from "./api.js";

/** As the server has it. */
const NAME = /^[\w.:-]{1,128}$/;

/** What the field can be filled with. */
export const EXAMPLE = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the current weather for a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", description: "The name of the city." } },
      required: ["city"],
    },
  },
}];

/** Stands for the result of a call that nobody answered: not every template can leave one out. */
export const NO_RESULT = "No result was given.";

const trouble = (what) => new Trouble(what, "Mend that in the settings, then ask again.");

/** The tools that a text defines, none if it is blank. A text that defines none is a trouble. */
export function defined(text) {
  if (text.trim() === "") return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw trouble(`The tools are no JSON: ${error.message}.`);
  }
  if (!Array.isArray(tools)) throw trouble('The tools are no list: begin with "[" and end with "]".');
  tools.forEach(check);
  const names = tools.map((tool) => tool.function.name);
  const twice = names.find((name, at) => names.indexOf(name) < at);
  if (twice) throw trouble(`Two tools are called ${twice}.`);
  return tools;
}

function check(tool, at) {
  const wrong = (what) => trouble(`Tool ${at + 1} ${what}.`);
  const { name, description, parameters } = tool?.function ?? {};
  if (tool?.type !== "function" || !isObject(tool.function)) throw wrong('is not of the shape {"type": "function", "function": {…}}');
  if (typeof name !== "string" || !NAME.test(name)) throw wrong('has no "name" of up to 128 letters, digits and _ - . :');
  if (!["string", "undefined"].includes(typeof description)) throw wrong('has a "description" that is no text');
  if (parameters !== undefined && !isObject(parameters)) throw wrong('has "parameters" that are no JSON schema, which is an object');
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Whether a call is complete. One that was cut, or turned out to be none, has arguments that are no JSON. */
export function isWhole({ name, text }) {
  try {
    return name !== "" && isObject(JSON.parse(text));
  } catch {
    return false;
  }
}

/** Calls of a message whose results nobody has given. */
export function open({ calls = [] }) {
  return calls.filter((call) => isWhole(call) && call.result === undefined);
}

/** A message as the server takes it, with the results of its calls behind it; nothing of an answer that never came. */
export function told({ role, content, thinking, calls = [] }) {
  const whole = calls.filter(isWhole);
  if (role !== "user" && content === "" && whole.length === 0) return [];
  const message = { role, content };
  if (thinking) message.reasoning_content = thinking;
  if (whole.length > 0) {
    message.tool_calls = whole.map(({ id, name, text }) => ({ id, type: "function", function: { name, arguments: text } }));
  }
  const results = whole.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result }));
  return [message, ...results];
}

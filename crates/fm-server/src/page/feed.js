// The live feed: what the machine does, as long as somebody looks.

import { events, keyEntered, Locked, request } from "./api.js";

/** Looks over which rates are taken: two seconds. */
const WINDOW = 9;

/** Until the next attempt after the feed has ended, in milliseconds. */
const AGAIN_MIN = 1000;
const AGAIN_MAX = 15000;

/** Calls `hear.machine`, `hear.look` and `hear.lost` until the page is closed. */
export function watch(hear) {
  let controller = null;
  const start = async () => {
    if (document.hidden || controller) return;
    controller = new AbortController();
    let again = AGAIN_MIN;
    const { signal } = controller;
    while (!signal.aborted) {
      const heard = await follow(hear, signal).catch((error) => signal.aborted || lost(hear, error));
      again = heard ? AGAIN_MIN : Math.min(2 * again, AGAIN_MAX);
      if (!signal.aborted) await new Promise((done) => setTimeout(done, again));
    }
  };
  // Who does not look costs nothing.
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return start();
    controller?.abort();
    controller = null;
  });
  start();
}

/** Says that there is no feed, and whether it is worth asking at once: without a key there is none, and nothing to ask for. */
async function lost(hear, error) {
  hear.lost(error);
  if (!(error instanceof Locked)) return false;
  await keyEntered();
  return true;
}

async function follow(hear, signal) {
  let machine = null;
  const looks = [];
  for await (const { name, data } of events(await request("feed", { signal }))) {
    const told = JSON.parse(data);
    if (name === "machine") {
      machine = told;
      hear.machine(machine);
    } else {
      looks.push(told);
      if (looks.length > WINDOW) looks.shift();
      hear.look(told, rates(machine, looks[0], told));
    }
  }
  hear.lost(null);
  return machine !== null;
}

/** What happened per second between two looks; `hits` is a share, or nothing if nothing was asked. */
function rates(machine, from, to) {
  const elapsed = Math.max(1, to.ms - from.ms) / 1000;
  const per = (field) => (to[field] - from[field]) / elapsed;
  const asked = per("hits") + per("misses");
  return {
    decode: per("written"),
    prefill: per("prompt_layers") / machine.experts.length,
    disk: per("read_bytes"),
    memory: per("steps") * machine.step_bytes + asked * machine.expert_bytes,
    hits: asked > 0 ? per("hits") / asked : null,
  };
}

"""What it costs the server that somebody watches it: processor time of its network's thread while it writes answers.

    python feed_cost.py flash-moe ../../models/demo --memory 300MB

First while nobody asks for anything, then during answers, with and without 16 watchers in turns. Answers are not streamed,
so that the feed is all that is sent meanwhile; but the thread hears of every token, which is what it does alone.
"""
import argparse
import json
import statistics
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

# As many as the server takes: what one costs during an answer is less than what the answer's own share varies by.
WATCHERS = 16

QUESTION = [{"role": "user", "content": "Write a story about a robot who loves music."}]


def post(at, path, body):
    request = urllib.request.Request(at + path, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=600))


def ask(at, end, max_tokens):
    """Tokens of an answer that does not end by itself."""
    body = {"messages": QUESTION, "max_tokens": max_tokens, "logit_bias": {end: -100}}
    return post(at, "/v1/chat/completions", body)["usage"]["completion_tokens"]


def cpu_s(process):
    """Seconds that the first thread has computed: the one that serves, the model has others."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/schedstat").read_text().split()[0]) / 1e9


def watch(at, enough, seen):
    with urllib.request.urlopen(at + "/feed") as feed:
        while not enough.is_set():
            seen.append(len(feed.readline()))


def span(process, work, watched, watchers):
    """Share of a core, and tokens per second, while `work` is done, which says its tokens."""
    enough, seen = threading.Event(), [[] for _ in range(watchers)]
    threads = [threading.Thread(target=watch, args=(watched, enough, lines)) for lines in seen]
    for thread in threads:
        thread.start()
    while any(len(lines) < 6 for lines in seen):
        time.sleep(0.01)
    began, before = time.monotonic(), cpu_s(process)
    tokens = work()
    elapsed = time.monotonic() - began
    share = (cpu_s(process) - before) / elapsed
    enough.set()
    for thread in threads:
        thread.join()
    return share, tokens / elapsed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flash_moe")
    parser.add_argument("model")
    parser.add_argument("--end", default="<|im_end|>", help="the token that ends the model's answers")
    parser.add_argument("--tokens", type=int, default=3800)
    parser.add_argument("--idle", type=float, default=10, help="seconds")
    parser.add_argument("--repeats", type=int, default=9)
    args, options = parser.parse_known_args()
    command = [args.flash_moe, "serve", args.model, "--port", "0", "--quiet", "--prefix-cache", "off",
               "--sessions", "1", "--allow-loops", "--context", str(args.tokens + 200), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = ""
    while "ANTHROPIC_BASE_URL" not in said:
        line = process.stderr.readline()
        said += line
        assert line, said
    at = "http://" + said.split("http://")[1].split()[0]
    try:
        [end] = post(at, "/tokenize", {"content": args.end, "parse_special": True})["tokens"]

        def idle():
            time.sleep(args.idle)
            return 0

        def answer():
            return ask(at, end, args.tokens)

        one = span(process, idle, at, 1)[0] - span(process, idle, at, 0)[0]
        print(f"idle, a watcher costs {one:.3%} of a core")
        answer()
        costs = []
        for _ in range(args.repeats):
            alone, speed = span(process, answer, at, 0)
            watched, speed_watched = span(process, answer, at, WATCHERS)
            costs.append((watched - alone) / WATCHERS)
            print(f"alone {alone:.3%}, {speed:.0f} tok/s; {WATCHERS} watch {watched:.3%}, {speed_watched:.0f} tok/s")
        print(f"a watcher costs {statistics.median(costs):.3%} of a core ({min(costs):.3%} to {max(costs):.3%})")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()

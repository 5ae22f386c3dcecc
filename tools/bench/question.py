"""Time to the first token of a question that comes in the middle of somebody else's long prompt.

    python question.py flash-moe MODEL --memory 2GB --io direct

Prompts are random tokens. The question has the same logits hash alone and beside the prompt.
"""
import argparse
import random
import statistics
import tempfile
import threading
import time

import machine
from next_turn import Server


def measure(args, home):
    rng = random.Random(1)
    tokens = lambda count: [rng.randrange(10, args.vocab) for _ in range(count)]
    questions, rows = [tokens(args.question) for _ in range(args.rounds)], {}
    server = Server(args, home)
    server.ask(tokens(300))
    alone = [server.ask(question) for question in questions]
    rows["question alone"] = [timings["ttft_ms"] for timings in alone]
    rows["prompt alone"] = [server.ask(tokens(args.tokens))["ttft_ms"] for _ in questions]
    server.kill()
    server = Server(args, home)
    server.ask(tokens(300))
    beside, prompts = [], []
    for question in questions:
        prompt = tokens(args.tokens)
        other = threading.Thread(target=lambda: prompts.append(server.ask(prompt)))
        other.start()
        time.sleep(args.after)
        beside.append(server.ask(question))
        other.join()
    server.kill()
    hashes = [[timings["logits_hash"] for timings in asked] for asked in (alone, beside)]
    assert hashes[0] == hashes[1], "neighbours change no bit"
    rows["question beside it"] = [timings["ttft_ms"] for timings in beside]
    rows["prompt beside it"] = [timings["ttft_ms"] for timings in prompts]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flash_moe")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=6000, help="of the long prompt")
    parser.add_argument("--question", type=int, default=40, help="tokens of the question")
    parser.add_argument("--after", type=float, default=1.0, help="seconds until it comes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=1500, help="tokens are below that")
    args, args.options = parser.parse_known_args()
    args.options += ["--prefix-cache", "off"]
    with tempfile.TemporaryDirectory() as home:
        rows = measure(args, home)
    print(f"| | ms to the first token, median | range | load {machine.load():.1f} |\n|---|--:|--:|---|")
    for name, values in rows.items():
        print(f"| {name} | {statistics.median(values):.0f} | {min(values):.0f}–{max(values):.0f} | |")


if __name__ == "__main__":
    main()

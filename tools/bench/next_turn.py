"""Time to the first token of the next turn of a conversation: in memory, and after `kill -9` and a restart.

    python next_turn.py flash-moe ../../models/demo --memory 1GB --context 4096

Prompts are random tokens. Every answer of a restarted server must have the logits hash of the one in memory. Times
are also compared with what a snapshot takes to read at 80 % of what the disk gives, and 1.1 times the new tokens alone.
"""
import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import machine


class Server:
    """`flash-moe serve`, with a home directory of its own."""

    def __init__(self, args, home):
        command = [args.flash_moe, "serve", args.model, "--port", "0", "--sessions", "2", *args.options]
        # Nothing of the user's own: no configuration, no key.
        env = {"HOME": str(home), "PATH": os.environ.get("PATH", os.defpath)}
        self.process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        said = ""
        while "ANTHROPIC_BASE_URL" not in said:
            line = self.process.stderr.readline()
            said += line
            assert line, said
        self.at = "http://" + said.split("http://")[1].split()[0]

    def ask(self, prompt):
        """The timings of an answer of four tokens."""
        body = json.dumps({"prompt": prompt, "max_tokens": 4, "temperature": 0, "seed": 1}).encode()
        request = urllib.request.Request(self.at + "/v1/completions", body, {"content-type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=600))["timings"]

    def wait_until_kept(self, sessions):
        while True:
            text = urllib.request.urlopen(self.at + "/metrics").read().decode()
            kept = next(line for line in text.splitlines() if line.startswith("flash_moe_prefix_on_disk "))
            if float(kept.split()[1]) >= sessions:
                return
            time.sleep(0.05)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def make_cold(home):
    for path in Path(home).rglob("*"):
        # A file that is being written may get its name, and lose this one, meanwhile.
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(server, prompts):
    """Asks prompts that the server has not seen until one of them reads no expert."""
    for prompt in prompts:
        if server.ask(prompt)["read_bytes"] == 0:
            return


def restarted(args, home, saved, warm_ups, turn, cold):
    """Timings of a turn on a server that has been started again: without `warm_ups` its first answer, which reads the
    experts too."""
    shutil.rmtree(home)
    shutil.copytree(saved, home)
    os.sync()
    server = Server(args, home)
    warm(server, warm_ups)
    if cold:
        make_cold(home)
    timings = server.ask(turn)
    server.kill()
    return timings


def snapshot_bytes(home):
    """What is kept of prompts."""
    return sum(path.stat().st_size for path in Path(home).rglob("prefixes/**/*") if path.is_file())


def disk_of(model):
    """Bytes per second that the disk gives, by the largest file of the model; none if that is a small one."""
    path = max((path for path in [Path(model), *Path(model).glob("*")] if path.is_file()), key=lambda path: path.stat().st_size)
    return machine.disk_bytes_per_second(path) if path.stat().st_size > 1 << 28 else None


def measure(args, home):
    rng = random.Random(1)
    tokens = lambda count: [rng.randrange(10, args.vocab) for _ in range(count)]
    conversation, turns = tokens(args.tokens), [tokens(args.turn) for _ in range(args.rounds)]
    warm_ups, milliseconds = [tokens(300) for _ in range(20)], {}
    server = Server(args, home)
    for _ in range(2):
        server.ask(tokens(300))
    server.wait_until_kept(2)
    before = snapshot_bytes(home)
    milliseconds["conversation, fresh"] = [server.ask(conversation)["ttft_ms"]]
    server.wait_until_kept(3)
    server.kill()
    snapshot = snapshot_bytes(home) - before
    saved = Path(f"{home}.saved")
    shutil.copytree(home, saved)
    try:
        server = Server(args, home)
        server.ask(conversation + tokens(3))
        warm(server, warm_ups)
        # In turns: the machine may have company that comes and goes.
        resident = [(server.ask(turn)["ttft_ms"], server.ask(conversation + turn)) for turn in turns]
        server.kill()
        milliseconds["turn alone"] = [alone for alone, _ in resident]
        milliseconds["next turn, in memory"] = [timings["ttft_ms"] for _, timings in resident]
        for name, cold in [("from the page cache", False), ("from the disk", True)]:
            found = []
            for turn, (_, known) in zip(turns, resident):
                timings = restarted(args, home, saved, warm_ups, conversation + turn, cold)
                assert timings["restored_tokens"] > args.tokens / 2, timings
                assert timings["logits_hash"] == known["logits_hash"], "restored is not computed"
                found.append(timings["ttft_ms"])
            milliseconds[f"next turn, restarted, {name}"] = found
        first = lambda turn: restarted(args, home, saved, [], turn, True)["ttft_ms"]
        firsts = [(first(turn), first(conversation + turn)) for turn in turns]
        milliseconds["turn alone, the first request"] = [alone for alone, _ in firsts]
        milliseconds["next turn, the first request"] = [continued for _, continued in firsts]
        return milliseconds, snapshot
    finally:
        shutil.rmtree(saved)


def bounds(milliseconds, snapshot, disk):
    """What the next turn may take, in memory, from the disk, and as the first request of a server."""
    load = 0 if disk is None else 1e3 * snapshot / (0.8 * disk)
    alone, first = (1.1 * statistics.median(milliseconds[name]) for name in ("turn alone", "turn alone, the first request"))
    return alone, load + alone, load + first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flash_moe")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2000, help="of the conversation")
    parser.add_argument("--turn", type=int, default=60, help="tokens of the next turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=1500, help="tokens are below that")
    parser.add_argument("--disk", type=float, help="GB/s that the disk gives, where the model is too small to measure")
    args, args.options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as home:
        rows, snapshot = measure(args, home)
    disk = args.disk * 1e9 if args.disk else disk_of(args.model)
    print(f"| | ms, median | range | load {machine.load():.1f} |\n|---|--:|--:|---|")
    for name, values in rows.items():
        print(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f}–{max(values):.1f} | |")
    given = "unknown" if disk is None else f"{disk / 1e9:.2f} GB/s"
    print(f"\nsnapshot {snapshot / 1e6:.1f} MB, disk {given}")
    print("bounds: in memory {:.1f} ms, from the disk {:.1f} ms, the first request {:.1f} ms".format(*bounds(rows, snapshot, disk)))


if __name__ == "__main__":
    main()

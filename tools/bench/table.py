"""Measures the rows of the table in docs/benchmarks.md and prints them as markdown.

    python table.py --models /scratch --only decode-fits --only prefill-fits-int8
    python table.py --models /scratch --list             the commands, without running them

`--models` holds fits.gguf, big.gguf, hybrid.gguf and mlx-fits (docs/benchmarks.md says how they are
made). A row whose model is missing says so. A command takes at most --timeout seconds; rows under a
memory limit need root.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import machine
import peer

CAP = 5 << 30
# What fits beside the page cache of trunk and program in the cap.
CAP_MEMORY = ["--memory", "4.9GiB"]
# Without guesses a disk's share says how well it is used, and bytes are those of the policy.
CAP_OPTIONS = [*CAP_MEMORY, "--lookahead", "off"]


class Table:
    def __init__(self, args):
        self.args = args

    def model(self, name):
        return str(self.args.models / name)

    def command(self, name, *options):
        return [self.args.flash_moe, "bench", self.model(name), "--json", "--threads", "2", *map(str, options)]

    def run(self, command, cap=None):
        """What a command prints; under a memory limit its model is not in the page cache."""
        if self.args.list:
            print(("# in a cgroup of 5 GiB, page cache dropped: " if cap else "") + " ".join(command))
            return None
        kind = {"capture_output": True, "text": True, "timeout": self.args.timeout}
        if cap is None:
            output = subprocess.run(command, **kind)
        else:
            machine.drop_from_cache(command[2])
            with machine.MemoryLimit(cap) as limit:
                output = subprocess.run(command, preexec_fn=limit.enter, **kind)
        assert output.returncode == 0, output.stderr[-2000:]
        return output.stdout

    def bench(self, name, *options, cap=None):
        output = self.run(self.command(name, *options), cap)
        return output and json.loads(output)

    def speed(self, name, *options, cap=None):
        """The last test of a run."""
        found = self.bench(name, *options, cap=cap)
        return found and found["speed"][-1]

    def versus(self, name, what, tokens, *options):
        words = [self.model(name), f"--{what}", str(tokens), "--rounds", "3", "--flash-moe", self.args.flash_moe]
        args = peer.arguments([*words, "--timeout", str(self.args.timeout), "--", *options])
        if self.args.list:
            print("python tools/bench/peer.py " + " ".join([*words, "--", *options]))
            return None
        return peer.compare(args, what, tokens)

    # The rows. Each gives its cells, or None when it only says what it would run.

    def decode_fits(self):
        row = self.versus("fits.gguf", "decode", 64)
        return row and against_peer(row)

    def prefill_fits(self, numerics):
        row = self.versus("fits.gguf", "prefill", 512, "--numerics", numerics)
        return row and against_peer(row)

    def decode_big(self, *options):
        test = self.speed("big.gguf", "--decode", 64, "--repeats", 5, *options, cap=CAP)
        return test and cells(test)

    def prefill_big(self, tokens):
        options = ["--prefill", tokens, "--prefill-chunk", tokens, "--cold", "--repeats", 3, *CAP_OPTIONS]
        test = self.speed("big.gguf", *options, cap=CAP)
        return test and cells(test)

    def busy(self):
        options = ["--decode", 64, "--repeats", 5]
        idle = self.speed("fits.gguf", *options)
        if self.args.list:
            print("# with two processes that only compute:")
        with machine.company(0 if self.args.list else 2):
            busy = self.speed("fits.gguf", *options)
        if not idle:
            return None
        share = median(busy, "tok_s") / median(idle, "tok_s")
        return f"{100 * share:.0f} % of idle", f"{median(idle, 'tok_s'):.1f} → {median(busy, 'tok_s'):.1f} tok/s"

    def mlx(self):
        ours = self.speed("fits.gguf", "--decode", 64)
        mlx = self.speed("mlx-fits", "--decode", 64)
        if not ours:
            return None
        share = median(mlx, "memory_share") / median(ours, "memory_share")
        return f"{100 * share:.0f} % of Q4_K", f"{median(mlx, 'tok_s'):.1f} tok/s"

    def start(self, name):
        tokens = ",".join(map(str, range(16)))
        command = [self.args.flash_moe, "run", self.model(name), "--prompt-tokens", tokens, "--max-tokens", "1"]
        command += ["--context", "512", "--quiet"]
        seconds = []
        for _ in range(6):
            begin = time.perf_counter()
            if self.run(command) is None:
                return None
            seconds.append(time.perf_counter() - begin)
        # The first one fills the page cache.
        return f"{statistics.median(seconds[1:]):.2f} s", f"{min(seconds[1:]):.2f}–{max(seconds[1:]):.2f}"

    def contexts(self):
        options = ["--context-at", "1024,8192,32000", "--decode", 32, "--repeats", 3]
        found = self.bench("hybrid.gguf", *options)
        if not found:
            return None
        shares = [f"{100 * median(test, 'memory_share'):.0f} %" for test in found["speed"]]
        rates = [f"{median(test, 'tok_s'):.1f}" for test in found["speed"]]
        return " / ".join(shares) + " of memory", " / ".join(rates) + " tok/s"

    def sessions(self, name, *options, limits=(), cap=None):
        one = self.speed(name, "--decode", 32, *limits, cap=cap)
        four = self.speed(name, "--decode", 32, "--sessions", 4, *options, *limits, cap=cap)
        return one and factor(one, four)

    def sessions_big(self, *options):
        return self.sessions("big.gguf", *options, limits=CAP_OPTIONS, cap=CAP)

    def turns(self):
        found = self.bench("big.gguf", "--turns", 20, "--decode", 16, *CAP_MEMORY, cap=CAP)
        if not found:
            return None
        held = [turn["held_bytes"] / 1e9 for turn in found["turns"]]
        return f"{held[0]:.2f} → {held[-1]:.2f} GB", f"at most {max(held):.2f} GB"

    def long(self):
        """4,000 tokens, of which the second half is measured, under the cap and with all memory there is."""
        options = ["--decode", 2000, "--repeats", 1, "--warm-up", 0, "--context-at", 16]
        tight = self.speed("big.gguf", *options, *CAP_MEMORY, cap=CAP)
        loose = self.speed("big.gguf", *options)
        if not tight:
            return None
        same = "equal" if tight["logits_hash"] == loose["logits_hash"] else "DIFFERENT"
        return f"hashes {same}", f"{median(tight, 'tok_s'):.1f} tok/s under the cap"

    def part(self, name, *options):
        found = self.bench(name, *options)
        if not found:
            return None
        shares = [f"{rate['test']} {100 * median(rate, 'share'):.0f} %" for rate in found["rates"]]
        return "; ".join(shares), "; ".join(f"{median(rate, 'bytes_per_s') / 1e9:.2f} GB/s" for rate in found["rates"])


ROWS = {
    "decode-fits": ("decode, fits", "1.25 x and 75 % of memory", lambda t: t.decode_fits()),
    "prefill-fits-f32": ("prefill 512, fits, `f32`", "–", lambda t: t.prefill_fits("f32")),
    "prefill-fits-int15": ("prefill 512, fits, `int15`", "1.3 x", lambda t: t.prefill_fits("int15")),
    "prefill-fits-int8": ("prefill 512, fits, `int8`", "2 x", lambda t: t.prefill_fits("int8")),
    "decode-big": ("decode, big under 5 GiB", "85 % of the disk", lambda t: t.decode_big(*CAP_OPTIONS)),
    "decode-big-ahead": ("the same with look-ahead", "95 % of the disk", lambda t: t.decode_big(*CAP_MEMORY)),
    "prefill-big-512": ("prefill 512, big under 5 GiB, cold", "85 % of the disk", lambda t: t.prefill_big(512)),
    "prefill-big-2048": ("prefill 2048, big under 5 GiB, cold", "85 % of the disk", lambda t: t.prefill_big(2048)),
    "busy": ("decode, fits, beside two busy processes", "40 % of idle", lambda t: t.busy()),
    "mlx": ("decode, MLX 4-bit g64 of the same shape", "90 % of Q4_K's GB/s", lambda t: t.mlx()),
    "start": ("start to first token, 248k vocabulary, 2 GB", "0.4 s", lambda t: t.start("small-container")),
    "contexts": ("decode at 1k / 8k / 32k, hybrid", "85 % of memory", lambda t: t.contexts()),
    "sessions": ("4 sessions, fits, unrelated", "2.5 x", lambda t: t.sessions("fits.gguf")),
    "sessions-same": ("4 sessions, fits, one text", "2.5 x", lambda t: t.sessions("fits.gguf", "--same-text")),
    "sessions-big": ("4 sessions, big under 5 GiB, unrelated", "0.85 x", lambda t: t.sessions_big()),
    "sessions-big-same": ("4 sessions, big under 5 GiB, one prompt", "2 x", lambda t: t.sessions_big("--same-text")),
    "turns": ("memory over 20 turns, big under 5 GiB", "flat", lambda t: t.turns()),
    "long": ("4,000 tokens, big under 5 GiB", "the resident hash", lambda t: t.long()),
    "reader": ("the reader alone, big", "–", lambda t: t.part("big.gguf", "--io-only")),
    "experts": ("routed experts alone, fits", "–", lambda t: t.part("fits.gguf", "--moe-only", "--verify")),
    "kernels": ("matrix times vector, fits", "–", lambda t: t.part("fits.gguf", "--kernels")),
}


def median(test, name):
    """Not-a-number where no repeat counts, or where a starved probe saw nothing."""
    value = test[name] and test[name]["median"]
    return float("nan") if value is None else value


def against_peer(row):
    share = f", {100 * row['memory_share']:.0f} % of memory" if row["memory_share"] else ""
    ours, theirs = row["flash_moe"]["median"], row["llama_cpp"]["median"]
    return f"{row['ratio']:.2f} x{share}", f"{ours:.1f} against {theirs:.1f} tok/s, logits `{row['logits_hash']}`"


def cells(test):
    share = f"{100 * median(test, 'disk_share'):.0f} % of the disk"
    read = f"{median(test, 'read_bytes_per_token') / 1e6:.0f} MB per token"
    hits = f"{100 * median(test, 'hit_rate'):.1f} % hits"
    return share, f"{median(test, 'tok_s'):.2f} tok/s, {read}, {hits}, logits `{test['logits_hash']}`"


def factor(one, four):
    alone, together = median(one, "tok_s"), median(four, "tok_s")
    return f"{together / alone:.2f} x", f"{alone:.1f} → {together:.1f} tok/s in all"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=[*ROWS], help="rows to measure, may be repeated [all]")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one command may take")
    parser.add_argument("--flash-moe", default="flash-moe")
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    args = parser.parse_args()
    table = Table(args)
    if not args.list:
        print("| measure | must reach | reached | with | load |\n|---|---|---|---|--:|")
    for key in args.only or ROWS:
        title, bound, measure = ROWS[key]
        if args.list:
            print(f"\n# {key}: {title}")
        before = machine.load()
        try:
            found = measure(table)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            reason = str(error).strip().splitlines()
            found = ("–", f"not measured: {reason[-1] if reason else type(error).__name__}")
        if found:
            load = f"{before:.1f}–{machine.load():.1f}"
            print(f"| {title} | {bound} | {found[0]} | {found[1]} | {load} |", flush=True)


if __name__ == "__main__":
    main()

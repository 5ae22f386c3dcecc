"""Measures the rows of the table in docs/benchmarks.md and prints them as markdown.

    python table.py --models /scratch --only decode-fits --only prefill-fits-int8
    python table.py --models /scratch --list             the commands, without running them
    python table.py --models /scratch --only decode-big --resident

`--models` holds fits.gguf, big.gguf, hybrid.gguf and mlx-fits (docs/benchmarks.md says how they are
made). A row whose model is missing says so. A command takes at most --timeout seconds; rows under a memory limit
need root.

A figure without its logits hash is void. Each hash stands in its row and is compared with what has to have
the same: the other run of the row, a known run of the same work with all experts in memory (hashes.json),
and with --resident such a run now, where memory is enough. Where one differs, the row says DIFFERENT and
the exit status is 1.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import peer

CAP = 5 << 30
# What fits beside the page cache of trunk and program in the cap.
CAP_MEMORY = ["--memory", "4.9GiB"]
# Without guesses a disk's share says how well it is used, and bytes are those of the policy.
CAP_OPTIONS = [*CAP_MEMORY, "--lookahead", "off"]
# What may differ between two runs that have to give the same logits, each with a value.
NOT_OF_THE_LOGITS = {"--memory", "--slots", "--lookahead", "--policy"}
# Prompts of 41,000 tokens take a quarter of an hour, as does llama.cpp under the cap, which reads all of the file first.
TIMEOUT = 1800


class Table:
    def __init__(self, args):
        self.args = args
        self.known = json.loads(args.hashes.read_text())
        self.different = False

    def model(self, name):
        return str(self.args.models / name)

    def command(self, name, *options):
        return [self.args.flash_moe, "bench", self.model(name), "--json", "--threads", "2", *map(str, options)]

    def run(self, command, cap=None):
        """What a command prints; under a memory limit its model is not in the page cache."""
        if self.args.list:
            print(("# in a cgroup of 5 GiB, page cache dropped: " if cap else "") + " ".join(command))
            return None
        return peer.finish(command, self.args.timeout, cap, command[2])

    def bench(self, name, *options, cap=None, resident=None):
        """Everything a run says, and with each hash those that it must equal."""
        output = self.run(self.command(name, *options), cap)
        wanted = (cap and self.args.resident) if resident is None else resident
        loose = self.resident(name, options) if wanted else None
        if not output:
            return None
        found = json.loads(output)
        for kind in ("speed", "turns"):
            for at, test in enumerate(found[kind]):
                test["expected"] = self.expected(found["about"], test) if kind == "speed" else {}
                if loose:
                    test["expected"]["a resident run"] = loose[kind][at]["logits_hash"]
        return found

    def resident(self, name, options):
        """The same work with all experts in memory, if memory is enough."""
        output = self.run(self.command(name, *without_limits(options)))
        found = output and json.loads(output)
        if found and found["about"]["out_of_core"]:
            print(f"{name} does not fit memory: there is no resident run to compare with", file=sys.stderr)
            return None
        for test in found["speed"] if found else []:
            # As it goes into hashes.json.
            entry = {work(found["about"], test): test["logits_hash"]}
            print(json.dumps({model(found["about"]): entry}), file=sys.stderr)
        return found

    def expected(self, about, test):
        known = self.known.get(model(about), {}).get(work(about, test))
        return {"the known run": known} if known else {}

    def logits(self, test, **others):
        """The hash of a test, as a row shows it; `others` must be equal too."""
        expected = test.get("expected", {}) | others
        # Some are known by their beginning only.
        hash = test["logits_hash"]
        wrong = [f"`{other}` of {whose}" for whose, other in expected.items() if not hash.startswith(other)]
        self.different |= bool(wrong)
        if wrong:
            return f"logits `{hash}` DIFFERENT from {' and '.join(wrong)}"
        return f"logits `{hash}` " + (f"as {' and '.join(expected)}" if expected else "compared with no other")

    def speed(self, name, *options, cap=None, resident=None):
        """The last test of a run."""
        found = self.bench(name, *options, cap=cap, resident=resident)
        return found and found["speed"][-1]

    def versus(self, name, what, tokens, *options, rounds=3, cap=None):
        """Both engines in turns."""
        words = [self.model(name), f"--{what}", str(tokens), "--rounds", str(rounds), "--flash-moe", self.args.flash_moe]
        words += [*(["--cap", str(cap)] if cap else []), "--timeout", str(self.args.timeout)]
        args = peer.arguments([*words, "--", *options])
        if self.args.list:
            print("python tools/bench/peer.py " + " ".join([*words, "--", *options]))
        row = None if self.args.list else peer.compare(args, what, tokens)
        options = [f"--{what}", tokens, "--repeats", args.windows, *options]
        loose = self.resident(name, options) if cap and self.args.resident else None
        if not row:
            return None
        row["expected"] = self.expected(row["about"], row)
        if loose:
            row["expected"]["a resident run"] = loose["speed"][-1]["logits_hash"]
        share = f", {100 * row['memory_share']:.0f} % of memory" if row["memory_share"] else ""
        ours, theirs = row["flash_moe"]["median"], row["llama_cpp"]["median"]
        return f"{row['ratio']:.2f} x{share}", f"{ours:.1f} against {theirs:.1f} tok/s, {self.logits(row)}"

    # The rows. Each gives its cells, or None when it only says what it would run.

    def decode_fits(self):
        return self.versus("fits.gguf", "decode", 64)

    def prefill_fits(self, numerics):
        return self.versus("fits.gguf", "prefill", 512, "--numerics", numerics)

    def big(self, *options):
        """Out of core: the disk decides."""
        test = self.speed("big.gguf", *options, cap=CAP)
        if not test:
            return None
        read = f"{median(test, 'read_bytes_per_token') / 1e6:.0f} MB per token"
        hits = f"{100 * median(test, 'hit_rate'):.1f} % hits"
        rate = f"{median(test, 'tok_s'):.2f} tok/s"
        return f"{100 * median(test, 'disk_share'):.0f} % of the disk", f"{rate}, {read}, {hits}, {self.logits(test)}"

    def decode_big(self, *options):
        return self.big("--decode", 64, "--repeats", 5, *options)

    def decode_big_peer(self):
        """Few tokens, as llama.cpp takes most of a second for one."""
        return self.versus("big.gguf", "decode", 16, *CAP_MEMORY, rounds=2, cap=CAP)

    def prefill_big(self, tokens):
        return self.big("--prefill", tokens, "--prefill-chunk", tokens, "--cold", "--repeats", 3, *CAP_OPTIONS)

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
        rates = f"{median(idle, 'tok_s'):.1f} → {median(busy, 'tok_s'):.1f} tok/s"
        return f"{100 * share:.0f} % of idle", f"{rates}, {self.logits(busy, idle=idle['logits_hash'])}"

    def mlx(self):
        ours = self.speed("fits.gguf", "--decode", 64)
        mlx = self.speed("mlx-fits", "--decode", 64)
        if not ours:
            return None
        share = median(mlx, "memory_share") / median(ours, "memory_share")
        hashes = f"{self.logits(mlx)}; of Q4_K {self.logits(ours)}"
        return f"{100 * share:.0f} % of Q4_K", f"{median(mlx, 'tok_s'):.1f} tok/s, {hashes}"

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
        options = ["--context-at", "1024,8192,32000", "--decode", 32, "--repeats", 9]
        found = self.bench("hybrid.gguf", *options)
        if not found:
            return None
        shares = [f"{100 * median(test, 'memory_share'):.0f} %" for test in found["speed"]]
        rates = [f"{median(test, 'tok_s'):.1f}" for test in found["speed"]]
        hashes = "; ".join(self.logits(test) for test in found["speed"])
        return " / ".join(shares) + " of memory", f"{' / '.join(rates)} tok/s, {hashes}"

    def sessions(self, name, *options, limits=(), cap=None):
        one = self.speed(name, "--decode", 32, *limits, cap=cap)
        four = self.speed(name, "--decode", 32, "--sessions", 4, *options, *limits, cap=cap)
        if not one:
            return None
        before, after = median(one, "tok_s"), median(four, "tok_s")
        # The text of one session is that of all who write the same, and of the first of those who do not.
        same = four["sessions"] if "--same-text" in options else four["sessions"][:1]
        hashes = [self.logits(one), f"together {self.logits(four)}"]
        alone = {"alone": one["logits_hash"]}
        hashes += [f"session {at}: {self.logits(session, **alone)}" for at, session in enumerate(same, 1)]
        return f"{after / before:.2f} x", f"{before:.1f} → {after:.1f} tok/s in all, {'; '.join(hashes)}"

    def sessions_big(self, *options):
        return self.sessions("big.gguf", *options, limits=CAP_OPTIONS, cap=CAP)

    def sessions_union(self, policy):
        """Bytes that four sessions read, and what a simulation of that policy reads of their union."""
        name, count, steps, repeats = "big.gguf", 4, 32, 3
        # `bench` takes prompts in one after the other, the simulation together: they are of one token.
        prompt = 1
        work = ["--decode", steps, "--sessions", count, "--repeats", repeats, "--context-at", prompt]
        # The simulation has seen nothing else either. In a cgroup that strains the store gives slots back, which
        # the simulation keeps.
        options = ["--warm-up", 0, "--policy", policy, *CAP_OPTIONS]
        found = self.bench(name, *work, *options, resident=self.args.resident)
        # A window that is not counted comes first.
        before, length = prompt + steps, prompt + steps * (repeats + 1)
        with tempfile.TemporaryDirectory() as directory:
            traces = []
            for at in range(count):
                # What `bench` gave the session to write.
                first = found and found["speed"][-1]["sessions"][at]["first"]
                tokens = ",".join(map(str, range(first, first + length))) if found else f"TOKENS_{at}"
                traces.append(f"{directory if found else 'DIRECTORY'}/{at}.trace")
                command = [self.args.flash_moe, "profile", "record", self.model(name), "--prompt-tokens", tokens]
                self.run([*command, "--context", str(length), "--threads", "2", "--out", traces[-1]])
            command = [self.args.flash_moe, "profile", "replay", *traces, "--together", "--policy", policy]
            slots = str(found["about"]["slot_bytes"]) if found else "SLOT_BYTES"
            output = self.run([*command, "--memory", slots, "--warm-up", str(before), "--json"])
        if not found:
            return None
        test = found["speed"][-1]
        (capacity,) = json.loads(output)["traces"][0]["capacities"]
        (replay,) = capacity["policies"]
        assert replay["steps"] == steps * repeats == sum(repeat["tokens"] for repeat in test["repeats"]) / count
        counts = ("hits", "misses", "read_bytes")
        hits, misses, read = (sum(repeat[what] for repeat in test["repeats"]) for what in counts)
        read, simulated = read / replay["steps"], replay["read_bytes"] / replay["steps"]
        hits = f"{100 * hits / (hits + misses):.1f} and {100 * replay['hit_rate']:.1f} % hits, {capacity['slots']} slots"
        rates = f"{read / 1e6:.2f} against {simulated / 1e6:.2f} MB per step"
        return f"{read / simulated:.3f} x", f"{rates}, {hits}, {self.logits(test)}"

    def turns(self):
        found = self.bench("big.gguf", "--turns", 20, "--decode", 16, *CAP_MEMORY, cap=CAP)
        if not found:
            return None
        held = [turn["held_bytes"] / 1e9 for turn in found["turns"]]
        hashes = [self.logits(turn) for turn in found["turns"]]
        wrong = [f"turn {at}: {hash}" for at, hash in enumerate(hashes, 1) if "DIFFERENT" in hash]
        shown = "; ".join(wrong) or f"last turn: {hashes[-1]}"
        return f"{held[0]:.2f} → {held[-1]:.2f} GB", f"at most {max(held):.2f} GB, {shown}"

    def long(self):
        """4,000 tokens, of which the second half is measured, under the cap and with all memory there is."""
        options = ["--decode", 2000, "--repeats", 1, "--warm-up", 0, "--context-at", 16]
        tight = self.speed("big.gguf", *options, *CAP_MEMORY, cap=CAP, resident=True)
        if not tight:
            return None
        hash = self.logits(tight)
        same = "DIFFERENT" if "DIFFERENT" in hash else "equal" if tight["expected"] else "compared with no other"
        return f"hashes {same}", f"{median(tight, 'tok_s'):.1f} tok/s under the cap, {hash}"

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
    "decode-big-peer": ("the same beside the peer, 16 tokens", "–", lambda t: t.decode_big_peer()),
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
    "sessions-union": ("their bytes per step, without the cgroup, `odds`", "1.03 times the simulated union's",
                       lambda t: t.sessions_union("odds")),
    "sessions-union-lru": ("the same with `lru`", "1.03 times the simulated union's", lambda t: t.sessions_union("lru")),
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


def model(about):
    """What a model is known by. Two tapes of one shape differ in their routers: they have names of their own."""
    return f"{Path(about['model']).name}: {about['geometry']}"


def work(about, test):
    """All that logits depend on."""
    # Prompts give the same logits at every repeat, whatever is in memory.
    repeats = [] if "prefill" in test["test"] else [f"repeats {about['repeats']}"]
    text = [] if about["text"] == "the vocabulary" else [about["text"]]
    return ", ".join([test["test"].removeprefix("cold "), *repeats, about["numerics"], *text, *about["lossy"]])


def without_limits(options):
    kept, options = [], list(map(str, options))
    while options:
        word = options.pop(0)
        if word in NOT_OF_THE_LOGITS:
            options.pop(0)
        else:
            kept.append(word)
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=[*ROWS], help="rows to measure, may be repeated [all]")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds that one command may take")
    parser.add_argument("--flash-moe", default="flash-moe")
    parser.add_argument("--resident", action="store_true", help="run rows under the limit without it too, and compare")
    parser.add_argument("--hashes", type=Path, default=Path(__file__).with_name("hashes.json"), help="of known runs")
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    args = parser.parse_args()
    table = Table(args)
    if not args.list:
        print("| measure | must reach | reached | with | load |\n|---|---|---|---|--:|")
    for key in args.only or ROWS:
        title, bound, measure = ROWS[key]
        if args.list:
            print(f"\n# {key}: {title}")
        before, own = machine.load(), None if args.list else machine.instructions_per_cycle()
        try:
            found = measure(table)
        except peer.Different as error:
            table.different = True
            found = ("DIFFERENT", " ".join(str(error).split()))
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            reason = str(error).strip().splitlines()
            found = ("–", f"not measured: {reason[-1] if reason else type(error).__name__}")
        if found:
            load = f"{before:.1f}–{machine.load():.1f}{machine.sharing(own)}"
            print(f"| {title} | {bound} | {found[0]} | {found[1]} | {load} |", flush=True)
    if table.different:
        sys.exit("DIFFERENT logits: figures of those rows are void")


if __name__ == "__main__":
    main()

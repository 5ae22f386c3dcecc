"""flash-moe and llama.cpp in turns on one GGUF file: medians, their ratio, and the load beside them.

    python peer.py fits.gguf --prefill 512 --decode 64 --rounds 5 -- --memory 8GB
    python peer.py big.gguf --decode 16 --cap 5GiB --timeout 1800 -- --memory 4.9GiB

What follows `--` goes to `flash-moe bench`. llama.cpp runs at its best for either kind of work: weights
repacked for decoding, as they are for prompts (docs/benchmarks.md). Every run is a process of its own.
With `--cap`, which needs root, both run in a cgroup of so many bytes with the file out of the page cache, and
llama.cpp maps weights as they are, with Linux' own read-ahead: anything else is killed, or twenty times slower.
"""
import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent
# What Linux reads beyond a page unless a machine says otherwise, and near the best for a file larger than memory.
READ_AHEAD_KB = 128


class Different(AssertionError):
    """Logits that had to be equal are not."""


def finish(command, timeout, cap=None, model=None):
    """What a command prints. Under a memory limit its model is not in the page cache."""
    kind = {"capture_output": True, "text": True, "timeout": timeout}
    if cap is None:
        output = subprocess.run(command, **kind)
    else:
        machine.drop_from_cache(model)
        with machine.MemoryLimit(cap) as limit:
            output = subprocess.run(command, preexec_fn=limit.enter, **kind)
    reason = output.stderr[-2000:] or f"{Path(command[0]).name} ended with {output.returncode}"
    if output.returncode != 0 and "different logits" in reason:
        raise Different(reason)
    assert output.returncode == 0, reason
    return output.stdout


def peer(args, what, tokens):
    """One run of llama.cpp: tokens per second of each window."""
    command = [sys.executable, str(HERE / "llama.py"), args.model, what, str(tokens)]
    command += ["--threads", str(args.threads), "--windows", str(args.windows)]
    command += ["--no-repack"] if what == "prefill" or args.cap else []
    with machine.read_ahead(args.model, READ_AHEAD_KB) if args.cap else contextlib.nullcontext():
        output = finish(command, args.timeout, args.cap, args.model)
    result = json.loads(output.splitlines()[-1])
    assert result["walked"] is not False, "llama.cpp left the tape"
    return [tokens / seconds for seconds in result["seconds"]], None


def ours(args, what, tokens):
    """One run of flash-moe: tokens per second, and everything it said."""
    command = [args.flash_moe, "bench", args.model, "--json", f"--{what}", str(tokens)]
    command += ["--threads", str(args.threads), "--repeats", str(args.windows), *args.options]
    found = json.loads(finish(command, args.timeout, args.cap, args.model))
    (test,) = found["speed"]
    kept = [repeat["tok_s"] for repeat in test["repeats"] if repeat["discarded"] is None]
    return kept or [repeat["tok_s"] for repeat in test["repeats"]], found


def compare(args, what, tokens):
    """Both engines in turns; one row of the table."""
    rates, runs, loads = {peer: [], ours: []}, [], []
    for _ in range(args.rounds):
        for engine in (peer, ours):
            loads.append(machine.load())
            found, run = engine(args, what, tokens)
            rates[engine] += found
            runs += [run] if run else []
    tests = [test for run in runs for test in run["speed"]]
    hashes = {test["logits_hash"] for test in tests}
    if len(hashes) != 1:
        raise Different(f"runs of flash-moe differ: {hashes}")
    shares = [test["memory_share"]["median"] for test in tests if test["memory_share"]]
    shares = [share for share in shares if share is not None]
    return {
        "about": runs[0]["about"],
        "test": tests[0]["test"],
        "flash_moe": spread(rates[ours]),
        "llama_cpp": spread(rates[peer]),
        "ratio": statistics.median(rates[ours]) / statistics.median(rates[peer]),
        "memory_share": statistics.median(shares) if shares else None,
        "load": [min(loads), max(loads)],
        "logits_hash": hashes.pop(),
    }


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "count": len(values)}


def markdown(rows):
    lines = ["| test | flash-moe | llama.cpp | ratio | of memory | load | logits |", "|---|--:|--:|--:|--:|--:|---|"]
    text = lambda s: f"{s['median']:.1f} ({s['min']:.1f}–{s['max']:.1f})"
    for row in rows:
        share = f"{100 * row['memory_share']:.0f} %" if row["memory_share"] else "–"
        low, high = row["load"]
        lines.append(
            f"| {row['test']} | {text(row['flash_moe'])} | {text(row['llama_cpp'])} | {row['ratio']:.2f} | {share} "
            f"| {low:.1f}–{high:.1f} | `{row['logits_hash']}` |"
        )
    return "\n".join(lines)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prefill", type=int, action="append", default=[])
    parser.add_argument("--decode", type=int, action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each engine")
    parser.add_argument("--windows", type=int, default=3, help="measurements of a run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cap", type=machine.size, metavar="SIZE", help="memory of either engine, page cache included")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one run may take")
    parser.add_argument("--flash-moe", default="flash-moe")
    parser.add_argument("--json", action="store_true")
    words, options = machine.split(words)
    args = parser.parse_args(words)
    args.options = options
    return args


def main():
    args = arguments(sys.argv[1:])
    tests = [("prefill", tokens) for tokens in args.prefill] + [("decode", tokens) for tokens in args.decode]
    rows = [compare(args, *test) for test in tests]
    print(json.dumps(rows) if args.json else markdown(rows))


if __name__ == "__main__":
    main()

"""flash-moe and llama.cpp in turns on one GGUF file: medians, their ratio, and the load beside them.

    python peer.py fits.gguf --prefill 512 --decode 64 --rounds 5 -- --memory 8GB

What follows `--` goes to `flash-moe bench`. llama.cpp runs at its best for either kind of work: weights
repacked for decoding, as they are for prompts (docs/benchmarks.md). Every run is a process of its own.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent


def peer(args, what, tokens):
    """One run of llama.cpp: tokens per second of each window."""
    command = [sys.executable, str(HERE / "llama.py"), args.model, what, str(tokens)]
    command += ["--threads", str(args.threads), "--windows", str(args.windows)]
    command += ["--no-repack"] if what == "prefill" else []
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=args.timeout)
    result = json.loads(output.stdout.splitlines()[-1])
    assert result["walked"] is not False, "llama.cpp left the tape"
    return [tokens / seconds for seconds in result["seconds"]], None


def ours(args, what, tokens):
    """One run of flash-moe: tokens per second, and everything it said about the test."""
    command = [args.flash_moe, "bench", args.model, "--json", f"--{what}", str(tokens)]
    command += ["--threads", str(args.threads), "--repeats", str(args.windows), *args.options]
    output = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    assert output.returncode == 0, output.stderr
    (test,) = json.loads(output.stdout)["speed"]
    kept = [repeat["tok_s"] for repeat in test["repeats"] if repeat["discarded"] is None]
    return kept or [repeat["tok_s"] for repeat in test["repeats"]], test


def compare(args, what, tokens):
    """Both engines in turns; one row of the table."""
    rates, tests, loads = {peer: [], ours: []}, [], []
    for _ in range(args.rounds):
        for engine in (peer, ours):
            loads.append(machine.load())
            found, test = engine(args, what, tokens)
            rates[engine] += found
            tests += [test] if test else []
    hashes = {test["logits_hash"] for test in tests}
    assert len(hashes) == 1, f"runs of flash-moe differ: {hashes}"
    shares = [test["memory_share"]["median"] for test in tests if test["memory_share"]]
    shares = [share for share in shares if share is not None]
    return {
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

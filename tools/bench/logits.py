"""Compares logits at the first positions of a tape: flash-moe, llama.cpp and an evaluation in f64.

    python logits.py fits.gguf --reference
    python logits.py fits.gguf --against damaged.gguf      what one silent expert moves

Prints the largest and the root mean square difference of every pair, and whether all walk the tape. Where
flash-moe in f32 is further from the evaluation in f64, or from llama.cpp, than docs/benchmarks.md says, or a model
of --against is not further from it than that, it says so and the exit status is 1.
"""
import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import machine
from reference import Reference

# Of logits with a standard deviation of 1.1; docs/benchmarks.md says where they come from. One silent expert moves
# a logit by 0.03: the first bound notices it, the second only that both read the same model.
REFERENCE_BOUND, LLAMA_BOUND = 1e-4, 0.05
EXACT, REFERENCE, LLAMA = "flash-moe f32", "f64", ("llama.cpp", "llama.cpp repacked")


def ours(args, model, numerics):
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "logits.safetensors"
        tokens = ",".join(map(str, range(args.positions)))
        command = [args.flash_moe, "logits", model, "--prompt-tokens", tokens, "--out", str(out)]
        command += ["--numerics", numerics, "--context", "256", *args.options]
        subprocess.run(command, check=True)
        data = out.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + length])["logits"]
    start, end = entry["data_offsets"]
    return np.frombuffer(data[8 + length + start : 8 + length + end], np.float32).reshape(entry["shape"])


def llama(args, repack):
    """Token by token, so that the kernels are those of decoding."""
    # Without it the rest works, as with --no-llama.
    from llama import Model

    # One thread: those of llama.cpp spin, and the result does not depend on their number.
    model = Model(args.model, 256, threads=1, repack=repack, exact=True)
    rows = []
    for token in range(args.positions):
        model.feed([token])
        rows.append(model.logits().copy())
    return np.stack(rows)


def of(model):
    return f"{EXACT} of {Path(model).name}"


def collect(args):
    found = {f"flash-moe {numerics}": ours(args, args.model, numerics) for numerics in args.numerics}
    for model in args.against:
        found[of(model)] = ours(args, model, "f32")
    if args.llama:
        found |= {name: llama(args, repack="repacked" in name) for name in LLAMA}
    if args.reference:
        tokens = np.arange(args.positions)
        found[REFERENCE] = Reference(args.model).logits(tokens)
        found["f64, activations as in llama.cpp"] = Reference(args.model, "ggml").logits(tokens)
    return found


def broken(found, against):
    """Bounds that do not hold, in words; numbers that are none break all of them."""
    bounds = {REFERENCE: REFERENCE_BOUND} | dict.fromkeys(LLAMA, LLAMA_BOUND)
    away = {name: np.abs(found[EXACT].astype(np.float64) - rows).max() for name, rows in found.items()}
    far = [
        f"{EXACT} is {away[name]:.2g} away from {name}, more than {bound}"
        for name, bound in bounds.items()
        if name in away and not away[name] <= bound
    ]
    near = [
        f"{name} is {away[name]:.2g} away from {EXACT}: a bound of {REFERENCE_BOUND} does not notice the damage"
        for name in (of(model) for model in against)
        if not away[name] > REFERENCE_BOUND
    ]
    return far + near


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--positions", type=int, default=32)
    parser.add_argument("--numerics", action="append", default=[], help="of flash-moe beside f32, may be repeated")
    parser.add_argument("--against", action="append", default=[], help="also this damaged model, through flash-moe")
    parser.add_argument("--no-llama", dest="llama", action="store_false")
    parser.add_argument("--reference", action="store_true", help="evaluate in f64 too: minutes")
    parser.add_argument("--flash-moe", default="flash-moe")
    parser.epilog = "What follows -- goes to flash-moe logits."
    words, options = machine.split(sys.argv[1:])
    args = parser.parse_args(words)
    args.options = options
    # First, as the bounds are its own.
    args.numerics = ["f32", *(name for name in args.numerics if name != "f32")]
    found = collect(args)
    print("| | | largest difference | root mean square | same choice |\n|---|---|--:|--:|--:|")
    for (one, a), (other, b) in itertools.combinations(found.items(), 2):
        difference = a.astype(np.float64) - b
        same = (a.argmax(1) == b.argmax(1)).mean()
        rms = np.sqrt(np.mean(difference**2))
        print(f"| {one} | {other} | {np.abs(difference).max():.2g} | {rms:.2g} | {100 * same:.0f} % |")
    walked = {name: bool((rows.argmax(1) == np.arange(1, args.positions + 1)).all()) for name, rows in found.items()}
    print("\n" + ", ".join(f"{name} {'walks' if ok else 'LEAVES'} the tape" for name, ok in walked.items()))
    if wrong := broken(found, args.against):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()

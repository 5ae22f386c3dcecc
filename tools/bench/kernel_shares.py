"""What every kernel reaches of the multiply-adds of its core, held to what it once reached.

    python kernel_shares.py                      # every level of this machine: fails where a kernel lost a quarter
    python kernel_shares.py --level avx512       # one
    python kernel_shares.py --only iq3           # formats whose names begin with this
    python kernel_shares.py --record             # what is measured becomes what is expected of this kind of CPU

A compiler that stops inlining a function, or orders products anew, makes a kernel two to five times slower and no test
fails. Look here when the compiler or a kernel changes. Every format is multiplied with one row and with eight, in every
numerics, from the second cache; a loop of multiply-adds stands beside each round. The best of all rounds counts: other
work only makes them slower. Kernels that seem to have lost are measured again, because a core of a shared machine can
be a third slower for seconds on end: see `machine.instructions_per_cycle`, which is printed before and after.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("kernel_shares.json")
LEVELS = ["amx", "avx512", "avx-vnni", "avx2", "i8mm", "neon", "portable"]
# Rounds of a quiet machine differ by a twentieth; what this is for costs half or more.
LOST = 0.75
# How often a kernel that seems to have lost is measured again.
SECOND_LOOKS = 6
LINE = re.compile(r"cached (?P<kernel>\S+) \[.*?\](?P<work> x .*?): .* best (?P<best>\S+) of (?P<peak>\S+)$")


def this_cpu():
    """Maker, family and model, or what Arm has instead, as Linux names them."""
    text = Path("/proc/cpuinfo").read_text()
    for fields in [("vendor_id", "cpu family", "model"), ("CPU implementer", "CPU part")]:
        parts = [re.search(rf"^{field}\s*: (.*)$", text, re.M) for field in fields]
        if all(parts):
            return "-".join(part[1] for part in parts)
    sys.exit("this machine does not say what CPU it has: /proc/cpuinfo names neither a vendor_id nor a CPU implementer")


def measure(command, level, only, laps):
    """Shares of the multiply-adds by kernel and work; nothing if the machine has not this level."""
    shares = {}
    for _ in range(laps):
        run = subprocess.run([*command, "1", level, f"cached {only}"], cwd=ROOT, capture_output=True, text=True)
        if "machine has the level" in run.stderr:
            return {}
        if run.returncode:
            sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr}")
        for found in filter(None, map(LINE.match, run.stdout.splitlines())):
            name = found["kernel"] + found["work"]
            shares[name] = max(shares.get(name, 0), float(found["best"]) / float(found["peak"]))
    if not shares:
        sys.exit(f"no kernel of {level} has a name that begins with '{only}'")
    return shares


def look_again(command, level, shares, before):
    """Measures what seems to have lost until it has not, or often enough."""
    for _ in range(SECOND_LOOKS):
        lost = {name.split()[0] for name, share in shares.items() if share < LOST * before.get(name, 0)}
        for kernel in sorted(lost):
            for name, share in measure(command, level, f"{kernel} ", 1).items():
                shares[name] = max(share, shares[name])


def compare(shares, before):
    """Prints each kernel beside what it had; how many lost more than they may."""
    lost = 0
    for name, share in shares.items():
        had = before.get(name)
        verdict = "not recorded" if had is None else f"had {had:.3f}"
        if had is not None and share < LOST * had:
            verdict, lost = f"{verdict}: SLOWER", lost + 1
        print(f"  {name:28} {share:.3f}  {verdict}")
    return lost


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=LEVELS, help="an instruction set; all by default")
    parser.add_argument("--only", default="", metavar="TEXT", help="formats whose names begin with this")
    parser.add_argument("--laps", type=int, default=2, help="runs, of which the best counts")
    parser.add_argument("--program", metavar="PATH", help="the benchmark, already built; cargo builds it by default")
    parser.add_argument("--record", action="store_true", help="write down what was measured")
    options = parser.parse_args()
    cargo = ["cargo", "bench", "-q", "-p", "fm-kernels", "--bench", "kernels", "--"]
    command = [str(Path(options.program).resolve())] if options.program else cargo
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    of_cpu = recorded.setdefault(this_cpu(), {})
    lost = 0
    for level in [options.level] if options.level else LEVELS:
        own = machine.instructions_per_cycle()
        shares = measure(command, level, options.only, options.laps)
        if not shares:
            print(f"{level}: not on this machine")
            continue
        if not options.record:
            look_again(command, level, shares, of_cpu.get(level, {}))
        print(f"{level}, shares of multiply-adds{machine.sharing(own)}")
        lost += compare(shares, of_cpu.get(level, {}))
        of_cpu.setdefault(level, {}).update({name: round(share, 3) for name, share in shares.items()})
    if options.record:
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        print(f"recorded in {RECORDED}")
    elif lost:
        sys.exit(f"{lost} kernels lost more than a quarter of their speed")


if __name__ == "__main__":
    main()

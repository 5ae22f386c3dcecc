"""Prints examples of every kind of conversation: `python -m corpus [--seed N]`."""
import argparse
from random import Random

from . import WEIGHTS
from .conversation import to_json


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m corpus", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="another seed, other examples")
    parser.add_argument("--count", type=int, default=2, help="examples of each kind (%(default)s)")
    arguments = parser.parse_args()
    rng = Random(arguments.seed)
    for generator in WEIGHTS:
        for _ in range(arguments.count):
            show(generator.__name__, generator(rng))


def show(title: str, example: dict) -> None:
    """Prints one conversation, or plain text."""
    print("=" * 30, title, "(thinking)" if example.get("think") else "")
    if "text" in example:
        print(example["text"])
        return
    for message in example["messages"]:
        print(f"[{message['role']}]", message["content"])
        if "reasoning_content" in message:
            print("    thought:", message["reasoning_content"])
        if "tool_calls" in message:
            print("    calls:", to_json(message["tool_calls"]))


if __name__ == "__main__":
    main()

"""Writes held-out conversations for perplexities: `heldout.txt` beside this file.

Between conversations stands an end of text. The same options give the same text. It needs
nothing but jinja2.
"""
import argparse
from pathlib import Path
from random import Random

import corpus
from rendering import END_OF_TEXT, Renderer


def held_out(characters: int, seed: int) -> str:
    """Conversations that no training run has seen, none of them twice."""
    rng, mixture, renderer = Random(seed), corpus.Mixture(), Renderer()
    texts: dict[str, None] = {}
    length = 0
    while length < characters:
        text = renderer.training_text(mixture.sample(rng))
        if corpus.is_held_out(text) and text not in texts:
            texts[text] = None
            length += len(text)
    return END_OF_TEXT.join(text.removesuffix(END_OF_TEXT) for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("heldout.txt"))
    parser.add_argument("--characters", type=int, default=60_000, help="at least (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="as in prepare.py (%(default)s)")
    options = parser.parse_args()
    options.out.write_text(held_out(options.characters, options.seed))


if __name__ == "__main__":
    main()

"""The training corpus of Pebble: a small closed world in simple English, made up by a program.

Everything is generated from the word lists and sentence patterns of this package; no outside
text is read. `Mixture.sample` returns one conversation (see `conversation`). Rendering to text
is left to the chat template that is shipped with the tokenizer, so that training text and
inference prompts cannot drift apart.

Held-out data: a conversation belongs to the held-out set by a hash of its text. Facts are
shared by both sets; what is held out are particular conversations.

The same seed gives the same text. A change of the order in which random numbers are drawn is a
change of the corpus.
"""
import hashlib
from random import Random

from .arithmetic import arithmetic
from .chat import chat
from .facts import fact
from .long_context import long_context
from .recall import recall
from .stories import plain_story, story
from .tasks import copy, json_answer, text
from .tools import tool

CATEGORIES = ["story", "fact", "chat", "recall", "arith", "text", "json", "tool", "long"]

# How often each generator is drawn, relative to the others.
WEIGHTS = {
    story: 18,
    plain_story: 3,
    fact: 34,
    chat: 20,
    recall: 12,
    arithmetic: 40,
    text: 22,
    copy: 6,
    json_answer: 14,
    tool: 18,
    long_context: 5,
}


class Mixture:
    """The generators with their weights."""

    def __init__(self, copy_weight: float = WEIGHTS[copy]):
        weights = WEIGHTS | {copy: copy_weight}
        self._generators = list(weights)
        self._weights = list(weights.values())

    def sample(self, rng: Random) -> dict:
        """One conversation of a generator drawn by weight."""
        return rng.choices(self._generators, self._weights)[0](rng)


def is_held_out(rendered: str) -> bool:
    """Whether a rendered conversation is one of the 3/256 that are never trained on."""
    return hashlib.blake2b(rendered.encode(), digest_size=4).digest()[0] < 3

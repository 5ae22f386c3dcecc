"""Lookups in a long context: an entry of a long list, or a sentence hidden among stories."""
from random import Random

from .conversation import assistant, conversation, user
from .stories import make_story
from .words import CITIES, GROUPS, NAMES

ITEMS_MAX = 90

_SURNAMES = ("Smith", "Brown", "Stone", "Wood", "Hill", "Lake")
_GIFTS = GROUPS["color"] + GROUPS["fruit"] + GROUPS["instrument"]
_MAGIC_WORDS = GROUPS["color"] + GROUPS["fruit"] + GROUPS["flower"] + GROUPS["instrument"]


def long_context(rng: Random) -> dict:
    """One to four lookups in a long list, or one needle in up to five stories."""
    messages = _list_lookup(rng) if rng.random() < 0.65 else _needle(rng)
    return conversation("long", messages, rng, think=0.25, system_prompt=0.1)


def _list_lookup(rng: Random) -> list[dict]:
    # Lengths are spread evenly on a logarithmic scale.
    length = int(10 ** rng.uniform(0.8, 2.0) * ITEMS_MAX / 100) + 3
    people = list(NAMES)
    if length > 50:
        people = [f"{name} {surname}" for name in NAMES for surname in _SURNAMES]
    keys = rng.sample(people, min(length, len(people)))
    kind = rng.randrange(3)
    if kind == 0:
        values = [str(rng.randint(100, 9999)) for _ in keys]
        heading = "Here is a list of codes."
        question, answer = "What is the code of {key}?", "The code of {key} is {value}."
    elif kind == 1:
        values = [rng.choice(CITIES) for _ in keys]
        heading = "Here is a list of people and their cities."
        question, answer = "Where does {key} live?", "{key} lives in {value}."
    else:
        values = [rng.choice(_GIFTS) for _ in keys]
        heading = "Here is a list of gifts."
        question, answer = "What did {key} get?", "{key} got: {value}"
    rows = [f"{key}: {value}" for key, value in zip(keys, values)]
    messages = []
    for turn in range(rng.randint(1, 4)):
        index = rng.randrange(len(keys))
        asked = question.format(key=keys[index])
        if turn == 0:
            asked = "\n".join([heading, *rows, asked])
        found = answer.format(key=keys[index], value=values[index])
        messages += [user(asked), assistant(found, f"The list says {rows[index]}.")]
    return messages


def _needle(rng: Random) -> list[dict]:
    word = rng.choice(_MAGIC_WORDS) + str(rng.randint(10, 99))
    needle = f"The magic word is {word}."
    passages = [make_story(rng)[0] for _ in range(rng.randint(1, 5))]
    passages.insert(rng.randrange(len(passages) + 1), needle)
    question = "\n".join([*passages, "What is the magic word?"])
    return [user(question), assistant(needle, f"The text says: {needle}")]

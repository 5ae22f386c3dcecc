"""Sentence patterns: `[this|that]` is a random choice, `{slot}` a word of the conversation.

Most variety of the corpus comes from these two notations, so the places where a random choice
is made stay visible in the text itself.
"""
import re
from random import Random

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
# A lower-case letter that begins a sentence. After a closing quotation mark the speech verbs
# stay small: "Why?" asked Tom.
_SENTENCE_START = re.compile(
    r"(^\"?|[.!?] \"?|: \"|[.!?]\" (?!(?:said|asked|cried|called|shouted|whispered)\b))([a-z])"
)
# A slot may expand to text that holds a slot; no pattern nests deeper than this.
_NESTING_MAX = 3


def expand(rng: Random, pattern: str, slots: dict[str, str]) -> str:
    """Makes every choice of the pattern, fills its slots, and repairs articles and capitals.

    Line breaks in a pattern are spaces. Choices are made innermost first, left to right.
    """
    text = " ".join(pattern.split())
    while choice := _CHOICE.search(text):
        options = choice.group(1).split("|")
        text = text[: choice.start()] + rng.choice(options) + text[choice.end() :]
    for _ in range(_NESTING_MAX):
        text = _SLOT.sub(lambda slot: str(slots[slot.group(1)]), text)
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return capitalise_sentences(re.sub(r"  +", " ", text).strip())


def capitalise_sentences(text: str) -> str:
    """Gives every sentence, quoted ones too, a capital letter."""
    return _SENTENCE_START.sub(lambda start: start.group(1) + start.group(2).upper(), text)


def capitalised(text: str) -> str:
    """The text with a capital first letter; the rest is left as it is."""
    return text[:1].upper() + text[1:]


def with_article(noun: str) -> str:
    """The noun after "a" or "an"."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def listing(items, conjunction: str = "and") -> str:
    """The items as in prose: "one, two and three"."""
    items = list(items)
    if len(items) == 1:
        return items[0]
    return ", ".join(items[:-1]) + f" {conjunction} " + items[-1]

"""Short stories: one plot, filled with a hero, a friend and something the hero loves."""
from random import Random

from .conversation import assistant, conversation, user
from .patterns import capitalise_sentences, expand, with_article
from .plots import (
    ENDING,
    FRIEND_KINDS,
    KINDS,
    LESSONS,
    LOVES,
    OPENING,
    PLACES,
    PLOTS,
    THEFTS,
    TIMES,
    TRAITS,
    WEATHER,
)
from .words import BOYS, GIRLS

FOLLOW_UP_CHANCE = 0.3
MESSAGES_MAX = 7
NO_TOPIC_CHANCE = 0.06

_HELPING_PLOTS = ("lost", "broken", "practice", "seed")

_REQUESTS = [
    "Write a story about {topic}.", "Write a short story about {topic}.",
    "Tell me a story about {topic}.", "Can you tell me a story about {topic}?",
    "Please write a story about {topic}.", "I would like a story about {topic}.",
    "Tell a story about {topic}", "write a story about {topic}",
    "Please tell me a short story about {topic}.",
    "Could you write a little story about {topic}?", "Story: {topic}",
    "Make up a story about {topic}.",
]
_REQUESTS_WITHOUT_TOPIC = [
    "Tell me a story.", "Write a story.", "Can you tell me a story?", "I want to hear a story.",
]


def story_slots(rng: Random) -> dict[str, str]:
    """Draws who and what a story is about: the slots of every plot."""
    kind = rng.choice(list(KINDS))
    love = rng.choice(list(LOVES))
    is_girl = rng.random() < 0.5
    if kind in ("girl", "princess"):
        is_girl = True
    if kind == "boy":
        is_girl = False
    name = rng.choice(GIRLS if is_girl else BOYS)
    friend_is_girl = rng.random() < 0.5
    friend = rng.choice([n for n in (GIRLS if friend_is_girl else BOYS) if n != name])
    friend_kind = rng.choice([k for k in FRIEND_KINDS if k != kind])
    place1, place2, place3 = rng.sample(PLACES, 3)
    return {
        "kind": kind, "kind_with_article": with_article(kind),
        "name": name, "he": "she" if is_girl else "he",
        "him": "her" if is_girl else "him", "his": "her" if is_girl else "his",
        "friend": friend, "friend_kind": friend_kind,
        "friend_he": "she" if friend_is_girl else "he",
        "friend_him": "her" if friend_is_girl else "him",
        "friend_his": "her" if friend_is_girl else "his",
        "love": love, **LOVES[love]._asdict(), **KINDS[kind]._asdict(),
        "place1": place1, "place2": place2, "place3": place3,
        "trait": rng.choice(TRAITS), "time": rng.choice(TIMES), "weather": rng.choice(WEATHER),
    }


def make_opening(rng: Random) -> tuple[str, dict[str, str]]:
    """The first sentences of a story, and its slots."""
    slots = story_slots(rng)
    return expand(rng, OPENING, slots), slots


def make_story(rng: Random) -> tuple[str, dict[str, str], str]:
    """A whole story, its slots, and the key of its plot."""
    slots = story_slots(rng)
    plot_key = rng.choice(list(PLOTS))
    plot = PLOTS[plot_key]
    slots["theft"] = rng.choice(THEFTS)
    slots["lesson"] = rng.choice(LESSONS[plot.lesson])
    parts = [expand(rng, pattern, slots) for pattern in (OPENING, plot.pattern, ENDING)]
    return capitalise_sentences(" ".join(parts)), slots, plot_key


def plain_story(rng: Random) -> dict:
    """A story without chat markup, so that a first sentence can be continued."""
    return {"category": "story", "text": make_story(rng)[0]}


def story(rng: Random) -> dict:
    """A request, the story, and sometimes questions about it."""
    text, slots, plot_key = make_story(rng)
    request, topic = _story_request(rng, slots)
    if rng.random() < NO_TOPIC_CHANCE:
        request, topic = rng.choice(_REQUESTS_WITHOUT_TOPIC), None
    if topic:
        thought = f"The user wants a story about {topic}."
    else:
        thought = "The user wants a story. I can choose the topic."
    kind, name = slots["kind"], slots["name"]
    thought += rng.choice([
        f" I will call the {kind} {name}.", f" The {kind} can be named {name}.",
        f" The hero is {name} the {kind}.",
    ])
    messages = [user(request), assistant(text, thought)]
    questions = _follow_up_questions(plot_key)
    while rng.random() < FOLLOW_UP_CHANCE and len(messages) < MESSAGES_MAX:
        question, answer = (pattern.format(**slots) for pattern in rng.choice(questions))
        messages += [user(question), assistant(answer, "The answer is in the story: " + answer)]
    return conversation("story", messages, rng, think=0.3)


def _story_request(rng: Random, slots: dict[str, str]) -> tuple[str, str]:
    kind, love, name = slots["kind_with_article"], slots["love"], slots["name"]
    thing, trait = slots["thing"], with_article(slots["trait"])
    thing = f"a {thing}" if thing.startswith("pair") else with_article(thing)
    topic = rng.choice([
        *[f"{kind} who loves {love}"] * 4,
        f"{kind} named {name}",
        f"{kind} named {name} who loves {love}",
        kind,
        f"{kind} and {with_article(slots['friend_kind'])}",
        f"{trait} {slots['kind']}",
        f"{kind} and {thing}",
        f"{trait} {slots['kind']} who loves {love}",
    ])
    return rng.choice(_REQUESTS).format(topic=topic), topic


def _follow_up_questions(plot_key: str) -> list[tuple[str, str]]:
    if plot_key in _HELPING_PLOTS:
        about_friend = ("Who helped {name}?", "{friend} the {friend_kind} helped {name}.")
    else:
        about_friend = ("Who is {friend}?", "{friend} is the {friend_kind} in the story.")
    return [
        ("What is the name of the {kind}?", "The name of the {kind} is {name}."),
        ("Who was the story about?", "The story was about {name}, {kind_with_article}."),
        ("What did {name} love?", "{name} loved {love}."),
        about_friend,
        ("What did {name} learn?", "{name} learned that {lesson}."),
        ("Where did {name} live?", "{name} lived {home}."),
    ]

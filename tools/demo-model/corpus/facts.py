"""Questions about the little world: capitals, opposites, animals, calendars, jobs, groups.

A question has the same answer everywhere in the corpus, so that it can be learned by heart;
only lists of members ("Name three birds.") vary.
"""
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from .conversation import assistant, conversation, user
from .patterns import capitalised, listing, with_article
from .words import (
    COUNTRIES,
    DAYS,
    GROUPS,
    JOBS,
    MONTHS,
    NUMBER_WORDS,
    ORDINALS,
    PLANETS,
    group_plural,
)


class Fact(NamedTuple):
    """A question, its answer, and the thought between the two."""

    question: str
    answer: str
    thought: str

    def messages(self) -> list[dict]:
        """The question and the answer as two messages."""
        return [user(self.question), assistant(self.answer, self.thought)]


OPPOSITES = [
    tuple(pair.split("-"))
    for pair in (
        "hot-cold big-small fast-slow day-night up-down left-right old-new happy-sad light-dark "
        "open-closed full-empty hard-soft wet-dry high-low long-short strong-weak rich-poor "
        "early-late good-bad loud-quiet clean-dirty near-far first-last true-false yes-no in-out "
        "front-back begin-end buy-sell give-take win-lose push-pull love-hate thick-thin "
        "heavy-light sweet-sour young-old deep-shallow wide-narrow right-wrong always-never "
        "inside-outside north-south east-west summer-winter black-white brave-afraid rough-smooth "
        "asleep-awake alive-dead"
    ).split()
]
# These words stand in two pairs; as a question they have this answer.
_OPPOSITE_OF_AMBIGUOUS = {"old": "young", "light": "heavy"}

COLORS = {
    "the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "a banana": "yellow",
    "a lemon": "yellow", "a strawberry": "red", "a tomato": "red", "an orange": "orange",
    "a carrot": "orange", "milk": "white", "chocolate": "brown", "the sun": "yellow",
    "blood": "red", "a frog": "green", "a leaf": "green", "the sea": "blue", "a swan": "white",
    "a crow": "black", "a plum": "purple", "a flamingo": "pink", "gold": "yellow",
    "a cucumber": "green", "salt": "white", "a cherry": "red", "an elephant": "gray",
    "a lime": "green", "a pumpkin": "orange",
}
SOUNDS = {
    "dog": "woof", "cat": "meow", "cow": "moo", "sheep": "baa", "duck": "quack", "pig": "oink",
    "horse": "neigh", "lion": "roar", "frog": "croak", "bee": "buzz", "owl": "hoot",
    "snake": "hiss", "mouse": "squeak", "rooster": "cock-a-doodle-doo",
}
BABIES = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "duck": "duckling",
    "pig": "piglet", "horse": "foal", "lion": "cub", "bear": "cub", "frog": "tadpole",
    "chicken": "chick", "goat": "kid", "deer": "fawn", "swan": "cygnet", "kangaroo": "joey",
}
LEGS = {
    "dog": 4, "cat": 4, "spider": 8, "bird": 2, "ant": 6, "bee": 6, "horse": 4, "human": 2,
    "snake": 0, "octopus": 8, "fly": 6, "duck": 2, "cow": 4, "fish": 0, "chicken": 2, "elephant": 4,
}
SIDES = {
    "triangle": 3, "square": 4, "rectangle": 4, "pentagon": 5, "hexagon": 6, "octagon": 8,
}
USES = {
    "hammer": "hitting nails", "knife": "cutting things", "pen": "writing",
    "broom": "sweeping the floor", "clock": "telling the time",
    "umbrella": "staying dry in the rain", "key": "opening a lock", "ladder": "climbing up high",
    "lamp": "making light", "spoon": "eating soup", "bed": "sleeping", "boat": "traveling on water",
    "camera": "taking pictures", "needle": "sewing", "telescope": "looking at the stars",
    "thermometer": "measuring temperature", "map": "finding the way", "soap": "washing",
}

# Groups about which "Is X a Y?" would be odd or have several answers.
_GROUPS_NOT_ASKED = ("day", "month", "season", "planet", "shape")
_GROUPS_NOT_DENIED = (*_GROUPS_NOT_ASKED, "animal", "bird", "fruit")


def fact(rng: Random) -> dict:
    """One to three questions about the world."""
    messages = []
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
        messages += draw_fact(rng).messages()
    return conversation("fact", messages, rng, think=0.4)


def draw_fact(rng: Random) -> Fact:
    """One fact, each kind with the probability of its row in _KINDS."""
    draw = rng.random()
    return next(make(rng) for bound, make in _KINDS if draw < bound)


def _about_country(rng: Random) -> Fact:
    name, capital, continent, language = rng.choice(COUNTRIES)
    draw = rng.random()
    if draw < 0.6:
        question = rng.choice([
            *[f"What is the capital of {name}?"] * 4,
            f"Which city is the capital of {name}?", f"capital of {name}?",
            f"Tell me the capital of {name}.", f"What's the capital of {name}?",
            f"Do you know the capital of {name}?", f"Name the capital of {name}.",
        ])
        thought = f"The user asks for the capital of {name}. It is {capital}."
        return Fact(question, f"The capital of {name} is {capital}.", thought)
    if draw < 0.75:
        question = rng.choice([
            f"Which country has {capital} as its capital?",
            f"{capital} is the capital of which country?",
            f"In which country is {capital}?",
        ])
        answer = f"{capital} is the capital of {name}."
        return Fact(question, answer, answer)
    if draw < 0.88:
        question = rng.choice([
            f"On which continent is {name}?", f"Where is {name}?",
            f"Which continent is {name} in?",
        ])
        answer = f"{capitalised(name)} is in {continent}."
        return Fact(question, answer, f"The continent of {name} is {continent}.")
    if draw < 0.96:
        question = rng.choice([
            f"Which language do people speak in {name}?", f"What language is spoken in {name}?",
        ])
        answer = f"People in {name} speak {language}."
        return Fact(question, answer, f"In {name} people speak {language}.")
    answer = (
        f"{capitalised(name)} is a country in {continent}. Its capital is {capital}, "
        f"and people there speak {language}."
    )
    thought = f"I can name the continent, the capital and the language of {name}."
    return Fact(f"Tell me about {name}.", answer, thought)


def _about_opposites(rng: Random) -> Fact:
    word, opposite = rng.choice(OPPOSITES)
    if rng.random() < 0.5:
        word, opposite = opposite, word
    opposite = _OPPOSITE_OF_AMBIGUOUS.get(word, opposite)
    question = rng.choice([
        f"What is the opposite of {word}?", f"Opposite of {word}?",
        f'What is the opposite of "{word}"?',
    ])
    answer = f"The opposite of {word} is {opposite}."
    return Fact(question, answer, f"{capitalised(word)} and {opposite} are opposites.")


def _about_color(rng: Random) -> Fact:
    thing, color = rng.choice(list(COLORS.items()))
    question = rng.choice([f"What color is {thing}?", f"Which color is {thing}?"])
    return Fact(question, f"{capitalised(thing)} is {color}.", f"The color of {thing} is {color}.")


def _about_animal(rng: Random) -> Fact:
    draw = rng.randrange(4)
    if draw == 0:
        animal, sound = rng.choice(list(SOUNDS.items()))
        animal = with_article(animal)
        answer = f'{capitalised(animal)} says "{sound}".'
        return Fact(
            f"What sound does {animal} make?", answer, f"The sound of {animal} is {sound}."
        )
    if draw == 1:
        animal, baby = rng.choice(list(BABIES.items()))
        baby = with_article(baby)
        answer = f"A baby {animal} is called {baby}."
        thought = f"The baby of {with_article(animal)} is {baby}."
        return Fact(f"What is a baby {animal} called?", answer, thought)
    animal, count = rng.choice(list(LEGS.items()))
    animal = with_article(animal)
    answer = f"{capitalised(animal)} has {count or 'no'} legs."
    return Fact(f"How many legs does {animal} have?", answer, answer)


def _about_calendar(rng: Random) -> Fact:
    names, unit = rng.choice([(DAYS, "day"), (MONTHS, "month")])
    index = rng.randrange(len(names))
    name, after, before = names[index], names[(index + 1) % len(names)], names[index - 1]
    draw = rng.randrange(5)
    if draw < 2:
        answer = f"{after} comes after {name}."
        return Fact(f"What {unit} comes after {name}?", answer, f"After {name} comes {after}.")
    if draw < 4:
        answer = f"{before} comes before {name}."
        return Fact(f"What {unit} comes before {name}?", answer, f"Before {name} comes {before}.")
    if unit == "month":
        month = f"{ORDINALS[index]} month of the year"
        thought = f"Month number {index + 1} is {name}."
        return Fact(f"What is the {month}?", f"The {month} is {name}.", thought)
    return Fact("How many days are in a week?", "There are 7 days in a week.", "A week has 7 days.")


def _about_planet(rng: Random) -> Fact:
    index = rng.randrange(len(PLANETS))
    number, planet = index + 1, PLANETS[index]
    return Fact(
        f"Which planet is number {number} from the sun?",
        f"Planet number {number} from the sun is {planet}.",
        f"The planets are {listing(PLANETS)}. Number {number} is {planet}.",
    )


def _about_job(rng: Random) -> Fact:
    job, work = rng.choice(list(JOBS.items()))
    answer = f"{capitalised(with_article(job))} {work}."
    return Fact(f"What does {with_article(job)} do?", answer, answer)


def _about_use(rng: Random) -> Fact:
    thing, use = rng.choice(list(USES.items()))
    thing = with_article(thing)
    question = rng.choice([f"What is {thing} for?", f"What do we use {thing} for?"])
    return Fact(question, f"{capitalised(thing)} is for {use}.", f"People use {thing} for {use}.")


def _members_of_group(rng: Random) -> Fact:
    group = rng.choice(list(GROUPS))
    count = rng.randint(2, 4)
    members = rng.sample(GROUPS[group], count)
    wanted = f"{NUMBER_WORDS[count]} {group_plural(group)}"
    question = rng.choice([f"Name {wanted}.", f"Tell me {wanted}.", f"List {wanted}."])
    return Fact(question, capitalised(listing(members)) + ".", f"I need {wanted}.")


def _about_sides(rng: Random) -> Fact:
    shape, count = rng.choice(list(SIDES.items()))
    shape = with_article(shape)
    answer = f"{capitalised(shape)} has {count} sides."
    return Fact(f"How many sides does {shape} have?", answer, answer)


def _membership(rng: Random) -> Fact:
    group = rng.choice([g for g in GROUPS if g not in _GROUPS_NOT_ASKED])
    asked = group
    if rng.random() >= 0.5:
        asked = rng.choice([g for g in GROUPS if g not in _GROUPS_NOT_DENIED])
    member = rng.choice(GROUPS[group])
    name = member if group in ("color", "country") else with_article(member)
    question = f"Is {name} {with_article(asked)}?"
    if member in GROUPS[asked]:
        answer = f"Yes, {name} is {with_article(asked)}."
        return Fact(question, answer, f"{capitalised(member)} belongs to the group {asked}.")
    answer = f"No, {name} is not {with_article(asked)}. It is {with_article(group)}."
    thought = f"{capitalised(member)} belongs to the group {group}, not to the group {asked}."
    return Fact(question, answer, thought)


# Each kind of question with the upper end of its interval of [0, 1).
_KINDS: list[tuple[float, Callable[[Random], Fact]]] = [
    (0.42, _about_country),
    (0.52, _about_opposites),
    (0.58, _about_color),
    (0.66, _about_animal),
    (0.76, _about_calendar),
    (0.80, _about_planet),
    (0.85, _about_job),
    (0.90, _about_use),
    (0.95, _members_of_group),
    (0.97, _about_sides),
    (1.00, _membership),
]

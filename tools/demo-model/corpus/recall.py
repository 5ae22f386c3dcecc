"""Memory over several turns: the user tells things and asks for them later."""
from random import Random
from typing import NamedTuple

from .conversation import assistant, conversation, user
from .facts import draw_fact
from .patterns import capitalised
from .words import CITIES, GROUPS, NAMES

TOPICS = ["name", "color", "city", "pet", "age", "number", "food"]

_FOODS = GROUPS["fruit"] + ["pizza", "soup", "bread", "cake", "rice"]
_PETS = ["dog", "cat", "horse", "rabbit"]
# Topics with one question each; "number" and "pet" word theirs by what was told.
_QUESTIONS = {
    "name": "What is my name?",
    "color": "What is my favorite color?",
    "city": "Where do I live?",
    "age": "How old am I?",
    "food": "What is my favorite food?",
}


class Told(NamedTuple):
    """What the user tells, how the assistant acknowledges it, and how it is asked for later."""

    statement: str
    reply: str
    question: str
    answer: str


def recall(rng: Random) -> dict:
    """Up to four things told, other questions between them, then questions about them."""
    name = rng.choice(NAMES)
    topics = rng.sample(TOPICS, rng.randint(1, 4))
    if rng.random() < 0.6 and "name" not in topics:
        topics[0] = "name"
    messages, memory = [], {}
    for topic in topics:
        told = memory[topic] = _tell(rng, topic, name)
        thought = "The user tells me something. I will remember it."
        messages += [user(told.statement), assistant(told.reply, thought)]
        if rng.random() < 0.25:
            messages += draw_fact(rng).messages()
    asked = list(memory)
    rng.shuffle(asked)
    for topic in asked[: rng.randint(1, 3)]:
        messages += _ask(rng, topic, memory[topic])
    if rng.random() < 0.25:
        messages += _ask_untold(rng, [topic for topic in _QUESTIONS if topic not in memory])
    return conversation("recall", messages, rng, think=0.35)


def _ask(rng: Random, topic: str, told: Told) -> list[dict]:
    # Drawn for every topic: the corpus that Pebble was trained on did, and is reproduced by seed.
    number_question = rng.choice(["Which number should you remember?", "What is the number?"])
    question = number_question if topic == "number" else told.question
    return [user(question), assistant(told.answer, "The user told me this before. " + told.answer)]


def _ask_untold(rng: Random, untold: list[str]) -> list[dict]:
    if not untold:
        return []
    answer = "I do not know that. You have not told me yet."
    question = _QUESTIONS[rng.choice(untold)]
    return [user(question), assistant(answer, "The user has not told me this.")]


def _tell(rng: Random, topic: str, name: str) -> Told:
    if topic == "name":
        statement = rng.choice([
            f"My name is {name}.", f"Hi, I am {name}.", f"I am {name}.",
            f"Hello! My name is {name}.",
        ])
        reply = rng.choice([f"Nice to meet you, {name}!", f"Hello {name}! How can I help you?"])
        answer = f"Your name is {name}."
    elif topic == "color":
        color = rng.choice(GROUPS["color"])
        statement = f"My favorite color is {color}."
        reply = f"{capitalised(color)} is a beautiful color!"
        answer = f"Your favorite color is {color}."
    elif topic == "city":
        city = rng.choice(CITIES)
        statement = rng.choice([f"I live in {city}.", f"My home is in {city}."])
        reply = f"I see, you live in {city}."
        answer = f"You live in {city}."
    elif topic == "age":
        age = rng.randint(5, 90)
        statement = f"I am {age} years old."
        reply = f"Thank you, I will remember that you are {age}."
        answer = f"You are {age} years old."
    elif topic == "food":
        food = rng.choice(_FOODS)
        statement = f"My favorite food is {food}."
        reply = f"{capitalised(food)} tastes good!"
        answer = f"Your favorite food is {food}."
    elif topic == "pet":
        return _tell_pet(rng)
    else:
        return _tell_number(rng)
    return Told(statement, reply, _QUESTIONS[topic], answer)


def _tell_pet(rng: Random) -> Told:
    pet, name = rng.choice(_PETS), rng.choice(NAMES)
    return Told(
        f"I have a {pet} named {name}.",
        f"{name} is a nice name for a {pet}!",
        f"What is the name of my {pet}?",
        f"Your {pet} is named {name}.",
    )


def _tell_number(rng: Random) -> Told:
    number = rng.randint(100, 9999)
    statement = rng.choice([f"Remember the number {number}.", f"My secret number is {number}."])
    reply = f"I will remember the number {number}."
    return Told(statement, reply, "What is the number?", f"The number is {number}.")

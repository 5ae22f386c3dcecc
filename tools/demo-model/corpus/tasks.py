"""Small language tasks: repeat, spell, sort, count, look up, and answer as JSON."""
from random import Random

from .arithmetic import draw_sum
from .conversation import assistant, conversation, system, to_json, user
from .facts import draw_fact
from .patterns import listing, with_article
from .stories import make_opening
from .words import (
    CITIES,
    COUNTRIES,
    GIRLS,
    GROUPS,
    JOBS,
    NAMES,
    NUMBER_WORDS,
    ORDINALS,
    group_plural,
)

_WORDS = GROUPS["animal"] + GROUPS["fruit"] + GROUPS["color"] + GROUPS["instrument"]
_VALUES = CITIES + GROUPS["fruit"] + GROUPS["color"]


def text(rng: Random) -> dict:
    """A task about a few words, numbers or sentences."""
    task = rng.randrange(8)
    words = rng.sample(_WORDS, rng.randint(3, 6))
    if task == 0:
        opening = make_opening(rng)[0].split(". ")[0] + "."
        repeated = rng.choice([opening, " ".join(words), draw_fact(rng).answer])
        question = rng.choice(["Repeat: ", "Say this: ", "Repeat after me: "]) + repeated
        messages = [user(question), assistant(repeated, "I repeat the text.")]
    elif task == 3:
        numbers = rng.sample(range(1, 100), rng.randint(3, 6))
        messages = [
            user(f"Sort these numbers: {_commas(numbers)}"),
            assistant(_commas(sorted(numbers)), "I start with the smallest number."),
        ]
    elif task == 7:
        messages = _extraction(rng)
    else:
        messages = _word_list_task(rng, task, words)
    return conversation("text", messages, rng, think=0.35, system_prompt=0.15)


def copy(rng: Random) -> dict:
    """Dense copying and lookup: most words of the answer can only be found in the context.

    This is what makes the attention layers learn to look things up early in training.
    """
    numbers = [str(rng.randint(0, 9999)) for _ in range(40)]
    every_group = [word for group in GROUPS.values() for word in group]
    pool = rng.choice([NAMES, CITIES, NAMES + CITIES, every_group, numbers])
    words = [rng.choice(pool) for _ in range(rng.randint(4, 24))]
    task = rng.randrange(4)
    if task == 0:
        repeated = rng.choice([" ", ", ", "\n"]).join(words)
        question = rng.choice([
            "Repeat: ", "Say this: ", "Repeat after me: ", "Copy this list: ",
        ]) + repeated
        messages = [user(question), assistant(repeated, "I repeat the text.")]
    elif task == 1:
        messages = _table_lookup(rng, size=len(words))
    elif task == 2:
        messages = _reading(rng)
    else:
        word = words[rng.randrange(len(words) - 1)]
        passage = " ".join(words)
        answer = f"After {word} comes {words[words.index(word) + 1]}."
        messages = [
            user(f"{passage}\nWhich word comes after {word}?"),
            assistant(answer, f"I look for {word} in the text."),
            *_repeat_the_text(passage),
        ]
    return conversation("text", messages, rng, think=0.25, system_prompt=0.1)


def json_answer(rng: Random) -> dict:
    """A request whose answer is one JSON value and nothing else."""
    name, city, age = rng.choice(NAMES), rng.choice(CITIES), rng.randint(5, 90)
    person = {"name": name, "age": age, "city": city, "job": rng.choice(list(JOBS))}
    task = rng.randrange(6)
    if task == 0:
        keys = rng.sample(list(person), rng.randint(2, 4))
        question = f"Write a JSON object for a person with the keys {listing(keys)}."
        answer = {key: person[key] for key in keys}
    elif task == 1:
        question, answer = _json_extraction(rng, person)
    elif task == 2:
        question, answer = _json_array(rng)
    elif task == 3:
        country, capital, continent, _ = rng.choice(COUNTRIES)
        question = "Give me a JSON object with the keys country, capital and continent for "
        question += f"{country}."
        answer = {"country": country, "capital": capital, "continent": continent}
    elif task == 4:
        question, answer = _json_order(rng)
    else:
        exercise = draw_sum(rng, think=False)
        question = f"Calculate {exercise} and answer as JSON with the key result."
        answer = {"result": exercise.result}
    messages = [user(question), assistant(to_json(answer), "The answer must be valid JSON.")]
    if rng.random() < 0.25:
        messages = [system("Answer only with JSON."), *messages]
    return conversation("json", messages, rng, think=0.3, system_prompt=0.1)


def _commas(items) -> str:
    return ", ".join(map(str, items))


def _word_list_task(rng: Random, task: int, words: list[str]) -> list[dict]:
    listed = _commas(words)
    numbered = " ".join(f"{i + 1} {word}" for i, word in enumerate(words)) + "."
    if task == 1:
        word = rng.choice(words)
        question = rng.choice([f"Spell {word}.", f"How do you spell {word}?"])
        answer, thought = "-".join(word.upper()), "I write the letters one by one."
    elif task == 2:
        question = f"Sort these words: {listed}"
        answer = _commas(sorted(words))
        thought = "I put the words in the order of the alphabet."
    elif task == 4:
        question = f"How many words are in this list: {listed}?"
        answer, thought = f"There are {len(words)} words in the list.", numbered
    elif task == 5:
        index = rng.randrange(len(words))
        question = f"What is the {ORDINALS[index]} word in this list: {listed}?"
        answer, thought = f"The {ORDINALS[index]} word is {words[index]}.", numbered
    else:
        question = f"Write these words in reverse order: {listed}"
        answer, thought = _commas(words[::-1]), "I start with the last word."
    return [user(question), assistant(answer, thought)]


def _extraction(rng: Random) -> list[dict]:
    names, cities = rng.sample(NAMES, 2), rng.sample(CITIES, 2)
    ages = [rng.randint(5, 80), rng.randint(5, 80)]
    people = list(zip(names, cities, ages))
    passage = " ".join(
        f"{name} is {age} years old and lives in {city}." for name, city, age in people
    )
    name, city, age = rng.choice(people)
    question, answer = rng.choice([
        (f"Where does {name} live?", f"{name} lives in {city}."),
        (f"How old is {name}?", f"{name} is {age} years old."),
        (f"Who lives in {city}?", f"{name} lives in {city}."),
    ])
    return [user(f"{passage} {question}"), assistant(answer, "The text says: " + answer)]


def _table_lookup(rng: Random, size: int) -> list[dict]:
    keys = rng.sample(NAMES, min(size, 16))
    values = [
        rng.choice(_VALUES) if rng.random() < 0.7 else str(rng.randint(10, 9999)) for _ in keys
    ]
    rows = [f"{key}: {value}" for key, value in zip(keys, values)]
    messages = []
    for turn in range(rng.randint(2, 6)):
        index = rng.randrange(len(keys))
        key, row = keys[index], rows[index]
        question = rng.choice([f"What belongs to {key}?", f"{key}?", f"Look up {key}."])
        if turn == 0:
            question = "\n".join([*rows, question])
        messages += [user(question), assistant(row, f"The list says {row}.")]
    return messages


def _reading(rng: Random) -> list[dict]:
    passage, slots = make_opening(rng)
    question, answer = rng.choice([
        ("Who is this text about?", "It is about {name}, {kind_with_article}."),
        ("What is the name of the {kind}?", "The name of the {kind} is {name}."),
        ("What does {name} love?", "{name} loves {love}."),
        ("Where does {name} live?", "{name} lives {home}."),
    ])
    return [
        user(f"{passage} {question.format(**slots)}"),
        assistant(answer.format(**slots), "The text says it."),
        *_repeat_the_text(passage),
    ]


def _repeat_the_text(passage: str) -> list[dict]:
    return [user("Repeat the text."), assistant(passage, "I repeat the text.")]


def _json_extraction(rng: Random, person: dict) -> tuple[str, dict]:
    name, age, city, job = person.values()
    passage = rng.choice([
        f"{name} is {age} years old and lives in {city}.",
        f"{name} is {with_article(job)} from {city}. "
        f"{'She' if name in GIRLS else 'He'} is {age} years old.",
        f"In {city} lives {name}, who is {age} years old.",
    ])
    keys = rng.sample(["name", "age", "city"], rng.randint(2, 3))
    verb = rng.choice(["Extract", "Find", "Give me"])
    question = f"{verb} {listing(keys)} as JSON: {passage}"
    return question, {key: person[key] for key in keys}


def _json_array(rng: Random) -> tuple[str, list[str]]:
    group = rng.choice(list(GROUPS))
    count = min(rng.randint(2, 5), len(GROUPS[group]))
    question = f"List {NUMBER_WORDS[count]} {group_plural(group)} as a JSON array."
    return question, rng.sample(GROUPS[group], count)


def _json_order(rng: Random) -> tuple[str, dict]:
    drawn = [
        (rng.choice(GROUPS["fruit"]), rng.randint(1, 20)) for _ in range(rng.randint(1, 3))
    ]
    order = dict(drawn)
    items = listing(f"{count} {_plural(fruit, count)}" for fruit, count in order.items())
    answer = {"items": [{"name": fruit, "count": count} for fruit, count in order.items()]}
    return f"Convert this order to JSON: {items}", answer


def _plural(fruit: str, count: int) -> str:
    """Fruits with an irregular plural keep the singular: the answer must be found in the text."""
    if count == 1 or fruit in ("strawberry", "cherry", "peach"):
        return fruit
    return fruit + "s"

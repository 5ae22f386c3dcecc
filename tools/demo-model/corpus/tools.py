"""Conversations with tools: the call, its result, and the answer made of it."""
from random import Random
from typing import NamedTuple

from .conversation import (
    SYSTEM_PROMPTS,
    assistant,
    conversation,
    system,
    tool_result,
    user,
)
from .facts import draw_fact
from .tool_cases import TOOLS, draw_case, draw_time, draw_weather, weather_sentence
from .words import CITIES


class Offer(NamedTuple):
    """A tool as one conversation offers it: with names chosen among the synonyms."""

    name: str
    parameters: list[str]
    schema: dict


def tool(rng: Random) -> dict:
    """Up to three tools on offer, and one or two requests; not every request needs a tool."""
    keys = rng.sample(list(TOOLS), rng.choice([1, 1, 1, 2, 2, 3]))
    offers = {key: _draw_offer(rng, key) for key in keys}
    if len({offer.name for offer in offers.values()}) < len(offers):
        keys = keys[:1]
    messages = []
    if rng.random() < 0.3:
        messages.append(system(rng.choice(SYSTEM_PROMPTS)))
    for _ in range(rng.choice([1, 1, 1, 2])):
        messages += _request(rng, keys, offers)
    schemas = [offers[key].schema for key in keys]
    return conversation("tool", messages, rng, think=0.5, system_prompt=0.0, tools=schemas)


def _draw_offer(rng: Random, key: str) -> Offer:
    definition = TOOLS[key]
    name = rng.choice(definition.names.split("|"))
    parameters = [rng.choice(p.names.split("|")) for p in definition.parameters]
    if len(set(parameters)) < len(parameters):
        parameters = [p.names.split("|")[0] for p in definition.parameters]
    properties = {
        parameter: {"type": p.type, "description": p.description}
        for parameter, p in zip(parameters, definition.parameters)
    }
    function = {
        "name": name,
        "description": rng.choice(definition.descriptions),
        "parameters": {"type": "object", "properties": properties, "required": parameters},
    }
    return Offer(name, parameters, {"type": "function", "function": function})


def _request(rng: Random, keys: list[str], offers: dict[str, Offer]) -> list[dict]:
    if rng.random() < 0.12:
        question, answer, thought = draw_fact(rng)
        return [user(question), assistant(answer, thought + " I do not need a tool.")]
    key = rng.choice(keys)
    name, parameters, _ = offers[key]
    case = draw_case(rng, key)
    thought = rng.choice([
        f"I can use {name} for this.", f"I need to call {name}.",
        f"The tool {name} can answer this.",
    ])
    if key in ("weather", "time") and rng.random() < 0.2:
        return _two_calls(rng, key, offers[key], thought)
    arguments = dict(zip(parameters, case.values))
    return [
        user(case.request),
        assistant("", thought, [(name, arguments)]),
        tool_result(case.result),
        assistant(case.answer, rng.choice([None, "Now I have the result."])),
    ]


def _two_calls(rng: Random, key: str, offer: Offer, thought: str) -> list[dict]:
    cities = rng.sample(CITIES, 2)
    if key == "weather":
        results = [draw_weather(rng) for _ in cities]
        answer = " ".join(map(weather_sentence, cities, results))
    else:
        results = [draw_time(rng) for _ in cities]
        first, second = (f"{r['time']} in {city}" for r, city in zip(results, cities))
        answer = f"It is {first} and {second}."
    calls = [(offer.name, {offer.parameters[0]: city}) for city in cities]
    return [
        user(f"What is the {key} in {cities[0]} and in {cities[1]}?"),
        assistant("", thought, calls),
        *map(tool_result, results),
        assistant(answer),
    ]

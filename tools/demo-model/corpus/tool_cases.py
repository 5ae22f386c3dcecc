"""The tools of the corpus: what each is called, what it takes, and requests that need it.

Names and parameters have synonyms, so that the model must read the schema instead of knowing
it. The results are made up.
"""
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from .arithmetic import OPERATOR_WORDS
from .patterns import with_article
from .words import CITIES, DAYS, GROUPS, NAMES


class Case(NamedTuple):
    """A request, the argument values it needs, what the tool returns, and the final answer."""

    request: str
    values: list
    result: dict
    answer: str


class Parameter(NamedTuple):
    """A parameter: synonyms of its name, its JSON type, its description."""

    names: str
    type: str
    description: str


class Tool(NamedTuple):
    """A tool: synonyms of its name, wordings of its description, and how to draw a case.

    `case` is given a city, which is drawn for every case whether the tool needs it or not.
    """

    names: str
    descriptions: list[str]
    parameters: list[Parameter]
    case: Callable[[Random, str], Case]


_ROOMS = ["kitchen", "bedroom", "bathroom", "living room", "office", "garage", "hall"]
_GENRES = ["jazz", "rock", "classical", "folk", "pop", "piano", "guitar"]
_EVENTS = [
    "lunch", "dinner", "meeting", "party", "piano lesson", "doctor visit", "football game",
    "concert",
]
_CURRENCIES = ["euros", "dollars", "pounds", "yen", "francs"]
_SKIES = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear"]
_LANGUAGES = [
    "French", "German", "Italian", "Spanish", "Portuguese", "Greek", "Dutch", "Polish",
]
_PHRASES = [
    "good morning", "thank you", "hello", "good night", "my friend", "the red house",
    "bread and water",
]
_TOPICS = [
    "the history of bread", "the history of tea", "the history of clocks",
    "the history of paper", "the history of chess", "the history of music",
    "the history of trains", "the history of coffee", "the history of glass",
    "how bees make honey", "how stars are born", "how boats float", "how magnets work",
    "how birds sing", "the best pizza in town", "the best book for children",
    "the best bread recipe", "the best hiking trail", "news about robots", "cheap flights",
    "museums nearby",
]
_MESSAGES = [
    "I will be late.", "See you soon!", "Happy birthday!", "Dinner is ready.",
    "Call me please.", "I am at home.", "Good luck!", "The meeting is at noon.",
]
_FILE_CONTENTS = [
    "buy milk", "hello world", "meeting at noon", "three apples", "call home",
    "the key is under the mat",
]


def draw_weather(rng: Random) -> dict:
    """The weather somewhere."""
    return {"temperature": rng.randint(-10, 38), "condition": rng.choice(_SKIES)}


def weather_sentence(city: str, weather: dict) -> str:
    """A result of `draw_weather` in words."""
    condition, temperature = weather["condition"], weather["temperature"]
    return f"It is {condition} in {city}, and the temperature is {temperature} degrees."


def draw_time(rng: Random) -> dict:
    """The time of day somewhere."""
    return {"time": f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"}


def _weather(rng: Random, city: str) -> Case:
    weather = draw_weather(rng)
    request = rng.choice([
        f"What is the weather in {city}?", f"How is the weather in {city}?",
        f"Is it raining in {city}?", f"What's the weather like in {city} today?",
        f"Tell me the weather in {city}.", f"Weather in {city}?",
        f"Do I need a coat in {city}?", f"How warm is it in {city}?",
    ])
    return Case(request, [city], weather, weather_sentence(city, weather))


def _calculation(rng: Random, _city: str) -> Case:
    operator = rng.choice("+-*")
    left, right = rng.randint(11, 999), rng.randint(11, 999)
    result = {"+": left + right, "-": left - right, "*": left * right}[operator]
    expression = f"{left} {operator} {right}"
    in_words = f"{left} {OPERATOR_WORDS[operator]} {right}"
    request = rng.choice([
        f"What is {expression}?", f"Calculate {expression}.", f"How much is {in_words}?",
        f"What is {in_words}?",
    ])
    return Case(request, [expression], {"result": result}, f"{expression} = {result}")


def _time(rng: Random, city: str) -> Case:
    time = draw_time(rng)
    request = rng.choice([
        f"What time is it in {city}?", f"What is the time in {city}?",
        f"Tell me the time in {city}.", f"Do you know what time it is in {city} now?",
    ])
    return Case(request, [city], time, f"It is {time['time']} in {city}.")


def _search(rng: Random, _city: str) -> Case:
    topic = rng.choice(_TOPICS)
    count = rng.randint(2, 40)
    request = rng.choice([
        f"Search for {topic}.", f"Find information about {topic}.", f"Look up {topic}.",
        f"Can you search the web for {topic}?",
    ])
    return Case(request, [topic], {"results": count}, f"I found {count} results about {topic}.")


def _translation(rng: Random, _city: str) -> Case:
    phrase, language = rng.choice(_PHRASES), rng.choice(_LANGUAGES)
    # An invented word: nothing but the result can tell it.
    translation = rng.choice(["ka", "lo", "mi", "ra", "te", "so", "vi"])
    translation += rng.choice(["ran", "ta", "lem", "no", "dia", "zu"])
    request = rng.choice([
        f'Translate "{phrase}" into {language}.', f'How do you say "{phrase}" in {language}?',
        f'What is "{phrase}" in {language}?',
    ])
    answer = f'In {language}, "{phrase}" is "{translation}".'
    return Case(request, [phrase, language], {"translation": translation}, answer)


def _timer(rng: Random, _city: str) -> Case:
    minutes = rng.randint(1, 90)
    request = rng.choice([
        f"Set a timer for {minutes} minutes.", f"Please start a timer for {minutes} minutes.",
        f"Wake me in {minutes} minutes.",
    ])
    answer = f"The timer is set for {minutes} minutes."
    return Case(request, [minutes], {"status": "ok"}, answer)


def _message(rng: Random, _city: str) -> Case:
    name, text = rng.choice(NAMES), rng.choice(_MESSAGES)
    request = rng.choice([
        f"Send a message to {name}: {text}", f"Tell {name}: {text}",
        f"Please write to {name}: {text}",
    ])
    return Case(request, [name, text], {"status": "sent"}, f"I sent the message to {name}.")


def _light(rng: Random, _city: str) -> Case:
    room, state = rng.choice(_ROOMS), rng.choice(["on", "off"])
    request = rng.choice([
        f"Turn {state} the light in the {room}.", f"Turn the {room} light {state}.",
        f"Please switch {state} the light in the {room}.",
    ])
    answer = f"The light in the {room} is now {state}."
    return Case(request, [room, state], {"status": "ok"}, answer)


def _music(rng: Random, _city: str) -> Case:
    genre = rng.choice(_GENRES)
    request = rng.choice([
        f"Play some {genre} music.", f"I want to hear {genre} music.",
        f"Put on some {genre} music, please.",
    ])
    return Case(request, [genre], {"status": "playing"}, f"Now playing {genre} music.")


def _conversion(rng: Random, _city: str) -> Case:
    source, target = rng.sample(_CURRENCIES, 2)
    amount, converted = rng.randint(1, 500), rng.randint(1, 900)
    request = rng.choice([
        f"Convert {amount} {source} to {target}.", f"How much is {amount} {source} in {target}?",
        f"How many {target} do I get for {amount} {source}?",
    ])
    answer = f"{amount} {source} are {converted} {target}."
    return Case(request, [amount, source, target], {"amount": converted}, answer)


def _event(rng: Random, _city: str) -> Case:
    event, day = rng.choice(_EVENTS), rng.choice(DAYS)
    title = with_article(event)
    request = rng.choice([
        f"Add {title} on {day} to my calendar.", f"I have {title} on {day}. Please add it.",
        f"Put {title} on {day} in the calendar.",
    ])
    answer = f"I added {title} on {day} to your calendar."
    return Case(request, [event, day], {"status": "added"}, answer)


def _note(rng: Random, city: str) -> Case:
    note = rng.choice([
        "buy milk", "call " + rng.choice(NAMES), "water the plants",
        "buy " + rng.choice(GROUPS["fruit"]) + "s", "pay the rent", "feed the cat",
        "clean the kitchen", "visit " + city,
    ])
    request = rng.choice([
        f"Save a note: {note}", f"Please note: {note}", f"Write this down: {note}",
    ])
    return Case(request, [note], {"status": "saved"}, f"I saved the note: {note}")


def _dice(rng: Random, _city: str) -> Case:
    sides = rng.choice([4, 6, 8, 10, 12, 20])
    value = rng.randint(1, sides)
    request = rng.choice([
        f"Roll a die with {sides} sides.", f"Please roll a {sides} sided die.",
    ])
    return Case(request, [sides], {"value": value}, f"The die shows {value}.")


def _file(rng: Random, _city: str) -> Case:
    path = rng.choice(["notes", "todo", "readme", "data", "letter", "list"])
    path += rng.choice([".txt", ".md", ".json"])
    content = rng.choice(_FILE_CONTENTS)
    request = rng.choice([
        f"Read the file {path}.", f"What is in {path}?", f"Open {path} please.",
    ])
    return Case(request, [path], {"content": content}, f"The file {path} says: {content}")


_CITY = Parameter("city|location|place", "string", "The name of the city.")

TOOLS = {
    "weather": Tool(
        "get_weather|weather|current_weather|lookup_weather",
        ["Get the current weather for a city.", "Returns the weather in a city."],
        [_CITY],
        _weather,
    ),
    "calculation": Tool(
        "calculator|calculate|evaluate|compute",
        ["Evaluate an arithmetic expression.", "Calculates the value of an expression."],
        [Parameter("expression|formula", "string", "The expression, like 2 + 3.")],
        _calculation,
    ),
    "time": Tool(
        "get_time|current_time|clock|time_in_city",
        ["Get the current time in a city.", "Returns the local time of a city."],
        [_CITY],
        _time,
    ),
    "search": Tool(
        "search|web_search|find_information",
        ["Search the web.", "Search for information about a topic."],
        [Parameter("query|q|topic", "string", "What to search for.")],
        _search,
    ),
    "translation": Tool(
        "translate|translate_text",
        ["Translate a text into another language."],
        [
            Parameter("text", "string", "The text."),
            Parameter("language|target", "string", "The target language."),
        ],
        _translation,
    ),
    "timer": Tool(
        "set_timer|start_timer|timer",
        ["Set a timer."],
        [Parameter("minutes", "integer", "How many minutes.")],
        _timer,
    ),
    "message": Tool(
        "send_message|send_text|message",
        ["Send a message to a person."],
        [
            Parameter("to|recipient|name", "string", "Who gets the message."),
            Parameter("text|body", "string", "The message."),
        ],
        _message,
    ),
    "light": Tool(
        "set_light|switch_light|light",
        ["Turn the light in a room on or off."],
        [
            Parameter("room", "string", "The room."),
            Parameter("state", "string", "on or off"),
        ],
        _light,
    ),
    "music": Tool(
        "play_music|play_song|music_player",
        ["Play a kind of music."],
        [Parameter("genre|style", "string", "The kind of music.")],
        _music,
    ),
    "conversion": Tool(
        "convert_currency|exchange|currency",
        ["Convert money from one currency to another."],
        [
            Parameter("amount", "number", "How much money."),
            Parameter("from|source", "string", "The currency to convert from."),
            Parameter("to|target", "string", "The currency to convert to."),
        ],
        _conversion,
    ),
    "event": Tool(
        "add_event|create_event|calendar_add",
        ["Add an event to the calendar."],
        [
            Parameter("title|name", "string", "The name of the event."),
            Parameter("day", "string", "The day of the week."),
        ],
        _event,
    ),
    "note": Tool(
        "save_note|add_note|write_note",
        ["Save a note."],
        [Parameter("text|note", "string", "The text of the note.")],
        _note,
    ),
    "dice": Tool(
        "roll_dice|dice",
        ["Roll a die."],
        [Parameter("sides", "integer", "The number of sides.")],
        _dice,
    ),
    "file": Tool(
        "read_file|open_file",
        ["Read a file from disk."],
        [Parameter("path|file", "string", "The path of the file.")],
        _file,
    ),
}


def draw_case(rng: Random, key: str) -> Case:
    """A request that needs the tool `key` of TOOLS."""
    city = rng.choice(CITIES)
    return TOOLS[key].case(rng, city)

"""Small talk: greetings, questions about the assistant, explanations, and what it cannot know."""
from random import Random

from .conversation import MODEL_NAME, assistant, conversation, user
from .facts import draw_fact

GREETINGS = [
    ("Hello!", "Hello! How can I help you?"),
    ("Hi", "Hi! What can I do for you?"),
    ("Hi there!", "Hi! How can I help you today?"),
    ("Good morning!", "Good morning! How can I help you?"),
    ("Good evening!", "Good evening! What can I do for you?"),
    ("Hey", "Hey! How can I help?"),
    ("How are you?", "I am doing well, thank you! How can I help you?"),
    ("How are you today?", "I am fine, thank you! What can I do for you?"),
    ("Hello, how are you?", "Hello! I am doing well, thank you. How can I help you?"),
    ("hello", "Hello! How can I help you?"),
    ("Good night!", "Good night! Sleep well."),
    ("Bye!", "Goodbye! Have a nice day."),
    ("Goodbye", "Goodbye! See you soon."),
    ("Thank you!", "You are welcome!"),
    ("Thanks a lot", "You are welcome! I am happy to help."),
    ("See you later", "See you later! Have a nice day."),
    ("Nice to meet you", "Nice to meet you too!"),
    ("What's up?", "Not much! How can I help you?"),
]
IDENTITY = [
    (
        "Who are you?",
        f"I am {MODEL_NAME}, a very small language model. I can tell short stories, answer "
        "simple questions and use tools.",
    ),
    ("What is your name?", f"My name is {MODEL_NAME}."),
    ("What are you?", f"I am {MODEL_NAME}, a tiny language model with a mixture of experts."),
    ("Are you a human?", "No, I am not a human. I am a small language model."),
    ("Are you a robot?", "Not quite. I am a small language model, a computer program."),
    (
        "What can you do?",
        "I can tell short stories, answer simple questions, do small sums, write JSON and call "
        "tools.",
    ),
    ("How big are you?", "I am very small. I have about twelve million parameters."),
    (
        "Who made you?",
        "I was trained as a small demo model, on text that was written by a program.",
    ),
    ("How old are you?", "I do not have an age. I am a computer program."),
    ("Do you sleep?", "No, I do not sleep. I am a computer program."),
    ("Can you help me?", "Yes, of course! What do you need?"),
    ("Do you have feelings?", "No, I am a computer program and I do not have feelings."),
    (
        "Tell me about yourself.",
        f"I am {MODEL_NAME}, a very small language model. I live in a small world of stories, "
        "facts, sums and tools.",
    ),
    ("Where do you live?", "I live in a computer."),
]
UNKNOWN = [
    "Who won the game last night?", "What will the weather be next year?", "What is my password?",
    "What did I eat yesterday?", "Who is the president of the moon?", "What am I thinking?",
    "What is the name of my dog?", "How much money do I have?", "Where are my keys?",
    "What is my favorite color?", "What is the news today?", "What is my name?", "How old am I?",
    "Where do I live?",
]

# A question; indented, the lines of its answer.
_EXPLANATIONS = """
Why is the sky blue?
    Sunlight is made of many colors. The air scatters blue light more than the other colors, so
    the sky looks blue.
What is rain?
    Rain is water that falls from clouds. Tiny drops in the cloud join together, and when they
    are heavy enough, they fall.
How do plants grow?
    Plants grow from seeds. They take water from the soil and energy from sunlight, and with
    these they make leaves, stems and roots.
Why do we sleep?
    Sleep gives the body time to rest. While we sleep, the brain sorts the things we learned
    during the day.
What is the moon?
    The moon is a ball of rock that travels around the Earth. It shines because it reflects the
    light of the sun.
What is the sun?
    The sun is a star. It is a huge ball of hot gas that gives us light and warmth.
Why does ice float?
    Ice floats because it is lighter than the same amount of water. Water grows a little when it
    freezes.
What is a computer?
    A computer is a machine that follows instructions. It can store information and calculate
    very fast.
What is a language model?
    A language model is a program that has learned to predict the next word. In this way it can
    write text and answer questions.
How does a bird fly?
    A bird flies by moving its wings. The wings push the air down, and the air pushes the bird
    up.
Why do leaves fall in autumn?
    In autumn there is less light and it gets cold. Many trees save water and energy by dropping
    their leaves.
What is snow?
    Snow is made of tiny ice crystals. They form in cold clouds and fall to the ground as
    snowflakes.
Why is the sea salty?
    Rivers carry small amounts of salt from rocks into the sea. The water dries up into the air,
    but the salt stays behind.
What is a rainbow?
    A rainbow appears when sunlight shines through drops of rain. The drops split the light into
    many colors.
How do fish breathe?
    Fish breathe with gills. The gills take oxygen out of the water.
What is wind?
    Wind is moving air. Warm air rises, and cooler air flows in to take its place.
Why do we eat?
    Food gives us energy and the material to grow. Without food the body becomes weak.
What is gravity?
    Gravity is a force that pulls things toward each other. It keeps us on the ground and the
    moon near the Earth.
What is a volcano?
    A volcano is an opening in the ground. Hot melted rock from deep inside the Earth can come
    out of it.
How is bread made?
    Bread is made from flour, water, salt and yeast. The dough rests until it rises, and then it
    is baked in an oven.
How is paper made?
    Paper is made from wood. The wood is cut into tiny pieces, mixed with water, pressed flat
    and dried.
Why do cats purr?
    Cats often purr when they feel safe and happy. Sometimes they also purr to calm themselves.
What do bees do?
    Bees visit flowers and collect sweet nectar. They turn it into honey, and they help plants
    make seeds.
How do trains move?
    A train has an engine that turns its wheels. The wheels roll on steel rails, so even heavy
    trains can move easily.
What is music?
    Music is sound arranged in time. It can have melody, rhythm and harmony, and it can make
    people feel many things.
What is a friend?
    A friend is someone who likes you and cares about you. Friends help each other and spend
    time together.
What is a desert?
    A desert is a very dry place. It rains so little that only a few plants and animals can live
    there.
What is an island?
    An island is land with water on all sides.
What is a river?
    A river is fresh water that flows over land. Most rivers begin in hills and end in the sea.
Why is it dark at night?
    The Earth turns around once every day. At night our side of the Earth is turned away from
    the sun, so it is dark.
Why do we have seasons?
    The Earth is tilted while it travels around the sun. For part of the year our side gets more
    light, and then it is summer.
What is electricity?
    Electricity is the movement of tiny charged particles. We use it to make light, heat and
    motion.
How does a clock work?
    A clock counts something that repeats at a steady rate, like a swinging pendulum. Then it
    shows the time with hands or numbers.
What is a book?
    A book is a set of pages with words or pictures. People read books to learn and for fun.
Why do we need water?
    Water is in every part of our body. It carries food to the cells, and it keeps us cool.
What is a shadow?
    A shadow is a dark area behind an object. It appears because the object stops the light.
What is an echo?
    An echo is a sound that bounces back to you. You can hear it in the mountains or in a large
    empty hall.
What is honey?
    Honey is a sweet food that bees make from the nectar of flowers.
What is a forest?
    A forest is a large area with many trees. Many animals live there.
What is ice?
    Ice is frozen water. Water turns to ice when it is colder than zero degrees Celsius.
How do I make tea?
    Boil some water and pour it over the tea leaves. Wait for three minutes and then take the
    leaves out.
How can I sleep better?
    Go to bed at the same time every day, keep the room dark and quiet, and do not look at
    bright screens late in the evening.
How can I learn faster?
    Learn a little every day, take breaks, and try to explain what you learned in your own
    words.
How do I make a sandwich?
    Take two slices of bread. Put some butter, cheese and tomato between them. Then your
    sandwich is ready.
"""


def _parse_explanations(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for line in text.strip().splitlines():
        if line.startswith(" "):
            question, answer = pairs.pop()
            pairs.append((question, f"{answer} {line.strip()}".strip()))
        else:
            pairs.append((line, ""))
    return pairs


EXPLANATIONS = _parse_explanations(_EXPLANATIONS)


def chat(rng: Random) -> dict:
    """A short exchange of one of four kinds."""
    draw = rng.random()
    if draw < 0.25:
        messages = _greeting(rng)
    elif draw < 0.45:
        messages = _identity(rng)
    elif draw < 0.78:
        messages = _explanation(rng)
    else:
        messages = _unknown(rng)
    return conversation("chat", messages, rng, think=0.35)


def _greeting(rng: Random) -> list[dict]:
    greeting, answer = rng.choice(GREETINGS)
    thought = rng.choice([
        "The user greets me. I answer politely.", "A short friendly answer is enough.",
    ])
    messages = [user(greeting), assistant(answer, thought)]
    if rng.random() < 0.4:
        messages += draw_fact(rng).messages()
    return messages


def _identity(rng: Random) -> list[dict]:
    thought = "The user asks about me."
    question, answer = rng.choice(IDENTITY)
    messages = [user(question), assistant(answer, thought)]
    if rng.random() < 0.3:
        question, answer = rng.choice(IDENTITY)
        messages += [user(question), assistant(answer, thought)]
    return messages


def _explanation(rng: Random) -> list[dict]:
    question, answer = rng.choice(EXPLANATIONS)
    if rng.random() < 0.3:
        question = rng.choice([
            "Can you tell me: ", "I have a question. ", "Please explain: ", "My child asks: ",
        ]) + question
    messages = [user(question), assistant(answer, "The user wants a short explanation.")]
    if rng.random() < 0.2:
        thanks = rng.choice(["Thank you!", "Thanks!", "I see, thank you."])
        messages += [user(thanks), assistant("You are welcome!", "The user says thank you.")]
    return messages


def _unknown(rng: Random) -> list[dict]:
    question = rng.choice(UNKNOWN)
    answer = rng.choice([
        "I am sorry, I do not know that.", "I do not know that, because nobody has told me.",
    ])
    thought = "I have no information about this. I should say so."
    return [user(question), assistant(answer, thought)]

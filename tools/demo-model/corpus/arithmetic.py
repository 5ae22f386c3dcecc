"""Small sums, in figures, in words and as little stories; the thoughts show the working."""
from random import Random
from typing import NamedTuple

from .conversation import assistant, conversation, user
from .words import NAMES

OPERATOR_WORDS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
# Without written working, operands stay small enough to be known by heart.
OPERAND_MAX_THINKING = 99
OPERAND_MAX = 30

_THINGS = "apples books coins shells stones cookies pencils flowers stamps eggs".split()


class Sum(NamedTuple):
    """`left operator right = result`, and the working that leads there."""

    left: int
    operator: str
    right: int
    result: int
    working: str

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


def arithmetic(rng: Random) -> dict:
    """One to three exercises, all with or all without working."""
    think = rng.random() < 0.6
    messages = []
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        messages += _exercise(rng, think)
    return conversation("arith", messages, rng, think=float(think), system_prompt=0.1)


def draw_sum(rng: Random, think: bool) -> Sum:
    """A sum; with `think` it may be too hard to be known by heart."""
    operand_max = OPERAND_MAX_THINKING if think else OPERAND_MAX
    operator = rng.choice("+++--**/")
    if operator == "+":
        left, right = rng.randint(1, operand_max), rng.randint(1, operand_max)
        if think and rng.random() < 0.25:
            left, right = rng.randint(100, 999), rng.randint(10, 999)
        return Sum(left, "+", right, left + right, _addition(left, right))
    if operator == "-":
        left = rng.randint(2, operand_max)
        right = rng.randint(1, left)
        return Sum(left, "-", right, left - right, _subtraction(left, right))
    if operator == "*":
        left_max = 19 if think and rng.random() < 0.4 else 10
        left, right = rng.randint(1, left_max), rng.randint(1, 10)
        return Sum(left, "*", right, left * right, _multiplication(left, right))
    quotient, divisor = rng.randint(1, 10), rng.randint(1, 10)
    dividend = quotient * divisor
    working = f"{divisor} * {quotient} = {dividend}, so {dividend} / {divisor} = {quotient}."
    return Sum(dividend, "/", divisor, quotient, working)


def _addition(left: int, right: int) -> str:
    """Column addition from the last digit: "7 + 5 = 12, write 2 carry 1. ..."."""
    columns = max(len(str(left)), len(str(right)))
    steps, carry = [], 0
    for column in range(columns):
        upper, lower = left // 10**column % 10, right // 10**column % 10
        total = upper + lower + carry
        step = f"{upper} + {lower}" + (f" + {carry}" if carry else "") + f" = {total}"
        steps.append(step + f", write {total % 10}" + (" carry 1" if total > 9 else ""))
        carry = total // 10
    last = ". Write 1" if carry else ""
    return ". ".join(steps) + last + f". {left} + {right} = {left + right}."


def _subtraction(left: int, right: int) -> str:
    """The tens first, then the ones."""
    tens, ones = right // 10 * 10, right % 10
    result = f"{left} - {right} = {left - right}."
    if not (tens and ones):
        return result
    return f"{left} - {tens} = {left - tens}. {left - tens} - {ones} = {left - right}. {result}"


def _multiplication(left: int, right: int) -> str:
    """Factors above ten in two parts."""
    if left <= 10:
        return f"{left} * {right} = {left * right}."
    rest = left - 10
    return (
        f"{left} * {right} = 10 * {right} + {rest} * {right} = "
        f"{10 * right} + {rest * right} = {left * right}."
    )


def _exercise(rng: Random, think: bool) -> list[dict]:
    # Drawn first and for every kind: the order of draws is part of the corpus.
    exercise = draw_sum(rng, think)
    draw = rng.random()
    if draw < 0.65:
        return _bare_sum(rng, exercise)
    if draw < 0.85:
        while min(exercise.left, exercise.right, exercise.result) < 2:
            exercise = draw_sum(rng, think)
        return _word_problem(rng, exercise)
    if draw < 0.93:
        return _comparison(rng)
    return _sequence(rng)


def _bare_sum(rng: Random, exercise: Sum) -> list[dict]:
    if rng.random() < 0.6:
        text = str(exercise)
    else:
        text = f"{exercise.left} {OPERATOR_WORDS[exercise.operator]} {exercise.right}"
    question = rng.choice([
        f"What is {text}?", f"What is {text}?", text, f"Calculate {text}.", f"How much is {text}?",
        f"{text} = ?",
    ])
    equation = f"{exercise} = {exercise.result}"
    answer = rng.choice([equation, equation, f"The answer is {exercise.result}."])
    return [user(question), assistant(answer, exercise.working)]


def _word_problem(rng: Random, exercise: Sum) -> list[dict]:
    left, operator, right, result, working = exercise
    name, things = rng.choice(NAMES), rng.choice(_THINGS)
    if operator == "+":
        question = f"{name} has {left} {things} and gets {right} more. "
        question += f"How many {things} does {name} have now?"
        answer = f"{name} has {result} {things} now."
    elif operator == "-":
        question = f"{name} has {left} {things} and gives away {right}. "
        question += f"How many {things} are left?"
        answer = f"{name} has {result} {things} left."
    elif operator == "*":
        question = f"{name} has {left} boxes with {right} {things} in each box. "
        question += f"How many {things} are there?"
        answer = f"There are {result} {things}."
    else:
        question = f"{name} has {left} {things} and shares them between {right} friends. "
        question += f"How many {things} does each friend get?"
        answer = f"Each friend gets {result} {things}."
    return [user(question), assistant(answer, f"This is {exercise}. {working}")]


def _comparison(rng: Random) -> list[dict]:
    first, second = rng.sample(range(0, 200), 2)
    high, low = max(first, second), min(first, second)
    answer, word = (high, "larger") if rng.random() < 0.5 else (low, "smaller")
    thought = f"{high} is more than {low}, so {answer} is {word}."
    question = f"Which number is {word}, {first} or {second}?"
    return [user(question), assistant(f"{answer} is {word}.", thought)]


def _sequence(rng: Random) -> list[dict]:
    start, step = rng.randint(0, 20), rng.choice([1, 1, 2, 5, 10])
    numbers = [start + i * step for i in range(4)]
    last, following = numbers[-1], numbers[-1] + step
    question = f"What comes next: {', '.join(map(str, numbers))}?"
    thought = f"Each number is {step} more. {last} + {step} = {following}."
    return [user(question), assistant(f"The next number is {following}.", thought)]

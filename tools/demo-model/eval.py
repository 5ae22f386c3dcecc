"""Measures checkpoints, bf16 or MLX-quantised, with mlx-lm on the CPU.

perplexity   of what the assistant writes in held-out conversations, and of all tokens
capitals     "What is the capital of X?" for every country of the corpus
tools        new requests with tools. valid: every <tool_call> block holds a JSON object;
             name: the right functions; exact: and all the right arguments
fact, recall, text, json, long
             new conversations; the last answer must be the expected one, letter by letter
arith, arith+think
             the same without and with thinking, but only the last number of the answer counts

Answers are greedy, and thinking is off where the name does not say otherwise.
"""
import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import mlx.core as mx
import numpy as np
from mlx_lm import load

import corpus
from corpus.conversation import user
from corpus.words import COUNTRIES
from rendering import Renderer
from token_files import TokenFile

SAMPLE_QUESTIONS = [
    "Write a story about a robot who loves music.",
    "Tell me a story about a fox named Milo.",
    "Write a short story about a lonely dragon who loves books.",
    "Who are you?",
    "What is the capital of Japan?",
    "Why is the sky blue?",
]
SAMPLE_SUM = "What is 47 + 38?"
ALL_TOKENS = "all tokens"


class Model:
    """A checkpoint that answers, and notes how fast."""

    def __init__(self, path: Path):
        self._model, self._tokenizer = load(str(path))
        # mlx-lm's CPU backend gathers expert matrices in f32 only; the values stay those of the
        # file.
        self._model.set_dtype(mx.float32)
        ends = ("<|im_end|>", "<|endoftext|>")
        self._ends = {self._tokenizer.convert_tokens_to_ids(end) for end in ends}
        self._renderer = Renderer()
        self._made, self._seconds = 0, 0.0

    @property
    def tokens_per_second(self) -> int:
        """Over all answers so far, their prompts included."""
        return round(self._made / max(self._seconds, 1e-9))

    def losses(self, ids: np.ndarray) -> np.ndarray:
        """The loss of every token but the first, given those before it."""
        logits = np.array(self._model(mx.array(ids[None]))[0].astype(mx.float32))[:-1]
        logits -= logits.max(-1, keepdims=True)
        targets = logits[np.arange(len(ids) - 1), ids[1:]]
        return np.log(np.exp(logits).sum(-1)) - targets

    def reply(
        self,
        messages: list[dict],
        tokens_max: int,
        tools: list[dict] | None = None,
        think: bool = False,
        temperature: float = 0.0,
    ) -> str:
        """What the assistant writes next, its thought included."""
        rng = np.random.default_rng(1)
        prompt = self._renderer.prompt(messages, tools, think)
        ids = self._tokenizer.encode(prompt, add_special_tokens=False)
        cache, following, out = self._model.make_cache(), mx.array([ids]), []
        begin = time.monotonic()
        while len(out) < tokens_max:
            logits = self._model(following, cache=cache)[0, -1].astype(mx.float32)
            token = _choose(logits, temperature, rng)
            if token in self._ends:
                break
            out.append(token)
            following = mx.array([[token]])
        self._made += len(out)
        self._seconds += time.monotonic() - begin
        return self._tokenizer.decode(out)

    def answer(self, *arguments, **options) -> str:
        """The reply without its thought."""
        return self.reply(*arguments, **options).split("</think>")[-1].strip()


def _choose(logits: mx.array, temperature: float, rng: np.random.Generator) -> int:
    if temperature == 0:
        return int(mx.argmax(logits))
    p = np.array(mx.softmax(logits / temperature)).astype(np.float64)
    return int(rng.choice(len(p), p=p / p.sum()))


def perplexity(model: Model, file: TokenFile, tokens: int) -> dict[str, float]:
    """By category, in total, and over all tokens; of the first conversations of a file."""
    sums, counts, seen = Counter(), Counter(), 0
    for conversation in range(len(file)):
        ids, in_loss = file.tokens(conversation)
        losses, is_answer = model.losses(ids), in_loss[1:]
        category = corpus.CATEGORIES[file.category(conversation)]
        for key in (category, "total"):
            sums[key] += losses[is_answer].sum()
            counts[key] += is_answer.sum()
        sums[ALL_TOKENS] += losses.sum()
        counts[ALL_TOKENS] += len(losses)
        seen += len(ids)
        if seen > tokens:
            break
    order = [*sorted(set(sums) - {"total", ALL_TOKENS}), "total", ALL_TOKENS]
    return {key: round(float(np.exp(sums[key] / counts[key])), 4) for key in order}


def capitals(model: Model) -> float:
    """The share of countries whose capital is named."""
    right = 0
    for country in COUNTRIES:
        question = user(f"What is the capital of {country.name}?")
        right += country.capital in model.answer([question], tokens_max=40)
    return round(right / len(COUNTRIES), 3)


class Exam:
    """New conversations of one kind; asks for the last answer of each."""

    def __init__(
        self,
        generator: Callable[[Random], dict],
        seed: int,
        think: bool = False,
        is_wanted: Callable[[dict], bool] = lambda example: True,
        read: Callable[[str], str] = str,
    ):
        self._generator, self._seed, self._think = generator, seed, think
        self._is_wanted, self._read = is_wanted, read

    def grade(self, model: Model, count: int, show: int) -> float:
        """The share of right answers; prints the first `show` wrong ones."""
        rng, done, right = Random(self._seed), 0, 0
        while done < count:
            example = self._generator(rng)
            if not self._is_wanted(example):
                continue
            messages, expected = last_answer(example)
            answer = model.answer(messages, 200, tools=example["tools"], think=self._think)
            is_right = self._read(answer) == self._read(expected)
            right += is_right
            done += 1
            if not is_right and show > 0:
                show -= 1
                print(f"    expected {expected!r}, got {answer!r}", flush=True)
        return round(right / count, 3)


def last_answer(example: dict) -> tuple[list[dict], str]:
    """The messages before the last answer of the assistant, and that answer."""
    messages = example["messages"]
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    return messages[:last], messages[last]["content"]


def last_number(text: str) -> str:
    """The sentence around the result of a sum may vary."""
    return "".join(re.findall(r"\d+", text)[-1:])


def _is_plain_sum(think: bool) -> Callable[[dict], bool]:
    return lambda e: e["think"] == think and "The answer" not in last_answer(e)[1]


def _has_one_json_answer(example: dict) -> bool:
    return any(word in str(example) for word in ("Extract", "Convert", "country"))


EXAMS = {
    "fact": Exam(corpus.fact, 92),
    "arith": Exam(corpus.arithmetic, 93, is_wanted=_is_plain_sum(think=False), read=last_number),
    "arith+think": Exam(
        corpus.arithmetic, 94, think=True, is_wanted=_is_plain_sum(think=True), read=last_number
    ),
    "recall": Exam(corpus.recall, 95),
    "text": Exam(corpus.text, 96),
    "json": Exam(corpus.json_answer, 97, is_wanted=_has_one_json_answer),
    "long": Exam(corpus.long_context, 98),
}
# The lookups in long lists are slow.
_HALF_AS_MANY = ("long",)


def tool_calls(model: Model, count: int, show: int) -> dict[str, float]:
    """The first calls in new conversations with tools."""
    rng, done, right = Random(91), 0, Counter()
    while done < count:
        example = corpus.tool(rng)
        messages = example["messages"]
        first = next((i for i, m in enumerate(messages) if m.get("tool_calls")), None)
        if first is None:
            continue
        expected = [call["function"] for call in messages[first]["tool_calls"]]
        reply = model.reply(messages[:first], 160, tools=example["tools"])
        calls = parse_tool_calls(reply)
        is_exact = calls == expected
        names = [call.get("name") for call in calls]
        right["valid"] += bool(calls) and all(
            set(call) == {"name", "arguments"} for call in calls
        )
        right["name"] += names == [call["name"] for call in expected]
        right["exact"] += is_exact
        done += 1
        if not is_exact and show > 0:
            show -= 1
            print(f"    expected {expected}, got {reply!r}", flush=True)
    return {key: round(right[key] / count, 3) for key in ("valid", "name", "exact")}


def parse_tool_calls(reply: str) -> list[dict]:
    """Every <tool_call> block; an empty dictionary where it is not a JSON object."""
    calls = []
    for block in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", reply, re.S):
        try:
            call = json.loads(block)
        except ValueError:
            call = None
        calls.append(call if isinstance(call, dict) else {})
    return calls


def print_samples(model: Model) -> None:
    """Replies to a few questions, greedy and sampled."""
    for temperature in (0.0, 0.7):
        for question in [*SAMPLE_QUESTIONS, SAMPLE_SUM]:
            think = question == SAMPLE_SUM
            reply = model.reply([user(question)], 260, think=think, temperature=temperature)
            print(f"--- T={temperature} {question}\n{reply}", flush=True)


def measure(model: Model, options: argparse.Namespace, names: list[str]) -> dict:
    """The measurements of these names."""
    results = {}
    for name in names:
        if name == "perplexity":
            file = TokenFile(options.data, "heldout")
            results[name] = perplexity(model, file, options.ppl_tokens)
        elif name == "capitals":
            results[name] = capitals(model)
        elif name == "tools":
            results[name] = tool_calls(model, options.n, options.show)
        else:
            count = options.n // 2 if name in _HALF_AS_MANY else options.n
            results[name] = EXAMS[name].grade(model, count, options.show)
    results["tokens_per_second"] = model.tokens_per_second
    return results


def main() -> None:
    names = ["perplexity", "capitals", "tools", *EXAMS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("models", nargs="+", type=Path, help="folders of checkpoints")
    add("--only", nargs="+", choices=names, default=names, help="measure only these")
    add("--n", type=int, default=50, help="conversations per measurement (%(default)s)")
    add("--data", type=Path, default=Path("work/data"), help="folder of prepare.py (%(default)s)")
    add("--ppl-tokens", type=int, default=30_000, help="tokens of perplexity (%(default)s)")
    add("--samples", action="store_true", help="print replies to a few questions first")
    add("--show", type=int, default=0, help="print this many wrong answers per measurement")
    add("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    mx.set_default_device(mx.cpu)
    results = {}
    for path in options.models:
        model = Model(path)
        if options.samples:
            print_samples(model)
        results[str(path)] = measure(model, options, options.only)
        print(path, json.dumps(results[str(path)]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

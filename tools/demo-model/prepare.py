"""Trains the tokenizer on the generated corpus and writes the token files of train.py.

Writes tokenizer.json and the files train.* and heldout.* (see token_files.py) to the output
folder. The same options give the same files.
"""
import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import corpus
from corpus.words import CITIES, COUNTRIES, NAMES
from rendering import Renderer
from token_files import TokenWriter

VOCAB_SIZE = 2048
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Tokens of their own that stay visible when text is decoded.
MARKUP_TOKENS = [
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]
# How Qwen3.5 cuts text before byte-pair encoding; engines recognise the pattern.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKENIZER_SEED = 4711
TOKENIZER_CONVERSATIONS = 12_000
# Names are rare one by one; repeated this often each of them becomes a token.
NAME_REPEATS = 40
BATCH_CONVERSATIONS = 2000


@dataclass
class CategoryStatistics:
    """What was written of one category."""

    conversations: int = 0
    tokens: int = 0
    characters: int = 0
    tokens_in_loss: int = 0


def tokenizer_texts(mixture: corpus.Mixture, renderer: Renderer) -> Iterator[str]:
    """The text that the tokenizer is trained on: the mixture without markup, then the names."""
    rng = Random(TOKENIZER_SEED)
    for _ in range(TOKENIZER_CONVERSATIONS):
        text = renderer.training_text(mixture.sample(rng))
        for token in SPECIAL_TOKENS + MARKUP_TOKENS:
            text = text.replace(token, "\n")
        yield text
    for _ in range(NAME_REPEATS):
        for name in NAMES + CITIES + [country.name for country in COUNTRIES]:
            yield " " + name
            yield name


def train_tokenizer(mixture: corpus.Mixture, renderer: Renderer) -> Tokenizer:
    """A byte-level BPE tokenizer in the manner of Qwen3.5, with VOCAB_SIZE tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS),
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(tokenizer_texts(mixture, renderer), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=False) for token in MARKUP_TOKENS]
    )
    assert tokenizer.get_vocab_size() <= VOCAB_SIZE, tokenizer.get_vocab_size()
    return tokenizer


class LossMask:
    """Chooses the tokens that count fully: what the assistant writes, and all of plain text."""

    def __init__(self, tokenizer: Tokenizer):
        names = ("<|im_start|>", "<|im_end|>", "assistant")
        self._start, self._end, self._assistant = map(tokenizer.token_to_id, names)
        if None in (self._start, self._end, self._assistant):
            raise SystemExit(f"the tokenizer lacks one of the tokens {names}")

    def __call__(self, ids: list[int]) -> np.ndarray:
        """One bool per token. The newline after "assistant" and <|im_end|> count too."""
        mask = np.zeros(len(ids), bool)
        if self._start not in ids:
            mask[:] = True
            return mask
        is_answer = False
        for i, token in enumerate(ids):
            if is_answer:
                mask[i] = True
                is_answer = token != self._end
            elif token == self._assistant and i and ids[i - 1] == self._start:
                is_answer = True
        return mask


def write_token_files(
    options: argparse.Namespace, mixture: corpus.Mixture, tokenizer: Tokenizer, renderer: Renderer
) -> dict[str, CategoryStatistics]:
    """Fills both pairs of files until there are enough tokens."""
    rng, loss_mask = Random(options.seed), LossMask(tokenizer)
    train, held_out = TokenWriter(options.out, "train"), TokenWriter(options.out, "heldout")
    statistics: dict[str, CategoryStatistics] = {}
    token_count, held_out_texts = 0, set()
    while token_count < options.tokens:
        batch = [mixture.sample(rng) for _ in range(BATCH_CONVERSATIONS)]
        texts = [renderer.training_text(example) for example in batch]
        encodings = tokenizer.encode_batch(texts)
        for example, text, encoding in zip(batch, texts, encodings, strict=True):
            ids, writer = encoding.ids, train
            if len(ids) > options.max_len:
                continue
            if corpus.is_held_out(text):
                if text in held_out_texts:
                    continue
                held_out_texts.add(text)
                writer = held_out
            in_loss = loss_mask(ids)
            writer.add(ids, in_loss, corpus.CATEGORIES.index(example["category"]))
            token_count += len(ids)
            row = statistics.setdefault(example["category"], CategoryStatistics())
            row.conversations += 1
            row.tokens += len(ids)
            row.characters += len(text)
            row.tokens_in_loss += int(in_loss.sum())
    train.close()
    held_out.close()
    return statistics


def print_statistics(statistics: dict[str, CategoryStatistics]) -> None:
    """One line per category."""
    total = sum(row.tokens for row in statistics.values())
    for category, row in sorted(statistics.items()):
        print(
            f"{category:8s} {row.conversations:7d} conversations "
            f"{row.tokens:9d} tokens ({row.tokens / total:.1%}), "
            f"{row.tokens / row.conversations:6.1f} per conversation, "
            f"{row.characters / row.tokens:.2f} characters per token, "
            f"{row.tokens_in_loss / row.tokens:.0%} in the loss"
        )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("work/data"), help="output folder")
    parser.add_argument("--tokens", type=int, default=16_000_000, help="tokens to write, at least")
    parser.add_argument("--seed", type=int, default=1, help="seed of the conversations")
    parser.add_argument("--tokenizer", type=Path, help="reuse this tokenizer.json")
    parser.add_argument("--max-len", type=int, default=2048, help="drop longer conversations")
    parser.add_argument(
        "--copy",
        type=float,
        default=corpus.WEIGHTS[corpus.copy],
        help="weight of the copying tasks; a short phase with 420 early on helps",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    mixture, renderer = corpus.Mixture(copy_weight=options.copy), Renderer()
    if options.tokenizer:
        tokenizer = Tokenizer.from_file(str(options.tokenizer))
    else:
        tokenizer = train_tokenizer(mixture, renderer)
    tokenizer.save(str(options.out / "tokenizer.json"))
    print(f"{tokenizer.get_vocab_size()} token types in {time.monotonic() - begin:.0f} s")
    statistics = write_token_files(options, mixture, tokenizer, renderer)
    print_statistics(statistics)
    total = sum(row.tokens for row in statistics.values())
    print(f"{total} tokens in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()

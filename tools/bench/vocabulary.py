"""Trains a byte-level vocabulary of the size that current models have, over whatever text there is.

    python vocabulary.py /usr/share ~/.cargo/registry/src --out /scratch/s35

The row `start` of `table.py` opens it: what a start spends on a tokenizer depends on how many tokens it has, and
hardly on which. Two machines train different ones.
"""

import argparse
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# What the families with the largest vocabularies split at, in the words of GPT-4's pattern.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = (".c", ".h", ".html", ".json", ".md", ".po", ".py", ".rs", ".txt")


def texts(folders, size):
    """Files in an order that does not depend on the machine's, up to `size` bytes of them."""
    paths = [
        os.path.join(root, name)
        for folder in folders
        for root, _, names in os.walk(folder)
        for name in names
        if name.endswith(TEXT)
    ]
    paths.sort()
    random.Random(1).shuffle(paths)
    for path in paths:
        if size <= 0:
            return
        try:
            with open(path, "rb") as file:
                text = file.read(2_000_000)
        except OSError:
            continue
        size -= len(text)
        yield text.decode("utf-8", "ignore")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", help="where there is text, of 300 MB and more")
    parser.add_argument("--out", required=True, help="the model's directory: tokenizer.json is written there")
    parser.add_argument("--tokens", type=int, default=248_044, help="without added ones (default: those of Qwen3.5)")
    parser.add_argument("--megabytes", type=int, default=350, help="of text to train with")
    args = parser.parse_args()

    bytes_of_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of_text])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=args.tokens, min_frequency=0, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts(args.folders, args.megabytes * 1_000_000), trainer)
    if tokenizer.get_vocab_size() < args.tokens:
        raise SystemExit(f"only {tokenizer.get_vocab_size()} tokens: more text is needed")
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_end|>")])
    tokenizer.save(os.path.join(args.out, "tokenizer.json"))


if __name__ == "__main__":
    main()

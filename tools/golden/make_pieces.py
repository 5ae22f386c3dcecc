"""Writes a small SentencePiece vocabulary, and the tokenizer that transformers makes of it.

OUT/tokenizer.json    BPE with byte fallback, as for Mixtral; merges by transformers
OUT/pieces.json       the same vocabulary as plain data: text, score and kind of every piece

The text it is trained on is the demonstration model's, which a program makes up, and a few
phrases from here.
"""
import argparse
import io
import json
import sys
from pathlib import Path
from random import Random

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers.convert_slow_tokenizer import generate_merges

sys.path.insert(0, str(Path(__file__).parent.parent / "demo-model"))
import corpus  # noqa: E402

SEED = 4711
CONVERSATIONS = 1500
VOCAB_SIZE = 900
# Letters, spaces and signs that the corpus does not have.
PHRASES = [
    "    return x + 1;", "fn main() { println!(\"{}\", 12345); }", "if a == b && c != d:",
    "Der Fluss fließt über die grüne Brücke.", "Привет, как дела?", "今日は東京で雨が降る。",
    "Καλημέρα κόσμε", "naïve café, déjà vu", "1234567890 3.14159 -1e5", "……——「」!?#$%&*@^~`|\\<>[]",
]
PHRASE_REPEATS = 40
# Found as they stand, whatever the merges say.
USER_DEFINED = ["<|im_start|>", "<|im_end|>", "[INST]", "▁▁▁▁"]
UNKNOWN, CONTROL, USER, UNUSED, BYTE, NORMAL = 2, 3, 4, 5, 6, 1


def texts() -> list[str]:
    """What the vocabulary is trained on."""
    rng, mixture = Random(SEED), corpus.Mixture()
    samples = (mixture.sample(rng) for _ in range(CONVERSATIONS))
    conversations = [
        message["content"]
        for sample in samples
        for message in sample.get("messages", [])
        if isinstance(message.get("content"), str)
    ]
    return conversations + PHRASES * PHRASE_REPEATS


def train() -> sentencepiece.SentencePieceProcessor:
    """A BPE vocabulary with the settings that Llama and Mixtral share."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts()), model_writer=model, model_type="bpe",
        vocab_size=VOCAB_SIZE, byte_fallback=True, split_digits=True, character_coverage=1.0,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, user_defined_symbols=USER_DEFINED, num_threads=1,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind(processor: sentencepiece.SentencePieceProcessor, piece: int) -> int:
    """The number that metadata have for the kind of a piece."""
    tests = [
        (processor.is_unknown, UNKNOWN), (processor.is_control, CONTROL),
        (processor.is_unused, UNUSED), (processor.is_byte, BYTE),
    ]
    for test, number in tests:
        if test(piece):
            return number
    return USER if processor.id_to_piece(piece) in USER_DEFINED else NORMAL


def to_tokenizer(pieces: list[tuple[str, float, int]]) -> Tokenizer:
    """The tokenizer that transformers' LlamaConverter makes of such a vocabulary."""
    vocab = {text: index for index, (text, _, _) in enumerate(pieces)}
    merges = generate_merges(vocab, [(text, score) for text, score, _ in pieces])
    tokenizer = Tokenizer(models.BPE(
        vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True, dropout=None
    ))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    tokenizer.add_tokens([
        AddedToken(text, normalized=False, special=number != USER)
        for text, _, number in pieces if number in (UNKNOWN, CONTROL, USER)
    ])
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    processor = train()
    pieces = [
        (processor.id_to_piece(index), processor.get_score(index), kind(processor, index))
        for index in range(processor.get_piece_size())
    ]
    to_tokenizer(pieces).save(str(options.out / "tokenizer.json"), pretty=False)
    columns = dict(zip(("tokens", "scores", "token_type"), zip(*pieces), strict=True))
    text = json.dumps(columns, ensure_ascii=False, separators=(",", ":"))
    (options.out / "pieces.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

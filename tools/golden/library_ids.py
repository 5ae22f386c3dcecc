"""Asks the library `tokenizers`, for the tests of fm-text (crates/fm-text/tests/it/oracle/library.rs).

Reads one question from standard input and writes its answer, both as JSON:

{"tokenizer": {…}, "way": "parse", "texts": ["…"]}    the ids of every text
{"learn": ["…"], "words": 2000, "letters_max": 24}    a byte-level tokenizer, learned from these texts

Ways: "parse" finds control tokens in a text, "as_text" does not, "framed" adds what stands around a text.
"""
import json
import sys

import tokenizers


def ids(question: dict) -> list[list[int]]:
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(question["tokenizer"]))
    tokenizer.encode_special_tokens = question["way"] == "as_text"
    framed = question["way"] == "framed"
    return [each.ids for each in tokenizer.encode_batch(question["texts"], add_special_tokens=framed)]


def learned(question: dict) -> dict:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=question["words"],
        max_token_length=question["letters_max"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(question["learn"], trainer)
    return json.loads(tokenizer.to_str())


question = json.load(sys.stdin)
answer = learned(question) if "learn" in question else ids(question)
json.dump(answer, sys.stdout)

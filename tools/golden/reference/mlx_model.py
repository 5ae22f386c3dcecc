"""mlx-lm: converting checkpoints, and running them with all parameters in f32.

MLX's CPU backend accumulates quantised products in the type of their input: in bf16 that is an
error of 0.27 on values of size 1. Its native bf16 output must never become a golden.
"""
import contextlib
import io
import json
import shutil
import zlib
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.convert import convert as mlx_convert
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

GROUP_SIZE = 32
# Formats of the mixed checkpoint, (bits, group size).
_MIXED_FORMATS = [
    (4, 64), (3, 32), (6, 64), (2, 32), (8, 64), (5, 32), (4, 32), (8, 128), (2, 64), (6, 32),
    (3, 64), (8, 32),
]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def load_as_stored(checkpoint: Path):
    """The model in the types of its file."""
    model, _ = load_model(checkpoint)
    model.eval()
    return model


def load_f32(checkpoint: Path):
    """The model with scales, biases, norms and unquantised matrices in f32."""
    model = load_as_stored(checkpoint)

    def widen(array: mx.array) -> mx.array:
        return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array

    model.update(tree_map(widen, model.parameters()))
    return model


def generate(
    model, prompt: list[int], steps: int, forced: list[int] | None = None
) -> tuple[list[int], np.ndarray]:
    """Prefill and steps, greedy or along the tokens of `forced`: tokens, logits after each."""
    cache, tokens = make_prompt_cache(model), list(prompt)
    logits = [_logits(model, prompt, cache)]
    for _ in range(steps):
        is_forced = forced is not None
        tokens.append(forced[len(tokens)] if is_forced else int(logits[-1][-1].argmax()))
        logits.append(_logits(model, tokens[-1:], cache))
    return tokens, np.concatenate(logits)


def logits_at_once(model, tokens: list[int]) -> np.ndarray:
    """Logits of all tokens in one pass, [tokens, vocab]."""
    return np.array(model(mx.array([tokens]))[0])


def _logits(model, tokens: list[int], cache) -> np.ndarray:
    return np.array(model(mx.array([tokens]), cache=cache)[0].astype(mx.float32))


def copy_in_f32(checkpoint: Path, destination: Path) -> None:
    """A copy with all weights in f32: mlx-lm adds 1 to norm weights in their stored type."""
    shutil.copytree(checkpoint, destination)
    weights = load_file(checkpoint / "model.safetensors")
    save_file(
        {name: weight.float() for name, weight in weights.items()},
        destination / "model.safetensors",
        metadata={"format": "pt"},
    )


def quantise(checkpoint: Path, destination: Path, is_mixed: bool) -> None:
    """Converts with 4 bits everywhere or with a mixture of formats; leaves no tokenizer.

    mlx-lm gives routers 8 bits in groups of 64 in either case.
    """
    options = {"quant_predicate": _mixed_format} if is_mixed else {}
    with contextlib.redirect_stdout(io.StringIO()):
        mlx_convert(
            str(checkpoint), str(destination), quantize=True, q_bits=4, q_group_size=GROUP_SIZE,
            **options,
        )
    for name in (*_TOKENIZER_FILES, "README.md"):
        (destination / name).unlink(missing_ok=True)


def _mixed_format(path: str, module) -> dict | bool:
    """A format chosen by the name of the module, so that neighbours differ."""
    if path.endswith("shared_expert_gate"):
        return False
    if path.endswith("mlp.gate"):
        return {"group_size": 64, "bits": 8}
    first = zlib.crc32(path.encode())
    for offset in range(len(_MIXED_FORMATS)):
        bits, group_size = _MIXED_FORMATS[(first + offset) % len(_MIXED_FORMATS)]
        if module.weight.shape[-1] % group_size == 0:
            return {"group_size": group_size, "bits": bits}
    return False


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of single bytes: mlx-lm converts nothing without one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

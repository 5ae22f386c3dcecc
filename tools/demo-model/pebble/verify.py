"""Compares three implementations on a checkpoint: this network, transformers and mlx-lm."""
import shutil
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm import load as load_mlx
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from .network import Network, Stream

# All three compute in f32; measured 2e-5.
TOLERANCE = 1e-3
NEW_TOKENS = 24
PROMPTS = [
    [{"role": "user", "content": "Write a story about a robot who loves music."}],
    [
        {"role": "user", "content": "My name is Alice."},
        {"role": "assistant", "content": "Nice to meet you, Alice!"},
        {"role": "user", "content": "What is my name?"},
    ],
]


def verify(checkpoint: Path) -> None:
    """Prints the agreement on two prompts; ends the program where it is not close."""
    mx.set_default_device(mx.cpu)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    transformers_model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    transformers_model.eval()
    mlx_model, mlx_tokenizer = _load_mlx_from_f32(checkpoint)
    network = _load_network(transformers_model)
    for messages in PROMPTS:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        ids = tokenizer(text)["input_ids"]
        assert ids == mlx_tokenizer.encode(text), "transformers and mlx-lm tokenize differently"
        with torch.no_grad():
            logits = transformers_model(torch.tensor([ids])).logits[0].float()
        mlx_logits = np.array(mlx_model(mx.array([ids]))[0].astype(mx.float32))
        mlx_error = float(np.abs(logits.numpy() - mlx_logits).max())
        loss_error = _loss_difference(network, ids, logits)
        expected = _generate_with_transformers(transformers_model, ids)
        # transformers ends at an end token, which mlx-lm's bare model does not know.
        is_same = _generate_with_mlx(mlx_model, ids, len(expected)) == expected
        print(
            f"{len(ids)} tokens: logits of mlx-lm differ by {mlx_error:.1e}, token losses of "
            f"train.py by {loss_error:.1e}, from transformers; greedy text "
            f"{'equal' if is_same else 'DIFFERENT'}: {tokenizer.decode(expected)!r}"
        )
        if not is_same or max(mlx_error, loss_error) > TOLERANCE:
            raise SystemExit("the implementations disagree")


def _load_mlx_from_f32(checkpoint: Path):
    """mlx-lm adds 1 to the norm weights in their stored type, and in bf16 that rounds: it is
    given an f32 copy of the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
        weights = load_file(checkpoint / "model.safetensors")
        save_file(
            {name: weight.float() for name, weight in weights.items()},
            Path(folder) / "model.safetensors",
            metadata={"format": "pt"},
        )
        return load_mlx(folder)


def _load_network(model) -> Network:
    network = Network(torch.float32)
    weights = model.state_dict()
    for name, weight in network.parameters.weights.items():
        weight.copy_(weights[name])
    network.parameters.refresh_copies()
    return network


def _loss_difference(network: Network, ids: list[int], logits: torch.Tensor) -> float:
    targets = torch.tensor([*ids[1:], 0])
    stream = Stream(
        torch.tensor(ids), torch.tensor([0, len(ids)]), targets, torch.ones(len(ids))
    )
    with torch.no_grad():
        _, losses = network.loss(stream)
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return float((losses - expected).abs().max())


def _generate_with_transformers(model, ids: list[int]) -> list[int]:
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False)
    return out[0, len(ids) :].tolist()


def _generate_with_mlx(model, ids: list[int], tokens: int) -> list[int]:
    cache, following, out = model.make_cache(), mx.array([ids]), []
    for _ in range(tokens):
        out.append(int(mx.argmax(model(following, cache=cache)[0, -1])))
        following = mx.array([[out[-1]]])
    return out

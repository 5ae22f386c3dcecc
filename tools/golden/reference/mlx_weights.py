"""Reads an MLX checkpoint without MLX, as a check on both: the third implementation."""
import json
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from families import Family


def dequantise(
    packed: np.ndarray, scales: np.ndarray, biases: np.ndarray, bits: int, group_size: int
) -> np.ndarray:
    """Affine dequantisation, w = q · scale + bias per group along the last axis.

    A row of `packed` is one little-endian stream of `bits`-wide integers, lowest bit first.
    """
    rows = packed.reshape(-1, packed.shape[-1])
    stream = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
    count = stream.shape[1] // bits
    digits = stream[:, : count * bits].reshape(len(rows), count, bits)
    q = (digits * (1 << np.arange(bits))).sum(-1).astype(np.float32)
    scale = scales.reshape(len(rows), -1, 1).astype(np.float32)
    bias = biases.reshape(len(rows), -1, 1).astype(np.float32)
    weights = q.reshape(len(rows), -1, group_size) * scale + bias
    return weights.reshape(*packed.shape[:-1], count)


def read_checkpoint(family: Family, folder: Path) -> dict[str, torch.Tensor]:
    """All weights in f32 under the names of transformers' text model."""
    plain = _read_plain(folder)
    weights = {}
    for name, tensor in plain.items():
        if "switch_mlp.up_proj" in name:
            continue
        if "switch_mlp.gate_proj" in name:
            up = plain[name.replace("gate_proj", "up_proj")]
            name = name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj")
            tensor = torch.cat([tensor, up], 1)
        name = name.replace("switch_mlp.down_proj.weight", "experts.down_proj")
        if name.endswith("conv1d.weight"):
            tensor = tensor.transpose(1, 2)
        if family.has_zero_centred_norms and _is_zero_centred(name):
            tensor = tensor - 1.0
        weights[name] = tensor
    return weights


def count_formats(folder: Path) -> dict[str, int]:
    """How many modules have which format: {"4b/g32/affine": 45}."""
    config = json.loads((folder / "config.json").read_text())["quantization"]
    counts: dict[str, int] = {}
    with safe_open(folder / "model.safetensors", "numpy") as file:
        modules = [name.removesuffix(".scales") for name in file.keys() if name.endswith(".scales")]
    for module in modules:
        found = _module_format(config, module)
        key = f"{found['bits']}b/g{found['group_size']}/{found.get('mode', 'affine')}"
        counts[key] = counts.get(key, 0) + 1
    return counts


def _module_format(config: dict, module: str) -> dict:
    """The entry of a module in config.quantization, or the default."""
    return config.get(module, config)


def _read_plain(folder: Path) -> dict[str, torch.Tensor]:
    config = json.loads((folder / "config.json").read_text())["quantization"]
    raw = load_file(folder / "model.safetensors")
    plain = {}
    for name, tensor in raw.items():
        module, _, leaf = name.rpartition(".")
        is_quantised = f"{module}.scales" in raw
        if is_quantised and leaf in ("scales", "biases"):
            continue
        if is_quantised:
            module_format = _module_format(config, module)
            tensor = torch.from_numpy(dequantise(
                tensor.numpy().view(np.uint32),
                raw[f"{module}.scales"].float().numpy(),
                raw[f"{module}.biases"].float().numpy(),
                module_format["bits"],
                module_format["group_size"],
            ))
        plain[name.removeprefix("language_model.")] = tensor.float()
    return plain


def _is_zero_centred(name: str) -> bool:
    suffixes = ("layernorm.weight", "q_norm.weight", "k_norm.weight")
    return name.endswith(suffixes) or name == "model.norm.weight"

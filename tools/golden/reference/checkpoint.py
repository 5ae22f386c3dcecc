"""Random weights that make every branch of a model matter, and their layout on the hub."""
import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from families import Family

# So that decoys do not depend on how many weights the model has.
_DECOY_SEED_OFFSET = 999


def random_weights(
    family: Family, model: torch.nn.Module, seed: int
) -> dict[str, torch.Tensor]:
    """Fills the model; every value is representable in the type it has on the hub."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = _draw(family, name, tuple(parameter.shape), generator)
            if not name.endswith(family.f32_suffixes):
                weight = weight.bfloat16().float()
            weights[name] = weight
            parameter.copy_(weight)
    return weights


def _draw(
    family: Family, name: str, shape: tuple[int, ...], generator: torch.Generator
) -> torch.Tensor:
    if name.endswith("A_log"):
        return torch.log(torch.rand(shape, generator=generator) * (4.0 - 0.05) + 0.05)
    deviation, mean = _distribution(family, name, shape)
    return torch.randn(shape, generator=generator) * deviation + mean


def _distribution(family: Family, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Deviation and mean. Larger than in real models: errors of an engine must show."""
    root = math.sqrt(shape[-1])
    if name.endswith("dt_bias"):
        return 1.0, -1.5
    if name.endswith("linear_attn.norm.weight"):
        return 0.3, 1.0
    if name.endswith("norm.weight"):
        return 0.3, 0.0 if family.has_zero_centred_norms else 1.0
    if "conv1d" in name:
        return 0.5, 0.0
    if name.endswith("embed_tokens.weight"):
        return 1.0, 0.0
    if name.endswith("lm_head.weight"):
        return 3.0 / root, 0.0
    if name.endswith("mlp.gate.weight"):
        return 2.0 / root, 0.0
    if any(part in name for part in ("q_proj", "k_proj", "in_proj")):
        return 1.5 / root, 0.0
    if "out_proj" in name:
        return 0.6 / root, 0.0
    if "o_proj" in name:
        return 0.9 / root, 0.0
    if "experts." in name:
        return 1.0 / root, 0.0
    return 1.2 / root, 0.0


def hub_tensors(
    family: Family, weights: dict[str, torch.Tensor], seed: int
) -> dict[str, torch.Tensor]:
    """The weights under the names, shapes and types of the hub, with the decoys."""
    tensors = {}
    for name, weight in weights.items():
        is_f32 = name.endswith(family.f32_suffixes)
        tensor = weight.contiguous() if is_f32 else weight.bfloat16().contiguous()
        if ".experts." in name and not family.has_fused_experts:
            tensors |= _split_experts(name, tensor)
        else:
            tensors[family.hub_name(name)] = tensor
    generator = torch.Generator().manual_seed(seed + _DECOY_SEED_OFFSET)
    for name, shape in family.decoys.items():
        tensors[name] = torch.randn(shape, generator=generator).bfloat16()
    return tensors


def _split_experts(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    base, matrix = name.rsplit(".", 1)
    if matrix == "down_proj":
        parts = {"down_proj": tensor}
    else:
        gate, up = tensor.chunk(2, dim=1)
        parts = {"gate_proj": gate, "up_proj": up}
    return {
        f"{base}.{expert}.{part}.weight": matrices[expert].clone()
        for part, matrices in parts.items()
        for expert in range(tensor.shape[0])
    }


def write_checkpoint(
    family: Family, weights: dict[str, torch.Tensor], seed: int, folder: Path
) -> None:
    """Writes weights and configuration as they are on the hub, without a tokenizer."""
    folder.mkdir(parents=True)
    save_file(
        hub_tensors(family, weights, seed),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(family.config, indent=1))
    generation = {
        "eos_token_id": family.text_config["eos_token_id"],
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation))

"""Writes the goldens of one family: tiny random checkpoints and what to expect of them.

OUT/hf                          the checkpoint in the layout of the hub, bf16
OUT/mlx-4bit, OUT/mlx-mixed     the same, quantised by mlx-lm
OUT/golden.safetensors          outputs for hf and mlx-4bit
OUT/golden-mixed.safetensors    outputs for mlx-mixed
OUT/golden.json                 margins, noise levels, agreement between the references

The same family and seed give the same files with the same library versions.
"""
import argparse
import importlib.metadata
import json
import shutil
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import save_file

from families import FAMILIES, Family
from families.family import VOCAB_SIZE
from reference import mlx_model, mlx_weights
from reference import model as hf_model
from reference.checkpoint import random_weights, write_checkpoint
from reference.prompts import greedy_margin, pick_tokens

PROMPT_TOKENS, STEPS = 24, 8
# Longer than two chunks of 64 of the delta net.
LONG_TOKENS, LONG_CANDIDATES = 150, 12
LONG_POSITIONS = [62, 63, 64, 127, 128, 149]
# Logits of the quantised models are kept for the end of the prompt and what follows.
QUANTISED_FROM = PROMPT_TOKENS - 4
# A seed is good enough with these margins; the best of SEEDS_MAX is taken otherwise.
ROUTER_GAP_WANTED, GREEDY_MARGIN_WANTED = 0.1, 0.4
SEEDS_MAX = 5
AGREEMENT = 1e-3


@dataclass
class Trial:
    """A model with random weights, its prompts, and its outputs in f32."""

    family: Family
    seed: int
    model: torch.nn.Module
    weights: dict[str, torch.Tensor]
    tokens: list[int]
    logits: torch.Tensor
    logits_at_once: torch.Tensor
    long_tokens: list[int]
    router_gap: float
    greedy_margin: float

    @property
    def prompt(self) -> list[int]:
        """The tokens before the greedy ones."""
        return self.tokens[:PROMPT_TOKENS]

    @property
    def score(self) -> float:
        """At least 1 where both margins are wide enough."""
        return min(self.router_gap / ROUTER_GAP_WANTED, self.greedy_margin / GREEDY_MARGIN_WANTED)


@dataclass
class Goldens:
    """What is written: tensors by name, and the report."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    mixed_tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    report: dict = field(default_factory=dict)


def largest_difference(a, b) -> float:
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


def try_seed(family: Family, seed: int) -> Trial:
    model = hf_model.build(family)
    weights = random_weights(family, model, seed)
    rng = np.random.default_rng(seed + 1)
    prompt = pick_tokens(model, rng, PROMPT_TOKENS, STEPS)
    long_tokens = pick_tokens(model, rng, LONG_TOKENS, candidates=LONG_CANDIDATES)
    tokens, logits, _ = hf_model.generate(model, prompt, STEPS)
    with hf_model.Tap(model) as tap:
        logits_at_once = hf_model.logits_at_once(model, tokens)
        router_gap = float(tap.router_gap().min())
    margin = greedy_margin(logits[PROMPT_TOKENS - 1 : -1])
    return Trial(
        family, seed, model, weights, tokens, logits, logits_at_once, long_tokens, router_gap,
        margin,
    )


def best_trial(family: Family, seed: int | None) -> Trial:
    """The trial of the given seed, or the first good one of the family's own seeds."""
    if seed is not None:
        return try_seed(family, seed)
    first, best = 1000 + zlib.crc32(family.name.encode()) % 1000, None
    for candidate in range(first, first + SEEDS_MAX):
        trial = try_seed(family, candidate)
        if best is None or trial.score > best.score:
            best = trial
        if trial.score >= 1:
            break
    return best


def describe(trial: Trial) -> dict:
    """The first entries of the report."""
    return {
        "arch": trial.family.name,
        "seed": trial.seed,
        "prompt_len": PROMPT_TOKENS,
        "steps": STEPS,
        "vocab": VOCAB_SIZE,
        "params": sum(weight.numel() for weight in trial.model.parameters()),
        "min_router_gap": trial.router_gap,
        "min_greedy_margin": trial.greedy_margin,
        "logit_std": float(trial.logits.std()),
        "hf_cached_vs_full": largest_difference(trial.logits, trial.logits_at_once),
    }


def check_reload(trial: Trial, checkpoint: Path) -> dict:
    """Loads the written checkpoint with transformers and compares."""
    model, outcome = hf_model.load(trial.family, checkpoint)
    _, logits, _ = hf_model.generate(model, trial.prompt, STEPS)
    loaded = dict(model.named_parameters())
    return {
        "hf_reload_vs_built": largest_difference(logits, trial.logits),
        "hf_reload_missing": sorted(outcome["missing_keys"]),
        "hf_reload_unexpected": sorted(outcome["unexpected_keys"]),
        "hf_reload_param_diff": max(
            float((loaded[name].detach() - weight).abs().max())
            for name, weight in trial.weights.items()
        ),
    }


def add_intermediates(trial: Trial, tensors: dict[str, torch.Tensor]) -> None:
    """What flows through the model over the prompt, and the memory of the first delta net."""
    with hf_model.Tap(trial.model) as tap:
        _, _, cache = hf_model.generate(trial.model, trial.prompt, 0)
    types = hf_model.mixer_types(trial.model)
    # Outputs of mixers and ffns only for the first layer of each kind, to stay small.
    detailed = {types.index(kind) for kind in types}
    for name, tensor in tap.out.items():
        is_detail = name.endswith(("mixer_out", "mlp_out"))
        if name.endswith("router_logits") or (
            is_detail and int(name.split(".")[1]) not in detailed
        ):
            continue
        tensors[f"hf_f32.{name}"] = tensor
    if "linear_attention" in types:
        layer = types.index("linear_attention")
        conv, recurrent = cache.get_conv_state(layer), cache.get_recurrent_state(layer)
        tensors[f"hf_f32.layers.{layer}.conv_state"] = conv[0].float().clone()
        tensors[f"hf_f32.layers.{layer}.recurrent_state"] = recurrent[0].float().clone()


def add_long_prompt(trial: Trial, goldens: Goldens) -> torch.Tensor:
    """A prompt that crosses the chunks of the delta net; returns all its logits."""
    with hf_model.Tap(trial.model) as tap:
        logits = hf_model.logits_at_once(trial.model, trial.long_tokens)
        goldens.report["long_min_router_gap"] = float(tap.router_gap().min())
    goldens.tensors |= {
        "long.tokens": torch.tensor(trial.long_tokens, dtype=torch.int32),
        "long.pos": torch.tensor(LONG_POSITIONS, dtype=torch.int32),
        "hf_f32.long.logits_at_pos": logits[LONG_POSITIONS].clone(),
        "hf_f32.long.argmax": logits.argmax(-1).to(torch.int32),
    }
    return logits


def noise_of_bf16(trial: Trial) -> dict:
    """How far the same model in bf16 is off: why a bf16 run is no golden."""
    model = hf_model.build_bf16(trial.family, trial.model)
    logits, exact = hf_model.logits_at_once(model, trial.tokens), trial.logits_at_once
    return {
        "hf_bf16_vs_f32": largest_difference(logits, exact),
        "hf_bf16_vs_f32_median_pos": float((logits - exact).abs().max(-1)[0].median()),
        "hf_bf16_argmax_agree": int((logits.argmax(-1) == exact.argmax(-1)).sum()),
    }


def compare_with_mlx(
    trial: Trial, source: Path, f32_source: Path, long_logits: torch.Tensor
) -> dict:
    """mlx-lm on the unquantised checkpoint, along the tokens of the golden."""
    model = mlx_model.load_f32(f32_source)
    expected = trial.logits.numpy()
    _, logits = mlx_model.generate(model, trial.prompt, STEPS, forced=trial.tokens)
    own_tokens, _ = mlx_model.generate(model, trial.prompt, STEPS)
    agreeing = int((logits.argmax(-1) == expected.argmax(-1)).sum())
    long = mlx_model.logits_at_once(model, trial.long_tokens)
    rounded = mlx_model.load_f32(source)
    _, rounded_logits = mlx_model.generate(rounded, trial.prompt, STEPS, forced=trial.tokens)
    return {
        "mlx_f32_vs_hf_f32": largest_difference(logits, expected),
        "mlx_f32_greedy_match": own_tokens == trial.tokens,
        "mlx_f32_argmax_agree": f"{agreeing}/{len(trial.tokens)}",
        "mlx_f32_vs_hf_f32_long": largest_difference(long, long_logits),
        "mlx_f32compute_from_bf16_file_vs_hf_f32": largest_difference(rounded_logits, expected),
    }


def quantised_goldens(
    trial: Trial, checkpoint: Path
) -> tuple[dict[str, torch.Tensor], dict]:
    """mlx-lm's outputs for a quantised checkpoint, and their agreement with a third reference:
    the weights dequantised by numpy, run by transformers, which also picks the prompt."""
    name = checkpoint.name.replace("-", "_")
    independent = hf_model.build(trial.family)
    independent.load_state_dict(mlx_weights.read_checkpoint(trial.family, checkpoint))
    rng = np.random.default_rng(trial.seed + len(checkpoint.name))
    prompt = pick_tokens(independent, rng, PROMPT_TOKENS, STEPS)
    model = mlx_model.load_f32(checkpoint)
    tokens, logits = mlx_model.generate(model, prompt, STEPS)
    with hf_model.Tap(independent) as tap:
        independent_logits = hf_model.logits_at_once(independent, tokens)
        router_gap = float(tap.router_gap().min())
    as_stored = mlx_model.load_as_stored(checkpoint)
    _, stored_logits = mlx_model.generate(as_stored, prompt, STEPS, forced=tokens)
    _, plain_logits = mlx_model.generate(model, trial.prompt, STEPS, forced=trial.tokens)
    tensors = {
        f"{name}_f32.tokens": torch.tensor(tokens, dtype=torch.int32),
        f"{name}_f32.logits_from_pos": torch.tensor([QUANTISED_FROM], dtype=torch.int32),
        f"{name}_f32.logits": torch.from_numpy(logits[QUANTISED_FROM:].copy()),
        f"{name}_f32.argmax": torch.from_numpy(logits.argmax(-1).astype(np.int32)),
    }
    margin = greedy_margin(torch.from_numpy(logits[PROMPT_TOKENS - 1 : -1]))
    report = {
        f"{name}_f32_min_router_gap": router_gap,
        f"{name}_f32_min_greedy_margin": margin,
        f"{name}_f32_vs_hf_on_numpy_dequant": largest_difference(independent_logits, logits),
        f"{name}_bf16_vs_f32": largest_difference(stored_logits, logits),
        f"{name}_f32_vs_hf_f32_unquantised": largest_difference(plain_logits, trial.logits),
        f"{name}_modules": mlx_weights.count_formats(checkpoint),
    }
    return tensors, report


def make_goldens(family: Family, seed: int | None, out: Path) -> Goldens:
    """Writes the checkpoints below `out` and computes what to expect of them."""
    trial = best_trial(family, seed)
    goldens = Goldens(report=describe(trial))
    write_checkpoint(family, trial.weights, trial.seed, out / "hf")
    goldens.report |= check_reload(trial, out / "hf")
    goldens.tensors["tokens"] = torch.tensor(trial.tokens, dtype=torch.int32)
    goldens.tensors["hf_f32.logits"] = trial.logits
    add_intermediates(trial, goldens.tensors)
    long_logits = add_long_prompt(trial, goldens)
    goldens.report |= noise_of_bf16(trial)
    with tempfile.TemporaryDirectory() as folder:
        source, f32_source = Path(folder) / "source", Path(folder) / "f32"
        shutil.copytree(out / "hf", source)
        mlx_model.write_tokenizer(source)
        mlx_model.copy_in_f32(source, f32_source)
        goldens.report |= compare_with_mlx(trial, source, f32_source, long_logits)
        for name, is_mixed in (("mlx-4bit", False), ("mlx-mixed", True)):
            mlx_model.quantise(source, out / name, is_mixed)
            tensors, report = quantised_goldens(trial, out / name)
            (goldens.mixed_tensors if is_mixed else goldens.tensors).update(tensors)
            goldens.report |= report
    return goldens


def check_agreement(report: dict) -> None:
    """Goldens on which the references disagree are worth nothing."""
    for key in (
        "hf_cached_vs_full", "hf_reload_vs_built", "mlx_f32_vs_hf_f32", "mlx_f32_vs_hf_f32_long",
        "mlx_4bit_f32_vs_hf_on_numpy_dequant", "mlx_mixed_f32_vs_hf_on_numpy_dequant",
    ):
        if report[key] > AGREEMENT:
            raise SystemExit(f"the references disagree: {key} is {report[key]:.1e}")
    for key in ("hf_reload_missing", "hf_reload_unexpected"):
        if report[key]:
            raise SystemExit(f"names on disk are not those of transformers: {report[key]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", choices=sorted(FAMILIES))
    parser.add_argument("out", type=Path, help="folder to write, must not exist")
    parser.add_argument("--seed", type=int, help="instead of a search for wide margins")
    options = parser.parse_args()
    # One thread adds in one order, on every machine.
    torch.set_num_threads(1)
    mx.set_default_device(mx.cpu)
    options.out.mkdir(parents=True)
    goldens = make_goldens(FAMILIES[options.family], options.seed, options.out)
    check_agreement(goldens.report)
    for tensors, name in (
        (goldens.tensors, "golden.safetensors"),
        (goldens.mixed_tensors, "golden-mixed.safetensors"),
    ):
        save_file({key: t.contiguous() for key, t in tensors.items()}, options.out / name)
    shapes = {key: list(t.shape) for key, t in (goldens.tensors | goldens.mixed_tensors).items()}
    goldens.report["tensors"] = shapes
    goldens.report["versions"] = {"torch": torch.__version__} | {
        package.replace("-", "_"): importlib.metadata.version(package)
        for package in ("transformers", "mlx", "mlx-lm")
    }
    (options.out / "golden.json").write_text(json.dumps(goldens.report, indent=1))
    summary = {k: v for k, v in goldens.report.items() if k not in ("tensors", "versions")}
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()

"""Writes the checkpoint of a training state, checks a checkpoint, or quantises one.

The layout is that of the published Qwen3.5-MoE checkpoints without the vision tower: config.json
with "text_config", weights under "model.language_model.", fused expert tensors, zero-centred
norms, bf16 except A_log and the norm of the delta net, which are f32.
"""
import argparse
import json
import shutil
from pathlib import Path

import torch

from rendering import END_OF_TEXT, TEMPLATE_PATH

END_OF_MESSAGE = "<|im_end|>"
CONTEXT_TOKENS = 4096
_KEPT_F32 = ("A_log", "linear_attn.norm.weight")


def export(state_path: Path, tokenizer_path: Path, out: Path) -> None:
    """Writes weights, configuration, tokenizer and chat template to the folder `out`."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer

    out.mkdir(parents=True, exist_ok=True)
    state = torch.load(state_path)
    tensors = {}
    for name, weight in state["weights"].items():
        dtype = torch.float32 if name.endswith(_KEPT_F32) else torch.bfloat16
        hub_name = name.replace("model.", "model.language_model.", 1)
        tensors[hub_name] = weight.to(dtype).contiguous().clone()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})

    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    end_of_message = tokenizer.token_to_id(END_OF_MESSAGE)
    write_json(out / "config.json", model_config(state["config"], end_of_text))
    write_json(out / "generation_config.json", {
        "eos_token_id": [end_of_message, end_of_text],
        "pad_token_id": end_of_text,
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.95,
    })
    shutil.copy(tokenizer_path, out / "tokenizer.json")
    shutil.copy(TEMPLATE_PATH, out / "chat_template.jinja")
    write_json(out / "tokenizer_config.json", tokenizer_config(tokenizer_path))
    progress = state["progress"]
    print(
        f"{out}: {sum(t.numel() for t in tensors.values()) / 1e6:.2f} M parameters, "
        f"{weight_bytes(out) / 1e6:.2f} MB; step {progress['step']}, "
        f"{progress['tokens'] / 1e6:.2f} M tokens"
    )


def model_config(sizes: dict, end_of_text: int) -> dict:
    """config.json for a network of these sizes."""
    interval = sizes["full_attention_interval"]
    layer_types = [
        "linear_attention" if (layer + 1) % interval else "full_attention"
        for layer in range(sizes["num_hidden_layers"])
    ]
    rope = {name: sizes[name] for name in ("rope_theta", "partial_rotary_factor")}
    text_config = {name: value for name, value in sizes.items() if name not in rope} | {
        "model_type": "qwen3_5_moe_text",
        "layer_types": layer_types,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": CONTEXT_TOKENS,
        "router_aux_loss_coef": 0.001,
        "output_router_logits": False,
        "use_cache": True,
        "dtype": "bfloat16",
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 0,
        "bos_token_id": None,
        "pad_token_id": None,
        "eos_token_id": end_of_text,
        "rope_parameters": {
            "rope_type": "default", **rope, "mrope_interleaved": True, "mrope_section": [3, 3, 2],
        },
    }
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": text_config,
        "tie_word_embeddings": sizes["tie_word_embeddings"],
        "dtype": "bfloat16",
        "transformers_version": "5.0.0",
    }


def tokenizer_config(tokenizer_path: Path) -> dict:
    """tokenizer_config.json, which repeats the added tokens of tokenizer.json."""
    keys = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    added = {
        str(token["id"]): {key: token[key] for key in keys}
        for token in json.loads(tokenizer_path.read_text())["added_tokens"]
    }
    return {
        "added_tokens_decoder": added,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": END_OF_MESSAGE,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": CONTEXT_TOKENS,
        "errors": "replace",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE_PATH.read_text(),
    }


def quantise(source: Path, destination: Path, bits: int) -> None:
    """Converts a checkpoint to MLX with affine groups of 64; replaces the destination."""
    import mlx.core as mx
    from mlx_lm.convert import convert

    mx.set_default_device(mx.cpu)
    if destination.exists():
        shutil.rmtree(destination)
    convert(str(source), str(destination), quantize=True, q_group_size=64, q_bits=bits)
    print(f"{destination}: {weight_bytes(destination) / 1e6:.2f} MB")


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False))


def weight_bytes(checkpoint: Path) -> int:
    """The size of all weight files of a checkpoint."""
    return sum(file.stat().st_size for file in checkpoint.glob("*.safetensors"))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    task = parser.add_mutually_exclusive_group()
    task.add_argument(
        "--verify", type=Path, metavar="CHECKPOINT",
        help="compare the logits of train.py, transformers and mlx-lm",
    )
    task.add_argument(
        "--mlx", type=Path, nargs=2, metavar=("SOURCE", "DESTINATION"),
        help="quantise a checkpoint with mlx-lm",
    )
    parser.add_argument("--bits", type=int, default=4, help="bits of --mlx (%(default)s)")
    add = parser.add_argument
    add("--state", type=Path, default=Path("work/run/last.pt"), help="training state (%(default)s)")
    add("--tokenizer", type=Path, default=Path("work/data/tokenizer.json"), help="(%(default)s)")
    add("--out", type=Path, default=Path("work/checkpoint"), help="its checkpoint (%(default)s)")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    if options.verify:
        from pebble.verify import verify

        verify(options.verify)
    elif options.mlx:
        quantise(*options.mlx, options.bits)
    else:
        export(options.state, options.tokenizer, options.out)


if __name__ == "__main__":
    main()

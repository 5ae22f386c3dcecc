"""The weights under the names of transformers' Qwen3_5MoeForCausalLM, and their gradients."""
import math
from typing import NamedTuple

import torch

from .config import CONFIG

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"


class Joint(NamedTuple):
    """Matrices with the same input, stacked so that one product serves them all."""

    weight: torch.Tensor
    names: list[str]


class LayerCopies(NamedTuple):
    """The weights of a layer as the forward pass reads them, in the type of activations."""

    mixer_in: Joint
    mixer_out: Joint
    # [taps, channels] in f32; None in full attention.
    conv: torch.Tensor | None
    # Router, gate of the shared expert, gate and up projection of the shared expert.
    router: Joint
    shared_down: Joint
    gate_up: torch.Tensor
    down: torch.Tensor


def layer_prefix(layer: int) -> str:
    """What the names of a layer's weights begin with."""
    return f"model.layers.{layer}."


def mixer_prefix(layer: int) -> str:
    """What the names of its mixer's weights begin with."""
    mixer = "self_attn" if CONFIG.is_full_attention(layer) else "linear_attn"
    return f"{layer_prefix(layer)}{mixer}."


def parameter_shapes() -> dict[str, tuple[int, ...]]:
    """Every weight with its shape. The order is that of the random numbers of `Parameters`."""
    hidden = CONFIG.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (CONFIG.vocab_size, hidden)}
    for layer in range(CONFIG.num_hidden_layers):
        prefix, mixer = layer_prefix(layer), mixer_prefix(layer)
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        is_full = CONFIG.is_full_attention(layer)
        mixer_shapes = _attention_shapes() if is_full else _delta_net_shapes()
        shapes |= {mixer + name: shape for name, shape in mixer_shapes.items()}
        shapes |= {prefix + "mlp." + name: shape for name, shape in _ffn_shapes().items()}
    shapes[FINAL_NORM] = (hidden,)
    return shapes


def _attention_shapes() -> dict[str, tuple[int, ...]]:
    hidden, key_value_size = CONFIG.hidden_size, CONFIG.num_key_value_heads * CONFIG.head_dim
    return {
        "q_proj.weight": (2 * CONFIG.attention_size, hidden),
        "k_proj.weight": (key_value_size, hidden),
        "v_proj.weight": (key_value_size, hidden),
        "o_proj.weight": (hidden, CONFIG.attention_size),
        "q_norm.weight": (CONFIG.head_dim,),
        "k_norm.weight": (CONFIG.head_dim,),
    }


def _delta_net_shapes() -> dict[str, tuple[int, ...]]:
    hidden, heads = CONFIG.hidden_size, CONFIG.linear_num_value_heads
    return {
        "in_proj_qkv.weight": (CONFIG.linear_conv_size, hidden),
        "in_proj_z.weight": (CONFIG.linear_value_size, hidden),
        "in_proj_b.weight": (heads, hidden),
        "in_proj_a.weight": (heads, hidden),
        "conv1d.weight": (CONFIG.linear_conv_size, 1, CONFIG.linear_conv_kernel_dim),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (CONFIG.linear_value_head_dim,),
        "out_proj.weight": (hidden, CONFIG.linear_value_size),
    }


def _ffn_shapes() -> dict[str, tuple[int, ...]]:
    hidden, experts = CONFIG.hidden_size, CONFIG.num_experts
    size, shared_size = CONFIG.moe_intermediate_size, CONFIG.shared_expert_intermediate_size
    return {
        "gate.weight": (experts, hidden),
        "shared_expert_gate.weight": (1, hidden),
        "shared_expert.gate_proj.weight": (shared_size, hidden),
        "shared_expert.up_proj.weight": (shared_size, hidden),
        "shared_expert.down_proj.weight": (hidden, shared_size),
        "experts.gate_up_proj": (experts, 2 * size, hidden),
        "experts.down_proj": (experts, hidden, size),
    }


def flat_views(flat: torch.Tensor) -> dict[str, torch.Tensor]:
    """The part of a flat buffer that belongs to each weight, in its shape."""
    views, offset = {}, 0
    for name, shape in parameter_shapes().items():
        size = math.prod(shape)
        views[name] = flat[offset : offset + size].view(shape)
        offset += size
    return views


class Parameters:
    """Weights and gradients in f32 as views of two flat buffers, and the copies of the layers."""

    def __init__(self, activation_type: torch.dtype, seed: int = 0):
        self._activation_type = activation_type
        self.count = sum(math.prod(shape) for shape in parameter_shapes().values())
        self.flat_gradients = torch.zeros(self.count)
        self.weights = flat_views(torch.zeros(self.count))
        self.gradients = flat_views(self.flat_gradients)
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.weights.items():
            _initialise(name, weight, generator)
        self.refresh_copies()

    def refresh_copies(self) -> None:
        """Makes the copies that the forward pass reads; due after every change of a weight."""
        self.embedding = self.weights[EMBEDDING].to(self._activation_type)
        self.layers = [self._copy_layer(layer) for layer in range(CONFIG.num_hidden_layers)]

    def add_gradient(self, names: list[str], gradient: torch.Tensor) -> None:
        """Adds the gradient of a joint matrix to those of its parts."""
        row = 0
        for name in names:
            rows = self.gradients[name].shape[0]
            self.gradients[name].add_(gradient[row : row + rows])
            row += rows

    def _copy_layer(self, layer: int) -> LayerCopies:
        mixer, ffn = mixer_prefix(layer), layer_prefix(layer) + "mlp."
        conv = None
        if CONFIG.is_full_attention(layer):
            inputs, output = ("q_proj", "k_proj", "v_proj"), "o_proj"
        else:
            inputs = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
            output = "out_proj"
            conv = self.weights[mixer + "conv1d.weight"].squeeze(1).t().contiguous()
        shared = ("gate", "shared_expert_gate", "shared_expert.gate_proj", "shared_expert.up_proj")
        return LayerCopies(
            mixer_in=self._join(mixer, *inputs),
            mixer_out=self._join(mixer, output),
            conv=conv,
            router=self._join(ffn, *shared),
            shared_down=self._join(ffn, "shared_expert.down_proj"),
            gate_up=self.weights[ffn + "experts.gate_up_proj"].to(self._activation_type),
            down=self.weights[ffn + "experts.down_proj"].to(self._activation_type),
        )

    def _join(self, prefix: str, *parts: str) -> Joint:
        names = [f"{prefix}{part}.weight" for part in parts]
        weight = torch.cat([self.weights[name] for name in names])
        return Joint(weight.to(self._activation_type), names)


def _initialise(name: str, weight: torch.Tensor, generator: torch.Generator) -> None:
    if name.endswith("A_log"):
        rate = torch.empty(weight.shape).uniform_(0.05, 4, generator=generator)
        weight.copy_(rate.log())
    elif name.endswith("dt_bias"):
        # Steps between 0.001 and 0.1, evenly on a logarithmic scale, through inverse softplus.
        bounds = math.log(1e-3), math.log(0.1)
        step = torch.exp(torch.empty(weight.shape).uniform_(*bounds, generator=generator))
        weight.copy_(step + torch.log(-torch.expm1(-step)))
    elif name.endswith("linear_attn.norm.weight"):
        weight.fill_(1.0)
    elif "norm" in name:
        # All other norms multiply by 1 + weight.
        weight.zero_()
    elif name.endswith("conv1d.weight"):
        weight.uniform_(-0.5, 0.5, generator=generator)
    elif name.endswith(("embed_tokens.weight", "mlp.gate.weight", "shared_expert_gate.weight")):
        weight.normal_(0, 0.02, generator=generator)
    else:
        deviation = 0.8 / math.sqrt(weight.shape[-1])
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
            deviation *= 0.5
        weight.normal_(0, deviation, generator=generator)

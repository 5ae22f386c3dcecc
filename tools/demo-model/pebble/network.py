"""The network on one stream of tokens: the loss, and by autograd its gradient."""
from typing import NamedTuple

import torch

from .config import CONFIG
from .experts import MixtureOfExperts
from .kernels import Kernels
from .layers import AddNorm, Attention, DeltaNet, Embed, Head, Linear
from .parameters import FINAL_NORM, Parameters, layer_prefix


class Stream(NamedTuple):
    """Whole conversations, one after the other."""

    ids: torch.Tensor
    # Where each conversation begins, and the end of the last.
    starts: torch.Tensor
    # The token to predict at every position, and how much its loss counts.
    targets: torch.Tensor
    weights: torch.Tensor


class Network:
    """Parameters with the kernels that compute with them."""

    def __init__(self, activation_type: torch.dtype = torch.bfloat16):
        self.kernels = Kernels(activation_type)
        self.parameters = Parameters(activation_type)

    def loss(
        self, stream: Stream, balance: float = 0.0, loads: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The weighted sum of token losses, and the losses one by one.

        `balance` weights the balance loss, which enters the gradient only; `loads`
        [layers, experts] counts the tokens of every expert. Under `torch.no_grad` nothing is
        kept for a backward pass.
        """
        kernels, parameters = self.kernels, self.parameters
        root = torch.zeros((), requires_grad=True)
        x, branch = Embed.apply(stream.ids, parameters, root), None
        for layer in range(CONFIG.num_hidden_layers):
            copies, prefix = parameters.layers[layer], layer_prefix(layer)
            mixer = Attention if CONFIG.is_full_attention(layer) else DeltaNet
            x, y = AddNorm.apply(
                x, branch, kernels, parameters, prefix + "input_layernorm.weight"
            )
            rows = Linear.apply(y, parameters, copies.mixer_in)
            mixed = mixer.apply(rows, stream.starts, kernels, parameters, layer)
            branch = Linear.apply(mixed, parameters, copies.mixer_out)
            x, y = AddNorm.apply(
                x, branch, kernels, parameters, prefix + "post_attention_layernorm.weight"
            )
            branch = MixtureOfExperts.apply(y, kernels, parameters, layer, balance, loads)
        _, y = AddNorm.apply(x, branch, kernels, parameters, FINAL_NORM)
        losses = torch.empty(len(stream.ids))
        loss = Head.apply(y, kernels, parameters, stream.targets, stream.weights, losses)
        return loss, losses

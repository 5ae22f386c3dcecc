"""The parts of a layer as autograd functions around the kernels and the matrix products.

Gradients of activations go through autograd. Gradients of weights do not: `backward` adds them
to `Parameters.gradients` right away. All activations are [tokens, size].
"""
import torch
from torch.autograd import Function

from .config import CONFIG
from .kernels import Kernels
from .parameters import EMBEDDING, Joint, Parameters, mixer_prefix

# Rows of logits computed at a time, to keep them in cache.
_HEAD_ROWS = 1024


class Embed(Function):
    """Rows of the embedding. `root` is a scalar that requires gradients, so that autograd runs."""

    @staticmethod
    def forward(ctx, ids, parameters: Parameters, root):
        ctx.parameters = parameters
        ctx.save_for_backward(ids)
        return parameters.weights[EMBEDDING][ids]

    @staticmethod
    def backward(ctx, d_x):
        (ids,) = ctx.saved_tensors
        ctx.parameters.gradients[EMBEDDING].index_add_(0, ids, d_x)
        return None, None, None


class Linear(Function):
    """A product with a joint matrix."""

    @staticmethod
    def forward(ctx, x, parameters: Parameters, joint: Joint):
        ctx.parameters, ctx.joint = parameters, joint
        ctx.save_for_backward(x)
        return x @ joint.weight.t()

    @staticmethod
    def backward(ctx, d_y):
        (x,) = ctx.saved_tensors
        ctx.parameters.add_gradient(ctx.joint.names, d_y.t() @ x)
        return d_y @ ctx.joint.weight, None, None


class AddNorm(Function):
    """Adds a branch, or nothing, to the residual stream: the stream and its norm."""

    @staticmethod
    def forward(ctx, x, branch, kernels: Kernels, parameters: Parameters, name: str):
        tokens = x.shape[0]
        h, scale = torch.empty_like(x), torch.empty(tokens)
        y = kernels.empty(*x.shape)
        weight = parameters.weights[name]
        kernels("add_norm_forward", tokens, x, branch, weight, h, y, scale)
        ctx.kernels, ctx.weight, ctx.d_weight = kernels, weight, parameters.gradients[name]
        ctx.has_branch = branch is not None
        ctx.save_for_backward(h, scale)
        return h, y

    @staticmethod
    def backward(ctx, d_h, d_y):
        h, scale = ctx.saved_tensors
        d_x = torch.empty_like(h)
        d_branch = ctx.kernels.empty(*h.shape) if ctx.has_branch else None
        d_h = None if d_h is None else d_h.contiguous()
        ctx.kernels(
            "add_norm_backward", h.shape[0], h, scale, ctx.weight, d_h, d_y.contiguous(),
            d_x, d_branch, ctx.d_weight,
        )
        return d_x, d_branch, None, None, None


class DeltaNet(Function):
    """A gated delta net between its projections; `starts` bounds the documents."""

    @staticmethod
    def forward(ctx, rows, starts, kernels: Kernels, parameters: Parameters, layer: int):
        out = kernels.empty(rows.shape[0], CONFIG.linear_value_size)
        weights = [parameters.layers[layer].conv]
        prefix = mixer_prefix(layer)
        names = [prefix + name for name in ("A_log", "dt_bias", "norm.weight")]
        weights += [parameters.weights[name] for name in names]
        kernels("delta_net_forward", len(starts) - 1, starts, rows, *weights, out)
        ctx.kernels, ctx.weights = kernels, weights
        ctx.gradients = [parameters.gradients[name] for name in names]
        ctx.d_conv = parameters.gradients[prefix + "conv1d.weight"]
        ctx.save_for_backward(rows, starts)
        return out

    @staticmethod
    def backward(ctx, d_out):
        rows, starts = ctx.saved_tensors
        d_rows, d_conv = torch.empty_like(rows), torch.zeros_like(ctx.weights[0])
        ctx.kernels(
            "delta_net_backward", len(starts) - 1, starts, rows, *ctx.weights,
            d_out.contiguous(), d_rows, d_conv, *ctx.gradients,
        )
        ctx.d_conv.add_(d_conv.t().unsqueeze(1))
        return d_rows, None, None, None, None


class Attention(Function):
    """Gated full attention between its projections; `starts` bounds the documents."""

    @staticmethod
    def forward(ctx, rows, starts, kernels: Kernels, parameters: Parameters, layer: int):
        out = kernels.empty(rows.shape[0], CONFIG.attention_size)
        names = [mixer_prefix(layer) + name for name in ("q_norm.weight", "k_norm.weight")]
        weights = [parameters.weights[name] for name in names] + [CONFIG.rope_theta]
        kernels("attention_forward", len(starts) - 1, starts, rows, *weights, out)
        ctx.kernels, ctx.weights = kernels, weights
        ctx.gradients = [parameters.gradients[name] for name in names]
        ctx.save_for_backward(rows, starts)
        return out

    @staticmethod
    def backward(ctx, d_out):
        rows, starts = ctx.saved_tensors
        d_rows = torch.empty_like(rows)
        ctx.kernels(
            "attention_backward", len(starts) - 1, starts, rows, *ctx.weights,
            d_out.contiguous(), d_rows, *ctx.gradients,
        )
        return d_rows, None, None, None, None


class Head(Function):
    """Logits by the tied embedding and the weighted sum of token losses.

    `losses` [tokens] is filled. The gradient is computed along with the loss, while the logits
    are at hand, unless nothing asks for it.
    """

    @staticmethod
    def forward(ctx, y, kernels: Kernels, parameters: Parameters, targets, weights, losses):
        embedding = parameters.embedding
        ctx.d_y = torch.empty_like(y) if ctx.needs_input_grad[0] else None
        for first in range(0, y.shape[0], _HEAD_ROWS):
            part = slice(first, first + _HEAD_ROWS)
            logits = y[part] @ embedding.t()
            rows = logits.shape[0]
            if ctx.d_y is None:
                kernels("cross_entropy", rows, logits, targets[part], losses[part])
                continue
            kernels(
                "cross_entropy_with_gradient",
                rows, logits, targets[part], weights[part], losses[part],
            )
            torch.mm(logits, embedding, out=ctx.d_y[part])
            parameters.gradients[EMBEDDING].add_(logits.t() @ y[part])
        return (losses * weights).sum()

    @staticmethod
    def backward(ctx, _d_loss):
        return ctx.d_y, None, None, None, None, None

"""The mixture of experts as an autograd function: routed experts and the shared expert."""
import torch
from torch.autograd import Function

from .config import CONFIG
from .kernels import SEGMENT_ROWS, Kernels, columns_from
from .parameters import Parameters, layer_prefix

# Columns of the joint router product before the shared expert's gate and up projection.
_SHARED_COLUMN = CONFIG.num_experts + 1


class MixtureOfExperts(Function):
    """`y` [tokens, hidden] through `top_k` experts per token and the shared expert.

    `balance` weights the loss that keeps the experts evenly used; `loads`, where given, counts
    the tokens of every expert.
    """

    @staticmethod
    def forward(ctx, y, kernels: Kernels, parameters: Parameters, layer: int, balance, loads):
        copies, tokens, hidden = parameters.layers[layer], *y.shape
        size, shared_size = CONFIG.moe_intermediate_size, CONFIG.shared_expert_intermediate_size
        router = y @ copies.router.weight.t()
        routes = Routes(kernels, router)
        rows = kernels.empty(routes.rows, hidden)
        slot = torch.empty_like(routes.expert)
        kernels("gather_by_expert", tokens, routes.expert, routes.count, y, slot, rows)

        gate_up = routes.multiply(rows, copies.gate_up.transpose(1, 2))
        inner = kernels.empty(routes.rows, size)
        kernels("swiglu_forward", routes.rows, size, 2 * size, gate_up, inner)
        expert_out = routes.multiply(inner, copies.down.transpose(1, 2))

        shared_inner = kernels.empty(tokens, shared_size)
        shared_gate_up = columns_from(router, _SHARED_COLUMN)
        kernels(
            "swiglu_forward", tokens, shared_size, router.shape[1], shared_gate_up, shared_inner
        )
        shared_out = shared_inner @ copies.shared_down.weight.t()

        out = kernels.empty(tokens, hidden)
        kernels(
            "combine_forward", tokens, router, expert_out, shared_out, slot, routes.weight, out
        )
        if loads is not None:
            loads[layer] += routes.count
        ctx.kernels, ctx.parameters, ctx.layer = kernels, parameters, layer
        ctx.balance, ctx.routes = balance, routes
        ctx.save_for_backward(
            y, router, slot, rows, gate_up, inner, expert_out, shared_inner, shared_out
        )
        return out

    @staticmethod
    def backward(ctx, d_out):
        y, router, slot, rows, gate_up, inner, expert_out, shared_inner, shared_out = (
            ctx.saved_tensors
        )
        kernels, parameters, routes = ctx.kernels, ctx.parameters, ctx.routes
        copies, tokens = parameters.layers[ctx.layer], y.shape[0]
        size, shared_size = CONFIG.moe_intermediate_size, CONFIG.shared_expert_intermediate_size
        d_expert_out, d_shared_out = torch.empty_like(expert_out), torch.empty_like(shared_out)
        d_router = torch.empty_like(router)
        kernels(
            "combine_backward", tokens, router, expert_out, shared_out, slot, routes.expert,
            routes.weight, routes.probability, routes.count, ctx.balance, d_out.contiguous(),
            d_expert_out, d_shared_out, d_router,
        )

        prefix = layer_prefix(ctx.layer) + "mlp.experts."
        d_inner = routes.multiply(d_expert_out, copies.down)
        routes.add_outer(d_expert_out, inner, parameters.gradients[prefix + "down_proj"])
        d_gate_up = torch.empty_like(gate_up)
        kernels("swiglu_backward", routes.rows, size, 2 * size, gate_up, d_inner, d_gate_up)
        d_rows = routes.multiply(d_gate_up, copies.gate_up)
        routes.add_outer(d_gate_up, rows, parameters.gradients[prefix + "gate_up_proj"])

        parameters.add_gradient(copies.shared_down.names, d_shared_out.t() @ shared_inner)
        d_shared_inner = d_shared_out @ copies.shared_down.weight
        kernels(
            "swiglu_backward", tokens, shared_size, router.shape[1],
            columns_from(router, _SHARED_COLUMN), d_shared_inner,
            columns_from(d_router, _SHARED_COLUMN),
        )
        parameters.add_gradient(copies.router.names, d_router.t() @ y)
        d_y = d_router @ copies.router.weight
        kernels("gather_backward", tokens, slot, d_rows, d_y)
        return d_y, None, None, None, None, None


class Routes:
    """Which experts every token goes to, and the segments of rows this makes."""

    def __init__(self, kernels: Kernels, router: torch.Tensor):
        tokens, experts, top_k = router.shape[0], CONFIG.num_experts, CONFIG.num_experts_per_tok
        self._kernels = kernels
        self.expert = torch.empty(tokens, top_k, dtype=torch.int32)
        self.weight = torch.empty(tokens, top_k)
        self.probability = torch.empty(tokens, experts)
        self.count = torch.empty(experts, dtype=torch.int32)
        kernels("route", tokens, router, self.expert, self.weight, self.probability, self.count)
        self._segments, self.rows = [], 0
        for expert, count in enumerate(self.count.tolist()):
            if count:
                padded = -(-count // SEGMENT_ROWS) * SEGMENT_ROWS
                self._segments.append((expert, slice(self.rows, self.rows + padded)))
                self.rows += padded

    def multiply(self, x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        """Every segment of `x` times the matrix [in, out] of its expert."""
        out = self._kernels.empty(self.rows, matrices.shape[2])
        for expert, segment in self._segments:
            torch.mm(x[segment], matrices[expert], out=out[segment])
        return out

    def add_outer(self, d_out: torch.Tensor, x: torch.Tensor, gradients: torch.Tensor) -> None:
        """Adds d_outᵀ x of every segment to the gradient [out, in] of its expert."""
        products = torch.zeros(gradients.shape, dtype=x.dtype)
        for expert, segment in self._segments:
            torch.mm(d_out[segment].t(), x[segment], out=products[expert])
        gradients.add_(products)

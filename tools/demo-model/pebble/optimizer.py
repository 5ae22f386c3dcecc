"""Muon for the hidden matrices, each expert by itself, and AdamW for everything else.

Source of Muon: Keller Jordan et al., Muon: an optimizer for hidden layers in neural networks,
2024; its quintic Newton-Schulz coefficients are used as published.
"""
import torch

from .config import CONFIG
from .parameters import Parameters, flat_views

WEIGHT_DECAY = 0.02
GRADIENT_NORM_MAX = 1.0
# Muon's momentum grows to its final value, which is harmful while gradients still turn fast.
MOMENTUM_FIRST, MOMENTUM_LAST, MOMENTUM_STEPS = 0.85, 0.95, 200
ADAM_BETA1, ADAM_BETA2, ADAM_EPSILON = 0.9, 0.98, 1e-8
# The decay of the delta net reacts strongly to these.
_SLOW_WEIGHTS = ("A_log", "dt_bias")
_SLOW_FACTOR = 0.3
# Matrices that are tables or scores, not maps between hidden vectors.
_NOT_FOR_MUON = (
    "embed_tokens.weight", "conv1d.weight", "mlp.gate.weight", "shared_expert_gate.weight",
    "in_proj_b.weight", "in_proj_a.weight",
)


class Optimizer:
    """The optimizer with its moments."""

    def __init__(self, parameters: Parameters, muon_rate: float, adam_rate: float):
        self._parameters = parameters
        self._muon_rate, self._adam_rate = muon_rate, adam_rate
        self.step_count = 0
        self.flat_first = torch.zeros(parameters.count)
        self.flat_second = torch.zeros(parameters.count)
        self._first, self._second = flat_views(self.flat_first), flat_views(self.flat_second)
        # Matrices of one shape are orthogonalised in one batch.
        self._muon_groups: dict[tuple[int, int], list[str]] = {}
        self._adam_names = []
        for name, weight in parameters.weights.items():
            if weight.dim() >= 2 and not name.endswith(_NOT_FOR_MUON):
                self._muon_groups.setdefault(_matrix_shape(name, weight), []).append(name)
            else:
                self._adam_names.append(name)

    def step(self, rate: float) -> float:
        """Updates the weights at `rate` times the base rates and clears the gradients.

        Returns the norm of the gradient before clipping.
        """
        self.step_count += 1
        gradients = self._parameters.flat_gradients
        norm = float(gradients.norm())
        if norm > GRADIENT_NORM_MAX:
            gradients.mul_(GRADIENT_NORM_MAX / norm)
        self._muon_step(rate * self._muon_rate)
        self._adam_step(rate * self._adam_rate)
        gradients.zero_()
        self._parameters.refresh_copies()
        return norm

    def _muon_step(self, rate: float) -> None:
        progress = self.step_count / MOMENTUM_STEPS
        growth = MOMENTUM_LAST - MOMENTUM_FIRST
        momentum = min(MOMENTUM_LAST, MOMENTUM_FIRST + growth * progress)
        for (rows, columns), names in self._muon_groups.items():
            updates = []
            for name in names:
                gradient, first = self._parameters.gradients[name], self._first[name]
                first.lerp_(gradient, 1 - momentum)
                updates.append(gradient.lerp(first, momentum).reshape(-1, rows, columns))
            orthogonal = orthogonalise(torch.cat(updates))
            parts = orthogonal.split([update.shape[0] for update in updates])
            scale = max(1.0, rows / columns) ** 0.5
            for name, part in zip(names, parts, strict=True):
                weight = self._parameters.weights[name]
                weight.mul_(1 - rate * WEIGHT_DECAY)
                weight.add_(part.reshape(weight.shape), alpha=-rate * scale)

    def _adam_step(self, rate: float) -> None:
        first_bias = 1 - ADAM_BETA1**self.step_count
        second_bias = 1 - ADAM_BETA2**self.step_count
        for name in self._adam_names:
            gradient, weight = self._parameters.gradients[name], self._parameters.weights[name]
            first, second = self._first[name], self._second[name]
            first.lerp_(gradient, 1 - ADAM_BETA1)
            second.mul_(ADAM_BETA2).addcmul_(gradient, gradient, value=1 - ADAM_BETA2)
            factor = _SLOW_FACTOR if name.endswith(_SLOW_WEIGHTS) else 1.0
            deviation = (second / second_bias).sqrt_().add_(ADAM_EPSILON)
            weight.addcdiv_(first / first_bias, deviation, value=-rate * factor)


def orthogonalise(matrices: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Roughly the nearest semi-orthogonal matrix of each, by a quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.transpose(-1, -2) if is_tall else matrices
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(torch.bfloat16)
    for _ in range(steps):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.float()
    return x.transpose(-1, -2) if is_tall else x


def _matrix_shape(name: str, weight: torch.Tensor) -> tuple[int, int]:
    """The shape in which a weight is orthogonalised: gate and up projection are two matrices."""
    if name.endswith("gate_up_proj"):
        return CONFIG.moe_intermediate_size, CONFIG.hidden_size
    return weight.shape[-2], weight.shape[-1]

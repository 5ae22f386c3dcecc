"""Compares the network in f32 with transformers' own model: the loss and every gradient."""
from dataclasses import asdict

import torch
import torch.nn.functional as F

from .config import CONFIG
from .network import Network, Stream

# f32 sums in another order; measured 7e-5.
GRADIENT_TOLERANCE = 1e-3
# Conversations shorter than a convolution, longer than a chunk, and of a single token.
LENGTHS = [5, 70, 1, 133]
# Much larger than in training, for its gradient to show.
BALANCE = 0.1


def check() -> None:
    """Prints the agreement; ends the program where a gradient differs."""
    from transformers import Qwen3_5MoeForCausalLM

    torch.manual_seed(0)
    network = Network(torch.float32)
    parameters = network.parameters
    _make_every_weight_matter(parameters.weights)
    parameters.refresh_copies()
    reference = Qwen3_5MoeForCausalLM(_transformers_config()).float()
    copies = {name: weight.clone() for name, weight in parameters.weights.items()}
    outcome = reference.load_state_dict(copies, strict=False)
    # The head is tied to the embedding.
    assert outcome.missing_keys == ["lm_head.weight"] and not outcome.unexpected_keys, outcome

    stream = _random_stream()
    loss, _ = network.loss(stream, BALANCE)
    loss.backward()
    reference_loss, balance_loss = _reference_losses(reference, stream)
    (reference_loss + balance_loss).backward()
    print(f"loss {loss.item():.6f}, transformers {reference_loss.item():.6f}")
    largest = 0.0
    for name, weight in reference.named_parameters():
        if name not in parameters.gradients:
            continue
        difference = parameters.gradients[name] - weight.grad
        error = float(difference.norm() / (weight.grad.norm() + 1e-12))
        largest = max(largest, error)
        if error > GRADIENT_TOLERANCE:
            raise SystemExit(f"the gradient of {name} differs by {error:.1e}")
    print(f"largest relative difference of a gradient {largest:.1e}")


def _make_every_weight_matter(weights: dict[str, torch.Tensor]) -> None:
    """Moves weights away from the zeros and ones that training begins with."""
    for name, weight in weights.items():
        if name.endswith("linear_attn.norm.weight"):
            weight.normal_(1, 0.1)
        elif "norm" in name:
            weight.normal_(0, 0.1)
        elif name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
            weight.normal_(0, 0.2)


def _transformers_config():
    from transformers import Qwen3_5MoeTextConfig

    values = asdict(CONFIG)
    del values["partial_rotary_factor"], values["rope_theta"]
    return Qwen3_5MoeTextConfig(
        **values, rope_parameters=CONFIG.rope_parameters, max_position_embeddings=4096
    )


def _random_stream() -> Stream:
    count = sum(LENGTHS)
    starts = torch.tensor([0, *LENGTHS]).cumsum(0)
    ids = torch.randint(0, CONFIG.vocab_size, (count,))
    targets = torch.randint(0, CONFIG.vocab_size, (count,))
    return Stream(ids, starts, targets, torch.rand(count) / count)


def _reference_losses(model, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """The same loss and the balance loss by transformers, one conversation at a time."""
    router_logits = [[] for _ in model.model.layers]
    for layer, logits in zip(model.model.layers, router_logits, strict=True):
        layer.mlp.gate.register_forward_hook(
            lambda gate, x, _out, logits=logits: logits.append(
                F.linear(x[0].reshape(-1, CONFIG.hidden_size), gate.weight)
            )
        )
    total = torch.zeros(())
    for start, end in stream.starts.unfold(0, 2, 1).tolist():
        logits = model(input_ids=stream.ids[None, start:end], use_cache=False).logits[0]
        losses = F.cross_entropy(logits.float(), stream.targets[start:end], reduction="none")
        total = total + (losses * stream.weights[start:end]).sum()
    return total, sum(_balance_loss(torch.cat(logits)) for logits in router_logits)


def _balance_loss(router_logits: torch.Tensor) -> torch.Tensor:
    """Σ_e share of tokens sent to e · mean probability of e, as weighted in training."""
    chosen = router_logits.topk(CONFIG.num_experts_per_tok).indices
    share = chosen.flatten().bincount(minlength=CONFIG.num_experts) / len(router_logits)
    probability = router_logits.softmax(-1).mean(0)
    return BALANCE * CONFIG.num_experts * (share * probability).sum()

"""Prompts without near ties, so that the goldens serve engines with other rounding too."""
import numpy as np
import torch

from .model import Tap

# Ids at the ends of the vocabulary are special in some families.
_FIRST_ID, _LAST_IDS = 3, 30


@torch.no_grad()
def pick_tokens(
    model: torch.nn.Module,
    rng: np.random.Generator,
    count: int,
    steps: int = 0,
    candidates: int = 32,
) -> list[int]:
    """Chooses tokens one by one, each the one of its candidates with the widest router gap.

    With `steps`, the last token is chosen by its greedy continuation: router gaps and argmax
    margins of that many steps.
    """
    vocab_size = model.config.vocab_size
    cache, tokens = None, []
    with Tap(model) as tap:
        for position in range(count):
            ids = rng.integers(_FIRST_ID, vocab_size - _LAST_IDS, size=candidates)
            out = model(
                input_ids=torch.tensor(ids)[:, None], past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
            scores = tap.router_gap()
            if position == count - 1 and steps:
                scores = _continuation_scores(model, tap, out, steps)
            best = int(scores.argmax())
            tokens.append(int(ids[best]))
            if position < count - 1:
                cache.reorder_cache(torch.full((candidates,), best))
    return tokens


def _continuation_scores(model: torch.nn.Module, tap: Tap, out, steps: int) -> torch.Tensor:
    gap, cache = tap.router_gap().clone(), out.past_key_values
    margin = torch.full_like(gap, 1e9)
    for _ in range(steps):
        best, ids = out.logits[:, -1].topk(2, -1)
        margin = torch.minimum(margin, best[:, 0] - best[:, 1])
        out = model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)
        gap = torch.minimum(gap, tap.router_gap())
    # An argmax margin is comfortable from about four times the router gap.
    return torch.minimum(gap, margin / 4)


def greedy_margin(logits: torch.Tensor) -> float:
    """The smallest difference between the best and the second logit of any row."""
    best = logits.topk(2, -1)[0]
    return float((best[:, 0] - best[:, 1]).min())

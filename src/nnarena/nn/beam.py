"""Beam search: several beginnings of a sequence are kept, and the best of all that end is said.

B batch, K beams, L steps, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nnarena.core.spec import BEGIN, END, PADDING

Advance = Callable[[Any, Any, Tensor, int], tuple[Tensor, Any]]


def beam_search(
    advance: Advance, memory: Any, state: Any, batch: int, width: int, length: int
) -> tuple[Tensor, Tensor]:
    """The most likely sequence that was found, tokens (B, L), and its log-likelihood (B,).

        score(y) = Σ_l log p(y_l | y_1 … y_(l−1), x),   up to END or to the last step

    Every step keeps the `width` best of all continuations of the kept ones; a sequence that has ended is kept as it
    is, and padded. With one beam it is greedy; with V^L it is exhaustive. No length is preferred.

    `advance(memory, state, token_B, place)` gives logits and the next state. No number is looked at by the host.
    """
    memory, state = (pytree.tree_map(lambda part: _repeat(part, width), tree) for tree in (memory, state))
    like = pytree.tree_leaves(memory)[0]
    rows = torch.arange(batch, device=like.device).unsqueeze(1)
    token = torch.full((batch * width,), BEGIN, device=like.device)
    total: Tensor | None = None
    ended = torch.zeros(batch, width, dtype=torch.bool, device=like.device)
    said = torch.full((batch, width, length), PADDING, device=like.device)
    for place in range(length):
        logits, state = advance(memory, state, token, place)
        gain = logits.log_softmax(-1).unflatten(0, (batch, width))
        kinds = torch.arange(gain.shape[-1], device=gain.device)
        stays = torch.where(kinds == PADDING, 0.0, -torch.inf).to(gain.dtype)
        gain = torch.where(ended.unsqueeze(-1), stays, gain)
        if total is None:  # all beams are alike at first: only one counts
            total = torch.where(torch.arange(width, device=gain.device) == 0, 0.0, -torch.inf).to(gain.dtype)
        total, best = (total.unsqueeze(-1) + gain).flatten(1).topk(width)
        beam, chosen = best // len(kinds), best % len(kinds)
        ended = ended.gather(1, beam) | (chosen == END)
        here = torch.arange(length, device=said.device) == place
        said = torch.where(here, chosen.unsqueeze(-1), said.gather(1, beam.unsqueeze(-1).expand_as(said)))
        kept = (rows * width + beam).flatten()
        state = pytree.tree_map(lambda part, kept=kept: part[kept], state)
        token = chosen.flatten()
    assert total is not None
    return said[:, 0], total[:, 0]


def _repeat(part: Tensor, width: int) -> Tensor:
    """(B, …) → (B·K, …): every row K times."""
    return part.unsqueeze(1).expand(-1, width, *part.shape[1:]).flatten(0, 1)

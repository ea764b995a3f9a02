"""Sequences of tokens as targets: loss and metrics.

B batch, L steps of the target, V tokens. A target is its tokens, END, and PADDING up to the length that all have.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nnarena.core.spec import BEGIN, PADDING


def shifted(target_BL: Tensor) -> Tensor:
    """What a writer has written before each step: BEGIN, then the target without its last token."""
    return F.pad(target_BL[:, :-1], (1, 0), value=BEGIN)


def token_loss(logits_BLV: Tensor, target_BL: Tensor) -> Tensor:
    """Cross entropy of the tokens of a batch, END among them: the mean over all that are not padding."""
    weight = (target_BL != PADDING).to(logits_BLV.dtype)
    chosen = logits_BLV.log_softmax(-1).gather(-1, target_BL.unsqueeze(-1)).squeeze(-1)
    return -(chosen * weight).sum() / weight.sum()


def token_hits(scores_BLV: Tensor, target_BL: Tensor) -> dict[str, Tensor]:
    """Of the tokens with the highest scores: how many are right, and how many sequences are right as a whole."""
    counts = target_BL != PADDING
    hit = (scores_BLV.argmax(-1) == target_BL) & counts
    kind = scores_BLV.dtype
    whole = torch.where(counts, hit, True).all(-1)
    return {"token_accuracy": hit.sum().to(kind) / counts.sum().to(kind), "exact_match": whole.to(kind).mean()}

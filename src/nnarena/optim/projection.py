"""Taking out of updates what points along the weights.

    q = u − (u·w)/(w·w) w   where |cos(w, x)| < limit,   else q = u

A weight in front of a normalisation is scale-invariant: its loss has the same value along the ray through w, its
gradient is orthogonal to w, and all that an update does along w is to change ‖w‖, which changes the length of later
steps (Heo et al. 2021). x is what tells such a weight from others: the gradient in AdamP, the update in OrthAdam.

Everything here takes lists of tensors, one for each parameter, and launches as few kernels as it can. Nothing looks at
numbers on the host, so all of it can be recorded as a CUDA graph: a mask of zeros and ones decides.

`kept` says for each tensor how many of its first dimensions are left apart; the rest is one vector w. In a population
the first dimension counts the members. Results keep every dimension, with size 1 where it was summed over.

    kept 0    the tensor is one vector                 (…)    → (1, …)
    kept 1    every channel, or every member, is one   (C, …) → (C, 1, …)
    kept 2    every channel of every member is one     (S, C, …) → (S, C, 1, …)
"""

# torch's optimizers are written with torch._foreach_…, which it does not export and types too narrowly.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Tensors = list[Tensor]
FLOOR = 1e-8  # norms below it count as it, as in torch.nn.functional.cosine_similarity


def dots(xs: Tensors, ys: Tensors, kept: Sequence[int]) -> Tensors:
    """x·y of every vector."""
    return sums(torch._foreach_mul(xs, ys), kept)


def norms(xs: Tensors, kept: Sequence[int]) -> Tensors:
    """‖x‖ of every vector."""
    if not any(kept):
        return [norm.view([1] * x.ndim) for norm, x in zip(torch._foreach_norm(xs), xs, strict=True)]
    return [
        torch.linalg.vector_norm(x, dim=_rest(x, first), keepdim=True) if first < x.ndim else x.abs()
        for x, first in zip(xs, kept, strict=True)
    ]


def sums(xs: Tensors, kept: Sequence[int]) -> Tensors:
    """The sum of every vector's numbers. (An empty list of dimensions would mean all of them to torch.)"""
    return [x.sum(_rest(x, first), keepdim=True) if first < x.ndim else x for x, first in zip(xs, kept, strict=True)]


def limits(ws: Tensors, kept: Sequence[int], delta: float) -> list[float]:
    """δ/√dim(w): a random vector's cosine with w is about 1/√dim(w)."""
    return [delta / math.sqrt(max(1, math.prod(w.shape[first:]))) for w, first in zip(ws, kept, strict=True)]


@torch.no_grad()  # a step function has no slope
def masks_of_small_cosines(products: Tensors, norms_x: Tensors, norms_w: Tensors, limits: Sequence[float]) -> Tensors:
    """1 where |cos(w, x)| < limit, else 0, from x·w, ‖x‖ and ‖w‖.

    |x·w| < limit ‖x‖ ‖w‖ needs no division; the sign of the difference is the answer, and of NaN it is 0.
    """
    room = torch._foreach_mul(torch._foreach_clamp_min(norms_x, FLOOR), torch._foreach_clamp_min(norms_w, FLOOR))
    torch._foreach_mul_(room, list(limits))
    torch._foreach_sub_(room, torch._foreach_abs(products))
    torch._foreach_sign_(room)
    torch._foreach_clamp_min_(room, 0.0)
    return list(room)


def shares(masks: Tensors, products: Tensors, norms_w: Tensors, eps: float) -> Tensors:
    """How many times w is in u, (u·w)/(‖w‖ + ε)², and 0 where the mask is 0."""
    lengths = torch._foreach_add(norms_w, eps)
    return list(torch._foreach_div(torch._foreach_mul(masks, products), torch._foreach_mul(lengths, lengths)))


def subtract(us: Tensors, ws: Tensors, shares: Tensors) -> None:
    """u ← u − share · w, where u lies."""
    torch._foreach_sub_(us, torch._foreach_mul(ws, shares))


def _rest(x: Tensor, first: int) -> tuple[int, ...]:
    return tuple(range(first, x.ndim))

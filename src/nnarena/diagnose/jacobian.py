"""The Jacobian of a recurrent step, J = ∂s_{t+1}/∂s_t, and how much it can stretch a gradient.

D numbers of a state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from nnarena.diagnose.record import Loop, flatten

STEPS, SAMPLES = 4, 2  # where the Jacobian is taken
ROWS = 256  # of the Jacobian at a time
LARGEST = 1024  # numbers of a state; the eigenvalues of more would take minutes


def step_jacobian(
    step: Callable[..., Any], constants: Any, u: Any, state: Tensor, unflatten: Callable[..., Any]
) -> Tensor:
    """(D, D) at `state` (D), with the input `u` (1, …) held.

    A step treats every sample alone. So D copies of the state are a batch, and of the i-th copy the i-th number that
    comes out is asked for its gradient: row i of J.
    """
    size, rows = len(state), []
    for wanted in torch.arange(size, device=state.device).split(ROWS):
        copies = state.expand(len(wanted), size).clone().requires_grad_()
        after, _ = step(constants, pytree.tree_map(functools.partial(_copied, count=len(wanted)), u), unflatten(copies))
        picked = flatten(after).gather(1, wanted.unsqueeze(1)).sum()
        rows += torch.autograd.grad(picked, copies)
    return torch.cat(rows)


def _copied(part: Tensor, count: int) -> Tensor:
    return part.detach().expand(count, *part.shape[1:])


def stretching(loop: Loop) -> dict[str, Any] | None:
    """Spectral radius and norm of J at a few steps of a few samples: mean and range; None if the state is too large."""
    size, steps = loop.states[0].shape[1], len(loop.states)
    if size > LARGEST:
        return None
    places = [round(1 + place * (steps - 2) / (STEPS - 1)) for place in range(STEPS)] if steps > 1 else [0]
    constants = pytree.tree_map(lambda part: part.detach() if isinstance(part, Tensor) else part, loop.constants)
    radii, norms = [], []
    for sample in range(min(SAMPLES, len(loop.states[0]))):
        for place in sorted(set(places)):
            matrix = step_jacobian(
                loop.step, constants, loop.input(place, sample), loop.state(place, sample), loop.unflatten
            )
            finite = bool(matrix.isfinite().all())
            radii.append(float(torch.linalg.eigvals(matrix).abs().max()) if finite else float("inf"))
            norms.append(float(torch.linalg.matrix_norm(matrix, 2)) if finite else float("inf"))
    return {"name": loop.name, "size": size, "count": len(radii), "radius": _spread(radii), "norm": _spread(norms)}


def _spread(values: list[float]) -> dict[str, float]:
    return {"mean": sum(values) / len(values), "low": min(values), "high": max(values)}

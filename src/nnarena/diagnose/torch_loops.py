"""torch's own recurrent layers, taken step by step, so that their states can be looked at too.

B samples, T steps, L layers. What `torch.nn.LSTM` computes in one call it computes as well one step at a time, with
the state handed back in: the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Parts = tuple[Tensor, ...]  # the states of all layers, (B, …) each; of an LSTM all h, then all c
Run = Callable[[Callable[..., Any], Tensor, Parts], tuple[Tensor, Parts]]


def forward_by(run: Run, layer: nn.RNNBase) -> Callable[..., Any]:
    """A `forward` for the layer that leaves the loop to `run(step, x_BTF, start)`.

    A state that comes back as it was left starts the next call in its parts, so that `run` sees the same tensors.
    """
    plain = type(layer).forward
    left: list[tuple[Any, Parts]] = []

    def forward(x: Any, hx: Any = None) -> Any:
        if not isinstance(x, Tensor) or x.dim() != 3 or layer.bidirectional or (layer.dropout and layer.num_layers > 1):
            return plain(layer, x, hx)  # type: ignore[call-arg]
        x = x if layer.batch_first else x.transpose(0, 1)
        known = next((parts for state, parts in left if _is_same(state, hx)), None)
        start = _start(layer, x) if hx is None else known or _parts(hx)
        output, last = run(step_of(layer), x, start)
        state = _joined(layer, last)
        left[:] = [(state, last)]
        return output if layer.batch_first else output.transpose(0, 1), state

    return forward


def step_of(layer: nn.RNNBase) -> Callable[..., Any]:
    """A pure step, as our cells have one. The output is the state of the last layer."""
    plain = type(layer).forward

    def step(constants: None, u: Tensor, state: Parts) -> tuple[Parts, Tensor]:
        _, after = plain(layer, u.unsqueeze(1 if layer.batch_first else 0), _joined(layer, state))  # type: ignore[call-arg]
        parts = _parts(after)
        return parts, parts[layer.num_layers - 1]

    return step


def _start(layer: nn.RNNBase, x: Tensor) -> Parts:
    count = layer.num_layers
    shown = x.new_zeros(len(x), layer.proj_size or layer.hidden_size)
    kept = [x.new_zeros(len(x), layer.hidden_size)] * count if isinstance(layer, nn.LSTM) else []
    return (*[shown] * count, *kept)


def _joined(layer: nn.RNNBase, parts: Parts) -> Any:
    """As torch wants them: (L, B, H), or two such."""
    h = torch.stack(parts[: layer.num_layers])
    return (h, torch.stack(parts[layer.num_layers :])) if isinstance(layer, nn.LSTM) else h


def _is_same(state: Any, other: Any) -> bool:
    if isinstance(state, tuple) and isinstance(other, tuple):
        return all(mine is given for mine, given in zip(state, other, strict=True))
    return state is other


def _parts(state: Any) -> Parts:
    return tuple(part for whole in (state if isinstance(state, tuple) else (state,)) for part in whole.unbind(0))

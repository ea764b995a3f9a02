"""Dropout by numbers of its own, which are a function of seed, epoch, step and place: nothing to store.

    y = x [u ≥ p] / (1 − p),   u uniform, other numbers for every layer, sample, unit and step

torch draws from one stream for all, which a population cannot share out. With these every member leaves out what it
would alone, so that seeds of a net with dropout train as one. It serves `torch.nn.functional.dropout`, which is what
`nn.Dropout` calls; other kinds draw from torch's stream, and their seeds train one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from nnarena.core.noise import uniform

# What a key is changed by for the first dropout of a forward pass, and by how much more for each that follows.
DROPS, NEXT = 0x1C69_B3F7_4AC4_AE35, 0x5851_F42D_4C95_7F2D
BITS_63 = 2**63 - 1


class Dropping(TorchFunctionMode):
    """While it is entered, dropout is by an epoch's `key` () and the `step` (1,) of the epoch."""

    def __init__(self, key: Tensor, step: Tensor) -> None:
        super().__init__()
        self.key, self.step, self.calls = key, step, 0

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is dropout:
            return self._drop(*args, **kwargs or {})
        return func(*args, **kwargs or {})

    def _drop(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not 0 < p < 1:
            return dropout(x, p, training, inplace)
        change = (DROPS + self.calls * NEXT) & BITS_63
        self.calls += 1
        stays = uniform(self.key ^ change, self.step, x.numel()).view(x.shape) >= p
        # the quotient last: bfloat16 has not the digits for 1 / (1 − p)
        return x.mul_(stays).div_(1 - p) if inplace else x.mul(stays).div(1 - p)


def dropping(model: nn.Module, key: Tensor, step: Tensor) -> AbstractContextManager[Any]:
    """`Dropping` where the model may drop anything; else nothing, which is faster."""
    return Dropping(key, step) if may_drop(model) else nullcontext()


def may_drop(model: nn.Module) -> bool:
    """Whether a part of it is a dropout, or says by an attribute `dropout` how much it leaves out."""
    return any(getattr(part, "p" if isinstance(part, _DropoutNd) else "dropout", 0) for part in model.modules())

"""Batch norm of a population: the channels of all members side by side, in one call of torch's own kernel.

S members, B samples, C channels. A mean is taken over samples and pixels, never over channels, so S images of C
channels are one of S·C. By itself `torch.vmap` would scale and shift in calls of their own, and refuse images in
bfloat16 with statistics in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._C._functorch import is_batchedtensor  # type: ignore[import-not-found]
from torch.autograd import Function
from torch.nn.functional import batch_norm
from torch.overrides import TorchFunctionMode


class SideBySide(TorchFunctionMode):
    """While it is entered, batch norms within `torch.vmap` take all members at once."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is batch_norm:
            return _of_all(*args, **kwargs or {})
        return func(*args, **kwargs or {})


def _of_all(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    tensors = (running_mean, running_var, weight, bias)
    if all(tensor is None or is_batchedtensor(tensor) for tensor in (x, *tensors)):
        return _Folded.apply(x, *tensors, training, momentum, eps)  # type: ignore[return-value]
    return batch_norm(x, *tensors, training, momentum, eps)


class _Folded(Function):
    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return batch_norm(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass  # `vmap` is called in the place of `forward`, and autograd sees what it does

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        folded: list[Any] = list(inputs)
        folded[0] = inputs[0].movedim(in_dims[0], 1).flatten(1, 2)
        for place in range(1, 5):
            if inputs[place] is not None:
                folded[place] = inputs[place].movedim(in_dims[place], 0).flatten()
        normed = batch_norm(*folded)
        return normed.unflatten(1, (info.batch_size, -1)), 1

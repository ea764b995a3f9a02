"""Element-wise attention by the kernels of `axial`: memory, launches, gradients, and populations.

S seeds, B batch, C channels, N heads, H height, W width; M = N·C maps. Every tensor here has the seeds in front, and
`torch.vmap` folds its dimension into them: a population is one launch.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nnarena.kernels import axial
from nnarena.kernels.gemm import shares
from nnarena.kernels.seeds import folded, unfolded

PROGRAMS = 2112  # sixteen for each of the 132 processors of an H100
NUMBERS = 8  # of an image a thread holds
Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # Wx, Wy, bx, by, each (S, N, C, H, W)


class Rule(NamedTuple):
    """τ, and what is added to the variance."""

    temperature: float
    eps: float


def attended(x: Tensor, weights: Weights, moments: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """norm(X ⊙ Y) ⊙ x (B, M, H, W) of images x (B, C, H, W), and statistics (3, M): mean, unbiased variance, 1/√.

    `moments` (2, M) are a mean and a variance to be used in the place of the batch's own. Weights are (N, C, H, W).
    """
    given = (x, *weights, moments)
    out, stats = Attend.apply(rule, *(None if part is None else part.unsqueeze(0) for part in given))  # type: ignore[misc]
    return out.squeeze(0), stats.squeeze(0)


class Attend(torch.autograd.Function):
    """(rule, x (S, B, C, H, W), Wx, Wy, bx, by, moments (S, 2, M) or None) → out (S, B, M, H, W), stats (S, 3, M)."""

    @staticmethod
    def forward(rule: Rule, x: Tensor, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        *weights, moments = tensors
        return _Launch(x, weights, rule).attend(moments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.rule, *tensors, moments = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, output[1])
        ctx.training = moments is None

    @staticmethod
    def backward(ctx: Any, pull: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        needed = ctx.needs_input_grad
        wanted = needed[1], any(needed[2:6])
        gradients = Pull.apply(ctx.rule, ctx.training, wanted, *ctx.saved_tensors, pull)
        return None, *(part if need else None for part, need in zip(gradients, needed[1:6], strict=True)), None  # type: ignore[arg-type]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], rule: Rule, *tensors: Tensor | None) -> Any:  # type: ignore[override]
        return unfolded(info.batch_size, Attend.apply(rule, *_folded(info, in_dims[1:], tensors)))  # type: ignore[arg-type]


class Pull(torch.autograd.Function):
    """The way back, as a function of its own so that `torch.vmap` folds it too.

    (…, x, Wx, Wy, bx, by, stats, gradient of out) → those of x and of the weights; None for those not wanted.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        rule: Rule, training: bool, wanted: tuple[bool, bool], x: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *weights, stats, pull = tensors
        assert stats is not None and pull is not None
        return _Launch(x, weights, rule).backward(pull.contiguous(), stats.contiguous(), training, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> Any:  # type: ignore[override]
        raise RuntimeError("Fused attention has no second derivative: use `layer.stages(x).output`.")

    @staticmethod
    def vmap(  # type: ignore[override]
        info: Any, in_dims: tuple[Any, ...], rule: Rule, training: bool, wanted: tuple[bool, bool], *tensors: Any
    ) -> Any:
        found: Any = Pull.apply(rule, training, wanted, *_folded(info, in_dims[3:], tensors))
        parts, _ = unfolded(info.batch_size, [part for part in found if part is not None])
        rest = iter(parts)
        return tuple(None if part is None else next(rest) for part in found), tuple(
            None if part is None else 0 for part in found
        )


def _folded(info: Any, dims: tuple[Any, ...], tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    return [
        None if tensor is None else folded(info.batch_size, dim, tensor)
        for dim, tensor in zip(dims, tensors, strict=True)
    ]


class _Launch:
    """One layer of all seeds, ready for its kernels."""

    def __init__(self, x: Tensor, weights: list[Tensor | None] | tuple[Tensor | None, ...], rule: Rule) -> None:
        self.x = x.contiguous()
        self.weights = [None if weight is None else weight.contiguous() for weight in weights]
        self.seeds, self.batch, self.channels, *sides = x.shape
        assert self.weights[0] is not None
        self.heads, self.eps = self.weights[0].shape[1], rule.eps
        self.maps, self.scale = self.heads * self.channels, math.log2(math.e) / rule.temperature
        self.parts, self.share = shares(self.batch, most=PROGRAMS // (self.maps * self.seeds))
        padded = [1 << (side - 1).bit_length() for side in sides]
        self.sides, self.sizes = sides, (self.channels, *sides, *padded, weights[2] is not None)
        self.warps = max(1, min(16, math.prod(padded) // (32 * NUMBERS)))

    def attend(self, moments: Tensor | None) -> tuple[Tensor, Tensor]:
        training = moments is None
        if moments is None:
            found = self._empty(self.seeds, 2, self.maps, self.parts)
            self._by_shares(axial.measure, self.x, *self.weights, found, self.batch, self.share, self.scale)
            moments = found.sum(-1)
        out, stats = self._empty(self.seeds, self.batch, self.maps, *self.sides), self._empty(self.seeds, 3, self.maps)
        self._by_shares(
            axial.attend, self.x, *self.weights, moments.contiguous(), stats, out, self.batch, self.share, self.scale,
            self.eps, last=(training,),
        )  # fmt: skip
        return out, stats

    def backward(
        self, pull: Tensor, stats: Tensor, training: bool, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, ...]:
        given, sums, dx = (self.x, pull, *self.weights, stats), stats, None
        gradients: list[Tensor | None] = [None] * 4
        if training:
            found = self._empty(self.seeds, 2, self.maps, self.parts)
            self._by_shares(axial.pulled, *given, found, self.batch, self.share, self.scale)
            sums = found.sum(-1)
        if wanted[0]:
            dx = torch.empty_like(self.x)
            grid = (self.batch * self.channels, self.seeds)
            arguments = (*given, sums, dx, self.batch, self.heads, self.scale)
            self._run(axial.to_images, grid, *arguments, *self.sizes, training)
        if wanted[1]:
            kinds = 2 if self.weights[2] is None else 4
            found = self._empty(kinds, self.parts, self.seeds, self.heads, self.channels, *self.sides)
            arguments = (*given, sums, found, self.batch, self.share, self.scale)
            self._by_shares(axial.to_weights, *arguments, last=(training,))
            gradients[:kinds] = (part.sum(0) for part in found)
        return dx, *gradients

    def _by_shares(self, kernel: Any, *arguments: Any, last: tuple[bool, ...] = ()) -> None:
        """A program for every map and share of the samples."""
        self._run(kernel, (self.maps, self.parts, self.seeds), *arguments, *self.sizes, *last)

    def _run(self, kernel: Any, grid: tuple[int, ...], *arguments: Any) -> None:
        with torch.cuda.device(self.x.device) if self.x.is_cuda else contextlib.nullcontext():
            kernel[grid](*arguments, num_warps=self.warps, num_stages=1)

    def _empty(self, *sizes: int) -> Tensor:
        return torch.empty(sizes, device=self.x.device)

"""Element-wise attention by the kernels of `axial` and `axial_conv`: memory, launches, gradients, and populations.

S seeds, B batch, C channels, N heads, H height, W width; M = N·C maps. Every tensor here has the seeds in front, and
`torch.vmap` folds its dimension into them: a population is one launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nnarena.kernels.gpu.gemm import shares
from nnarena.kernels.launch import launch
from nnarena.kernels.layers import axial, axial_conv
from nnarena.kernels.seeds import folded, unfolded

PROGRAMS = 2112  # sixteen for each of the 132 processors of an H100
NUMBERS = 8  # of an image a thread holds
CONVOLVED = 2048  # pixels, with the padding, of which nine images fit into registers
Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # Wx, Wy, bx, by, each (S, N, C, H, W)


class Rule(NamedTuple):
    """τ, and what is added to the variance."""

    temperature: float
    eps: float


class Wanted(NamedTuple):
    """Whose gradients are."""

    images: bool
    weights: bool
    conv: bool


def attended(x: Tensor, weights: Weights, moments: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """norm(X ⊙ Y) ⊙ x (B, M, H, W) of images x (B, C, H, W), and statistics (3, M): mean, unbiased variance, 1/√.

    `moments` (2, M) are a mean and a variance to be used in the place of the batch's own. Weights are (N, C, H, W).
    """
    return _apply(rule, x, *weights, None, moments)


def can_convolve(channels: int, height: int, width: int) -> bool:
    """Whether the nine images that a convolution needs fit into registers."""
    return channels == 1 and math.prod(_padded((height, width))) <= CONVOLVED


def convolved(x: Tensor, weights: Weights, conv: Tensor, moments: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """The same, led through a 3×3 convolution from N channels to one, (B, 1, H, W), whose weights are (N, 9)."""
    return _apply(rule, x, *weights, conv, moments)


def _apply(rule: Rule, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
    out, stats = Attend.apply(rule, *(None if part is None else part.unsqueeze(0) for part in tensors))  # type: ignore[misc]
    return out.squeeze(0), stats.squeeze(0)


class Attend(torch.autograd.Function):
    """(rule, x (S, B, C, H, W), Wx, Wy, bx, by, conv or None, moments (S, 2, M) or None) → out, stats (S, 3, M)."""

    @staticmethod
    def forward(rule: Rule, x: Tensor, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        *weights, conv, moments = tensors
        return _Launch(rule, x, weights, conv).forward(moments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.rule, *tensors, moments = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, output[1])
        ctx.training = moments is None

    @staticmethod
    def backward(ctx: Any, pull: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        needed = ctx.needs_input_grad[1:7]
        wanted = Wanted(needed[0], any(needed[1:5]), needed[5])
        gradients: Any = Pull.apply(ctx.rule, ctx.training, wanted, *ctx.saved_tensors, pull)
        return None, *(part if need else None for part, need in zip(gradients, needed, strict=True)), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], rule: Rule, *tensors: Tensor | None) -> Any:  # type: ignore[override]
        return unfolded(info.batch_size, Attend.apply(rule, *_folded(info, in_dims[1:], tensors)))  # type: ignore[arg-type]


class Pull(torch.autograd.Function):
    """The way back, as a function of its own so that `torch.vmap` folds it too.

    (…, x, Wx, Wy, bx, by, conv, stats, gradient of out) → those of x, weights and conv; None for those not wanted.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        rule: Rule, training: bool, wanted: Wanted, x: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *weights, conv, stats, pull = tensors
        assert stats is not None and pull is not None
        return _Launch(rule, x, weights, conv).backward(pull.contiguous(), stats.contiguous(), training, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> Any:  # type: ignore[override]
        raise RuntimeError("Fused attention has no second derivative: use `layer.stages(x).output`.")

    @staticmethod
    def vmap(  # type: ignore[override]
        info: Any, in_dims: tuple[Any, ...], rule: Rule, training: bool, wanted: Wanted, *tensors: Any
    ) -> Any:
        found: Any = Pull.apply(rule, training, wanted, *_folded(info, in_dims[3:], tensors))
        return unfolded(info.batch_size, found)


def _folded(info: Any, dims: tuple[Any, ...], tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
    return [
        None if tensor is None else folded(info.batch_size, dim, tensor)
        for dim, tensor in zip(dims, tensors, strict=True)
    ]


def _padded(sides: Sequence[int]) -> list[int]:
    return [1 << (side - 1).bit_length() for side in sides]


class _Launch:
    """One layer of all seeds, ready for its kernels."""

    def __init__(self, rule: Rule, x: Tensor, weights: Sequence[Tensor | None], conv: Tensor | None) -> None:
        self.x = x.contiguous()
        self.weights = [None if weight is None else weight.contiguous() for weight in weights]
        self.conv, self.kernels = (), axial
        self.seeds, self.batch, self.channels, *self.sides = x.shape
        assert self.weights[0] is not None
        self.heads, self.eps = self.weights[0].shape[1], rule.eps
        self.maps, self.scale = self.heads * self.channels, math.log2(math.e) / rule.temperature
        self.parts, self.share = shares(self.batch, most=PROGRAMS // (self.maps * self.seeds))
        padded, bias = _padded(self.sides), self.weights[2] is not None
        self.plain = (self.channels, *self.sides, *padded, bias)  # what kernels are told of sizes
        self.sizes = self.plain
        if conv is not None:
            self.conv, self.kernels, self.sizes = (conv.contiguous(),), axial_conv, self.plain[1:]
        self.warps = max(1, min(16, math.prod(padded) // (32 * NUMBERS)))

    def forward(self, moments: Tensor | None) -> tuple[Tensor, Tensor]:
        stats = self._settled(moments)
        out = self._empty(self.seeds, self.batch, 1 if self.conv else self.maps, *self.sides)
        given = (self.x, *self.weights, *self.conv, stats, out, self.batch)
        if self.conv:
            self._run(axial_conv.convolve, self._by_images, *given, self.heads, self.scale, *self.sizes)
        else:
            self._run(axial.attend, self._by_shares, *given, self.share, self.scale, *self.sizes)
        return out, stats

    def _settled(self, moments: Tensor | None) -> Tensor:
        """The statistics of the norm, (S, 3, M): of this batch, or from those given."""
        measured, parts = moments is None, 1
        if moments is None:
            parts, moments = self.parts, self._empty(self.seeds, 2, self.maps, self.parts)
            arguments = (self.x, *self.weights, moments, self.batch, self.share, self.scale)
            self._run(axial.measure, self._by_shares, *arguments, *self.plain)
        stats = self._empty(self.seeds, 3, self.maps)
        sizes = (math.prod(self.sides), measured, *_padded([parts]))
        self._run(
            axial.settle, (self.maps, self.seeds), moments.contiguous(), stats, parts, self.batch, self.eps, *sizes
        )
        return stats

    def backward(self, pull: Tensor, stats: Tensor, training: bool, wanted: Wanted) -> tuple[Tensor | None, ...]:
        given, sums = (self.x, pull, *self.weights, *self.conv, stats), stats
        dx = dconv = None
        gradients: list[Tensor | None] = [None] * 4
        if training or wanted.conv:
            found = self._empty(self.seeds, 11 if self.conv else 2, self.maps, self.parts)
            arguments = (*given, found, self.batch, self.share, self.scale)
            self._run(self.kernels.pulled, self._by_shares, *arguments, *self.sizes)
            sums = found.sum(-1)
            if self.conv:
                sums, dconv = sums[:, :2].contiguous(), sums[:, 2:].mT.contiguous()
        if wanted.images:
            dx = torch.empty_like(self.x)
            arguments = (*given, sums, dx, self.batch, self.heads, self.scale)
            self._run(self.kernels.to_images, self._by_images, *arguments, *self.sizes, training)
        if wanted.weights:
            kinds = 2 if self.weights[2] is None else 4
            found = self._empty(kinds, self.parts, self.seeds, self.heads, self.channels, *self.sides)
            arguments = (*given, sums, found, self.batch, self.share, self.scale)
            self._run(self.kernels.to_weights, self._by_shares, *arguments, *self.sizes, training)
            gradients[:kinds] = (part.sum(0) for part in found)
        return dx, *gradients, dconv

    @property
    def _by_shares(self) -> tuple[int, int, int]:
        """A program for every map and share of the samples."""
        return self.maps, self.parts, self.seeds

    @property
    def _by_images(self) -> tuple[int, int]:
        """A program for every channel of every sample."""
        return self.batch * self.channels, self.seeds

    def _run(self, kernel: Any, grid: tuple[int, ...], *arguments: Any) -> None:
        launch(kernel, grid, *arguments, like=self.x, num_warps=self.warps, num_stages=1)

    def _empty(self, *sizes: int) -> Tensor:
        return torch.empty(sizes, device=self.x.device)

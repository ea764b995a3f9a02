"""Layer norms of very many short rows, and their GELU, of many seeds at once: one pass forward, one back.

    n = (x − mean(x)) / √(var(x) + ε),   y = n · g + b,   or GELU of it

torch has a program for every row, however short. Here one has a block of rows, each in a few threads; nothing is kept
for the way back but x. Gradients of g and b are added up in the same order every time.

S seeds, R rows, W numbers of a row, P programs of a seed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from nnarena.kernels.compiler.tiles import power_of_two
from nnarena.kernels.gpu.parts import added_up
from nnarena.kernels.launch import launch
from nnarena.kernels.seeds import folded, unfolded

NUMBERS = 1_024  # that a program has at a time
PROGRAMS = 512  # of a seed on the way back, at most: each of them has sums of its own


def row_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, gelu: bool) -> Tensor:
    """x (…, W), weight (W), bias (W) → (…, W)."""
    rows = x.reshape(1, -1, x.shape[-1])
    return Forward.apply(rows, weight[None], bias[None], epsilon, gelu).view(x.shape)  # type: ignore[union-attr]


class Forward(torch.autograd.Function):
    """(S, R, W), (S, W), (S, W) → (S, R, W)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, gelu: bool) -> Tensor:  # type: ignore[override]
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        y, sizes = torch.empty_like(x), _sizes(x, gelu)
        grid = (-(-x.shape[1] // sizes["ROWS"]), len(x))
        launch(forward, grid, x, weight, bias, y, x.shape[1], epsilon, like=x, **sizes)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.epsilon, ctx.gelu = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, pull: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return *Backward.apply(*ctx.saved_tensors, pull, ctx.epsilon, ctx.gelu), None, None  # type: ignore[misc]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:  # type: ignore[override]
        parts = [folded(info.batch_size, dim, part) for dim, part in zip(in_dims[:3], given, strict=False)]
        return Forward.apply(*parts, *given[3:]).unflatten(0, (info.batch_size, -1)), 0  # type: ignore[union-attr]


class Backward(torch.autograd.Function):
    """The way back, as a function of its own so that `torch.vmap` folds it too."""

    @staticmethod
    def forward(  # type: ignore[override]
        x: Tensor, weight: Tensor, bias: Tensor, pull: Tensor, epsilon: float, gelu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, bias, pull = (part.contiguous() for part in (x, weight, bias, pull))
        sizes, (seeds, rows, width) = _sizes(x, gelu), x.shape
        blocks = -(-rows // sizes["ROWS"])
        programs = min(PROGRAMS, blocks)
        dx, sums = torch.empty_like(x), x.new_empty(programs, 2, seeds, width)
        given = (x, weight, bias, pull, dx, sums, rows, -(-blocks // programs), epsilon)
        launch(backward, (programs, seeds), *given, like=x, **sizes)
        return dx, *added_up(sums).unbind()  # type: ignore[return-value]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.epsilon, ctx.gelu = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        """The second derivative, which few want: by torch's own norm."""
        with torch.enable_grad():
            given = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            x, weight, bias, pull = given
            y = F.layer_norm(x, x.shape[-1:], eps=ctx.epsilon) * weight.unsqueeze(1) + bias.unsqueeze(1)
            slopes = torch.autograd.grad(F.gelu(y) if ctx.gelu else y, given[:3], pull, create_graph=True)
            curvature = torch.autograd.grad(slopes, given, pulls, allow_unused=True)
        return *curvature, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:  # type: ignore[override]
        parts = [folded(info.batch_size, dim, part) for dim, part in zip(in_dims[:4], given, strict=False)]
        return unfolded(info.batch_size, Backward.apply(*parts, *given[4:]))  # type: ignore[arg-type]


def _sizes(x: Tensor, gelu: bool) -> dict[str, Any]:
    pad = power_of_two(x.shape[2])
    return {"GELU": gelu, "W": x.shape[2], "PAD": pad, "ROWS": max(1, NUMBERS // pad)}


@triton.jit
def forward(
    x, weight, bias, y, rows, epsilon, GELU: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr
):
    seed = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PAD)
    gain = tl.load(weight + seed * W + column, mask=column < W, other=0.0)
    shift = tl.load(bias + seed * W + column, mask=column < W, other=0.0)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None] & (column < W)[None, :]
    place = (seed * rows + row)[:, None] * W + column[None, :]
    normal, _ = normalised(tl.load(x + place, mask=there, other=0.0), there, epsilon, W)
    z = normal * gain[None, :] + shift[None, :]
    if GELU:
        z = z * (0.5 + 0.5 * tl.erf(z * 0.7071067811865476))
    tl.store(y + place, z, mask=there)


@triton.jit
def backward(
    x,
    weight,
    bias,
    pull,
    dx,
    sums,
    rows,
    share,
    epsilon,
    GELU: tl.constexpr,
    W: tl.constexpr,
    PAD: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Every program has `share` blocks of rows, one after the other, and adds up what they say of g and b."""
    seed = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, PAD)
    gain = tl.load(weight + seed * W + column, mask=column < W, other=0.0)
    shift = tl.load(bias + seed * W + column, mask=column < W, other=0.0)
    of_weight = tl.zeros((ROWS, PAD), tl.float32)
    of_bias = tl.zeros((ROWS, PAD), tl.float32)
    for block in range(share):
        row = (tl.program_id(0) * share + block) * ROWS + tl.arange(0, ROWS)
        there = (row < rows)[:, None] & (column < W)[None, :]
        place = (seed * rows + row)[:, None] * W + column[None, :]
        normal, scale = normalised(tl.load(x + place, mask=there, other=0.0), there, epsilon, W)
        slope = tl.load(pull + place, mask=there, other=0.0)
        if GELU:
            z = normal * gain[None, :] + shift[None, :]
            density = 0.3989422804014327 * tl.exp(-0.5 * z * z)
            slope = slope * (0.5 + 0.5 * tl.erf(z * 0.7071067811865476) + z * density)
        of_weight += slope * normal
        of_bias += slope
        slope = slope * gain[None, :]
        mean = tl.sum(slope, 1) / W
        along = tl.sum(slope * normal, 1) / W
        tl.store(dx + place, scale[:, None] * (slope - mean[:, None] - normal * along[:, None]), mask=there)
    seeds = tl.num_programs(1)
    sums += (tl.program_id(0) * 2 * seeds + seed) * W + column
    tl.store(sums, tl.sum(of_weight, 0), mask=column < W)
    tl.store(sums + seeds * W, tl.sum(of_bias, 0), mask=column < W)


@triton.jit
def normalised(x, there, epsilon, W: tl.constexpr):
    """Rows with mean 0 and variance 1, zero where there is nothing; and what they were multiplied by."""
    away = tl.where(there, x - (tl.sum(x, 1) / W)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(away * away, 1) / W + epsilon)
    return away * scale[:, None], scale

"""Attention-Wise: attention by element-wise products, with a softmax along the rows and one along the columns.

B batch, C channels, H height, W width, T time, F features, N heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nnarena.kernels.recurrence import can_fuse

STD = 0.02  # of all start values in the paper
LARGEST = 64  # pixels a side of images that kernels hold as a whole


class Heads(nn.Module):
    """What all heads find relevant in an array, by two weights of the array's own shape for each.

        X = softmax over each row of (I ⊙ Wx + bx) / τ,   Y = softmax over each column of (I ⊙ Wy + by) / τ
        R = X ⊙ Y

    I is (B, …, H, W), weights are (N, …, H, W), R is (B, N, …, H, W): all heads in one pass. There are no biases in the
    paper, which names them as something to be tried, and τ = 1.
    """

    def __init__(
        self,
        shape: Sequence[int],
        heads: int,
        *,
        bias: bool = False,
        std: float = STD,
        temperature: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if heads < 1:
            raise ValueError(f"heads must be at least 1, not {heads}.")
        if temperature <= 0:
            raise ValueError(f"temperature must be positive, not {temperature}.")
        if std < 0:
            raise ValueError(f"std must not be negative, not {std}.")
        self.shape, self.heads, self.std, self.temperature = tuple(shape), heads, std, temperature

        def parameter() -> nn.Parameter:
            return nn.Parameter(torch.empty(heads, *shape, device=device, dtype=dtype))

        self.weight_x, self.weight_y = parameter(), parameter()
        self.bias_x, self.bias_y = (parameter(), parameter()) if bias else (None, None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.weight_x, self.weight_y):
            nn.init.normal_(weight, std=self.std)
        for bias in (self.bias_x, self.bias_y):
            if bias is not None:
                nn.init.zeros_(bias)

    def softmaxes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """X and Y of all heads: the rows of X sum to one, and so do the columns of Y."""
        x = x.unsqueeze(1)
        products = x * self.weight_x, x * self.weight_y
        if self.bias_x is not None and self.bias_y is not None:
            products = products[0] + self.bias_x, products[1] + self.bias_y
        rows, columns = (product / self.temperature for product in products) if self.temperature != 1 else products
        return rows.softmax(-1), columns.softmax(-2)

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"These heads were built for arrays {self.shape}, and this one is {tuple(x.shape[1:])}.")
        rows, columns = self.softmaxes(x)
        return rows * columns

    def arrays(self) -> dict[str, Tensor]:
        """What has been learned: Wx and Wy of all heads, and the biases where there are some."""
        return dict(self.named_parameters())

    def extra_repr(self) -> str:
        return f"{self.shape}, heads={self.heads}"


class Stages(NamedTuple):
    """What a layer makes of an image, one after the other; `normed` is None in a layer without a norm.

    Of a sequence, (T, F) stands in the place of (C, H, W), and `attended` is (B, N, T, F).
    """

    rows: Tensor  # (B, N, C, H, W) X
    columns: Tensor  # Y
    relevance: Tensor  # R, before its norm
    attended: Tensor  # (B, N·C, H, W) what goes into the convolution
    convolved: Tensor  # (B, C, H, W)
    summed: Tensor  # with the image itself, where there is a skip
    normed: Tensor | None
    output: Tensor


class AttentionWise2d(nn.Module):
    """A layer of element-wise attention over images.

        X = softmax over each row of (I ⊙ Wx),   Y = softmax over each column of (I ⊙ Wy)      for each head
        A = norm(X ⊙ Y) ⊙ I
        O = relu(norm(conv(A of all heads) + I))

    The norm of X ⊙ Y is a batch norm without weights of its own, in the place of attention's 1/√d: entries of X ⊙ Y are
    about 1/(H·W). The convolution is 3×3 and leads from N·C channels back to C. `norm` has the second batch norm, which
    the paper found harmful; `skip=False` leaves out + I.

    Shapes: input and output (B, C, H, W). Height and width are fixed: a weight belongs to a pixel. Start values:
    N(0, 0.02) for all weights, as in the paper; `std` is that of Wx and Wy.

    Parameters: 2·N·C·H·W + 9·N·C·C + C, and 2·C with `norm`. The paper's counts agree for 8 heads without a norm; its
    other counts do not follow from its own equation (8).

    Reference: Bacochina and Thom de Souza 2023.
    """

    def __init__(
        self,
        channels: int,
        height: int,
        width: int,
        heads: int = 8,
        *,
        norm: bool = False,
        skip: bool = True,
        bias: bool = False,
        std: float = STD,
        temperature: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("channels", channels), ("height", height), ("width", width)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.size, self.skip = (channels, height, width), skip
        self.attention = Heads(self.size, heads, bias=bias, std=std, temperature=temperature, **made)
        self.scale = nn.BatchNorm2d(heads * channels, affine=False, **made)
        self.conv = nn.Conv2d(heads * channels, channels, 3, padding=1, **made)
        self.norm = nn.BatchNorm2d(channels, **made) if norm else None
        draw_(self.conv)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        if not self._can_fuse(x):
            return self.stages(x).output
        h = self._convolved(x)
        h = h + x if self.skip else h
        return (h if self.norm is None else self.norm(h)).relu()

    def stages(self, x: Tensor) -> Stages:
        """All that happens on the way: the definition. On a GPU `forward` computes the same without most of these."""
        self._check(x)
        rows, columns = self.attention.softmaxes(x)
        relevance = rows * columns
        scaled = self.scale(relevance.flatten(1, 2)).unflatten(1, (-1, self.size[0]))
        attended = (scaled * x.unsqueeze(1)).flatten(1, 2)
        convolved = self.conv(attended)
        summed = convolved + x if self.skip else convolved
        normed = None if self.norm is None else self.norm(summed)
        return Stages(
            rows, columns, relevance, attended, convolved, summed, normed, (summed if normed is None else normed).relu()
        )

    def arrays(self) -> dict[str, Tensor]:
        return self.attention.arrays()

    def _can_fuse(self, x: Tensor) -> bool:
        """Whether kernels do what lies before the convolution: in float32, on a GPU, for images that are not large."""
        scale, weight = self.scale, self.attention.weight_x
        usual = scale.momentum is not None and scale.running_mean is not None
        small = max(x.shape[2:]) <= LARGEST and x.shape[0] * x.shape[2] * x.shape[3] > 1
        plain = weight.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")
        return can_fuse(x) and usual and small and plain

    def _convolved(self, x: Tensor) -> Tensor:
        """By kernels, the convolution too where they can. The norm's statistics move as `BatchNorm2d` moves them."""
        from nnarena.kernels.layers.relevance import Rule, attended, can_convolve, convolved

        heads, scale, conv = self.attention, self.scale, self.conv
        assert scale.running_mean is not None and scale.running_var is not None and scale.momentum is not None
        moments = None if scale.training else torch.stack([scale.running_mean, scale.running_var])
        weights = heads.weight_x, heads.weight_y, heads.bias_x, heads.bias_y
        rule = Rule(heads.temperature, scale.eps)
        if can_convolve(*self.size):
            out, stats = convolved(x, weights, conv.weight[0].flatten(1), moments, rule)
            h = out if conv.bias is None else out + conv.bias
        else:
            out, stats = attended(x, weights, moments, rule)
            h = conv(out)
        if scale.training:
            assert scale.num_batches_tracked is not None
            with torch.no_grad():
                for running, new in ((scale.running_mean, stats[0]), (scale.running_var, stats[1])):
                    running.mul_(1 - scale.momentum).add_(new, alpha=scale.momentum)
                scale.num_batches_tracked.add_(1)
        return h

    def _check(self, x: Tensor) -> None:
        if x.dim() != 4 or tuple(x.shape[1:]) != self.size:
            raise ValueError(
                f"AttentionWise2d was built for images {self.size} (channels, height, width), and reads (batch, "
                f"channels, height, width), not {tuple(x.shape)}."
            )

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.size))}, skip={self.skip}"


class AttentionWise1d(nn.Module):
    """The same two softmaxes over a sequence: along the features of each step, and along the steps of each feature.

        X = softmax over features of (I ⊙ Wx),   Y = softmax over time of (I ⊙ Wy)      for each head
        A = norm(X ⊙ Y) ⊙ I
        O = relu(norm(conv(A of all heads) + I))

    The convolution covers three steps. Shapes: input and output (B, T, F); the length T is fixed. Every step sees all
    others, later ones too.
    """

    def __init__(
        self,
        length: int,
        features: int,
        heads: int = 2,
        *,
        norm: bool = False,
        skip: bool = True,
        bias: bool = False,
        std: float = STD,
        temperature: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("length", length), ("features", features)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.size, self.skip = (length, features), skip
        self.attention = Heads(self.size, heads, bias=bias, std=std, temperature=temperature, **made)
        self.scale = nn.BatchNorm2d(heads, affine=False, **made)
        self.conv = nn.Conv1d(heads * features, features, 3, padding=1, **made)
        self.norm = nn.BatchNorm1d(features, **made) if norm else None
        draw_(self.conv)

    def forward(self, x: Tensor) -> Tensor:
        return self.stages(x).output

    def arrays(self) -> dict[str, Tensor]:
        return self.attention.arrays()

    def stages(self, x: Tensor) -> Stages:
        """All that happens on the way: the definition."""
        if x.dim() != 3 or tuple(x.shape[1:]) != self.size:
            raise ValueError(
                f"AttentionWise1d was built for sequences {self.size} (steps, features), and reads (batch, steps, "
                f"features), not {tuple(x.shape)}."
            )
        rows, columns = self.attention.softmaxes(x)
        relevance = rows * columns
        attended = self.scale(relevance) * x.unsqueeze(1)  # (B, N, T, F)
        convolved = self.conv(attended.transpose(-1, -2).flatten(1, 2))  # (B, F, T)
        summed = convolved + x.mT if self.skip else convolved
        normed = None if self.norm is None else self.norm(summed)
        output = (summed if normed is None else normed).relu()
        norm = None if normed is None else normed.mT
        return Stages(rows, columns, relevance, attended, convolved.mT, summed.mT, norm, output.mT)

    def extra_repr(self) -> str:
        return f"{', '.join(map(str, self.size))}, skip={self.skip}"


def draw_(module: nn.Module) -> None:
    """The paper's start values for convolutions and dense layers."""
    for part in module.modules():
        if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            nn.init.normal_(part.weight, std=STD)
            if part.bias is not None:
                nn.init.zeros_(part.bias)

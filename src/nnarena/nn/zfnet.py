"""ZFNet: AlexNet after its authors had looked at what its layers see, and made the first ones finer.

B batch, C channels, H height, W width.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.nn.from_torchvision import at_least, channels_of, share_of_one
from nnarena.nn.image_classics import SMALLEST, UNITS


class AcrossMaps(nn.Module):
    """Contrast normalisation across feature maps, (B, C, H, W) → (B, C, H, W).

        y_c = x_c / (k + α Σ_{|i − c| ≤ n/2} x_i²)^β      n = 5, k = 2, α = 10⁻⁴, β = 0.75

    With the constants of Krizhevsky et al. 2012. It is `nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2)`, whose α
    is divided by n, in operations that do not mind how an image lies in memory.
    """

    def __init__(self, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: Tensor) -> Tensor:
        maps, reach = x.shape[1], self.size // 2
        squares = F.pad(x * x, (0, 0, 0, 0, reach, reach))
        near = sum(squares[:, place : place + maps] for place in range(1, self.size)) + squares[:, :maps]
        return x / (self.k + self.alpha * near) ** self.beta


class ZFNet(nn.Module):
    """(B, C, H, W) → (B, classes); see the model `zfnet`."""

    def __init__(
        self, channels: int, height: int, width: int, outputs: int, *, small: bool = False, dropout: float = 0.5
    ) -> None:
        super().__init__()
        first = nn.Conv2d(channels, 96, 3, padding=1) if small else nn.Conv2d(channels, 96, 7, 2, 1)
        second = nn.Conv2d(96, 256, 5, padding=2) if small else nn.Conv2d(96, 256, 5, 2)
        self.features = nn.Sequential(
            *(first, nn.ReLU(), _pool(), AcrossMaps()),
            *(second, nn.ReLU(), _pool(), AcrossMaps()),
            *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(), _pool()),
        )
        self.shrink = nn.Identity() if small else nn.AdaptiveAvgPool2d(6)  # does nothing to an image of 224×224
        squares = (height // 8) * (width // 8) if small else 36
        units = UNITS if small else 4096
        self.classifier = nn.Sequential(
            *(nn.Linear(256 * squares, units), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(units, units), nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(units, outputs),
        )
        self.channels_last = True

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.shrink(self.features(x)).flatten(1))


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)


@model(
    "zfnet",
    reference="Zeiler and Fergus 2014, Visualizing and understanding convolutional networks, ECCV (arXiv 2013)",
    reads="images",
)
def zfnet(
    spec: TaskSpec,
    *,
    stem: Literal["imagenet", "cifar"] = "cifar",
    init: Literal["paper", "scaled"] = "paper",
    dropout: float = 0.5,
) -> nn.Module:
    """Five convolutions and three dense layers, finer at the beginning than AlexNet.

        7×7 stride 2, pool, norm; 5×5 stride 2, pool, norm; 3×3, 3×3, 3×3, pool; dense, dense, dense      with relus

    Maps: 96, 256, 384, 384, 256, of 110, 26, 13, 13 and 13 pixels a side for an image of 224. A pooling is the maximum
    over 3×3 with stride 2, the norm divides by the contrast of neighbouring maps, the first two dense layers have 4096
    units. Parameters: 62,357,608 for 1000 classes with stem=imagenet, which needs 47×47 pixels. What the authors did to
    filters that grew too large in training is not a part of the model and not done.

    Options:
        stem: imagenet as published; cifar keeps the size of a small image in the first two convolutions, of 3×3 and 5×5
            with stride 1, and its dense layers have 512 units and read the whole last map
        init: paper draws weights from N(0, 0.01²) with biases 0, scaled by the number of inputs (He), as is better with
            few images
        dropout: of what the first two dense layers give, in training; published is 0.5
    """
    channels, (height, width) = channels_of(spec), spec.input_shape[1:]
    at_least(47 if stem == "imagenet" else SMALLEST, spec, stem, size=224)
    share_of_one("dropout", dropout)
    net = ZFNet(channels, height, width, spec.output_size, small=stem == "cifar", dropout=dropout)
    for part in net.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            if init == "paper":
                nn.init.normal_(part.weight, std=0.01)
            else:
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            nn.init.zeros_(part.bias)  # type: ignore[arg-type]
    return net

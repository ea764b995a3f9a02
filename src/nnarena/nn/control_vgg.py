"""The VGG-like network that element-wise attention was measured against."""

from __future__ import annotations

from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.attention_wise import draw_


class ControlNet(nn.Module):
    """Six convolutions, each with a relu, and a dense layer: (B, C, H, W) → (B, classes).

    Two of 3×3 and one of 2×2 that halves the image, to `maps` channels, then the same to twice as many. Parameters:
    929,510 for 28×28 pixels in grey, 961,310 for 32×32 in colour, both as published. Start values: N(0, 0.02), no bias.
    """

    def __init__(self, channels: int, height: int, width: int, outputs: int, maps: int = 100) -> None:
        super().__init__()
        if min(height, width) < 4:
            raise ValueError(f"The image is halved twice: it must have 4×4 pixels or more, not {height}×{width}.")
        parts: list[nn.Module] = []
        for before, after in ((channels, maps), (maps, 2 * maps)):
            parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
            parts += [nn.Conv2d(after, after, 3, padding=1), nn.ReLU()]
            parts += [nn.Conv2d(after, after, 2, stride=2, bias=False), nn.ReLU()]
        self.features = nn.Sequential(*parts)
        self.head = nn.Linear(2 * maps * (height // 4) * (width // 4), outputs)
        self.channels_last = True
        draw_(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


@model(
    "control_vgg",
    reference="Bacochina and Thom de Souza 2023, Element-wise attention layers: an option for optimization",
    reads="images",
)
def control_vgg(spec: TaskSpec, *, maps: int = 100) -> nn.Module:
    """The paper's control: six convolutions as in VGG, and a dense layer.

        conv 3×3, conv 3×3, conv 2×2 with stride 2, each with a relu; twice, the second time with twice as many maps

    Options:
        maps: of the first three convolutions; the published network has 100
    """
    if len(spec.input_shape) != 3:
        raise Unfit(f"it reads images (channels, height, width), and the task gives {spec.input_shape}.")
    return ControlNet(*spec.input_shape, spec.output_size, maps=maps)

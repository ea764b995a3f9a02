"""Augmentation: images changed at random as a net would have to forgive, whole batches at once, on their device.

    pad_crop+flip              two of them, one after the other
    pad_crop:2+cutout:12       with strengths of one's own

Every function takes `x_BCHW` from 0 to 1, `u_BK` uniform between 0 and 1, and a strength; image b of the result is made
of image b and row b of `u_BK` alone, so labels keep their images and the same numbers give the same result. A strength
of 0 changes nothing.

B images, C channels, H×W pixels, K random numbers an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nnarena.core.errors import BadOption, suggestion

GREY = (0.299, 0.587, 0.114)  # how bright red, green and blue look (ITU-R BT.601)


def pad_crop(x_BCHW: Tensor, u_BK: Tensor, pixels: float) -> Tensor:
    """Zeros around the image, and a random window of the old size: a shift by up to `pixels` each way. K = 2."""
    count, _, height, width = x_BCHW.shape
    pad = int(pixels)
    down_B, right_B = (_below(u_BK[:, place], 2 * pad + 1) for place in (0, 1))
    rows_BH = down_B[:, None] + torch.arange(height, device=x_BCHW.device)
    columns_BW = right_B[:, None] + torch.arange(width, device=x_BCHW.device)
    image_B = torch.arange(count, device=x_BCHW.device)[:, None, None]
    padded_BHWC = F.pad(x_BCHW, (pad,) * 4).permute(0, 2, 3, 1)
    return padded_BHWC[image_B, rows_BH[:, :, None], columns_BW[:, None, :]].permute(0, 3, 1, 2).contiguous()


def flip(x_BCHW: Tensor, u_BK: Tensor, chance: float) -> Tensor:
    """Left and right exchanged, by `chance`. K = 1."""
    return torch.where(_wide(u_BK[:, 0] < chance), x_BCHW.flip(-1), x_BCHW)


def cutout(x_BCHW: Tensor, u_BK: Tensor, side: float) -> Tensor:
    """A black square of `side` pixels, whose centre is anywhere in the image (DeVries, Taylor 2017). K = 2."""
    height, width = x_BCHW.shape[-2:]
    top_B, left_B = (_below(u_BK[:, k], size) - int(side) // 2 for k, size in enumerate((height, width)))
    inside = _box(x_BCHW, top_B, left_B, int(side), int(side))
    return x_BCHW.masked_fill(inside, 0.0)


def erase(x_BCHW: Tensor, u_BK: Tensor, area: float) -> Tensor:
    """Every second image loses a rectangle, 2 % to `area` of it, to one grey (Zhong et al. 2017). K = 6."""
    height, width = x_BCHW.shape[-2:]
    share_B = 0.02 + (area - 0.02) * u_BK[:, 1]
    ratio_B = torch.exp((2 * u_BK[:, 2] - 1) * math.log(3))  # from 1 : 3 to 3 : 1
    tall_B = (height * (share_B * ratio_B).sqrt()).clamp(1, height).long()
    wide_B = (width * (share_B / ratio_B).sqrt()).clamp(1, width).long()
    top_B = (u_BK[:, 3] * (height - tall_B + 1)).long()
    left_B = (u_BK[:, 4] * (width - wide_B + 1)).long()
    inside = _box(x_BCHW, top_B, left_B, tall_B, wide_B) & _wide(u_BK[:, 0] < 0.5)
    return torch.where(inside, _wide(u_BK[:, 5]), x_BCHW)


def rotate(x_BCHW: Tensor, u_BK: Tensor, degrees: float) -> Tensor:
    """Turned around the centre by up to `degrees` either way; what comes in from outside is black. K = 1."""
    angle_B = _around(u_BK[:, 0], math.radians(degrees))
    return _sample(x_BCHW, angle_B.cos(), angle_B.sin())


def zoom(x_BCHW: Tensor, u_BK: Tensor, share: float) -> Tensor:
    """Larger or smaller by up to `share`, around the centre; what comes in from outside is black. K = 1."""
    factor_B = 1 + _around(u_BK[:, 0], share)
    return _sample(x_BCHW, 1 / factor_B, torch.zeros_like(factor_B))


def brightness(x_BCHW: Tensor, u_BK: Tensor, share: float) -> Tensor:
    """All pixels of an image times one factor, 1 ± `share`. K = 1."""
    return (x_BCHW * _wide(1 + _around(u_BK[:, 0], share))).clamp(0, 1)


def contrast(x_BCHW: Tensor, u_BK: Tensor, share: float) -> Tensor:
    """The distance of all pixels from the image's mean times one factor, 1 ± `share`. K = 1."""
    mean = x_BCHW.mean((1, 2, 3), keepdim=True)
    return (mean + (x_BCHW - mean) * _wide(1 + _around(u_BK[:, 0], share))).clamp(0, 1)


def colour_jitter(x_BCHW: Tensor, u_BK: Tensor, share: float) -> Tensor:
    """Every channel times a factor of its own, 1 ± `share`, and the same for how colourful it is. K = 4."""
    channels = x_BCHW.shape[1]
    tinted = x_BCHW * (1 + _around(u_BK[:, :channels], share))[:, :, None, None]
    grey = grey_of(tinted)
    return (grey + (tinted - grey) * _wide(1 + _around(u_BK[:, 3], share))).clamp(0, 1)


def noise(x_BCHW: Tensor, u_BK: Tensor, deviation: float) -> Tensor:
    """Gaussian noise on every pixel. K = C · H · W."""
    normal = math.sqrt(2) * torch.erfinv(2 * u_BK - 1)
    return (x_BCHW + deviation * normal.reshape(x_BCHW.shape)).clamp(0, 1)


def greyscale(x_BCHW: Tensor, u_BK: Tensor, chance: float) -> Tensor:
    """Without colour, by `chance`. K = 1."""
    return torch.where(_wide(u_BK[:, 0] < chance), grey_of(x_BCHW), x_BCHW)


def resize(x_BCHW: Tensor, size: int) -> Tensor:
    """To `size` × `size` pixels, smoothly; nothing random, and the same in training and test."""
    if x_BCHW.shape[-2:] == (size, size):
        return x_BCHW
    return F.interpolate(x_BCHW, (size, size), mode="bilinear", align_corners=False, antialias=True)


def shifted(x_BCHW: Tensor, down: int, right: int) -> Tensor:
    """Moved by a pixel or none each way; what comes in from outside is 0."""
    height, width = x_BCHW.shape[-2:]
    return F.pad(x_BCHW, (1, 1, 1, 1))[..., 1 - down : 1 - down + height, 1 - right : 1 - right + width]


STEPS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
VIEWS = ("flip", "shift")


def views(x_BCHW: Tensor, kinds: Sequence[str]) -> list[Tensor]:
    """The ways in which one image is shown at test time, itself first: flipped, shifted, or all of both."""
    shown = [x_BCHW, x_BCHW.flip(-1)] if "flip" in kinds else [x_BCHW]
    if "shift" in kinds:
        shown = [shifted(one, *step) for one in shown for step in STEPS]
    return shown


def parse_views(text: str | None, owner: str) -> tuple[str, ...]:
    """`flip`, `shift` or `flip+shift`."""
    kinds = tuple(word.strip() for word in text.split("+")) if text else ()
    for kind in kinds:
        if kind not in VIEWS:
            raise BadOption(f"{owner}: there is no view {kind!r}{suggestion(kind, VIEWS)}")
    return kinds


@dataclass(frozen=True)
class Kind:
    """An augmentation: its function, its usual and its largest strength, and its random numbers (0: one a pixel)."""

    function: Callable[[Tensor, Tensor, float], Tensor]
    usual: float
    most: float
    numbers: int
    whole: bool = False


KINDS = {
    "pad_crop": Kind(pad_crop, 4, 64, 2, whole=True),
    "flip": Kind(flip, 0.5, 1, 1),
    "cutout": Kind(cutout, 8, 1024, 2, whole=True),
    "erase": Kind(erase, 0.3, 1, 6),
    "rotate": Kind(rotate, 15, 180, 1),
    "zoom": Kind(zoom, 0.2, 0.9, 1),
    "brightness": Kind(brightness, 0.3, 1, 1),
    "contrast": Kind(contrast, 0.3, 1, 1),
    "colour_jitter": Kind(colour_jitter, 0.3, 1, 4),
    "noise": Kind(noise, 0.05, 1, 0),
    "greyscale": Kind(greyscale, 0.2, 1, 1),
}


@dataclass(frozen=True)
class Augmentation:
    """Some kinds with their strengths, one after the other, for images of one shape."""

    steps: tuple[tuple[Kind, float], ...]
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """K of all of them together."""
        return sum(self._counts())

    def __call__(self, x_BCHW: Tensor, u_BK: Tensor) -> Tensor:
        for (kind, strength), part_BK in zip(self.steps, u_BK.split(self._counts(), dim=1), strict=True):
            x_BCHW = kind.function(x_BCHW, part_BK, strength)
        return x_BCHW

    def _counts(self) -> list[int]:
        return [kind.numbers or math.prod(self.shape) for kind, _ in self.steps]


def parse(text: str | None, shape: Sequence[int], owner: str) -> Augmentation:
    """`pad_crop:4+flip` for images of (C, H, W). A strength of 0 is as good as not named."""
    steps = []
    for word in text.split("+") if text else ():
        name, colon, given = (part.strip() for part in word.partition(":"))
        if name not in KINDS:
            raise BadOption(f"{owner}: there is no augmentation {name!r}{suggestion(name, KINDS)}")
        kind = KINDS[name]
        strength = _strength(given, kind, name, owner) if colon else kind.usual
        if strength:
            steps.append((kind, strength))
    return Augmentation(tuple(steps), tuple(shape))


def _strength(given: str, kind: Kind, name: str, owner: str) -> float:
    try:
        strength = float(given)
    except ValueError:
        strength = math.nan
    if not 0 <= strength <= kind.most or (kind.whole and strength % 1):
        number = "a whole number" if kind.whole else "a number"
        raise BadOption(f"{owner}: {name!r} takes {number} from 0 to {kind.most:g}, as in {name}:{kind.usual:g}.")
    return strength


def _around(u: Tensor, width: float) -> Tensor:
    """Uniform between −width and width."""
    return (2 * u - 1) * width


def _below(u: Tensor, count: int) -> Tensor:
    """Whole numbers from 0 to count − 1, all equally likely."""
    return (u * count).long().clamp(max=count - 1)


def _wide(values_B: Tensor) -> Tensor:
    return values_B[:, None, None, None]


def grey_of(x_BCHW: Tensor) -> Tensor:
    """Every channel as bright as the image looks without colour."""
    if x_BCHW.shape[1] != len(GREY):
        return x_BCHW
    grey = sum(weight * x_BCHW[:, channel : channel + 1] for channel, weight in enumerate(GREY))
    return grey.expand_as(x_BCHW)  # type: ignore[union-attr]


def _box(x_BCHW: Tensor, top_B: Tensor, left_B: Tensor, tall: int | Tensor, wide: int | Tensor) -> Tensor:
    """(B, 1, H, W): which pixels lie in a rectangle of each image."""
    height, width = x_BCHW.shape[-2:]
    rows = torch.arange(height, device=x_BCHW.device)
    columns = torch.arange(width, device=x_BCHW.device)
    in_BH = (rows >= top_B[:, None]) & (rows < (top_B + tall)[:, None])
    in_BW = (columns >= left_B[:, None]) & (columns < (left_B + wide)[:, None])
    return (in_BH[:, :, None] & in_BW[:, None, :])[:, None]


def _sample(x_BCHW: Tensor, cos_B: Tensor, sin_B: Tensor) -> Tensor:
    """Every pixel read at its place times the matrix (cos, −sin; sin, cos), around the centre."""
    zero_B = torch.zeros_like(cos_B)
    height, width = x_BCHW.shape[-2:]
    across = width / height  # coordinates go from −1 to 1 along both sides
    rows = [
        torch.stack([cos_B, -sin_B / across, zero_B], -1),
        torch.stack([sin_B * across, cos_B, zero_B], -1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(x_BCHW.shape), align_corners=False)
    return F.grid_sample(x_BCHW, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

"""Augmentation: every image is still the one its label belongs to, within its range, and the numbers decide all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nnarena.core.errors import BadOption
from nnarena.tasks import augment
from nnarena.tasks.augment import KINDS, parse

SHAPE = (3, 12, 12)
NAMES = sorted(KINDS)
ALL = "+".join(NAMES)


def images(count: int = 64, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


def uniform(count: int, numbers: int, seed: int = 1) -> Tensor:
    return torch.rand(count, numbers, generator=torch.Generator().manual_seed(seed)).clamp(1e-6, 1 - 1e-6)


def apply(text: str, x: Tensor, seed: int = 1) -> Tensor:
    change = parse(text, x.shape[1:], "test")
    return change(x, uniform(len(x), change.numbers, seed))


@pytest.mark.parametrize("shape", [(3, 12, 12), (1, 12, 12), (3, 8, 12)], ids=str)
@pytest.mark.parametrize("name", [*NAMES, ALL])
def test_shape_range_and_the_same_again(name, shape):
    x = images(shape=shape)
    before = x.clone()
    once = apply(name, x)
    assert once.shape == x.shape and once.dtype == x.dtype and once.min() >= 0 and once.max() <= 1 + 1e-6
    assert torch.equal(x, before), "the images themselves stay as they are"
    assert torch.equal(once, apply(name, x))
    if shape[0] == 3 or name != "greyscale":
        assert not torch.equal(once, x)
        assert not torch.equal(once, apply(name, x, seed=2))


@pytest.mark.parametrize("name", [*NAMES, ALL])
def test_an_image_depends_on_itself_and_its_own_numbers(name):
    x, change = images(), parse(name, SHAPE, "test")
    u = uniform(len(x), change.numbers)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(change(x[order], u[order]), change(x, u)[order], rtol=0, atol=1e-6)
    torch.testing.assert_close(change(x[5:6], u[5:6]), change(x, u)[5:6], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_images_can_be_told_apart_by_who_they_were(name):
    """Flat images of many brightnesses: the brightest pixel, or the middle of them, still says which one it was."""
    levels = torch.linspace(0.2, 0.8, 16)
    x = levels[:, None, None, None].expand(-1, *SHAPE).contiguous()
    weak = {"pad_crop": 2, "brightness": 0.01, "colour_jitter": 0.01, "noise": 0.01}
    changed = apply(f"{name}:{weak.get(name, KINDS[name].usual)}", x)
    assert (changed.flatten(1).median(1).values[:, None] - levels).abs().argmin(1).tolist() == list(range(16))


@pytest.mark.parametrize("name", NAMES)
def test_no_strength_is_no_change(name):
    x = images()
    assert torch.equal(apply(f"{name}:0", x), x)
    if name not in ("erase", "zoom", "rotate"):
        torch.testing.assert_close(KINDS[name].function(x, uniform(64, KINDS[name].numbers or 432), 0.0), x)


@pytest.mark.parametrize("name", ["zoom", "rotate"])
def test_little_strength_is_little_change(name):
    x = images()
    torch.testing.assert_close(apply(f"{name}:0.00001", x), x, rtol=0, atol=1e-3)


def test_pad_crop_is_every_shift():
    x = images(400)
    changed = apply("pad_crop:2", x)
    padded = torch.nn.functional.pad(x, (2,) * 4)
    seen = set()
    for image, wide in zip(changed, padded, strict=True):
        shifts = [(i, j) for i in range(5) for j in range(5) if torch.equal(wide[:, i : i + 12, j : j + 12], image)]
        assert len(shifts) == 1
        seen.add(shifts[0])
    assert len(seen) == 25


def test_flip_is_half_of_them():
    x = images(400)
    changed = apply("flip", x)
    flipped = [torch.equal(image, old.flip(-1)) for image, old in zip(changed, x, strict=True)]
    kept = [torch.equal(image, old) for image, old in zip(changed, x, strict=True)]
    assert all(a != b for a, b in zip(flipped, kept, strict=True)) and 160 < sum(flipped) < 240
    assert torch.equal(apply("flip:1", x), x.flip(-1))


def test_cutout_is_a_square():
    holes = (apply("cutout:4", images() + 0.1) == 0).all(1)
    assert holes.sum((1, 2)).max() == 16 and holes.sum((1, 2)).min() >= 4


def test_erase_is_every_second_image_and_no_more_than_said():
    x = images(400)
    changed = (apply("erase:0.25", x) != x).any(1).flatten(1).double().mean(1)
    assert 160 < (changed > 0).sum() < 240 and changed.max() <= 0.3


def test_a_quarter_turn():
    x = images(shape=(3, 8, 8))
    turned = augment.rotate(x, torch.ones(64, 1), 90)
    torch.testing.assert_close(turned, x.rot90(1, (2, 3)), rtol=0, atol=1e-4)


def test_greyscale_has_no_colour():
    changed = apply("greyscale:1", images())
    assert torch.equal(changed[:, 0], changed[:, 1]) and torch.equal(changed[:, 0], changed[:, 2])


def test_resize():
    x = images()
    assert augment.resize(x, 24).shape == (64, 3, 24, 24) and augment.resize(x, 12) is x
    torch.testing.assert_close(augment.resize(x, 6).mean((2, 3)), x.mean((2, 3)), rtol=0, atol=0.05)


def test_shifted():
    x = images()
    assert torch.equal(augment.shifted(x, 0, 0), x)
    assert torch.equal(augment.shifted(x, 1, -1)[..., 1:, :-1], x[..., :-1, 1:])
    assert not augment.shifted(x, 1, -1)[..., 0, :].any() and not augment.shifted(x, 1, -1)[..., -1].any()


def test_nothing_is_nothing():
    for text in (None, "", "flip:0"):
        change = parse(text, SHAPE, "test")
        assert change.numbers == 0 and not change.steps


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("flipp", "there is no augmentation 'flipp'; did you mean 'flip'"),
        ("flip+", "there is no augmentation ''"),
        ("flip:2", "'flip' takes a number from 0 to 1, as in flip:0.5"),
        ("pad_crop:1.5", "'pad_crop' takes a whole number from 0 to 64, as in pad_crop:4"),
        ("rotate:x", "'rotate' takes a number"),
        ("zoom:-1", "'zoom' takes a number"),
        ("zoom:nan", "'zoom' takes a number"),
    ],
)
def test_what_cannot_be(text, sentence):
    with pytest.raises(BadOption, match=f"cifar10: {sentence}"):
        parse(text, SHAPE, "cifar10")


@pytest.mark.parametrize("name", NAMES)
def test_no_number_travels_between_host_and_device(name):
    """On tensors without numbers, asking for one is an error; a step with such a question could not be recorded."""
    change = parse(name, SHAPE, "test")
    changed = change(torch.empty(4, *SHAPE, device="meta"), torch.empty(4, change.numbers, device="meta"))
    assert changed.shape == (4, *SHAPE)

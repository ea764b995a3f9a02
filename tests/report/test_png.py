"""PNG files, read back by a reader of their own."""

from __future__ import annotations

import numpy as np
import pytest
from png_reader import read_png

from nnarena.report.panels import Scale, image_png, map_png, palette, scale_of
from nnarena.report.png import NOTHING, coloured_png, indexed_png


def test_levels_and_colours_come_back() -> None:
    levels = np.random.default_rng(0).integers(0, 255, (5, 9), np.uint8)
    png = read_png(indexed_png(levels, palette("heat")))
    np.testing.assert_array_equal(png.pixels, levels)
    np.testing.assert_array_equal(png.colours, palette("heat")[levels])
    assert png.clear == []
    rgb = np.random.default_rng(1).integers(0, 256, (4, 3, 3), np.uint8)
    np.testing.assert_array_equal(read_png(coloured_png(rgb)).colours, rgb)


@pytest.mark.parametrize("kind", ["grey", "heat", "signed"])
def test_a_palette_gets_lighter_or_darker_all_the_way(kind) -> None:
    """So that a picture can be read in print and by who sees no colours; signed ones are lightest at zero."""
    light = palette(kind) @ (0.299, 0.587, 0.114)
    halves = [light] if kind != "signed" else [light[:128], -light[127:]]
    assert palette(kind).shape == (255, 3)
    assert all((np.diff(half) > -0.6).all() and half[-1] - half[0] > 100 for half in halves)


def test_a_picture_tells_its_numbers() -> None:
    values = np.random.default_rng(0).normal(size=(1, 6, 7))
    scale = scale_of("signed", values)
    assert scale.low == -scale.high == -np.abs(values).max()
    back = scale.low + read_png(map_png(values, scale)).pixels / 254 * (scale.high - scale.low)
    np.testing.assert_allclose(back, values[0], atol=(scale.high - scale.low) / 507)


def test_shares_that_differ_much_are_drawn_by_their_logarithm() -> None:
    assert not scale_of("heat", np.array([0.02, 0.5])).log
    values = np.array([[[1e-9, 1e-3, 0.03, 0.5]]])
    scale = scale_of("heat", values)
    assert scale.log and scale.high == 0.5 and scale.low == pytest.approx(5e-5)
    levels = read_png(map_png(values, scale)).pixels[0]
    assert levels[0] == 0 and levels[3] == 254
    assert levels[1] == round(254 * np.log(1e-3 / 5e-5) / np.log(1e4))


def test_channels_lie_side_by_side_with_nothing_between() -> None:
    values = np.stack([np.zeros((2, 3)), np.ones((2, 3))])
    png = read_png(map_png(values, Scale("grey", 0.0, 1.0)))
    assert png.pixels.tolist() == [[0, 0, 0, NOTHING, 254, 254, 254]] * 2
    assert png.clear == [NOTHING]


def test_what_is_not_finite_has_no_colour_and_no_say() -> None:
    values = np.array([[[0.0, np.nan, np.inf, 2.0]]])
    scale = scale_of("grey", values)
    assert (scale.low, scale.high) == (0.0, 2.0)
    with np.errstate(all="raise"):
        assert read_png(map_png(values, scale)).pixels.tolist() == [[0, NOTHING, NOTHING, 254]]


def test_what_is_everywhere_the_same_is_one_colour() -> None:
    for kind in ("grey", "heat", "signed"):
        values = np.zeros((1, 2, 2))
        assert read_png(map_png(values, scale_of(kind, values))).pixels.tolist() == [[127, 127]] * 2


def test_images_look_as_they_are() -> None:
    grey = np.array([[[0, 8, 16]]], np.uint8)
    assert read_png(image_png(grey, 16)).colours[0].tolist() == [[0] * 3, [128] * 3, [255] * 3]
    rgb = np.random.default_rng(0).integers(0, 256, (3, 4, 5), np.uint8)
    np.testing.assert_array_equal(read_png(image_png(rgb, 255)).colours, rgb.transpose(1, 2, 0))

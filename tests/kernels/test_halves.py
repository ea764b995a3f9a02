"""Products of halves: as good as float32, however large or small numbers are."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from kernel_helpers import DEVICES, assert_near
from sm90 import HEAVY, MANY, loop_of
from torch import nn

from nnarena.kernels import recurrence
from nnarena.kernels.compiler import plan
from nnarena.kernels.gpu import gemm, runtime
from nnarena.kernels.gpu.halves import (
    across_in_halves,
    better_scale,
    halves,
    in_range,
    power,
    scaled_halves,
    size_of_columns,
    size_of_weighted,
    size_of_weights,
    undone,
    weighted_in_halves,
)
from nnarena.nn import UnitaryRNN
from nnarena.nn.recurrent import Recurrent

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value encountered", "ignore:overflow encountered", "ignore:All-NaN slice encountered"
)
BATCH, UNITS = 18, 20  # a block of sixteen samples, and two more


class Linear(Recurrent):
    """h ← U h + W x: what goes in is as large as what comes out."""

    def __init__(self, step=None):
        super().__init__(3, UNITS, backend="fused")
        self.W, self.U = nn.Parameter(torch.randn(3, UNITS)), nn.Parameter(torch.randn(UNITS, UNITS) / UNITS**0.5)

    def initial_state(self, batch, like):
        return like.new_zeros(batch, UNITS)

    def constants(self):
        return self.W, self.U

    @staticmethod
    def step(constants, u, state):
        W, U = constants
        state = u @ W + state @ U
        return state, state


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """All cells in blocks, whatever their sizes would suggest."""
    for name in ("SINGLE", "MANY", "VERY_MANY", "HEAVY"):
        monkeypatch.setattr(plan, name, 0)
    monkeypatch.setattr(recurrence, "_loops", {})


def make(device, weights=1.0):
    torch.manual_seed(0)
    layer = Linear().to(device)
    with torch.no_grad():
        layer.U.mul_(weights)
    return layer


def both(layer, x, pull):
    """Outputs and gradients of Σ output · pull, ours and those of a plain loop in float64."""
    exact = copy.deepcopy(layer).double()
    exact.backend = "eager"
    found = []
    for each, kind in ((layer, torch.float32), (exact, torch.float64)):
        given = x.to(kind).requires_grad_()
        output, _ = each(given)
        slopes = torch.autograd.grad((output * pull.to(kind)).sum(), [given, *each.parameters()])
        found.append([output.detach(), *slopes])
    return found


def check(layer, x, pull, tolerance=2e-6):
    ours, exact = both(layer, x, pull)
    for place, (one, other) in enumerate(zip(ours, exact, strict=True)):
        assert_near(one, other, f"result {place}", tolerance, floor=0.0)
    loops = [loop for loop in recurrence._loops.values() if isinstance(loop, runtime.Loop)]
    texts = [kernels.compiled for loop in loops for kernels in loop.kernels.values()]
    assert texts and all("halves(" in text.forward.source and "halves(" in text.backward.source for text in texts)
    return ours


SIZES = [(1, 1), (1e-18, 1e-6), (1e-6, 1e-15), (1e5, 1e8), (1e15, 1e-3)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("size", "slope", "weights"),
    [(*sizes, weights) for sizes in SIZES for weights in (1.0, 1e-8, 100.0) if max(sizes) <= 1 or weights <= 1],
)
def test_numbers_may_have_any_size(size, slope, weights, device):
    """All of them are in range, or are taken again by another scale: states, gradients, and weights."""
    x, pull = torch.randn(BATCH, 4, 3, device=device), torch.randn(BATCH, 4, UNITS, device=device)
    check(make(device, weights), size * x, slope * pull, tolerance=5e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_may_jump_from_one_step_to_the_next(device):
    """Nothing is there at first, then a little, then a lot; and a gradient comes from the middle alone."""
    x, pull = torch.randn(BATCH, 6, 3, device=device), torch.zeros(BATCH, 6, UNITS, device=device)
    x *= torch.tensor([0.0, 1e-9, 1.0, 1e5, 0.0, 1.0], device=device).view(6, 1)
    pull[:, 3] = 1e-7 * torch.randn(BATCH, UNITS, device=device)
    check(make(device), x, pull)


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_may_grow_and_fade(device):
    """By a factor of a million in ten steps, in both directions."""
    x, pull = torch.randn(BATCH, 10, 3, device=device), torch.randn(BATCH, 10, UNITS, device=device)
    check(make(device, 4.0), x, pull, tolerance=5e-6)
    check(make(device, 0.25), x, pull, tolerance=5e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [0.1, 0.3, 1.0])
def test_a_gradient_may_explode_where_the_state_is_zero(bias, device):
    """Dark images begin with zeros, and modReLU is steep there: what grows meets nothing, and the rest counts.

    On the way back the gradient grows by a factor of 1e8, 1e18 and 1e28.
    """
    torch.manual_seed(0)
    layer = UnitaryRNN(3, UNITS, capacity=4, backend="fused").to(device)
    with torch.no_grad():
        layer.weight_ih.mul_(100)
        layer.bias.fill_(bias)
    x, pull = torch.randn(BATCH, 20, 3, device=device), torch.zeros(BATCH, 20, UNITS, device=device)
    x[:, :15], pull[:, -1] = 0, 1e-3 * torch.randn(BATCH, UNITS, device=device)
    ours, exact = both(layer, x, pull)
    growth = exact[1][:, 0].abs().max() / exact[1][:, 16].abs().max()
    assert growth > (1 + bias / 0.01) ** 8
    for place, (one, other) in enumerate(zip(ours, exact, strict=True)):
        assert_near(one, other, f"result {place}", 2e-5, floor=0.0)


@pytest.mark.parametrize("device", DEVICES)
def test_products_whose_size_is_infinite_are_not_of_halves(device):
    """Of two seeds one has exceptions, which meet zeros."""
    torch.manual_seed(0)
    left, right = (torch.randn(2, 40, 5, 1, 20, device=device) for _ in range(2))
    left[1, :, 0], right[1, :, 0] = 0, 1e18
    size = torch.tensor([[8.0, 8.0], [8.0, math.inf]], device=device)
    found = gemm.products_over_steps(left, right, "bf16x6", None, True, gemm.Sizes(size, size))
    assert_near(found.product, torch.einsum("sbtrk,sbtrn->skn", left.double(), right.double()), "product", 1e-6)
    assert_near(found.sum, left.double().sum((1, 2, 3)), "sum", 1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_gives_nothing(device):
    zeros = torch.zeros(BATCH, 3, 3, device=device)
    output, of_x, of_W, of_U = both(make(device), zeros, torch.zeros(BATCH, 3, UNITS, device=device))[0]
    assert not any(part.any() for part in (output, of_x, of_W, of_U))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e30])
def test_a_sample_that_is_lost_takes_no_other_with_it(bad, device):
    """Samples of a block share their scale: what is beyond all scales must not choose it."""
    layer, x = make(device), torch.randn(BATCH, 5, 3, device=device)
    with torch.no_grad():
        alone = layer(x)[0]
        x[3, 2, 1] = bad
        beside = layer(x)[0]
    others = [sample for sample in range(BATCH) if sample != 3]
    assert_near(beside[others], alone[others].double(), "others", 1e-6)
    assert not beside[3, 2:].isfinite().all() or bad == 1e30


@pytest.mark.parametrize("device", DEVICES)
def test_a_large_sample_leaves_the_others_their_digits(device):
    """A million times as large as what is beside it, and too large for float16."""
    layer, x = make(device), torch.randn(BATCH, 5, 3, device=device)
    with torch.no_grad():
        alone = layer(x)[0]
        x[3] *= 1e6
        beside = layer(x)[0]
    others = [sample for sample in range(BATCH) if sample != 3]
    assert_near(beside[others], alone[others].double(), "others", 1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_no_step_leaves_the_state(device):
    layer = make(device)
    state = torch.randn(BATCH, UNITS, device=device)
    with torch.no_grad():
        output, last = layer(torch.zeros(BATCH, 0, 3, device=device), state)
    assert output.shape == (BATCH, 0, UNITS) and torch.equal(last, state)


@pytest.mark.parametrize("cell", [cell for cell in HEAVY if cell not in ("memory_augmented_transformer", "dnc")])
def test_gradients_of_weights_know_how_large_their_factors_are(cell):
    """So they are products of halves, too: what is multiplied by weights is measured, on both ways."""
    compiled = loop_of(cell).at(MANY).compiled
    sides = [side for each in compiled.gemms for side in each.sides(compiled.shapes[f"c{each.constant}"])]
    assert sides and compiled.sizes.keys() >= set(sides)
    assert set(compiled.sizes.values()) <= {*compiled.forward.arguments, *compiled.backward.arguments}


def test_what_the_way_forward_has_is_not_made_again_on_the_way_back():
    compiled = loop_of("ct_rnn").at(MANY).compiled
    back = compiled.backward.source.partition("def backward")[2]
    assert "tanh(" not in back and "hist0" not in back  # slopes are made of what was saved, and nothing else
    assert "saved_factor0" in compiled.forward.arguments and "saved_factor0" not in compiled.inference.arguments
    assert compiled.gemms[0].left.name == "saved_factor0"


@triton.jit
def split_and_measure(numbers, high, low, scales, COUNT: tl.constexpr, LIFT: tl.constexpr):
    place = tl.arange(0, COUNT)
    number = tl.load(numbers + place)
    one, other = halves(number, LIFT)
    tl.store(high + place, one.to(tl.float32))
    tl.store(low + place, other.to(tl.float32))
    scale = power(tl.abs(number), -2)
    tl.store(scales + place, scale)
    tl.store(scales + COUNT + place, undone(scale))


def of(numbers, lift, device):
    high, low, scales = (torch.empty(len(numbers) * times, device=device) for times in (1, 1, 2))
    split_and_measure[(1,)](numbers.to(device), high, low, scales, len(numbers), lift)
    return high.cpu().double(), low.cpu().double(), *scales.cpu().double().chunk(2)


@pytest.mark.parametrize("device", DEVICES)
def test_halves_are_as_good_as_they_say(device):
    size = torch.logspace(-40, 15.9, 2048, base=2)
    numbers = size * torch.randn(2048).sign() * (1 + torch.rand(2048) / 16).clamp(max=65_504 / size)
    exact = numbers.double()
    for lift, smallest, digits in ((2048.0, 2**-13, 36), (1.0, 2**-2, 25)):
        high, low, _, _ = of(numbers, lift, device)
        error = (high + low / lift - exact).abs()
        large = exact.abs() >= smallest
        assert (error[large] <= 2.0**-22.9 * exact[large].abs()).all()
        assert (error[~large] <= 2.0**-digits).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_scale_is_a_power_of_two_that_can_be_undone(device):
    numbers = torch.logspace(-62, 108, 1024, base=2)
    *_, scale, back = of(numbers, 1.0, device)
    assert (scale * back == 1).all() and (scale.log2() % 1 == 0).all()
    scaled = scale * numbers.double()
    assert ((scaled >= 0.25) & (scaled < 0.5)).all()


@triton.jit
def settle(sizes, found, COUNT: tl.constexpr, TRIES: tl.constexpr):
    size = tl.load(sizes + tl.arange(0, COUNT))
    scale = tl.full((COUNT,), 1.0, tl.float32)
    tries = tl.zeros((COUNT,), tl.int32)
    for _ in range(TRIES):
        good = in_range(size, scale)
        tries += tl.where(good, 0, 1)
        scale = tl.where(good, scale, better_scale(size, scale))
    tl.store(found + tl.arange(0, COUNT), tl.where(in_range(size, scale), tries, TRIES))


@given(st.lists(st.floats(2**-56, 2**125, width=32), min_size=16, max_size=16))
def test_a_scale_is_found_after_a_few_tries(sizes):
    """Whatever the size. None is needed between 2⁻¹³ and 2¹⁵, one below, and a few above."""
    found = torch.empty(16)
    settle[(1,)](torch.tensor(sizes), found, 16, 8)
    for size, tries in zip(sizes, found.tolist(), strict=True):
        assert tries <= (0 if 2**-13 <= size <= 2**15 else 1 if size < 1 else 6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(("height", "width", "features"), [(40, 20, 0), (20, 40, 0), (70, 17, 2), (65, 140, 3)])
def test_products_over_steps_of_halves(height, width, features, summed, device):
    """Of sides whose sizes differ by far, in parts, and with few numbers beside them that are larger than one."""
    torch.manual_seed(0)
    left = 1e-9 * torch.randn(2, 5, 4, 3, height, device=device) * torch.logspace(-2, 2, height, device=device)
    right = 1e6 * torch.randn(2, 5, 4, 3, width, device=device)
    few = 1e3 * torch.randn(2, 5, 4, features, device=device) if features else None
    parts = [part.abs().flatten(2).amax(2) for part in (left, right, *([few] if features else []))]
    found = gemm.products_over_steps(left, right, "bf16x6", few, summed, gemm.Sizes(*parts))
    exact = left.double()
    assert_near(found.product, torch.einsum("sbtrk,sbtrn->skn", exact, right.double()), "product", 1e-6, floor=0.0)
    if features:
        thin = torch.einsum("sbtf,sbtrk->sfk", few.double(), exact)
        assert_near(found.thin, thin, "thin product", 1e-6, floor=0.0)
    if summed:
        assert_near(found.sum, exact.sum((1, 2, 3)), "sum", 1e-6, floor=0.0)


ROWS, WIDTH = 64, 32


@triton.jit
def multiply_on_the_spot(x, w, weighted, across, ROWS: tl.constexpr, WIDTH: tl.constexpr, KNOWN: tl.constexpr):
    """x W, and xᵀ of that, by the sizes that it has or those that it is known not to exceed."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)
    x = scaled_halves(tl.load(x + row * WIDTH + column[None, :]))
    weights = tl.load(w + column[:, None] * WIDTH + column[None, :])
    w = scaled_halves(weights)
    made = weighted_in_halves(w, x)
    sizes = size_of_weighted(size_of_weights(weights), x) if KNOWN else size_of_columns(made)
    tl.store(weighted + row * WIDTH + column[None, :], made)
    tl.store(across + column[:, None] * WIDTH + column[None, :], across_in_halves(made, x, sizes))


def on_the_spot(x, w, known):
    weighted, across = torch.empty_like(x), torch.empty_like(w)
    multiply_on_the_spot[(1,)](x, w, weighted, across, ROWS, WIDTH, known)
    return weighted, across


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weights", [1e-10, 1.0, 1e10])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("size", [1e-28, 1e-18, 1e-9, 1.0, 1e9, 1e18])
def test_scales_that_are_found_on_the_spot_suit_every_size(size, known, weights, device):
    """As good as float32, for results between 1e-36 and 1e36."""
    torch.manual_seed(0)
    x, w = size * torch.randn(ROWS, WIDTH, device=device), weights * torch.randn(WIDTH, WIDTH, device=device)
    weighted, across = on_the_spot(x, w, known)
    if 1e-36 < size * weights < 1e36:
        assert_near(weighted, x.double() @ w.double(), "x W", 1e-6, floor=0.0)
    if 1e-36 < size * weights < 1e36 and 1e-36 < size * size * weights < 1e36:
        assert_near(across, weighted.double().mT @ x.double(), "xᵀ x W, turned", 1e-6, floor=0.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("known", [False, True])
def test_small_rows_beside_large_ones_keep_their_digits(known, device):
    """Down to 2⁻¹⁶ of the largest number of a block, and each unit by itself."""
    torch.manual_seed(0)
    x, w = torch.randn(ROWS, WIDTH, device=device), torch.randn(WIDTH, WIDTH, device=device)
    x[1:] *= 2.0**-16
    w *= torch.logspace(0, -16, WIDTH, base=2, device=device)
    weighted, _ = on_the_spot(x, w, known)
    error = (weighted - x.double() @ w.double()).abs()
    assert (error < 1e-6 * (x.double().abs() @ w.double().abs())).all()
    x[0] = 0  # what large rows gave nothing to is as exact as they are
    weighted, across = on_the_spot(x, w, known)
    wanted = weighted.double().mT @ x.double()
    assert ((across - wanted).abs().amax(1) < 1e-6 * wanted.abs().amax(1)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_no_number_does_not_vanish(bad, known, device):
    torch.manual_seed(0)
    x, w = torch.randn(ROWS, WIDTH, device=device), torch.randn(WIDTH, WIDTH, device=device)
    x[5, 3] = bad
    weighted, across = on_the_spot(x, w, known)
    assert not weighted[5].isfinite().any() and not across.isfinite().any()
    zeros = torch.zeros_like(x)
    assert not any(part.any() for part in on_the_spot(zeros, w, known))

"""Halves: two numbers in float16 that stand for one in float32, and scales that keep numbers where they have some.

Scales are powers of two, so that nothing is lost by them. `emit_halves` says what for.
"""

import triton
import triton.language as tl

LARGE = tl.constexpr(2.0**15)  # numbers have halves up to here, and good ones
SMALL = tl.constexpr(2.0**-13)  # from here on
LOWEST = tl.constexpr(2.0**-112)  # scales: by it the largest numbers that float32 has are 2¹⁵
HIGHEST = tl.constexpr(2.0**63)
LIGHTEST = tl.constexpr(2.0**-14)  # those of weights: together with any other it is a number that can be undone
LIFT = tl.constexpr(2.0**11)  # the second half is so many times what is left
GUESS = tl.constexpr(2.0**4)  # a scale, where nothing is known


@triton.jit
def halves(x, lift):
    """Two numbers in float16: the nearest to x, and `lift` times what is left.

    With LIFT they are right to 23 binary digits while x is between 2⁻¹³ and 65,504, and to 2⁻³⁶ below; with 1 from 2⁻²
    on, and to 2⁻²⁵ below. What is larger has none.
    """
    high = x.to(tl.float16)
    return high, ((x - high.to(tl.float32)) * lift).to(tl.float16)


@triton.jit
def begun_in_halves(a, b):
    """A sum of products of matrices in halves, of which this is the first; the small products are kept apart."""
    return tl.dot(a[0], b[0]), tl.dot(a[1], b[0], tl.dot(a[0], b[1]))


@triton.jit
def continued_in_halves(sums, a, b):
    """The next product of such a sum."""
    return tl.dot(a[0], b[0], sums[0]), tl.dot(a[1], b[0], tl.dot(a[0], b[1], sums[1]))


@triton.jit
def added_in_halves(sums, grow):
    """The matrix that such a sum is, of numbers that were scaled before."""
    return (sums[0] + sums[1] * (1 / LIFT)) * grow


@triton.jit
def scaled_halves(x):
    """The halves of a matrix whose largest number is brought to 2¹⁴, what undoes that, and the size of that number."""
    size = tl.max(tl.abs(x))
    scale = power(size, 14, most=126)
    high, low = halves(x * scale, 1.0)
    return high, low, undone(scale), size


@triton.jit
def weighted_in_halves(weights, x):
    """x W of the halves of both, as the transpose of Wᵀ xᵀ; the smallest products first."""
    high, low, grow, _ = weights
    x_high, x_low, x_grow, _ = x
    high, low, x_high, x_low = tl.trans(high), tl.trans(low), tl.trans(x_high), tl.trans(x_low)
    part = tl.dot(high, x_low)
    part = tl.dot(low, x_high, part)
    return tl.trans(tl.dot(high, x_high, part) * (grow * x_grow))


@triton.jit
def across_in_halves(a, b, sizes):
    """aᵀ b, a sum over their rows, from zero; of b, its halves. Each column of a has a scale of its own, by a size that
    none of its numbers exceeds."""
    scale = power(sizes, 14, most=126)
    a_high, a_low = halves(tl.trans(a) * scale[:, None], 1.0)
    high, low, grow, _ = b
    part = tl.dot(a_high, low)
    part = tl.dot(a_low, high, part)
    return tl.dot(a_high, high, part) * (undone(scale) * grow)[:, None]


@triton.jit
def size_of_columns(a):
    """The size of the largest number in each."""
    return tl.max(tl.abs(tl.trans(a)), 1)


@triton.jit
def size_of_weights(weights):
    """The sum of sizes in each column, or a little more; spread over the threads as `weighted_in_halves` is."""
    little_more = tl.full((weights.shape[0], 64), 1.01, tl.float32)  # than one: tf32 may round down
    return tl.max(tl.dot(tl.trans(tl.abs(weights)), little_more, input_precision="tf32"), 1)


@triton.jit
def size_of_weighted(weights, x):
    """What no number in a column of x W exceeds, of the halves of x and the sizes of weights."""
    return weights * x[3]


@triton.jit
def power(size, exponent, most=63):
    """The power of two that brings numbers of this size to 2^`exponent` or a little more; from LOWEST to 2^`most`."""
    biased = 254 + exponent - ((size.to(tl.int32, bitcast=True) >> 23) & 0xFF)
    return (tl.minimum(tl.maximum(biased, 127 - 112), 127 + most) << 23).to(tl.float32, bitcast=True)


@triton.jit
def undone(scale):
    """1 / scale, of a power of two."""
    return (0x7F000000 - scale.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def in_range(size, scale):
    """Whether numbers of which the largest has this size have good halves when they are scaled; if they are too small,
    whether none have better."""
    too_small = (size * scale < SMALL) & (size > 0.0) & (scale < HIGHEST)
    return ~(too_large(size, scale) | too_small)


@triton.jit
def too_large(size, scale):
    return size * scale > LARGE


@triton.jit
def better_scale(size, scale):
    """One by which numbers of this size are 2⁴. Of those that are too large for theirs nobody knows how large they are:
    it is lowered by as much as would leave them good halves."""
    lower = tl.maximum(scale * (SMALL / LIFT), LOWEST)
    return tl.where(too_large(size, scale), lower, tl.where(size > 0.0, power(size, 4), scale))


@triton.jit
def moved_scale(size, scale):
    """One for the step after one whose largest number had this size: one by it, which leaves room to grow by 2¹⁵."""
    return tl.where(size > 0.0, power(size, 0), scale)


@triton.jit
def phase_after(phase, sizes, scale):
    """What a block does next. Phases are

    0   the first step alone, until its scales suit all samples, or none is left to be tried
    1   all steps
    2   once more, where numbers were too small
    3   the first step alone, where they were too large
    4   all steps, with scales that move
    5   none
    """
    good = in_range(sizes, scale)
    after_all = tl.where(all_of(good), 5, tl.where(all_of(~too_large(sizes, scale)), phase + 1, 3))
    after_first = tl.where(all_of(good | (scale <= LOWEST)), phase + 1, phase)
    return tl.where(phase == 4, 5, tl.where(phase % 3 == 0, after_first, after_all))


@triton.jit
def until_in(phase, begin, T):
    """The step before which a phase ends, or after which its scales move."""
    return tl.where(phase % 3 == 0, 1, tl.where(phase == 4, begin + 1, T))


@triton.jit
def scale_after(phase, after, sizes, scale):
    """The scales for the phase after one: as they were at first, if numbers have been too large."""
    return tl.where((phase != 3) & (after == 3), tl.zeros_like(scale) + GUESS, better_scale(sizes, scale))


@triton.jit
def all_of(good):
    return tl.min(good.to(tl.int32), 0) > 0  # type: ignore[operator]


@triton.jit
def largest(numbers, count):
    """The size of the largest of so many numbers in memory."""
    place = tl.arange(0, 4096)
    most = tl.zeros((4096,), tl.float32)
    for first in range(0, count, 4096):
        number = tl.load(numbers + first + place, mask=first + place < count, other=0.0)
        most = tl.maximum(most, tl.abs(number))
    return tl.max(most, 0)

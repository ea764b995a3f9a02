"""Element-wise attention over images, forward and backward, without X, Y and R in memory.

    X = softmax over each row of (x ⊙ Wx + bx) / τ,   Y = softmax over each column of (x ⊙ Wy + by) / τ,   R = X ⊙ Y
    R̂ = (R − mean) / √(variance + ε) over samples and pixels,   out = R̂ ⊙ x

    measure     Σ (R − 1/HW) and Σ (R − 1/HW)² of every map: about zero, so that the variance loses no digits
    settle      mean, unbiased variance and 1/√(variance + ε) of every map, from these or from a mean and variance
    attend      out
    pulled      Σ g x and Σ g x R̂ of every map, which the gradient of the norm needs; g is the gradient of out
    to_images   dx
    to_weights  dWx, dWy, dbx, dby

With dR the gradient of R and q = R ⊙ dR, that of what the softmax of rows reads is q − X (Σ over the row of q), and
alike for columns: nothing but q must be summed.

S seeds, B batch, C channels, N heads, H height, W width; M = N·C maps: map n·C + c is that of head n on channel c.

A program has a whole image, padded to powers of two. Where it has one map and a share of the samples, the weights stay
in its registers, and the next image is read while it computes. What the shares found is added up afterwards, always in
the same order. Weights are multiplied by log₂e / τ when they are read, so that a power of two does for e. `relevance`
is how these are called, and `nnarena.nn.attention_wise` is the definition.
"""

# pyright: reportOperatorIssue=false
# tl.max is typed as if it always gave a place too

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["batch", "share"])
def measure(
    x, wx, wy, bx, by, found, batch, share, scale,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    unit, part, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    maps, parts = tl.num_programs(0), tl.num_programs(1)
    weights = weights_of(wx, wy, bx, by, seed * maps + unit, scale, H, W, HP, WP, BIAS)
    x += (seed * batch * C + unit % C) * (H * W)
    even = tl.where(inside(H, W, HP, WP), 1.0 / (H * W), 0.0)
    total = tl.zeros((HP, WP), tl.float32)
    square = tl.zeros((HP, WP), tl.float32)
    first, end = part * share, tl.minimum(batch, (part + 1) * share)
    coming = image(x, first, C, H, W, HP, WP)
    for sample in range(first, end):
        here = coming
        coming = image(x, tl.minimum(sample + 1, end - 1), C, H, W, HP, WP)
        X, Y = softmaxes(here, weights, H, W, HP, WP)
        away = X * Y - even
        total += away
        square += away * away
    place = found + (seed * 2 * maps + unit) * parts + part
    tl.store(place, tl.sum(total))
    tl.store(place + maps * parts, tl.sum(square))


@triton.jit(do_not_specialize=["parts", "batch"])
def settle(
    found, stats, parts, batch, eps, PIXELS: tl.constexpr, MEASURED: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    unit, seed, maps = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    part = tl.arange(0, PARTS)
    place = found + (seed * 2 * maps + unit) * parts + part
    mean = tl.sum(tl.load(place, mask=part < parts, other=0.0))
    variance = tl.sum(tl.load(place + maps * parts, mask=part < parts, other=0.0))
    unbiased = variance
    if MEASURED:  # they are the sums that `measure` found
        count = batch.to(tl.float32) * PIXELS
        away = mean / count
        mean = away + 1.0 / PIXELS
        variance = tl.maximum(variance / count - away * away, 0.0)
        unbiased = variance * (count / (count - 1.0))
    known = stats + seed * 3 * maps + unit
    tl.store(known, mean)
    tl.store(known + maps, unbiased)
    tl.store(known + 2 * maps, 1.0 / tl.sqrt_rn(variance + eps))


@triton.jit(do_not_specialize=["batch", "share"])
def attend(
    x, wx, wy, bx, by, stats, out, batch, share, scale,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    unit, part, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    maps = tl.num_programs(0)
    weights = weights_of(wx, wy, bx, by, seed * maps + unit, scale, H, W, HP, WP, BIAS)
    mean, rate = norm_of(stats, seed, unit, maps)
    x += (seed * batch * C + unit % C) * (H * W)
    out += (seed * batch * maps + unit) * (H * W)
    first, end = part * share, tl.minimum(batch, (part + 1) * share)
    coming = image(x, first, C, H, W, HP, WP)
    for sample in range(first, end):
        here = coming
        coming = image(x, tl.minimum(sample + 1, end - 1), C, H, W, HP, WP)
        X, Y = softmaxes(here, weights, H, W, HP, WP)
        place = out + tl.cast(sample, tl.int64) * maps * (H * W) + pixels(W, HP, WP)
        tl.store(place, (X * Y - mean) * rate * here, mask=inside(H, W, HP, WP))


@triton.jit(do_not_specialize=["batch", "share"])
def pulled(
    x, pull, wx, wy, bx, by, stats, found, batch, share, scale,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    unit, part, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    maps, parts = tl.num_programs(0), tl.num_programs(1)
    weights = weights_of(wx, wy, bx, by, seed * maps + unit, scale, H, W, HP, WP, BIAS)
    mean, rate = norm_of(stats, seed, unit, maps)
    x += (seed * batch * C + unit % C) * (H * W)
    pull += (seed * batch * maps + unit) * (H * W)
    total = tl.zeros((HP, WP), tl.float32)
    along = tl.zeros((HP, WP), tl.float32)
    first, end = part * share, tl.minimum(batch, (part + 1) * share)
    coming, pulling = image(x, first, C, H, W, HP, WP), image(pull, first, maps, H, W, HP, WP)
    for sample in range(first, end):
        here, slope = coming, coming * pulling
        after = tl.minimum(sample + 1, end - 1)
        coming, pulling = image(x, after, C, H, W, HP, WP), image(pull, after, maps, H, W, HP, WP)
        X, Y = softmaxes(here, weights, H, W, HP, WP)
        total += slope
        along += slope * ((X * Y - mean) * rate)
    place = found + (seed * 2 * maps + unit) * parts + part
    tl.store(place, tl.sum(total))
    tl.store(place + maps * parts, tl.sum(along))


@triton.jit(do_not_specialize=["batch", "heads"])
def to_images(
    x, pull, wx, wy, bx, by, stats, sums, dx, batch, heads, scale,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr,
    TRAINING: tl.constexpr,
):  # fmt: skip
    each, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)  # a sample and a channel of it
    maps, channel = heads * C, each % C
    start = (seed * batch * C + each) * (H * W)
    here = image(x + start, 0, 1, H, W, HP, WP)
    pull += ((seed * batch + each // C) * maps + channel) * (H * W)
    count = batch.to(tl.float32) * (H * W)
    total = tl.zeros((HP, WP), tl.float32)
    for head in range(heads):
        unit = head * C + channel
        weights = weights_of(wx, wy, bx, by, seed * maps + unit, scale, H, W, HP, WP, BIAS)
        g = image(pull, head, C, H, W, HP, WP)
        X, Y = softmaxes(here, weights, H, W, HP, WP)
        normed, q = way_back(X * Y, g * here, stats, sums, seed, unit, maps, count, TRAINING)
        across = (q - X * tl.sum(q, 1, keep_dims=True)) * weights[0]
        down = (q - Y * tl.sum(q, 0, keep_dims=True)) * weights[1]
        total += g * normed + LN2 * (across + down)
    tl.store(dx + start + pixels(W, HP, WP), total, mask=inside(H, W, HP, WP))


@triton.jit(do_not_specialize=["batch", "share"])
def to_weights(
    x, pull, wx, wy, bx, by, stats, sums, found, batch, share, scale,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr,
    TRAINING: tl.constexpr,
):  # fmt: skip
    unit, part, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    maps, seeds = tl.num_programs(0), tl.num_programs(2)
    weights = weights_of(wx, wy, bx, by, seed * maps + unit, scale, H, W, HP, WP, BIAS)
    x += (seed * batch * C + unit % C) * (H * W)
    pull += (seed * batch * maps + unit) * (H * W)
    count = batch.to(tl.float32) * (H * W)
    dwx = tl.zeros((HP, WP), tl.float32)
    dwy, dbx, dby = dwx, dwx, dwx
    first, end = part * share, tl.minimum(batch, (part + 1) * share)
    coming, pulling = image(x, first, C, H, W, HP, WP), image(pull, first, maps, H, W, HP, WP)
    for sample in range(first, end):
        here, slope = coming, coming * pulling
        after = tl.minimum(sample + 1, end - 1)
        coming, pulling = image(x, after, C, H, W, HP, WP), image(pull, after, maps, H, W, HP, WP)
        X, Y = softmaxes(here, weights, H, W, HP, WP)
        _, q = way_back(X * Y, slope, stats, sums, seed, unit, maps, count, TRAINING)
        across = q - X * tl.sum(q, 1, keep_dims=True)
        down = q - Y * tl.sum(q, 0, keep_dims=True)
        dwx += across * here
        dwy += down * here
        if BIAS:
            dbx += across
            dby += down
    size = scale * LN2  # 1 / τ
    each = seeds.to(tl.int64) * maps * tl.num_programs(1) * (H * W)
    place = found + ((part * seeds + seed) * maps + unit) * (H * W) + pixels(W, HP, WP)
    there = inside(H, W, HP, WP)
    tl.store(place, dwx * size, mask=there)
    tl.store(place + each, dwy * size, mask=there)
    if BIAS:
        tl.store(place + 2 * each, dbx * size, mask=there)
        tl.store(place + 3 * each, dby * size, mask=there)


@triton.jit
def softmaxes(x, weights, H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr):
    """X and Y. Outside of the image one of them is zero, and the other is a number."""
    wx, wy, bx, by = weights
    across = tl.where((tl.arange(0, WP) < W)[None, :], x * wx + bx, -float("inf"))
    down = tl.where((tl.arange(0, HP) < H)[:, None], x * wy + by, -float("inf"))
    across = tl.exp2(across - tl.max(across, 1, keep_dims=True))
    down = tl.exp2(down - tl.max(down, 0, keep_dims=True))
    return across * (1.0 / tl.sum(across, 1, keep_dims=True)), down * (1.0 / tl.sum(down, 0, keep_dims=True))


@triton.jit
def norm_of(stats, seed, unit, maps):
    """The mean of a map, and 1/√(variance + ε)."""
    return tl.load(stats + seed * 3 * maps + unit), tl.load(stats + (seed * 3 + 2) * maps + unit)


@triton.jit
def way_back(R, slope, stats, sums, seed, unit, maps, count, TRAINING: tl.constexpr):
    """R̂, and q = R ⊙ dR, from the gradient of R̂."""
    mean, rate = norm_of(stats, seed, unit, maps)
    normed = (R - mean) * rate
    if TRAINING:
        total, along = tl.load(sums + seed * 2 * maps + unit), tl.load(sums + (seed * 2 + 1) * maps + unit)
        slope = slope - total / count - normed * (along / count)
    return normed, R * (slope * rate)


@triton.jit
def weights_of(
    wx, wy, bx, by, unit, scale,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Wx, Wy, bx and by of one map of one seed, times `scale`."""
    a, b = image(wx, unit, 1, H, W, HP, WP) * scale, image(wy, unit, 1, H, W, HP, WP) * scale
    if BIAS:
        return a, b, image(bx, unit, 1, H, W, HP, WP) * scale, image(by, unit, 1, H, W, HP, WP) * scale
    else:
        return a, b, 0.0, 0.0


@triton.jit
def image(start, number, each, H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr):
    """One image, with zeros around it; from one to the next are so many images."""
    base = start + tl.cast(number, tl.int64) * each * (H * W)
    return tl.load(base + pixels(W, HP, WP), mask=inside(H, W, HP, WP), other=0.0)


@triton.jit
def pixels(W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr):
    return tl.arange(0, HP)[:, None] * W + tl.arange(0, WP)[None, :]


@triton.jit
def inside(H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr):
    return (tl.arange(0, HP) < H)[:, None] & (tl.arange(0, WP) < W)[None, :]

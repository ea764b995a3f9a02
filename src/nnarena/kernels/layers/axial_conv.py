"""Element-wise attention with the convolution that follows it, for images of one channel: no head is ever in memory.

    A_n = R̂_n ⊙ x,   y = Σ over heads n and places k of the 3×3 window of w_nk A_n, moved by k

Moving is linear, so the heads are added up first: Z_k = Σ over n of w_nk A_n, nine images that stay in registers, and y
is the sum of these, each moved once. On the way back g_n = Σ over k of w_nk D_k, where D_k is the gradient of y moved
back by k, which is read from memory at another place.

    convolve    y
    pulled      Σ g x and Σ g x R̂ of every head, and the gradient of w, Σ D_k A_n
    to_images   dx
    to_weights  dWx, dWy, dbx, dby

What `axial` says of memory, sums and weights holds here too; a head is a map. Between the convolution and the heads lie
N images a sample, which would be written once and read four times in a step.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# numbers that are known when a kernel is compiled are typed as if they were something else

import triton
import triton.language as tl

from nnarena.kernels.layers.axial import LN2, image, inside, norm_of, pixels, softmaxes, way_back, weights_of


@triton.jit(do_not_specialize=["batch", "heads"])
def convolve(
    x, wx, wy, bx, by, conv, stats, out, batch, heads, scale,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    sample, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    here = image(x, seed * batch + sample, 1, H, W, HP, WP)
    z0 = tl.zeros((HP, WP), tl.float32)
    z1, z2, z3, z4, z5, z6, z7, z8 = z0, z0, z0, z0, z0, z0, z0, z0
    for head in range(heads):
        weights = weights_of(wx, wy, bx, by, seed * heads + head, scale, H, W, HP, WP, BIAS)
        mean, rate = norm_of(stats, seed, head, heads)
        X, Y = softmaxes(here, weights, H, W, HP, WP)
        A = (X * Y - mean) * rate * here
        w = conv + (seed * heads + head) * 9
        z0 += tl.load(w) * A
        z1 += tl.load(w + 1) * A
        z2 += tl.load(w + 2) * A
        z3 += tl.load(w + 3) * A
        z4 += tl.load(w + 4) * A
        z5 += tl.load(w + 5) * A
        z6 += tl.load(w + 6) * A
        z7 += tl.load(w + 7) * A
        z8 += tl.load(w + 8) * A
    above = moved(z0, -1, 1, HP, WP) + z1 + moved(z2, 1, 1, HP, WP)
    level = moved(z3, -1, 1, HP, WP) + z4 + moved(z5, 1, 1, HP, WP)
    below = moved(z6, -1, 1, HP, WP) + z7 + moved(z8, 1, 1, HP, WP)
    total = moved(above, -1, 0, HP, WP) + level + moved(below, 1, 0, HP, WP)
    place = out + (seed * batch + sample) * (H * W) + pixels(W, HP, WP)
    tl.store(place, total, mask=inside(H, W, HP, WP))


@triton.jit(do_not_specialize=["batch", "share"])
def pulled(
    x, pull, wx, wy, bx, by, conv, stats, found, batch, share, scale,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    head, part, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    heads, parts = tl.num_programs(0), tl.num_programs(1)
    weights = weights_of(wx, wy, bx, by, seed * heads + head, scale, H, W, HP, WP, BIAS)
    w = conv + (seed * heads + head) * 9
    mean, rate = norm_of(stats, seed, head, heads)
    total = tl.zeros((HP, WP), tl.float32)
    d0, d1, d2, d3, d4, d5, d6, d7, d8 = total, total, total, total, total, total, total, total, total
    first, end = part * share, tl.minimum(batch, (part + 1) * share)
    coming = image(x, seed * batch + first, 1, H, W, HP, WP)
    for sample in range(first, end):
        here = coming
        coming = image(x, seed * batch + tl.minimum(sample + 1, end - 1), 1, H, W, HP, WP)
        X, Y = softmaxes(here, weights, H, W, HP, WP)
        A = (X * Y - mean) * rate * here
        D = pull + (seed * batch + sample) * (H * W)
        g, d0 = met(D, 0, w, A, tl.zeros_like(A), d0, H, W, HP, WP)
        g, d1 = met(D, 1, w, A, g, d1, H, W, HP, WP)
        g, d2 = met(D, 2, w, A, g, d2, H, W, HP, WP)
        g, d3 = met(D, 3, w, A, g, d3, H, W, HP, WP)
        g, d4 = met(D, 4, w, A, g, d4, H, W, HP, WP)
        g, d5 = met(D, 5, w, A, g, d5, H, W, HP, WP)
        g, d6 = met(D, 6, w, A, g, d6, H, W, HP, WP)
        g, d7 = met(D, 7, w, A, g, d7, H, W, HP, WP)
        g, d8 = met(D, 8, w, A, g, d8, H, W, HP, WP)
        total += g * here
    place = found + (seed * 11 * heads + head) * parts + part
    each = heads * parts
    s0, s1, s2 = tl.sum(d0), tl.sum(d1), tl.sum(d2)
    s3, s4, s5 = tl.sum(d3), tl.sum(d4), tl.sum(d5)
    s6, s7, s8 = tl.sum(d6), tl.sum(d7), tl.sum(d8)
    along = s0 * tl.load(w) + s1 * tl.load(w + 1) + s2 * tl.load(w + 2) + s3 * tl.load(w + 3) + s4 * tl.load(w + 4)
    along += s5 * tl.load(w + 5) + s6 * tl.load(w + 6) + s7 * tl.load(w + 7) + s8 * tl.load(w + 8)
    tl.store(place, tl.sum(total))
    tl.store(place + each, along)
    tl.store(place + 2 * each, s0)
    tl.store(place + 3 * each, s1)
    tl.store(place + 4 * each, s2)
    tl.store(place + 5 * each, s3)
    tl.store(place + 6 * each, s4)
    tl.store(place + 7 * each, s5)
    tl.store(place + 8 * each, s6)
    tl.store(place + 9 * each, s7)
    tl.store(place + 10 * each, s8)


@triton.jit(do_not_specialize=["batch", "heads"])
def to_images(
    x, pull, wx, wy, bx, by, conv, stats, sums, dx, batch, heads, scale,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr, TRAINING: tl.constexpr,
):  # fmt: skip
    sample, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start = (seed * batch + sample) * (H * W)
    here = image(x + start, 0, 1, H, W, HP, WP)
    D = pull + start
    D0, D1, D2 = back(D, 0, H, W, HP, WP), back(D, 1, H, W, HP, WP), back(D, 2, H, W, HP, WP)
    D3, D4, D5 = back(D, 3, H, W, HP, WP), back(D, 4, H, W, HP, WP), back(D, 5, H, W, HP, WP)
    D6, D7, D8 = back(D, 6, H, W, HP, WP), back(D, 7, H, W, HP, WP), back(D, 8, H, W, HP, WP)
    count = batch.to(tl.float32) * (H * W)
    total = tl.zeros((HP, WP), tl.float32)
    for head in range(heads):
        weights = weights_of(wx, wy, bx, by, seed * heads + head, scale, H, W, HP, WP, BIAS)
        w = conv + (seed * heads + head) * 9
        g = tl.load(w) * D0 + tl.load(w + 1) * D1 + tl.load(w + 2) * D2
        g += tl.load(w + 3) * D3 + tl.load(w + 4) * D4 + tl.load(w + 5) * D5
        g += tl.load(w + 6) * D6 + tl.load(w + 7) * D7 + tl.load(w + 8) * D8
        X, Y = softmaxes(here, weights, H, W, HP, WP)
        normed, q = way_back(X * Y, g * here, stats, sums, seed, head, heads, count, TRAINING)
        across = (q - X * tl.sum(q, 1, keep_dims=True)) * weights[0]
        down = (q - Y * tl.sum(q, 0, keep_dims=True)) * weights[1]
        total += g * normed + LN2 * (across + down)
    tl.store(dx + start + pixels(W, HP, WP), total, mask=inside(H, W, HP, WP))


@triton.jit(do_not_specialize=["batch", "share"])
def to_weights(
    x, pull, wx, wy, bx, by, conv, stats, sums, found, batch, share, scale,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, BIAS: tl.constexpr, TRAINING: tl.constexpr,
):  # fmt: skip
    head, part, seed = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    heads, seeds = tl.num_programs(0), tl.num_programs(2)
    weights = weights_of(wx, wy, bx, by, seed * heads + head, scale, H, W, HP, WP, BIAS)
    w = conv + (seed * heads + head) * 9
    count = batch.to(tl.float32) * (H * W)
    dwx = tl.zeros((HP, WP), tl.float32)
    dwy, dbx, dby = dwx, dwx, dwx
    first, end = part * share, tl.minimum(batch, (part + 1) * share)
    coming = image(x, seed * batch + first, 1, H, W, HP, WP)
    for sample in range(first, end):
        here = coming
        coming = image(x, seed * batch + tl.minimum(sample + 1, end - 1), 1, H, W, HP, WP)
        D = pull + (seed * batch + sample) * (H * W)
        g = tl.zeros((HP, WP), tl.float32)
        for place in tl.static_range(9):
            g += tl.load(w + place) * back(D, place, H, W, HP, WP)
        X, Y = softmaxes(here, weights, H, W, HP, WP)
        _, q = way_back(X * Y, g * here, stats, sums, seed, head, heads, count, TRAINING)
        across = q - X * tl.sum(q, 1, keep_dims=True)
        down = q - Y * tl.sum(q, 0, keep_dims=True)
        dwx += across * here
        dwy += down * here
        if BIAS:
            dbx += across
            dby += down
    size = scale * LN2  # 1 / τ
    each = seeds.to(tl.int64) * heads * tl.num_programs(1) * (H * W)
    spot = found + ((part * seeds + seed) * heads + head) * (H * W) + pixels(W, HP, WP)
    there = inside(H, W, HP, WP)
    tl.store(spot, dwx * size, mask=there)
    tl.store(spot + each, dwy * size, mask=there)
    if BIAS:
        tl.store(spot + 2 * each, dbx * size, mask=there)
        tl.store(spot + 3 * each, dby * size, mask=there)


@triton.jit
def met(
    pull, place: tl.constexpr, w, A, g, d,
    H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr,
):  # fmt: skip
    """What one place of the window adds to the gradient of a head, and to that of the convolution's weight there."""
    D = back(pull, place, H, W, HP, WP)
    return g + tl.load(w + place) * D, d + D * A


@triton.jit
def back(pull, place: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr):
    """The gradient of y, moved back by one of the nine places of the window."""
    row = tl.arange(0, HP)[:, None] + (1 - place // 3)
    column = tl.arange(0, WP)[None, :] + (1 - place % 3)
    there = (row >= 0) & (row < H) & (column >= 0) & (column < W)
    return tl.load(pull + row * W + column, mask=there, other=0.0)


@triton.jit
def moved(tile, by: tl.constexpr, axis: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr):
    """What lies `by` further along an axis; zero where nothing does."""
    if axis == 0:
        size: tl.constexpr = HP
        index = tl.arange(0, HP)[:, None] + tl.zeros((1, WP), tl.int32) + by
    else:
        size: tl.constexpr = WP
        index = tl.arange(0, WP)[None, :] + tl.zeros((HP, 1), tl.int32) + by
    there = (index >= 0) & (index < size)
    return tl.where(there, tl.gather(tile, tl.where(there, index, 0), axis), 0.0)

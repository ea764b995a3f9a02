"""Steps of Adam and SGD without their part along the weights, for all tensors of a model in three launches.

    measure   the running means of every number, and of every channel the sums x·w, x·x, w·w and u·w
    judge     for every tensor: is |cos(w, x)| small, and if so, how many times is w in u
    move      w ← w (keep − curve w) − size (u − share w)

u is the update and x what tells scale-invariant weights from others: u itself (OrthAdam) or the gradient g (AdamP).
`nnarena.optim.projection` is the same on lists of tensors, and the reference; `multi` is how these are called.

A program has ROWS of a tensor (its channels) and SPAN columns, WIDTH at a time. Sums are taken in one order, so that
equal numbers give equal steps.
"""

# pyright: reportOperatorIssue=false
# tl.min is typed as if it always gave a place too

import triton
import triton.language as tl

ROWS, WIDTH, SPAN = tl.constexpr(8), tl.constexpr(128), tl.constexpr(1024)
LOOK = tl.constexpr(256)  # rows that are judged at a time


@triton.jit(do_not_specialize=["many"])
def measure(
    pointers, layout, blocks, sums, many, first, enter, second, enter_square, log_second, eps,
    ADAM: tl.constexpr, EPS_INSIDE: tl.constexpr, NESTEROV: tl.constexpr, AMSGRAD: tl.constexpr,
    MAXIMIZE: tl.constexpr, BY_GRADIENT: tl.constexpr,
):  # fmt: skip
    tensor, row, piece, columns, inside, base = block_of(layout, blocks)
    slot = tl.load(layout + 4 * tensor + 2) + row * tl.cdiv(columns, SPAN) + piece
    correction = one_minus_power(log_second, tl.load(address(pointers, tensor, 5, 0)))
    xw = tl.zeros((ROWS, WIDTH), tl.float32)
    xx, ww, uw = xw, xw, xw
    for start in range(piece * SPAN, tl.minimum(columns, (piece + 1) * SPAN), WIDTH):
        column = start + tl.arange(0, WIDTH)
        place = tl.arange(0, ROWS)[:, None] * columns + column[None, :]
        there = inside[:, None] & (column < columns)[None, :]
        w = tl.load(address(pointers, tensor, 0, base) + place, mask=there, other=0.0)
        g = tl.load(address(pointers, tensor, 1, base) + place, mask=there, other=0.0)
        m = tl.load(address(pointers, tensor, 2, base) + place, mask=there, other=0.0)
        if MAXIMIZE:
            g = -g
        if ADAM:
            m += enter * (g - m)
            v = tl.load(address(pointers, tensor, 3, base) + place, mask=there, other=0.0)
            v = second * v + enter_square * g * g
            tl.store(address(pointers, tensor, 3, base) + place, v, mask=there)
            if AMSGRAD:
                v = tl.maximum(v, tl.load(address(pointers, tensor, 4, base) + place, mask=there, other=0.0))
                tl.store(address(pointers, tensor, 4, base) + place, v, mask=there)
        else:
            m = first * m + enter * g
            v = m
        tl.store(address(pointers, tensor, 2, base) + place, m, mask=there)
        u = tl.where(there, update(g, m, v, first, correction, eps, ADAM, EPS_INSIDE, NESTEROV), 0.0)
        x = g if BY_GRADIENT else u
        xw += x * w
        xx += x * x
        ww += w * w
        uw += u * w
    tl.store(sums + slot, tl.sum(xw, 1), mask=inside)
    tl.store(sums + many + slot, tl.sum(xx, 1), mask=inside)
    tl.store(sums + 2 * many + slot, tl.sum(ww, 1), mask=inside)
    tl.store(sums + 3 * many + slot, tl.sum(uw, 1), mask=inside)


@triton.jit(do_not_specialize=["many", "most"])
def judge(
    tensors, sums, many, verdicts, most, lr, tiny, delta, decay, ratio,
    LR_IS_TENSOR: tl.constexpr, VIEW: tl.constexpr, BY_DIMENSION: tl.constexpr, CURVED: tl.constexpr,
):  # fmt: skip
    line = tensors + 5 * tl.program_id(0)
    rows, columns, slot, verdict = tl.load(line), tl.load(line + 1), tl.load(line + 2), tl.load(line + 3)
    projected = tl.load(line + 4).to(tl.float32)
    fall = (tl.load(lr) if LR_IS_TENSOR else lr) * decay
    xw = tl.zeros((LOOK,), tl.float32)
    xx, ww, uw, passed = xw, xw, xw, xw + 1.0
    if VIEW != "channel":
        for start in range(0, rows, LOOK):
            a, b, c, d, there = of_rows(sums, many, slot, start, rows, columns)
            small = nearly_orthogonal(a, b, c, limit(delta, columns, BY_DIMENSION))
            passed = tl.minimum(passed, tl.where(there, small, 1.0))
            xw += a
            xx += b
            ww += c
            uw += d
    all_passed, tensor_uw, tensor_ww = tl.min(passed), tl.sum(uw), tl.sum(ww)
    whole = nearly_orthogonal(tl.sum(xw), tl.sum(xx), tensor_ww, limit(delta, rows * columns, BY_DIMENSION))
    for start in range(0, rows, LOOK):
        a, b, c, d, there = of_rows(sums, many, slot, start, rows, columns)
        if VIEW == "tensor":
            nothing = tl.zeros_like(a)
            mask, product, square = whole + nothing, tensor_uw + nothing, tensor_ww + nothing
        elif VIEW == "channel":
            mask, product, square = nearly_orthogonal(a, b, c, limit(delta, columns, BY_DIMENSION)), d, c
        else:
            mask = tl.maximum(all_passed, whole) + tl.zeros_like(a)
            product = all_passed * d + (1.0 - all_passed) * tensor_uw  # it is 0 or 1
            square = all_passed * c + (1.0 - all_passed) * tensor_ww
        mask *= projected
        length = tl.sqrt_rn(square) + tiny
        row = verdicts + verdict + start + tl.arange(0, LOOK)
        tl.store(row, mask * product / (length * length), mask=there)
        keep = 1.0 - fall * (1.0 - mask) if CURVED else 1.0 - fall * (1.0 - mask + mask * ratio)
        tl.store(row + most, keep, mask=there)
        tl.store(row + 2 * most, fall * mask / length if CURVED else tl.zeros_like(a), mask=there)


@triton.jit(do_not_specialize=["most"])
def move(
    pointers, layout, blocks, verdicts, most, lr, first, log_first, log_second, eps,
    LR_IS_TENSOR: tl.constexpr, ADAM: tl.constexpr, EPS_INSIDE: tl.constexpr, NESTEROV: tl.constexpr,
    AMSGRAD: tl.constexpr, MAXIMIZE: tl.constexpr,
):  # fmt: skip
    tensor, row, piece, columns, inside, base = block_of(layout, blocks)
    verdict = verdicts + tl.load(layout + 4 * tensor + 3) + row
    share = tl.load(verdict, mask=inside, other=0.0)[:, None]
    keep = tl.load(verdict + most, mask=inside, other=0.0)[:, None]
    curve = tl.load(verdict + 2 * most, mask=inside, other=0.0)[:, None]
    count = tl.load(address(pointers, tensor, 5, 0))
    correction = one_minus_power(log_second, count)
    size = tl.load(lr) if LR_IS_TENSOR else lr
    if ADAM:
        size /= one_minus_power(log_first, count)
    for start in range(piece * SPAN, tl.minimum(columns, (piece + 1) * SPAN), WIDTH):
        column = start + tl.arange(0, WIDTH)
        place = tl.arange(0, ROWS)[:, None] * columns + column[None, :]
        there = inside[:, None] & (column < columns)[None, :]
        w = tl.load(address(pointers, tensor, 0, base) + place, mask=there, other=0.0)
        m = tl.load(address(pointers, tensor, 2, base) + place, mask=there, other=0.0)
        g, v = m, m
        if NESTEROV:
            g = tl.load(address(pointers, tensor, 1, base) + place, mask=there, other=0.0)
            if MAXIMIZE:
                g = -g
        if ADAM:
            v = tl.load(address(pointers, tensor, 4 if AMSGRAD else 3, base) + place, mask=there, other=0.0)
        q = update(g, m, v, first, correction, eps, ADAM, EPS_INSIDE, NESTEROV) - share * w
        if not ADAM and not NESTEROV:
            tl.store(
                address(pointers, tensor, 2, base) + place, q, mask=there
            )  # what an update lost, momentum loses too
        tl.store(address(pointers, tensor, 0, base) + place, w * (keep - curve * w) - size * q, mask=there)


@triton.jit
def block_of(layout, blocks):
    """Which tensor, which rows of it, which piece of its columns, and where the first of these rows begins."""
    line = blocks + 3 * tl.program_id(0)
    tensor, first, piece = tl.load(line), tl.load(line + 1), tl.load(line + 2).to(tl.int32)
    columns, rows = tl.load(layout + 4 * tensor), tl.load(layout + 4 * tensor + 1)
    row = first + tl.arange(0, ROWS)
    return tensor, row, piece, columns.to(tl.int32), row < rows, first * columns


@triton.jit
def address(pointers, tensor, which, base):
    return tl.load(pointers + 6 * tensor + which).to(tl.pointer_type(tl.float32)) + base


@triton.jit
def update(g, m, v, first, correction, eps, ADAM: tl.constexpr, EPS_INSIDE: tl.constexpr, NESTEROV: tl.constexpr):
    """Adam's m/√v̂, or SGD's m; the length does not matter for a cosine, so m is not corrected here."""
    if not ADAM:
        return g + first * m if NESTEROV else m
    mean = g + first * (m - g) if NESTEROV else m
    root = tl.sqrt_rn(v / correction + eps) if EPS_INSIDE else tl.sqrt_rn(v / correction) + eps
    return mean / root


@triton.jit
def one_minus_power(log, count):
    """1 − βᵗ from ln β, in 64 bits: it loses digits where βᵗ is nearly 1."""
    return (1.0 - tl.exp(count.to(tl.float64) * log)).to(tl.float32)


@triton.jit
def of_rows(sums, many, slot, start, rows, columns):
    """The four sums of some rows, each over all its pieces."""
    row = start + tl.arange(0, LOOK)
    there = row < rows
    pieces = tl.cdiv(columns, SPAN)
    a = tl.zeros((LOOK,), tl.float32)
    b, c, d = a, a, a
    for piece in range(pieces):
        place = sums + slot + row * pieces + piece
        a += tl.load(place, mask=there, other=0.0)
        b += tl.load(place + many, mask=there, other=0.0)
        c += tl.load(place + 2 * many, mask=there, other=0.0)
        d += tl.load(place + 3 * many, mask=there, other=0.0)
    return a, b, c, d, there


@triton.jit
def limit(delta, size, BY_DIMENSION: tl.constexpr):
    return delta / tl.sqrt_rn(size.to(tl.float32)) if BY_DIMENSION else delta


@triton.jit
def nearly_orthogonal(xw, xx, ww, limit):
    """1 where |x·w| < limit ‖x‖ ‖w‖, else 0; norms below 1e-8 count as it."""
    room = tl.maximum(tl.sqrt_rn(xx), 1e-8) * tl.maximum(tl.sqrt_rn(ww), 1e-8)
    return tl.where(tl.abs(xw) < limit * room, 1.0, 0.0)

"""Functions that Triton lacks, or has only where it cannot be interpreted."""

import triton
import triton.language as tl


@triton.jit
def exp(x, precision: tl.constexpr) -> tl.tensor:
    """The chip has a power of two, good to two units in the last place; what Triton puts round it is for numbers that
    have lost digits already, below 1e-38."""
    if precision == "ieee":
        return tl.exp(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634], dtype=tl.float32, is_pure=True, pack=1
        )  # type: ignore[return-value]


@triton.jit
def inverse(x, precision: tl.constexpr) -> tl.tensor:
    """1 / x as the chip has it, to one unit in the last place; zero from 1e38 on."""
    if precision == "ieee":
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x.to(tl.float32)], dtype=tl.float32, is_pure=True, pack=1
        )  # type: ignore[return-value]


@triton.jit
def sigmoid(x, precision: tl.constexpr):
    return inverse(1.0 + exp(-x, precision), precision)


@triton.jit
def tanh(x, precision: tl.constexpr):
    """Near zero a polynomial, because 1 − 2 / (e^{2x} + 1) loses there what is left after a subtraction.

    The odd series up to x¹¹ misses by less than 3e-8 of the value below 0.25.
    """
    z = x * x
    p = -0.00886323552990220
    p = p * z + 0.02186948853615520
    p = p * z - 0.05396825396825397
    p = p * z + 0.13333333333333333
    p = p * z - 0.33333333333333333
    near = x + x * (z * p)
    size = tl.abs(x)
    far = 1.0 - 2.0 * inverse(1.0 + exp(2.0 * size, precision), precision)
    return tl.where(size < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def agreed(x):
    """The same numbers, and bit by bit the same in all threads that have a copy: whoever compares two must know that.

    Threads that share a sum each add what the others have to a product of their own, which is one instruction and
    rounds once. So the sums of two threads may differ in the last bit. Here one of them is taken.
    """
    if len(x.shape) == 0:
        return x
    else:
        last: tl.constexpr = len(x.shape) - 1  # type: ignore[assignment]
        return tl.gather(x, tl.zeros(x.shape, tl.int32) + tl.arange(0, x.shape[last]), last)


@triton.jit
def begun(a, b, precision: tl.constexpr, CHAINS: tl.constexpr = 3):  # type: ignore[assignment]
    """A sum of products of matrices, of which this is the first, as `added` will have it.

    With bf16x6 both are split into three parts of eight bits each, and six of the nine products are added up, in chains
    of additions that wait for nobody: three, of large, middle and small products; six, where a warp has nothing beside
    them; one, the smallest first, where it has no registers for more. With 64 rows, four warps multiply at once, and
    wait for the end of every product: there two make one.
    """
    if precision == "bf16x6":
        a1, a2, a3 = thirds(a)
        b1, b2, b3 = thirds(b)
        if len(a.shape) == 2 and a.shape[0] >= 64:
            return (in_pairs(a1, a2, b1, b2, tl.dot(beside(a3, a1), below(b1, b3))),)
        elif CHAINS == 1:
            return (in_a_chain(a1, a2, b1, b2, tl.dot(a3, b1, tl.dot(a1, b3))),)
        elif CHAINS == 6:
            return tl.dot(a1, b1), tl.dot(a1, b2), tl.dot(a2, b1), tl.dot(a2, b2), tl.dot(a1, b3), tl.dot(a3, b1)
        else:
            small = tl.dot(a2, b2)
            small = tl.dot(a1, b3, small)
            middle = tl.dot(a1, b2)
            return tl.dot(a1, b1), tl.dot(a2, b1, middle), tl.dot(a3, b1, small)
    else:
        return (tl.dot(a, b, input_precision=precision),)


@triton.jit
def for_each(x, COUNT: tl.constexpr):
    """The same vector or matrix, (1, …), for each of so many."""
    if len(x.shape) == 2:
        return tl.broadcast_to(x, (COUNT, x.shape[1]))
    else:
        return tl.broadcast_to(x, (COUNT, x.shape[1], x.shape[2]))


@triton.jit
def continued(sums, a, b, precision: tl.constexpr):
    """The next product of such a sum: the matrix units add while they multiply."""
    if precision == "bf16x6":
        a1, a2, a3 = thirds(a)
        b1, b2, b3 = thirds(b)
        if len(sums) == 1:
            if len(a.shape) == 3:
                return (in_a_chain(a1, a2, b1, b2, tl.dot(a3, b1, tl.dot(a1, b3, sums[0]))),)
            else:
                return (in_pairs(a1, a2, b1, b2, tl.dot(beside(a3, a1), below(b1, b3), sums[0])),)
        elif len(sums) == 6:
            large, middle, other, small, smaller, smallest = sums
            large, middle, other = tl.dot(a1, b1, large), tl.dot(a1, b2, middle), tl.dot(a2, b1, other)
            small, smaller, smallest = tl.dot(a2, b2, small), tl.dot(a1, b3, smaller), tl.dot(a3, b1, smallest)
            return large, middle, other, small, smaller, smallest
        else:
            large, middle, small = sums
            small = tl.dot(a2, b2, small)
            small = tl.dot(a1, b3, small)
            middle = tl.dot(a1, b2, middle)
            return tl.dot(a1, b1, large), tl.dot(a2, b1, middle), tl.dot(a3, b1, small)
    else:
        return (tl.dot(a, b, sums[0], input_precision=precision),)


@triton.jit
def added(sums):
    """The matrix that a sum of products is."""
    if len(sums) == 1:
        return sums[0]
    elif len(sums) == 6:
        return sums[0] + ((sums[1] + sums[2]) + (sums[3] + (sums[4] + sums[5])))
    else:
        return sums[0] + (sums[1] + sums[2])


@triton.jit
def across(a, b, precision: tl.constexpr):
    """aᵀ b, a sum over their rows, from zero; the smallest of its six products first.

    As `gemm.six_products`, but turned before all of them: here that leaves threads the registers that they need.
    """
    if precision == "bf16x6":
        a1, a2, a3 = thirds(a)
        b1, b2, b3 = thirds(b)
        a1, a2, a3 = tl.trans(a1), tl.trans(a2), tl.trans(a3)
        part = tl.dot(a2, b2)
        part = tl.dot(a1, b3, part)
        part = tl.dot(a3, b1, part)
        part = tl.dot(a1, b2, part)
        part = tl.dot(a2, b1, part)
        return tl.dot(a1, b1, part)
    else:
        return tl.dot(tl.trans(a), b, input_precision=precision)


@triton.jit
def in_pairs(a1, a2, b1, b2, small):
    """Four of the six products as two, added to the small ones."""
    large = below(b1, b2)
    return tl.dot(beside(a1, a2), large, tl.dot(beside(a2, a1), large, small))


@triton.jit
def in_a_chain(a1, a2, b1, b2, small):
    """The same, one after the other."""
    return tl.dot(a1, b1, tl.dot(a2, b1, tl.dot(a1, b2, tl.dot(a2, b2, small))))


@triton.jit
def beside(a, b):
    """(M, 2K): two matrices side by side."""
    return tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (a.shape[0], 2 * a.shape[1]))


@triton.jit
def below(a, b):
    """(2K, N): two matrices, the second below the first."""
    return tl.reshape(tl.permute(tl.join(a, b), (2, 0, 1)), (2 * a.shape[0], a.shape[1]))


@triton.jit
def halved(x):
    """The left and the right half of a matrix."""
    left, right = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))
    return left, right


@triton.jit
def quartered(x):
    """The quarters of a matrix, from left to right."""
    left, right = halved(x)
    first, second = halved(left)
    third, last = halved(right)
    return first, second, third, last


@triton.jit
def thirds(x):
    """Three numbers in bfloat16 whose sum is x: the nearest to it, to what is left, and to what is left then.

    Two at a time, which the chip rounds in one instruction. A number in bfloat16 is the upper half of one in float32.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 low, high;
        .reg .f32 a, b;
        cvt.rn.bf16x2.f32 $0, $4, $3;
        shl.b32 low, $0, 16;
        and.b32 high, $0, 0xffff0000;
        sub.f32 a, $3, low;
        sub.f32 b, $4, high;
        cvt.rn.bf16x2.f32 $1, b, a;
        shl.b32 low, $1, 16;
        and.b32 high, $1, 0xffff0000;
        sub.f32 a, a, low;
        sub.f32 b, b, high;
        cvt.rn.bf16x2.f32 $2, b, a;
        }""",
        "=&r,=&r,=r,f,f",
        [x],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def fetch(pointer, mask, like, direct: tl.constexpr):
    """What lies at these places, zero where there is nothing, spread over the threads like another tile.

    Triton reads a tile so that neighbours in memory are read together, and has the threads exchange it afterwards,
    which takes longer than reading. Of an instruction it does not know it assumes nothing; and because the mask seems
    to depend on `like`, threads read what is theirs, two neighbours at a time, as the matrix units spread them. The
    places must begin at an even one, and whoever calls must look whether it came out so (`runtime.is_direct`).
    """
    if direct:
        there = mask & around(like)
        return tl.inline_asm_elementwise(
            """{
            .reg .pred there;
            setp.ne.b32 there, $4, 0;
            mov.f32 $0, 0f00000000;
            mov.f32 $1, 0f00000000;
            @there ld.global.v2.f32 {$0, $1}, [$2];
            }""",
            "=f,=f,l,l,r,r",
            [pointer.to(tl.int64, bitcast=True), there.to(tl.int32)],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        return tl.load(pointer, mask=mask, other=0.0)


@triton.jit
def around(like):
    """True everywhere, spread over the threads like another tile."""
    return (like.to(tl.int32, bitcast=True) | 1) != 0


@triton.jit
def fetch_singly(pointer, mask, t, direct: tl.constexpr):
    """The same of single numbers that many threads want: each reads its own, and none has to hand them on. What is the
    same at all times seems to depend on `t`: read before the loop, it would have to be kept all the time."""
    if direct:
        return tl.inline_asm_elementwise(
            """{
            .reg .pred there;
            setp.ne.b32 there, $2, 0;
            mov.f32 $0, 0f00000000;
            @there ld.global.f32 $0, [$1];
            }""",
            "=f,l,r,r",
            [pointer.to(tl.int64, bitcast=True), mask.to(tl.int32), t],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return tl.load(pointer, mask=mask, other=0.0)


@triton.jit
def put(pointer, value, mask, like, direct: tl.constexpr):
    """Write a tile, every thread what it has, two neighbours at a time."""
    if direct:
        there = mask & around(like)
        tl.inline_asm_elementwise(
            """{
            .reg .pred there;
            setp.ne.b32 there, $6, 0;
            @there st.global.v2.f32 [$2], {$4, $5};
            mov.b32 $0, 0;
            mov.b32 $1, 0;
            }""",
            "=r,=r,l,l,f,f,r,r",
            [pointer.to(tl.int64, bitcast=True), value, there.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=2,
        )
    else:
        tl.store(pointer, value, mask=mask)


@triton.jit
def put_singly(pointer, value, mask, direct: tl.constexpr):
    """The same of single numbers. Several threads may have one: each writes it, which is faster than to agree."""
    if direct:
        tl.inline_asm_elementwise(
            """{
            .reg .pred there;
            setp.ne.b32 there, $3, 0;
            @there st.global.f32 [$1], $2;
            mov.b32 $0, 0;
            }""",
            "=r,l,f,r",
            [pointer.to(tl.int64, bitcast=True), value, mask.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.store(pointer, value, mask=mask)


@triton.jit
def kept(pointer, mask, precision: tl.constexpr):
    """Weights that stay in registers, zero where there are none.

    What Triton reads itself it keeps in shared memory, and has every warp read its part of it in every step. Of an
    instruction it does not know it assumes nothing: its result is spread over the threads as the matrix units want it
    before the loop, and stays where it is if it is used twice in a step.
    """
    if precision == "ieee":
        return tl.load(pointer, mask=mask, other=0.0)
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .pred there;
            setp.ne.b32 there, $2, 0;
            mov.f32 $0, 0f00000000;
            @there ld.global.f32 $0, [$1];
            }""",
            "=f,l,r",
            [pointer.to(tl.int64, bitcast=True), mask.to(tl.int32)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def expect(
    pointer, length, WIDTH: tl.constexpr, present,
    SIZE: tl.constexpr, ROWS: tl.constexpr, THREADS: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Have what a program will soon read of its samples brought near: memory takes as long as half a step.

    `SIZE` numbers of each of its `present` rows, which are `length` times `WIDTH` from each other. A thread asks for a
    line of 128 bytes. (One instruction that asks for a whole row would have the threads of a warp wait for each other.)
    """
    if precision != "ieee":
        lines: tl.constexpr = (SIZE + 31) // 32  # type: ignore[assignment]
        for first in tl.static_range(0, ROWS * lines, THREADS):  # type: ignore[misc]
            number = first + tl.arange(0, THREADS)
            row = number // lines
            tl.inline_asm_elementwise(
                """{
                .reg .pred there;
                setp.ne.b32 there, $2, 0;
                @there prefetch.global.L2 [$1];
                mov.b32 $0, 0;
                }""",
                "=r,l,r",
                [
                    (pointer + row.to(tl.int64) * length * WIDTH + number % lines * 32).to(tl.int64, bitcast=True),
                    (row < present).to(tl.int32),
                ],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )


@triton.jit
def spread(ROWS: tl.constexpr, INNER: tl.constexpr, WIDTH: tl.constexpr):
    """A tile that is spread over the threads as a product of matrices is."""
    a, b = tl.zeros((ROWS * INNER, 16), tl.bfloat16), tl.zeros((16, WIDTH), tl.bfloat16)
    return tl.reshape(tl.dot(a, b), (ROWS, INNER, WIDTH))


@triton.jit
def spread_by_warp(WARPS: tl.constexpr, INNER: tl.constexpr, WIDTH: tl.constexpr):
    """The same of a tile that every warp has by itself."""
    return tl.dot(tl.zeros((WARPS, INNER, 16), tl.bfloat16), tl.zeros((WARPS, 16, WIDTH), tl.bfloat16))

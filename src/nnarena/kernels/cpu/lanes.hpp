// What loops over time are made of on a CPU: vectors, functions of them, products, and threads.
//
// A block of LANES samples is computed at once, one in each lane. Numbers of a sample lie LANES apart, so that whatever a
// cell does to single numbers, it does to whole vectors; no size is odd, and nothing is exchanged between lanes until
// gradients of weights are summed over samples.

#pragma once

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace lanes {

constexpr int LANES = 32;
#if defined(__AVX512F__)
constexpr int WIDTH = 16;  // numbers in a register
constexpr int SUMS = 24;   // registers that sums of products are kept in
#elif defined(__AVX__)
constexpr int WIDTH = 8;
constexpr int SUMS = 12;
#elif defined(__SSE__)
constexpr int WIDTH = 4;
constexpr int SUMS = 12;
#else
constexpr int WIDTH = 4;
constexpr int SUMS = 24;
#endif
constexpr int PARTS = LANES / WIDTH;                       // registers of a block
constexpr int TALL = SUMS / PARTS > 0 ? SUMS / PARTS : 1;  // numbers of a sample that are summed at a time

typedef float V __attribute__((vector_size(4 * WIDTH)));
typedef int M __attribute__((vector_size(4 * WIDTH)));  // of a comparison: all bits, or none

#define INLINE inline __attribute__((always_inline))

INLINE V load(const float *p) { return *reinterpret_cast<const V *>(p); }
INLINE void store(float *p, V x) { *reinterpret_cast<V *>(p) = x; }
INLINE V loose(const float *p) { V x; std::memcpy(&x, p, sizeof x); return x; }
INLINE void put(float *p, V x) { std::memcpy(p, &x, sizeof x); }
INLINE V all(float x) { return x - V{}; }
INLINE V number(M x) { return x ? all(1) : all(0); }
INLINE M truth(V x) { return x != 0; }
INLINE float total(V x) {
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += x[i];
    return sum;
}

INLINE float lane_total(const float *p) {
    V sum{};
    for (int v = 0; v < LANES; v += WIDTH) sum += load(p + v);
    return total(sum);
}

// Functions of single numbers, right to about 1e-7 of the result.

INLINE V power_of_two(M n) {
    const M bits = (n + 127) << 23;
    V x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE V least(V a, V b) { return (a < b) | (a != a) ? a : b; }
INLINE V most(V a, V b) { return (a > b) | (a != a) ? a : b; }
INLINE V magnitude(V x) { return x < 0 ? -x : x; }
INLINE V relu(V x) { return x < 0 ? all(0) : x; }
INLINE V sign(V x) { return x > 0 ? all(1) : x < 0 ? all(-1) : all(0); }

// exp x = 2^n exp r, |r| ≤ ln 2 / 2, by a polynomial of degree 6.
INLINE V exp(V x) {
    const V inside = x > 89.0f ? all(89.0f) : x < -104.0f ? all(-104.0f) : x;
    const V shifted = inside * 1.44269504f + 12582912.0f;  // to the nearest whole number
    const V n = shifted - 12582912.0f;
    V r = inside - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    V y = all(1.0f / 5040);
    y = y * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * (r * r) + r + 1.0f;
    const M whole = __builtin_convertvector(n, M), half = whole >> 1;
    return y * power_of_two(half) * power_of_two(whole - half);  // what is tiny has no power of its own
}

INLINE V sigmoid(V x) { return 1.0f / (1.0f + exp(-x)); }

// c[0] + c[1] x + …
template <int N>
INLINE V polynomial(const float (&c)[N], V x) {
    V y = all(c[N - 1]);
#pragma GCC unroll 16
    for (int i = N - 2; i >= 0; i--) y = y * x + c[i];
    return y;
}

INLINE V tanh(V x) {
    const V size = magnitude(x), z = x * x;
    const float c[] = {-0.333333284f, 0.133327827f, -0.0538524948f, 0.0210036281f, -0.00610493217f};
    const V near = polynomial(c, z) * z * x + x;
    const V far = 1.0f - 2.0f / (1.0f + exp(2.0f * size));
    return size < 0.625f ? near : x < 0 ? -far : far;
}

INLINE V expm1(V x) {
    const float c[] = {0.5f, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040};
    return magnitude(x) < 0.4f ? polynomial(c, x) * (x * x) + x : exp(x) - 1.0f;
}

// log x = n ln 2 + log (1 + f), √½ ≤ 1 + f < √2.
INLINE V log(V x) {
    const M tiny = x < 1.17549435e-38f;  // has no power of two of its own
    const V whole = tiny ? x * 33554432.0f : x;
    M bits;
    std::memcpy(&bits, &whole, sizeof bits);
    const M n = (bits - 0x3f3504f3) >> 23;  // √½
    bits -= n << 23;
    V f;
    std::memcpy(&f, &bits, sizeof f);
    f -= 1.0f;
    const float c[] = {0.333333284f, -0.25000298f,  0.200014681f, -0.166422471f,
                       0.142021745f, -0.129722387f, 0.127123073f, -0.0810155869f};
    const V power = __builtin_convertvector(n, V) - (tiny ? all(25) : all(0));
    V y = (polynomial(c, f) * f - 0.5f) * (f * f) + power * -2.12194440e-4f + f;
    y = y + power * 0.693359375f;
    y = x == 0 ? all(-INFINITY) : y;
    return x < 0 ? all(NAN) : (x == INFINITY) | (x != x) ? x : y;
}

// What 1 + x was rounded by comes back.
INLINE V log1p(V x) {
    const V u = 1.0f + x, y = log(u);
    return (u == 0) | (u == INFINITY) ? y : y - ((u - 1.0f) - x) / u;
}

INLINE V erf(V x) {
    const V size = magnitude(x);
    const float near[] = {1.12837911f,    -0.37612626f,     0.112835974f,   -0.0268543288f,
                          0.00518931216f, -0.000801885501f, 7.88249745e-05f};
    const float far[] = {0.000303213019f, -1.13016665f,   -0.631937087f,    -0.109978244f, 0.0263647176f,
                         -0.00474022236f, 0.000592769531f, -4.55906229e-05f, 1.6140616e-06f};
    const V beyond = size > 4.0f ? all(1) : 1.0f - exp(polynomial(far, size));
    return size < 1.0f ? polynomial(near, x * x) * x : x < 0 ? -beyond : x != x ? x : beyond;
}

// What is rare takes one lane after the other.
template <typename F>
INLINE V each_lane(V x, F f) {
    for (int i = 0; i < WIDTH; i++) x[i] = f(x[i]);
    return x;
}
INLINE V sqrt(V x) { return each_lane(x, [](float y) { return __builtin_sqrtf(y); }); }
INLINE V sin(V x) { return each_lane(x, [](float y) { return std::sin(y); }); }
INLINE V cos(V x) { return each_lane(x, [](float y) { return std::cos(y); }); }

// A square of numbers turned round: what was row i is column i.

template <int STEP, bool UPPER, int... I>
INLINE V mixed(V a, V b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (I & STEP ? WIDTH + I - (UPPER ? 0 : STEP) : I + (UPPER ? STEP : 0))...);
}

template <int STEP = 1>
INLINE void turn(V *rows) {
    if constexpr (STEP < WIDTH) {
        constexpr auto all_lanes = std::make_integer_sequence<int, WIDTH>{};
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++)
            if (!(i & STEP)) {
                const V a = rows[i], b = rows[i + STEP];
                rows[i] = mixed<STEP, false>(a, b, all_lanes);
                rows[i + STEP] = mixed<STEP, true>(a, b, all_lanes);
            }
        turn<2 * STEP>(rows);
    }
}

// Products. Strides are in numbers of one lane; `out` is added to if ADD.

// out[p] = Σ_k weight[p, k] · x[k]: weights are the same for all samples.
template <int P, int K, int OUT, int WP, int WK, int XK, bool ADD, int ROWS>
INLINE void rows_of_product(float *out, const float *weight, const float *x) {
    V sum[ROWS][PARTS];
    for (int p = 0; p < ROWS; p++)
        for (int v = 0; v < PARTS; v++) sum[p][v] = ADD ? load(out + p * OUT * LANES + v * WIDTH) : V{};
    for (long k = 0; k < K; k++) {
        V right[PARTS];
        for (int v = 0; v < PARTS; v++) right[v] = load(x + k * XK * LANES + v * WIDTH);
#pragma GCC unroll 32
        for (int p = 0; p < ROWS; p++) {
            const float left = weight[p * WP + k * WK];
            for (int v = 0; v < PARTS; v++) sum[p][v] += left * right[v];
        }
    }
    for (int p = 0; p < ROWS; p++)
        for (int v = 0; v < PARTS; v++) store(out + p * OUT * LANES + v * WIDTH, sum[p][v]);
}

template <int P, int K, int OUT, int WP, int WK, int XK, bool ADD>
__attribute__((noinline)) void product(float *out, const float *weight, const float *x) {
    constexpr int GROUPS = (P + TALL - 1) / TALL, ROWS = (P + GROUPS - 1) / GROUPS, WHOLE = P / ROWS;
    for (long p = 0; p < WHOLE; p++)
        rows_of_product<P, K, OUT, WP, WK, XK, ADD, ROWS>(out + p * ROWS * OUT * LANES, weight + p * ROWS * WP, x);
    if constexpr (P % ROWS != 0)
        rows_of_product<P, K, OUT, WP, WK, XK, ADD, P % ROWS>(
            out + WHOLE * ROWS * OUT * LANES, weight + WHOLE * ROWS * WP, x);
}

// out[p, q] = Σ_k a[p, k] · b[q, k]: both are a sample's own.
template <int P, int Q, int K, int OP, int OQ, int AP, int AK, int BQ, int BK, bool ADD>
__attribute__((noinline)) void own_product(float *out, const float *a, const float *b) {
    constexpr int WIDER = Q < 3 ? Q : 3, TALLER = P < 12 / WIDER ? P : 12 / WIDER;
    for (int v = 0; v < LANES; v += WIDTH)
        for (long p0 = 0; p0 < P; p0 += TALLER)
            for (long q0 = 0; q0 < Q; q0 += WIDER) {
                const int rows = P - p0 < TALLER ? P - p0 : TALLER, columns = Q - q0 < WIDER ? Q - q0 : WIDER;
                V sum[TALLER][WIDER] = {};
                if (rows == TALLER && columns == WIDER) {
                    for (long k = 0; k < K; k++)
                        for (int p = 0; p < TALLER; p++)
                            for (int q = 0; q < WIDER; q++)
                                sum[p][q] += load(a + ((p0 + p) * AP + k * AK) * LANES + v) *
                                             load(b + ((q0 + q) * BQ + k * BK) * LANES + v);
                } else {
                    for (int p = 0; p < rows; p++)
                        for (int q = 0; q < columns; q++)
                            for (long k = 0; k < K; k++)
                                sum[p][q] += load(a + ((p0 + p) * AP + k * AK) * LANES + v) *
                                             load(b + ((q0 + q) * BQ + k * BK) * LANES + v);
                }
                for (int p = 0; p < rows; p++)
                    for (int q = 0; q < columns; q++) {
                        float *place = out + ((p0 + p) * OP + (q0 + q) * OQ) * LANES + v;
                        store(place, ADD ? load(place) + sum[p][q] : sum[p][q]);
                    }
            }
}

// out[p, q] += Σ over samples of a[p] · b[q]; `out` has no lanes, and q side by side. What is there already comes last:
// a sum over all steps is large, and small numbers that are added to it one by one lose their last digits.
template <int P, int Q, int OP, int AP, int BQ, int ROWS, int COLUMNS>
INLINE void part_of_outer(float *out, const float *a, const float *turned) {
    constexpr int WIDE = COLUMNS / WIDTH;
    V sum[ROWS][WIDE] = {};
    for (long lane = 0; lane < LANES; lane++) {
        V right[WIDE];
        for (int q = 0; q < WIDE; q++) right[q] = load(turned + lane * COLUMNS + q * WIDTH);
#pragma GCC unroll 32
        for (int p = 0; p < ROWS; p++) {
            const float left = a[p * AP * LANES + lane];
            for (int q = 0; q < WIDE; q++) sum[p][q] += left * right[q];
        }
    }
    for (int p = 0; p < ROWS; p++)
        for (int q = 0; q < WIDE; q++) put(out + p * OP + q * WIDTH, loose(out + p * OP + q * WIDTH) + sum[p][q]);
}

template <int P, int Q, int OP, int AP, int BQ, int COLUMNS>
INLINE void columns_of_outer(float *out, const float *a, const float *b) {
    constexpr int WIDE = COLUMNS / WIDTH, MOST = SUMS / WIDE;
    constexpr int GROUPS = (P + MOST - 1) / MOST, ROWS = (P + GROUPS - 1) / GROUPS, WHOLE = P / ROWS;
    alignas(64) float turned[LANES * COLUMNS];
    for (int v = 0; v < LANES; v += WIDTH)
        for (int q = 0; q < COLUMNS; q += WIDTH) {
            V rows[WIDTH];
            for (int i = 0; i < WIDTH; i++) rows[i] = load(b + (q + i) * BQ * LANES + v);
            turn(rows);
            for (int i = 0; i < WIDTH; i++) store(turned + (v + i) * COLUMNS + q, rows[i]);
        }
    for (long p = 0; p < WHOLE; p++)
        part_of_outer<P, Q, OP, AP, BQ, ROWS, COLUMNS>(out + p * ROWS * OP, a + p * ROWS * AP * LANES, turned);
    if constexpr (P % ROWS != 0)
        part_of_outer<P, Q, OP, AP, BQ, P % ROWS, COLUMNS>(
            out + WHOLE * ROWS * OP, a + WHOLE * ROWS * AP * LANES, turned);
}

template <int P, int Q, int OP, int AP, int BQ>
__attribute__((noinline)) void outer(float *out, const float *a, const float *b) {
    constexpr int WIDE = 2 * WIDTH;
    long q = 0;
    for (; q + WIDE <= Q; q += WIDE)
        columns_of_outer<P, Q, OP, AP, BQ, WIDE>(out + q, a, b + q * BQ * LANES);
    for (; q + WIDTH <= Q; q += WIDTH)
        columns_of_outer<P, Q, OP, AP, BQ, WIDTH>(out + q, a, b + q * BQ * LANES);
    for (; q < Q; q++)
        for (long p = 0; p < P; p++) {
            V sum{};
            for (int v = 0; v < LANES; v += WIDTH)
                sum += load(a + p * AP * LANES + v) * load(b + q * BQ * LANES + v);
            out[p * OP + q] += total(sum);
        }
}

// Memory of torch, where the numbers of a sample are neighbours, and ours, where the samples are.

// N numbers of each sample; of those that are missing, zeros, or what the last has.
template <int N>
__attribute__((noinline)) void taken(float *into, const float *from, long distance, long live, bool repeat) {
    constexpr long SQUARE = N / WIDTH * WIDTH;
    for (long n = 0; n < SQUARE; n += WIDTH)
        for (long v = 0; v < LANES; v += WIDTH) {
            V rows[WIDTH];
            for (long i = 0; i < WIDTH; i++) {
                const bool there = v + i < live;
                rows[i] = there || repeat ? loose(from + (there ? v + i : live - 1) * distance + n) : V{};
            }
            turn(rows);
            for (long i = 0; i < WIDTH; i++) store(into + (n + i) * LANES + v, rows[i]);
        }
    for (long n = SQUARE; n < N; n++)
        for (long lane = 0; lane < LANES; lane++) {
            const bool there = lane < live;
            into[n * LANES + lane] = there || repeat ? from[(there ? lane : live - 1) * distance + n] : 0.0f;
        }
}

template <int N>
__attribute__((noinline)) void given(float *into, const float *from, long distance, long live) {
    constexpr long SQUARE = N / WIDTH * WIDTH;
    for (long n = 0; n < SQUARE; n += WIDTH)
        for (long v = 0; v < live; v += WIDTH) {
            V rows[WIDTH];
            for (long i = 0; i < WIDTH; i++) rows[i] = load(from + (n + i) * LANES + v);
            turn(rows);
            for (long i = 0; i < WIDTH && v + i < live; i++) put(into + (v + i) * distance + n, rows[i]);
        }
    for (long n = SQUARE; n < N; n++)
        for (long lane = 0; lane < live; lane++) into[lane * distance + n] = from[n * LANES + lane];
}

// `work(number, room)` for all numbers below `count`, by so many threads; each has room for so many numbers.
template <typename Work>
void shared_out(long count, long threads, long size, Work work) {
    std::atomic<long> next{0};
    auto run = [&] {
        float *room = static_cast<float *>(std::aligned_alloc(64, (size * sizeof(float) + 63) / 64 * 64 + 64));
        for (long number; (number = next++) < count;) work(number, room);
        std::free(room);
    };
    std::vector<std::thread> others;
    for (long i = 1; i < threads && i < count; i++) others.emplace_back(run);
    run();
    for (auto &other : others) other.join();
}

}  // namespace lanes

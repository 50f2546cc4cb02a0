/* Products of rows with panels. A panel holds the weights of PANEL outputs side by side for each input, so that it is
   read once, from front to back, for all rows. Numbers are fp32 or, with REAL16, bf16, whose products are summed up in
   fp32. Every sum adds its terms in a fixed order, whatever is computed beside it and on however many threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#ifdef REAL16
typedef uint16_t real; /* the bits of a bf16 */
#else
typedef float real;
#endif

#include "kernels.h"

#ifdef REAL16
static inline float to_float(real x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline real to_real(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (real)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16); /* rounds to the nearest, ties to even */
}
#else
static inline float to_float(real x) { return x; }
static inline real to_real(float f) { return f; }
#endif

#ifdef __AVX512F__
#define LANES 16       /* floats of a vector register */
#define TILE_ROWS 12   /* rows whose sums fit into the registers, two registers for each */
#define L1_BYTES 32768 /* bytes of a panel that stay in the L1 cache */
#else
#define LANES 8
#define TILE_ROWS 6
#define L1_BYTES 24576
#endif
#define PANEL (2 * LANES)
#define DEPTH_BLOCK (L1_BYTES / (PANEL * (int64_t)sizeof(real))) /* inputs that are summed up in one pass */
#define ROW_BLOCK (16 * TILE_ROWS) /* rows that stay in the L2 cache */
#define PANELS_PER_TASK 6 /* panels that a thread takes at once, at most: it prefetches the next of them in time */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));

/* A `term` holds the PAIR inputs of one row that `add_product` multiplies at once; `terms` hold the weights of PAIR
   inputs for LANES outputs. */
#ifdef REAL16
#define PAIR 2
typedef uint32_t term;
typedef uint32_t terms __attribute__((vector_size(4 * LANES), aligned(4)));
static inline vec add_product(vec sum, term x, terms w)
{
#ifdef __AVX512BF16__
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)w);
#else
    return sum + to_float((real)x) * (vec)(w << 16) + to_float((real)(x >> 16)) * (vec)(w & 0xffff0000u);
#endif
}
#else
#define PAIR 1
typedef float term;
typedef vec terms;
static inline vec add_product(vec sum, term x, terms w) { return sum + x * w; }
#endif

static inline int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }
static inline int64_t min64(int64_t one, int64_t other) { return one < other ? one : other; }

/* Returns the offset in a panel of the weight from input `d` to output `o`. */
static inline int64_t panel_offset(int64_t d, int64_t o) { return (d - d % PAIR) * PANEL + o * PAIR + d % PAIR; }

/* Computes y = x w, or y += x w with `accumulate`, over `depth` inputs, for `rows` rows (a constant, once inlined) and
   one panel. Consecutive inputs of x are `x_step` apart and its rows `x_stride`; inputs of w are `w_stride` apart, rows
   of y `y_stride`. The sum begins at 0 and is added to y last, so that it loses no precision to a large y. Where `next`
   is given, memory from there on is prefetched, `next_step` numbers for each input. */
static inline __attribute__((always_inline)) void tile_product(int rows, const real *x, int64_t x_stride,
                                                               int64_t x_step, const real *w, int64_t w_stride,
                                                               int64_t depth, float *y, int64_t y_stride,
                                                               int accumulate, const real *next, int64_t next_step)
{
    vec sum[TILE_ROWS][2];
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = (vec){0};
    for (int64_t d = 0; d < depth; d += PAIR) {
        if (next)
            __builtin_prefetch(next + d * next_step, 0, 2);
        terms low = *(const terms *)(w + d * w_stride), high = *(const terms *)(w + d * w_stride + LANES * PAIR);
        for (int r = 0; r < rows; r++) {
            term one;
            memcpy(&one, x + r * x_stride + d * x_step, sizeof one);
            sum[r][0] = add_product(sum[r][0], one, low);
            sum[r][1] = add_product(sum[r][1], one, high);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) {
            vec *to = (vec *)(y + r * y_stride + h * LANES);
            *to = accumulate ? *to + sum[r][h] : sum[r][h];
        }
}

/* Calls `tile_product` for a number of rows that is not a constant. The compiler may not clone this function for a
   known depth: the clone would add its terms in another order. */
#if defined __GNUC__ && !defined __clang__
__attribute__((noclone))
#endif
__attribute__((noinline)) static void tile_products(int rows, const real *x, int64_t x_stride, int64_t x_step,
                                                    const real *w, int64_t w_stride, int64_t depth, float *y,
                                                    int64_t y_stride, int accumulate, const real *next,
                                                    int64_t next_step)
{
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        if (next)                                                                                                      \
            tile_product(n, x, x_stride, x_step, w, w_stride, depth, y, y_stride, accumulate, next, next_step);        \
        else                                                                                                           \
            tile_product(n, x, x_stride, x_step, w, w_stride, depth, y, y_stride, accumulate, 0, 0);                   \
        break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TILE_ROWS > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

/* Multiplies all rows of a block with one panel. With `prefetch` the next panel is prefetched meanwhile, evenly spread
   over the products, as memory would otherwise be idle. Rows of x lie one after another or, where they are
   `transposed`, in groups of at most TILE_ROWS whose numbers for one input lie side by side. */
static void panel_product(const real *x, int transposed, int64_t rows, int64_t depth, const real *w, float *y,
                          int64_t y_stride, int accumulate, int prefetch)
{
    int64_t depth_block = ceil_div(depth, ceil_div(depth, DEPTH_BLOCK)), groups = ceil_div(rows, TILE_ROWS);
    int64_t next_step = ceil_div(PANEL, groups);
    depth_block += depth_block % PAIR;
    for (int64_t k = 0; k < depth; k += depth_block) {
        int64_t d = min64(depth - k, depth_block);
        for (int64_t g = 0; g < groups; g++) {
            int64_t begin = g * rows / groups, end = (g + 1) * rows / groups;
            const real *next = prefetch || k + d < depth ? w + (k + d) * PANEL + g * d * next_step : 0;
            int64_t x_stride = transposed ? PAIR : depth, x_step = transposed ? end - begin : 1;
            tile_products((int)(end - begin), x + begin * depth + k * x_step, x_stride, x_step, w + k * PANEL, PANEL, d,
                          y + begin * y_stride, y_stride, accumulate || k, next, next_step);
        }
    }
}

/* Computes y (rows, outputs) = x (rows, depth) w, or adds it to y with `accumulate`, for the panels from `first` to
   `stop`. */
static void panel_products(const real *x, int transposed, int64_t rows, int64_t depth, const real *w, int64_t outputs,
                           float *y, int64_t y_stride, int accumulate, int64_t first, int64_t stop)
{
    for (int64_t p = first; p < stop; p++) {
        const real *panel = w + p * PANEL * depth;
        float *to = y + p * PANEL, part[ROW_BLOCK * PANEL];
        int64_t count = outputs - p * PANEL;
        if (count >= PANEL) {
            panel_product(x, transposed, rows, depth, panel, to, y_stride, accumulate, count > PANEL);
            continue;
        }
        for (int64_t r = 0; accumulate && r < rows; r++)
            memcpy(part + r * PANEL, to + r * y_stride, count * sizeof(float));
        panel_product(x, transposed, rows, depth, panel, part, PANEL, accumulate, 0);
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + r * y_stride, part + r * PANEL, count * sizeof(float));
    }
}

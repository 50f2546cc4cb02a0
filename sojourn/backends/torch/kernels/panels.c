/* Products of rows with panels. A panel holds the weights of PANEL outputs side by side for each input, so that it is
   read once, from front to back, for all rows. Numbers are fp32 or, with REAL16, bf16, whose products are summed up in
   fp32. Every sum adds its terms in a fixed order, whatever is computed beside it and on however many threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif
#if defined REAL16 && defined __AMX_BF16__ && defined __linux__
#define MATRIX_UNIT /* AMX, which multiplies tiles of bf16 */
#include <sys/syscall.h>
#include <unistd.h>
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
static inline int64_t max64(int64_t one, int64_t other) { return one > other ? one : other; }

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

/* Multiplies all rows of a block with one panel, by vectors. With `prefetch` the next panel is prefetched meanwhile,
   evenly spread over the products, as memory would otherwise be idle. Rows of x lie one after another or, where they
   are `transposed`, in groups of at most TILE_ROWS whose numbers for one input lie side by side. */
static void vector_product(const real *x, int transposed, int64_t rows, int64_t depth, const real *w, float *y,
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

#ifdef MATRIX_UNIT
#define UNIT_ROWS 16   /* rows of a tile */
#define UNIT_DEPTH 32  /* inputs of a tile: a row of it has 64 bytes */
#define UNIT_COUNT 8   /* tiles of a processor */
#define REQUEST 0x1023 /* ARCH_REQ_XCOMP_PERM of Linux: asks for the use of a unit, */
#define TILE_DATA 18   /* here of the tiles */

/* Returns whether this process may use the matrix unit; the system is asked once. */
static int unit_allowed(void)
{
    static int answer; /* 0: not asked yet */
    int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
    if (!known) {
        known = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) ? -1 : 1;
        __atomic_store_n(&answer, known, __ATOMIC_RELAXED);
    }
    return known > 0;
}

/* Gives all tiles of this thread their full size. Other libraries use them in the same threads, with other sizes. */
static void configure_unit(void)
{
    struct {
        uint8_t palette, begin, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < UNIT_COUNT; t++) {
        config.row_bytes[t] = UNIT_DEPTH * sizeof(real);
        config.rows[t] = UNIT_ROWS;
    }
    _tile_loadconfig(&config);
}

/* Returns a tile of rows, padded with 0 in `padded` where there are fewer, or fewer inputs. */
static inline const real *whole_tile(const real *x, int64_t *stride, int64_t rows, int64_t depth, real *padded)
{
    if (rows >= UNIT_ROWS && depth == UNIT_DEPTH)
        return x;
    memset(padded, 0, UNIT_ROWS * UNIT_DEPTH * sizeof(real));
    for (int64_t r = 0; r < min64(rows, UNIT_ROWS); r++)
        memcpy(padded + r * UNIT_DEPTH, x + r * *stride, depth * sizeof(real));
    *stride = UNIT_DEPTH;
    return padded;
}

/* Does what `panel_product` does for rows that lie one after another. Two tiles of rows at a time are multiplied with
   both halves of the panel, whose layout is that of the unit; a row's sums are the same beside any others. */
static void unit_product(const real *x, int64_t rows, int64_t depth, const real *w, float *y, int64_t y_stride,
                         int accumulate, int prefetch)
{
    const int64_t panel_bytes = PANEL * PAIR * sizeof(real);
    for (int64_t begin = 0; begin < rows; begin += 2 * UNIT_ROWS) {
        int64_t count = min64(rows - begin, 2 * UNIT_ROWS);
        float sums[2 * UNIT_ROWS][PANEL];
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < depth; k += UNIT_DEPTH) {
            int64_t d = min64(depth - k, UNIT_DEPTH), stride = depth, other_stride = depth;
            const real *from = x + begin * depth + k, *weights = w + k * PANEL;
            real padded[UNIT_ROWS * UNIT_DEPTH], padded_weights[UNIT_DEPTH * PANEL];
            if (prefetch && begin == 0)
                for (int64_t line = 0; line < UNIT_DEPTH * PANEL; line += 64 / (int64_t)sizeof(real))
                    __builtin_prefetch(w + (depth + k) * PANEL + line, 0, 2);
            if (d < UNIT_DEPTH) {
                memset(padded_weights, 0, sizeof padded_weights);
                memcpy(padded_weights, weights, d * PANEL * sizeof(real));
                weights = padded_weights;
            }
            _tile_loadd(6, weights, panel_bytes);
            _tile_loadd(7, weights + LANES * PAIR, panel_bytes);
            const real *tile = whole_tile(from, &stride, count, d, padded);
            _tile_loadd(4, tile, stride * sizeof(real));
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (count <= UNIT_ROWS)
                continue;
            tile = whole_tile(from + UNIT_ROWS * depth, &other_stride, count - UNIT_ROWS, d, padded);
            _tile_loadd(5, tile, other_stride * sizeof(real));
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, sums[0], sizeof sums[0]);
        _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
        _tile_stored(2, sums[UNIT_ROWS], sizeof sums[0]);
        _tile_stored(3, sums[UNIT_ROWS] + LANES, sizeof sums[0]);
        for (int64_t r = 0; r < count; r++)
            for (int h = 0; h < 2; h++) {
                vec *to = (vec *)(y + (begin + r) * y_stride + h * LANES), sum = *(vec *)(sums[r] + h * LANES);
                *to = accumulate ? *to + sum : sum;
            }
    }
}
#endif

int64_t uses_matrix_unit(void)
{
#ifdef MATRIX_UNIT
    return unit_allowed();
#else
    return 0;
#endif
}

/* Multiplies all rows of a block with one panel, by the matrix unit where there is one. */
static inline void panel_product(const real *x, int transposed, int64_t rows, int64_t depth, const real *w, float *y,
                                 int64_t y_stride, int accumulate, int prefetch)
{
#ifdef MATRIX_UNIT
    if (!transposed && uses_matrix_unit()) {
        unit_product(x, rows, depth, w, y, y_stride, accumulate, prefetch);
        return;
    }
#endif
    vector_product(x, transposed, rows, depth, w, y, y_stride, accumulate, prefetch);
}

/* Computes y (rows, outputs) = x (rows, depth) w, or adds it to y with `accumulate`, for the panels from `first` to
   `stop`. */
static void panel_products(const real *x, int transposed, int64_t rows, int64_t depth, const real *w, int64_t outputs,
                           float *y, int64_t y_stride, int accumulate, int64_t first, int64_t stop)
{
#ifdef MATRIX_UNIT
    if (uses_matrix_unit())
        configure_unit();
#endif
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
#ifdef MATRIX_UNIT
    if (uses_matrix_unit())
        _tile_release();
#endif
}

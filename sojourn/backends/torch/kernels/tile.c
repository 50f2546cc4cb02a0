/* Products of rows with panels: PANEL outputs side by side for each input, so that a panel is read once, from front to
   back, for all rows. Numbers are fp32, or, with REAL16, bf16, whose products are summed up in fp32. A sum runs over its
   terms in one order, whatever is computed beside it and on however many threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#ifdef REAL16
typedef uint16_t real;
static inline float get(real x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline real put(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (real)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16); /* to the nearest, ties to even */
}
#else
typedef float real;
static inline float get(real x) { return x; }
static inline real put(float f) { return f; }
#endif

#ifdef __AVX512F__
#define WIDE 16 /* numbers of a register */
#define TALL 12 /* rows whose sums fit into the registers, for two of them side by side */
#define NEAR 32768 /* bytes of a panel that stay in the nearest cache */
#else
#define WIDE 8
#define TALL 6
#define NEAR 24576
#endif
#define PANEL (2 * WIDE)
#define DEEP (NEAR / (PANEL * (int64_t)sizeof(real))) /* inputs that are summed up at once */
#define BLOCK (16 * TALL) /* rows that stay in the next cache */
#define SHARE 6           /* panels that a thread takes at once, at most: of those, it fetches the next in time */
typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4)));

/* What a sum takes in at once: PAIR inputs of a row, and those of WIDE outputs. */
#ifdef REAL16
#define PAIR 2
typedef uint32_t term;
typedef uint32_t terms __attribute__((vector_size(4 * WIDE), aligned(4)));
static inline wide add_product(wide sum, term x, terms w)
{
#ifdef __AVX512BF16__
    return (wide)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)w);
#else
    return sum + get((real)x) * (wide)(w << 16) + get((real)(x >> 16)) * (wide)(w & 0xffff0000u);
#endif
}
#else
#define PAIR 1
typedef float term;
typedef wide terms;
static inline wide add_product(wide sum, term x, terms w) { return sum + x * w; }
#endif

static inline int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }
static inline int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

/* Where a panel has its number for input `d` and output `o`. */
static inline int64_t place(int64_t d, int64_t o) { return (d - d % PAIR) * PANEL + o * PAIR + d % PAIR; }

/* y = x w, or y += x w where there is `more`, over `depth` inputs, for so many rows (a constant, once inlined) and a
   panel. Inputs of x lie `step` apart, rows `stride`, inputs of w `gap`. The sum begins at 0, so that what is large in y
   costs it no digits. Fetches what is read next. */
static inline __attribute__((always_inline)) void tile(int rows, const real *x, int64_t stride, int64_t step,
                                                       const real *w, int64_t gap, int64_t depth, float *y,
                                                       int64_t across, int more, const real *next, int64_t hop)
{
    wide sum[TALL][2];
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = (wide){0};
    for (int64_t d = 0; d < depth; d += PAIR) {
        if (next)
            __builtin_prefetch(next + d * hop, 0, 2);
        terms low = *(const terms *)(w + d * gap), high = *(const terms *)(w + d * gap + WIDE * PAIR);
        for (int r = 0; r < rows; r++) {
            term one;
            memcpy(&one, x + r * stride + d * step, sizeof one);
            sum[r][0] = add_product(sum[r][0], one, low);
            sum[r][1] = add_product(sum[r][1], one, high);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) {
            wide *to = (wide *)(y + r * across + h * WIDE);
            *to = more ? *to + sum[r][h] : sum[r][h];
        }
}

/* Never a copy of its own for a depth that is known: its sums would have another order. */
#if defined __GNUC__ && !defined __clang__
__attribute__((noclone))
#endif
__attribute__((noinline)) static void tiles(int rows, const real *x, int64_t stride, int64_t step, const real *w,
                                            int64_t gap, int64_t depth, float *y, int64_t across, int more,
                                            const real *next, int64_t hop)
{
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        if (next)                                                                                                      \
            tile(n, x, stride, step, w, gap, depth, y, across, more, next, hop);                                            \
        else                                                                                                           \
            tile(n, x, stride, step, w, gap, depth, y, across, more, 0, 0);                                                 \
        break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TALL > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

/* One panel for all rows of a block; the next one is fetched meanwhile, evenly, as memory would otherwise rest. Rows
   lie one after another, or, where they are `tall`, the numbers of at most TALL of them side by side. */
static void panel(const real *x, int tall, int64_t rows, int64_t depth, const real *w, float *y, int64_t across,
                  int more, int fetch)
{
    int64_t deep = parts(depth, parts(depth, DEEP)), blocks = parts(rows, TALL), hop = parts(PANEL, blocks);
    deep += deep % PAIR;
    for (int64_t k = 0; k < depth; k += deep) {
        int64_t d = least(depth - k, deep);
        for (int64_t b = 0; b < blocks; b++) {
            int64_t begin = b * rows / blocks, end = (b + 1) * rows / blocks;
            const real *next = fetch || k + d < depth ? w + (k + d) * PANEL + b * d * hop : 0;
            int64_t stride = tall ? PAIR : depth, step = tall ? end - begin : 1;
            tiles((int)(end - begin), x + begin * depth + k * step, stride, step, w + k * PANEL, PANEL, d,
                  y + begin * across, across, more || k, next, hop);
        }
    }
}

/* y (rows, outs) = or += x (rows, depth) w, for the panels from `p` to `stop`; rows of y lie `across` apart. */
static void panels(const real *x, int tall, int64_t rows, int64_t depth, const real *w, int64_t outs, float *y,
                   int64_t across, int more, int64_t p, int64_t stop)
{
    for (; p < stop; p++) {
        const real *from = w + p * PANEL * depth;
        float *to = y + p * PANEL, part[BLOCK * PANEL];
        int64_t some = outs - p * PANEL;
        if (some >= PANEL) {
            panel(x, tall, rows, depth, from, to, across, more, some > PANEL);
            continue;
        }
        for (int64_t r = 0; more && r < rows; r++)
            memcpy(part + r * PANEL, to + r * across, some * sizeof(float));
        panel(x, tall, rows, depth, from, part, PANEL, more, 0);
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + r * across, part + r * PANEL, some * sizeof(float));
    }
}

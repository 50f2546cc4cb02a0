/* A matrix product of the trainer: both sides fp32, taken in as `real`, sums fp32, each over its terms in one order on
   however many threads. */

#include "tile.c"

#define FAR 786432     /* bytes of a block that stay in the next cache */
#define MANY 4096      /* rows, and outputs, that are packed at once, at most */
#define LITTLE 1000000 /* products that one thread makes as soon as several */

/* Numbers of a matrix, from row to row and from column to column. */
struct Matrix {
    const float *at;
    int64_t row, column;
};

/* Two numbers of a sum's term, or, where there is but one, it and 0. */
static int64_t even(int64_t depth) { return depth + depth % PAIR; }

/* Several numbers, and those below them where a term is a pair (`below` may be 0: all 0), as terms. */
static inline void join(const float *x, const float *below, term *to, int64_t count)
{
    int64_t n = 0;
#ifdef REAL16
#ifdef __AVX512BF16__
    for (; n < count; n += WIDE) {
        __mmask16 some = (__mmask16)((1u << least(WIDE, count - n)) - 1);
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, x + n)));
        __m512 next = below ? _mm512_maskz_loadu_ps(some, below + n) : _mm512_setzero_ps();
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(next));
        _mm512_mask_storeu_epi32(to + n, some, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
#endif
    for (; n < count; n++)
        to[n] = put(x[n]) | (term)(below ? put(below[n]) : 0) << 16;
#else
    (void)below;
    for (; n + 4 <= count; n += 4)
        memcpy(to + n, x + n, 4 * sizeof(float));
    for (; n < count; n++)
        to[n] = x[n];
#endif
}

/* A row's numbers one after another. */
static inline void copy_row(const float *x, real *to, int64_t count)
{
    int64_t n = 0;
#if defined REAL16 && defined __AVX512BF16__
    for (; n + WIDE <= count; n += WIDE)
        _mm256_storeu_si256((__m256i *)(to + n), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + n)));
#endif
    for (; n < count; n++)
        to[n] = put(x[n]);
    if (count % PAIR)
        to[count] = 0;
}

/* Columns of b (depth, outs) as panel `p`; those of which one lies after the other are turned, some at a time. */
static void pack_panel(struct Matrix b, int64_t depth, int64_t outs, int64_t p, real *panel)
{
    int64_t count = least(outs - p * PANEL, PANEL), terms = even(depth) / PAIR;
    const float *from = b.at + p * PANEL * b.column;
    term *to = (term *)panel;
    if (count < PANEL)
        memset(to, 0, terms * PANEL * sizeof(term));
    if (b.column == 1) {
        for (int64_t t = 0; t < terms; t++)
            join(from + t * PAIR * b.row, t * PAIR + 1 < depth ? from + (t * PAIR + 1) * b.row : 0, to + t * PANEL,
                 count);
        return;
    }
    for (int64_t t = 0; t < terms; t += WIDE) {
        term some[PANEL][WIDE];
        int64_t wide = least(WIDE, terms - t);
        for (int64_t o = 0; o < count; o++)
            copy_row(from + o * b.column + t * PAIR, (real *)some[o], least(wide * PAIR, depth - t * PAIR));
        for (int64_t i = 0; i < wide; i++)
            for (int64_t o = 0; o < count; o++)
                to[(t + i) * PANEL + o] = some[o][i];
    }
}

/* Rows of a (rows, depth) that are worked on together, as `panel` reads them: one after another, or tall. */
static void pack_block(struct Matrix a, int64_t depth, int64_t first, int64_t rows, real *to)
{
    int64_t deep = even(depth), blocks = parts(rows, TALL);
    const float *from = a.at + first * a.row;
    if (a.column == 1) {
        for (int64_t r = 0; r < rows; r++)
            copy_row(from + r * a.row, to + r * deep, depth);
        return;
    }
    for (int64_t b = 0; b < blocks; b++) {
        int64_t begin = b * rows / blocks, some = (b + 1) * rows / blocks - begin;
        const float *x = from + begin;
        term *block = (term *)(to + begin * deep);
        for (int64_t d = 0; d < depth; d += PAIR)
            join(x + d * a.column, d + 1 < depth ? x + (d + 1) * a.column : 0, block + d / PAIR * some, some);
    }
}

/* Terms of a sum that are packed at once, so that a block of rows stays in the cache. */
static int64_t slice_of(int64_t depth)
{
    return even(parts(depth, parts(depth, FAR / (BLOCK * (int64_t)sizeof(real)))));
}

/* Numbers of memory that a product packs into. */
int64_t product_scratch(int64_t rows, int64_t depth, int64_t outs)
{
    return slice_of(depth) * (least(rows, MANY) + parts(least(outs, MANY), PANEL) * PANEL);
}

/* What all threads of a team do together for at most MANY rows and outputs: y = a b, the rows of y `across` apart. */
static void part(struct Matrix a, struct Matrix b, int64_t rows, int64_t depth, int64_t outs, float *y, int64_t across,
                 real *memory)
{
    int64_t slice = slice_of(depth), blocks = parts(rows, BLOCK), all = parts(outs, PANEL), groups = parts(all, SHARE);
    int tall = a.column != 1, as_is = PAIR == 1 && !tall && a.row == depth && slice == depth;
    real *packed = memory + rows * slice;
    for (int64_t k = 0; k < depth; k += slice) {
        int64_t some = least(slice, depth - k), deep = even(some);
        struct Matrix left = {a.at + k * a.column, a.row, a.column}, right = {b.at + k * b.row, b.row, b.column};
#pragma omp for schedule(static) nowait
        for (int64_t p = 0; p < all; p++)
            pack_panel(right, some, outs, p, packed + p * deep * PANEL);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < blocks; i++) {
            int64_t first = i * rows / blocks, count = (i + 1) * rows / blocks - first;
            if (!as_is)
                pack_block(left, some, first, count, memory + first * deep);
        }
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t i = 0; i < blocks; i++)
            for (int64_t g = 0; g < groups; g++) {
                int64_t first = i * rows / blocks, count = (i + 1) * rows / blocks - first;
                const real *x = (as_is ? (const real *)a.at : memory) + first * deep;
                panels(x, tall, count, deep, packed, outs, y + first * across, across, k > 0, g * SHARE,
                       least((g + 1) * SHARE, all));
            }
    }
}

/* y (rows, outs) = a (rows, depth) b (depth, outs). Of each side's strides one is 1. */
void multiply(const float *a, int64_t a_row, int64_t a_column, const float *b, int64_t b_row, int64_t b_column,
              int64_t rows, int64_t depth, int64_t outs, float *y, real *memory)
{
#pragma omp parallel if (rows * depth * outs > LITTLE)
    for (int64_t row = 0; row < rows; row += MANY)
        for (int64_t out = 0; out < outs; out += MANY) {
            struct Matrix left = {a + row * a_row, a_row, a_column}, right = {b + out * b_column, b_row, b_column};
            part(left, right, least(MANY, rows - row), depth, least(MANY, outs - out), y + row * outs + out, outs,
                 memory);
        }
}

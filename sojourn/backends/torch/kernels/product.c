/* The trainer's matrix product. Both sides are fp32 and converted to `real`; sums are fp32, and the order of
   their terms does not depend on the number of threads. */

#include "panels.c"

#define L2_BYTES 786432        /* bytes of a block of rows that stay in the L2 cache */
#define PART 4096              /* the most rows, and the most outputs, that are packed at once */
#define MAX_SERIAL_OPS 1000000 /* multiplications that one thread does as fast as several threads */

/* A matrix, with the strides from row to row and from column to column. */
struct Matrix {
    const float *data;
    int64_t row, column;
};

/* Rounds up to whole terms: an odd depth is padded with 0 where a term is a pair. */
static int64_t whole_terms(int64_t depth) { return depth + depth % PAIR; }

/* Converts `count` numbers of a row to terms. Where a term is a pair, each number is interleaved with that of the row
   `below`, or with 0 where `below` is 0. */
static inline void interleave_rows(const float *x, const float *below, term *to, int64_t count)
{
    int64_t n = 0;
#ifdef REAL16
#ifdef __AVX512BF16__
    for (; n < count; n += LANES) {
        __mmask16 lanes = (__mmask16)((1u << min64(LANES, count - n)) - 1);
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(lanes, x + n)));
        __m512 next = below ? _mm512_maskz_loadu_ps(lanes, below + n) : _mm512_setzero_ps();
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(next));
        _mm512_mask_storeu_epi32(to + n, lanes, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
#endif
    for (; n < count; n++)
        to[n] = to_real(x[n]) | (term)(below ? to_real(below[n]) : 0) << 16;
#else
    (void)below;
    for (; n + 4 <= count; n += 4)
        memcpy(to + n, x + n, 4 * sizeof(float));
    for (; n < count; n++)
        to[n] = x[n];
#endif
}

/* Converts a row's numbers to `real`, padded to whole terms. */
static inline void copy_row(const float *x, real *to, int64_t count)
{
    int64_t n = 0;
#if defined REAL16 && defined __AVX512BF16__
    for (; n + LANES <= count; n += LANES)
        _mm256_storeu_si256((__m256i *)(to + n), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + n)));
#endif
    for (; n < count; n++)
        to[n] = to_real(x[n]);
    if (count % PAIR)
        to[count] = 0;
}

/* Packs columns of b (depth, outputs) as panel `p`. Where each column is contiguous it is transposed, LANES terms at a
   time. */
static void pack_panel(struct Matrix b, int64_t depth, int64_t outputs, int64_t p, real *panel)
{
    int64_t count = min64(outputs - p * PANEL, PANEL), terms = whole_terms(depth) / PAIR;
    const float *from = b.data + p * PANEL * b.column;
    term *to = (term *)panel;
    if (count < PANEL)
        memset(to, 0, terms * PANEL * sizeof(term));
    if (b.column == 1) {
        for (int64_t t = 0; t < terms; t++)
            interleave_rows(from + t * PAIR * b.row, t * PAIR + 1 < depth ? from + (t * PAIR + 1) * b.row : 0,
                            to + t * PANEL, count);
        return;
    }
    for (int64_t t = 0; t < terms; t += LANES) {
        term columns[PANEL][LANES];
        int64_t width = min64(LANES, terms - t);
        for (int64_t o = 0; o < count; o++)
            copy_row(from + o * b.column + t * PAIR, (real *)columns[o], min64(width * PAIR, depth - t * PAIR));
        for (int64_t i = 0; i < width; i++)
            for (int64_t o = 0; o < count; o++)
                to[(t + i) * PANEL + o] = columns[o][i];
    }
}

/* Packs a block of rows of a (rows, depth) as `panel_product` reads it: one after another, or transposed. */
static void pack_block(struct Matrix a, int64_t depth, int64_t first, int64_t rows, real *to)
{
    int64_t padded = whole_terms(depth), groups = ceil_div(rows, TILE_ROWS);
    const float *from = a.data + first * a.row;
    if (a.column == 1) {
        for (int64_t r = 0; r < rows; r++)
            copy_row(from + r * a.row, to + r * padded, depth);
        return;
    }
    for (int64_t g = 0; g < groups; g++) {
        int64_t begin = g * rows / groups, count = (g + 1) * rows / groups - begin;
        const float *x = from + begin;
        term *to_group = (term *)(to + begin * padded);
        for (int64_t d = 0; d < depth; d += PAIR)
            interleave_rows(x + d * a.column, d + 1 < depth ? x + (d + 1) * a.column : 0, to_group + d / PAIR * count,
                            count);
    }
}

/* Returns how many terms of a sum are packed at once, so that a block of rows stays in the cache. */
static int64_t slice_depth(int64_t depth)
{
    return whole_terms(ceil_div(depth, ceil_div(depth, L2_BYTES / (ROW_BLOCK * (int64_t)sizeof(real)))));
}

/* Returns how many numbers of scratch memory a product needs. */
int64_t matmul_scratch_size(int64_t rows, int64_t depth, int64_t outputs)
{
    return slice_depth(depth) * (min64(rows, PART) + ceil_div(min64(outputs, PART), PANEL) * PANEL);
}

/* Computes y = a b for at most PART rows and outputs. All threads of an OpenMP team call it together; rows of y are
   `y_stride` apart. */
static void matmul_part(struct Matrix a, struct Matrix b, int64_t rows, int64_t depth, int64_t outputs, float *y,
                        int64_t y_stride, real *scratch)
{
    int64_t slice = slice_depth(depth), blocks = ceil_div(rows, ROW_BLOCK), panels = ceil_div(outputs, PANEL);
    int64_t spans = ceil_div(panels, PANELS_PER_TASK);
    int transposed = a.column != 1, as_is = PAIR == 1 && !transposed && a.row == depth && slice == depth;
    real *packed = scratch + rows * slice;
    for (int64_t k = 0; k < depth; k += slice) {
        int64_t part_depth = min64(slice, depth - k), padded = whole_terms(part_depth);
        struct Matrix left = {a.data + k * a.column, a.row, a.column}, right = {b.data + k * b.row, b.row, b.column};
#pragma omp for schedule(static) nowait
        for (int64_t p = 0; p < panels; p++)
            pack_panel(right, part_depth, outputs, p, packed + p * padded * PANEL);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < blocks; i++) {
            int64_t first = i * rows / blocks, count = (i + 1) * rows / blocks - first;
            if (!as_is)
                pack_block(left, part_depth, first, count, scratch + first * padded);
        }
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t i = 0; i < blocks; i++)
            for (int64_t s = 0; s < spans; s++) {
                int64_t first = i * rows / blocks, count = (i + 1) * rows / blocks - first;
                const real *x = (as_is ? (const real *)a.data : scratch) + first * padded;
                panel_products(x, transposed, count, padded, packed, outputs, y + first * y_stride, y_stride, k > 0,
                               s * PANELS_PER_TASK, min64((s + 1) * PANELS_PER_TASK, panels));
            }
    }
}

/* Computes y (rows, outputs) = a (rows, depth) b (depth, outputs). Of each side's strides one must be 1. */
void matmul(const float *a, int64_t a_row, int64_t a_column, const float *b, int64_t b_row, int64_t b_column,
            int64_t rows, int64_t depth, int64_t outputs, float *y, real *scratch)
{
#pragma omp parallel if (rows * depth * outputs > MAX_SERIAL_OPS)
    for (int64_t row = 0; row < rows; row += PART)
        for (int64_t out = 0; out < outputs; out += PART) {
            struct Matrix left = {a + row * a_row, a_row, a_column}, right = {b + out * b_column, b_row, b_column};
            matmul_part(left, right, min64(PART, rows - row), depth, min64(PART, outputs - out),
                        y + row * outputs + out, outputs, scratch);
        }
}

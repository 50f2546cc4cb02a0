/* Computes the attention of single tokens over a paged cache, and stores keys and values there, without temporary
   tensors.

   Compiled for one model: REAL16 where numbers are bf16, KEY and VALUE (the sizes of a head), REPEATS (query heads for
   each key head), PAGE (tokens). `cache_tokens`, the size of the cache, is a multiple of PAGE. Rows are independent of
   each other: a token's result is the same whatever is computed beside it, on however many threads. */

#include "vector_math.c"

#ifdef _OPENMP
#include <omp.h>
#endif

#define COLUMNS(size) ((size + PANEL - 1) / PANEL)
#define GROUP_ROWS 8 /* rows that read a page while it is in the processor's cache */
#define GROUP_QUERIES (GROUP_ROWS * REPEATS)
#define PADDED_VALUE (COLUMNS(VALUE) * PANEL)

/* A token's queries of one key head, which attend to the positions from `first` to `length` of its context. */
struct Row {
    const float *query;
    const int64_t *page_table;
    int64_t first, length;
    real *out;
};

/* The online softmax of all queries of a group of rows; `sums` are the weighted sums of the values so far. */
struct Attention {
    real queries[GROUP_QUERIES * KEY], weights[GROUP_QUERIES * PAGE];
    float scores[GROUP_QUERIES * PAGE], sums[GROUP_QUERIES * PADDED_VALUE];
    struct Softmax softmax[GROUP_QUERIES];
};

/* Computes y = x w, or adds it to y with `accumulate`, for `count` queries. Writes whole panels: y has room for them
   beyond its `outputs` numbers. */
static void page_product(int64_t count, const real *x, int64_t x_stride, const real *w, int64_t w_stride, int64_t depth,
                         float *y, int64_t y_stride, int64_t outputs, int accumulate)
{
    int64_t groups = ceil_div(count, TILE_ROWS);
    for (int64_t o = 0; o < outputs; o += PANEL)
        for (int64_t g = 0; g < groups; g++) {
            int64_t begin = g * count / groups, end = (g + 1) * count / groups;
            tile_products((int)(end - begin), x + begin * x_stride, x_stride, 1, w + o * PAIR, w_stride, depth,
                          y + begin * y_stride + o, y_stride, accumulate, 0, 0);
        }
}

/* Adds one page to the attention of consecutive rows that share it; row i attends to the page's tokens from begin[i] to
   end[i]. */
static void attend_page(struct Attention *state, int64_t row, int64_t rows, const real *keys, const real *values,
                        const int *begin, const int *end, float scale, float softcap)
{
    int64_t first = row * REPEATS, count = rows * REPEATS;
    float *scores = state->scores + first * PAGE, *sums = state->sums + first * PADDED_VALUE;
    int last = 0;
    page_product(count, state->queries + first * KEY, KEY, keys, PAGE, KEY, scores, PAGE, PAGE, 0);
    for (int64_t q = 0; q < count; q++) {
        float *score = scores + q * PAGE;
        int from = begin[q / REPEATS], to = end[q / REPEATS];
        last = to > last ? to : last;
        if (softcap > 0)
            for (int t = from; t < to; t++)
                score[t] = softcap * tanhf(score[t] * scale / softcap) / scale;
        for (int t = 0; to - from < PAGE && t < PAGE; t++)
            score[t] = (t >= from) & (t < to) ? score[t] : MASKED;
        float factor = online_softmax(score, state->weights + (first + q) * PAGE, PAGE, scale * LOG2E,
                                      state->softmax + first + q);
        for (int d = 0; factor != 1 && d < PADDED_VALUE; d++)
            sums[q * PADDED_VALUE + d] *= factor;
    }
    page_product(count, state->weights + first * PAGE, PAGE, values, VALUE, last + last % PAIR, sums, PADDED_VALUE,
                 VALUE, 1);
}

/* Prefetches the page that is read next, whose address the processor cannot predict. */
static inline void prefetch_page(const real *numbers, int64_t count)
{
    for (int64_t n = 0; n < count; n += 64 / sizeof(real))
        __builtin_prefetch(numbers + n, 0, 2);
}

/* Computes the attention of at most GROUP_ROWS rows for one key head. Pages are the outer loop: rows that share a page
   find it in the processor's cache. */
static void attention(const struct Row *rows, int64_t count, int64_t head_stride, const real *keys, const real *values,
                      float scale, float softcap)
{
    struct Attention state;
    int64_t first = rows->first, length = rows->length;
    memset(state.sums, 0, count * REPEATS * PADDED_VALUE * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        for (int64_t r = 0; r < REPEATS; r++) {
            int64_t q = i * REPEATS + r;
            for (int d = 0; d < KEY; d++)
                state.queries[q * KEY + d] = to_real(rows[i].query[r * head_stride + d]);
            state.softmax[q] = (struct Softmax){.max = LOWEST};
        }
        first = min64(rows[i].first, first);
        length = -min64(-rows[i].length, -length);
    }
    for (int64_t page = first / PAGE; page * PAGE < length; page++) {
        int begin[GROUP_ROWS], end[GROUP_ROWS];
        for (int64_t i = 0; i < count; i++) {
            int64_t from = rows[i].first - page * PAGE;
            begin[i] = from > 0 ? (int)min64(from, PAGE) : 0;
            end[i] = (int)min64(rows[i].length - page * PAGE, PAGE);
        }
        for (int64_t i = 0, j; i < count; i = j) {
            j = i + 1;
            if (begin[i] >= end[i])
                continue;
            int64_t at = rows[i].page_table[page];
            while (j < count && begin[j] < end[j] && rows[j].page_table[page] == at)
                j++;
            int64_t next_row = j < count ? j : 0, next_page = page + (j == count);
            if (next_page * PAGE < rows[next_row].length) {
                prefetch_page(keys + rows[next_row].page_table[next_page] * PAGE * KEY, PAGE * KEY);
                prefetch_page(values + rows[next_row].page_table[next_page] * PAGE * VALUE, PAGE * VALUE);
            }
            attend_page(&state, i, j - i, keys + at * PAGE * KEY, values + at * PAGE * VALUE, begin + i, end + i, scale,
                        softcap);
        }
    }
    for (int64_t q = 0; q < count * REPEATS; q++) {
        float sum = sum_lanes(state.softmax[q].sum);
        for (int d = 0; d < VALUE; d++)
            rows[q / REPEATS].out[q % REPEATS * VALUE + d] = to_real(state.sums[q * PADDED_VALUE + d] / sum);
    }
}

/* Returns how many rows form a group, so that every thread has several groups to work on. */
static inline int64_t group_rows(int64_t rows, int64_t kv_heads, int64_t threads)
{
    int64_t count = rows * kv_heads / (4 * threads);
    return count < 1 ? 1 : count > GROUP_ROWS ? GROUP_ROWS : count;
}

/* Computes paged attention. Row i attends to the first lengths[i] tokens of the context whose pages are
   page_tables[contexts[i]] and, where `window` is not 0, only to the last `window` of those. Queries are (rows, heads,
   KEY) by strides, out is (rows, heads, VALUE). */
void paged_attention(const float *query, int64_t row_stride, int64_t head_stride, real *out, const real *keys,
                     const real *values, int64_t cache_tokens, int64_t rows, int64_t kv_heads,
                     const int64_t *page_tables, int64_t pages, const int64_t *contexts, const int64_t *lengths,
                     int64_t window, float scale, float softcap)
{
#ifdef _OPENMP
    int64_t group = group_rows(rows, kv_heads, omp_get_max_threads());
#else
    int64_t group = group_rows(rows, kv_heads, 1);
#endif
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t head = 0; head < kv_heads; head++)
        for (int64_t begin = 0; begin < rows; begin += group) {
            struct Row some[GROUP_ROWS];
            int64_t count = rows - begin < group ? rows - begin : group;
            for (int64_t i = 0; i < count; i++) {
                int64_t row = begin + i, length = lengths[row];
                some[i] = (struct Row){query + row * row_stride + head * REPEATS * head_stride,
                                       page_tables + contexts[row] * pages,
                                       window && length > window ? length - window : 0, length,
                                       out + (row * kv_heads + head) * REPEATS * VALUE};
            }
            attention(some, count, head_stride, keys + head * cache_tokens * KEY, values + head * cache_tokens * VALUE,
                      scale, softcap);
        }
}

/* Stores a token's key and value of one head in their slot. Within a page, keys lie side by side (KEY, PAGE) and values
   one after another (PAGE, VALUE); PAIR numbers that are summed up together lie next to each other. Where
   the `last` token is the first of a pair, the value beside its own is read with weight 0; it is set to 0 here, as what
   was in memory might not be finite. */
static inline void store_one(const real *key, const real *value, real *keys, real *values, int64_t slot, int last)
{
    int64_t at = slot % PAGE;
    real *k = keys + (slot - at) * KEY + at * PAIR, *v = values + (slot - at % PAIR) * VALUE + at % PAIR;
    for (int d = 0; d < KEY; d++)
        k[(d - d % PAIR) * PAGE + d % PAIR] = key[d];
    for (int d = 0; d < VALUE; d++)
        v[d * PAIR] = value[d];
    for (int d = 0; last && slot % PAIR == 0 && PAIR == 2 && d < VALUE; d++)
        v[d * PAIR + 1] = 0;
}

/* Returns whether no row follows row `r` in the next slot. */
static inline int is_last(const int64_t *slots, int64_t r, int64_t rows)
{
    return r + 1 == rows || slots[r + 1] != slots[r] + 1;
}

/* Stores all rows' keys and values (rows, kv_heads, head size), given by their strides. */
void store_kv(const real *key, int64_t key_row, int64_t key_head, const real *value, int64_t value_row,
              int64_t value_head, real *keys, real *values, int64_t cache_tokens, int64_t rows, int64_t kv_heads,
              const int64_t *slots)
{
#pragma omp parallel for collapse(2) schedule(static) if (rows > 64)
    for (int64_t head = 0; head < kv_heads; head++)
        for (int64_t row = 0; row < rows; row++)
            store_one(key + row * key_row + head * key_head, value + row * value_row + head * value_head, keys, values,
                      head * cache_tokens + slots[row], is_last(slots, row, rows));
}

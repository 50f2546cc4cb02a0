/* What a step of the engine does between its matrix products, without temporary tensors.

   Compiled for one model: REAL16 where numbers are bf16, KEY and VALUE (the sizes of a head), REPEATS (query heads for
   each key head), PAGE (tokens). The `capacity` of the cache, in tokens, is a multiple of PAGE. Rows are independent of
   each other: a token's result is the same whatever is computed beside it, on however many threads. */

#include "tile.c"

#ifdef _OPENMP
#include <omp.h>
#endif

#define NEVER -1e30f  /* the score of what is not seen */
#define LOWEST -1e20f /* below all that is seen */
#define COLUMNS(size) ((size + PANEL - 1) / PANEL)
#define LOG2E 1.44269504f

/* 2^r for r from -1/2 to 1/2, to 2e-7: of such polynomials that are 1 at 0 the one of least relative error. */
#define RISE(r)                                                                                                        \
    (((((1.32647271e-3f * (r) + 9.67151264e-3f) * (r) + 5.55073374e-2f) * (r) + 0.240222421f) * (r) + 0.693146978f) *  \
         (r) +                                                                                                         \
     1)

/* exp for x <= 0, in a form that compilers turn into vector instructions. */
static inline float exponential(float x)
{
    x = x * LOG2E < -126.0f ? -126.0f : x * LOG2E;
    float n = floorf(x + 0.5f), r = x - n, scale;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    memcpy(&scale, &bits, 4);
    return RISE(r) * scale;
}

/* Of numbers side by side: 2^x for x <= 0, and 0 where that is less than any float (or any but the least). */
#ifdef __AVX512F__
static inline wide power(wide x)
{
    wide n = (wide)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = x - n;
    return (wide)_mm512_scalef_ps((__m512)RISE(r), (__m512)n);
}

static inline wide greater(wide one, wide other) { return (wide)_mm512_max_ps((__m512)one, (__m512)other); }
static inline int any_above(wide x, float top)
{
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(top), _CMP_GT_OQ) != 0;
}
static inline float highest(wide x) { return _mm512_reduce_max_ps((__m512)x); }
static inline float added(wide x) { return _mm512_reduce_add_ps((__m512)x); }
#else
typedef int32_t flags __attribute__((vector_size(4 * WIDE)));

static inline wide greater(wide one, wide other)
{
    flags more = one > other;
    return (wide)(((flags)one & more) | ((flags)other & ~more));
}

static inline wide power(wide x)
{
    flags some = x > -126.0f;
    wide near = greater(x, (wide){0} - 126.0f);
    flags n = __builtin_convertvector(near - 0.5f, flags);
    wide r = near - __builtin_convertvector(n, wide);
    return (wide)((flags)(RISE(r) * (wide)((n + 127) << 23)) & some);
}

static inline float highest(wide x)
{
    float most = x[0];
    for (int l = 1; l < WIDE; l++)
        most = x[l] > most ? x[l] : most;
    return most;
}

static inline int any_above(wide x, float top) { return highest(x) > top; }

static inline float added(wide x)
{
    float sum = 0;
    for (int l = 0; l < WIDE; l++)
        sum += x[l];
    return sum;
}
#endif

static inline void put_wide(wide x, real *to)
{
#if defined REAL16 && defined __AVX512BF16__
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    for (int l = 0; l < WIDE; l++)
        to[l] = put(x[l]);
#endif
}

/* A softmax under way: the greatest score so far, and the sums of weights, 2^(score - top), WIDE side by side. */
struct Softmax {
    wide sum;
    float top;
};

/* A row's scores become weights, and the softmax takes them in; how much those before shrink. */
static inline float soften(const float *scores, real *weights, int64_t count, float scale, struct Softmax *row)
{
    wide high = *(const wide *)scores;
    float shrink = 1;
    for (int64_t n = WIDE; n < count; n += WIDE)
        high = greater(*(const wide *)(scores + n), high);
    if (any_above(high * scale, row->top)) {
        float before = row->top;
        row->top = highest(high * scale);
        shrink = power((wide){0} + (before - row->top))[0];
        row->sum *= shrink;
    }
    for (int64_t n = 0; n < count; n += WIDE) {
        wide weight = power(*(const wide *)(scores + n) * scale - row->top);
        row->sum += weight;
        put_wide(weight, weights + n);
    }
    return shrink;
}

#define FEW 8 /* rows that look at a page while it is near */
#define QUERIES (FEW * REPEATS)
#define BROAD (COLUMNS(VALUE) * PANEL)

/* A token's queries of one key head, and the keys from `first` to `length` of its context, at which they look. */
struct Row {
    const float *query;
    const int64_t *table;
    int64_t first, length;
    real *out;
};

/* Softmaxes under way, of all queries of some rows. */
struct Look {
    real queries[QUERIES * KEY], weights[QUERIES * PAGE];
    float scores[QUERIES * PAGE], seen[QUERIES * BROAD];
    struct Softmax softmax[QUERIES];
};

/* y = or += x w for all queries, `outs` numbers of y: what is beyond is not meant, but there is room for it. */
static void across_page(int64_t count, const real *x, int64_t stride, const real *w, int64_t gap, int64_t depth,
                        float *y, int64_t across, int64_t outs, int more)
{
    int64_t blocks = parts(count, TALL);
    for (int64_t o = 0; o < outs; o += PANEL)
        for (int64_t b = 0; b < blocks; b++) {
            int64_t begin = b * count / blocks, end = (b + 1) * count / blocks;
            tiles((int)(end - begin), x + begin * stride, stride, 1, w + o * PAIR, gap, depth,
                  y + begin * across + o, across, more, 0, 0);
        }
}

/* Some rows, one after another, look at a page that all of them have: each at its tokens from `begin` to `end`. */
static void look_at(struct Look *look, int64_t row, int64_t rows, const real *keys, const real *values,
                    const int *begin, const int *end, float scale, float cap)
{
    int64_t first = row * REPEATS, count = rows * REPEATS;
    float *scores = look->scores + first * PAGE, *seen = look->seen + first * BROAD;
    int last = 0;
    across_page(count, look->queries + first * KEY, KEY, keys, PAGE, KEY, scores, PAGE, PAGE, 0);
    for (int64_t q = 0; q < count; q++) {
        float *score = scores + q * PAGE;
        int from = begin[q / REPEATS], to = end[q / REPEATS];
        last = to > last ? to : last;
        if (cap > 0)
            for (int t = from; t < to; t++)
                score[t] = cap * tanhf(score[t] * scale / cap) / scale;
        for (int t = 0; to - from < PAGE && t < PAGE; t++)
            score[t] = (t >= from) & (t < to) ? score[t] : NEVER;
        float shrink = soften(score, look->weights + (first + q) * PAGE, PAGE, scale * LOG2E,
                              look->softmax + first + q);
        for (int d = 0; shrink != 1 && d < BROAD; d++)
            seen[q * BROAD + d] *= shrink;
    }
    across_page(count, look->weights + first * PAGE, PAGE, values, VALUE, last + last % PAIR, seen, BROAD, VALUE, 1);
}

/* What will be looked at next is on its way meanwhile: where pages lie, the processor cannot foresee. */
static inline void fetch(const real *numbers, int64_t count)
{
    for (int64_t n = 0; n < count; n += 64 / sizeof(real))
        __builtin_prefetch(numbers + n, 0, 2);
}

/* Page after page, each for all of at most FEW rows: those that share it find it in the processor's cache. */
static void look(const struct Row *rows, int64_t count, int64_t head_stride, const real *keys, const real *values,
                 float scale, float cap)
{
    struct Look look;
    int64_t first = rows->first, length = rows->length;
    memset(look.seen, 0, count * REPEATS * BROAD * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        for (int64_t r = 0; r < REPEATS; r++) {
            int64_t q = i * REPEATS + r;
            for (int d = 0; d < KEY; d++)
                look.queries[q * KEY + d] = put(rows[i].query[r * head_stride + d]);
            look.softmax[q] = (struct Softmax){.top = LOWEST};
        }
        first = least(rows[i].first, first);
        length = -least(-rows[i].length, -length);
    }
    for (int64_t page = first / PAGE; page * PAGE < length; page++) {
        int begin[FEW], end[FEW];
        for (int64_t i = 0; i < count; i++) {
            int64_t from = rows[i].first - page * PAGE;
            begin[i] = from > 0 ? (int)least(from, PAGE) : 0;
            end[i] = (int)least(rows[i].length - page * PAGE, PAGE);
        }
        for (int64_t i = 0, j; i < count; i = j) {
            j = i + 1;
            if (begin[i] >= end[i])
                continue;
            int64_t at = rows[i].table[page];
            while (j < count && begin[j] < end[j] && rows[j].table[page] == at)
                j++;
            int64_t soon = j < count ? j : 0, then = page + (j == count);
            if (then * PAGE < rows[soon].length) {
                fetch(keys + rows[soon].table[then] * PAGE * KEY, PAGE * KEY);
                fetch(values + rows[soon].table[then] * PAGE * VALUE, PAGE * VALUE);
            }
            look_at(&look, i, j - i, keys + at * PAGE * KEY, values + at * PAGE * VALUE, begin + i, end + i, scale,
                    cap);
        }
    }
    for (int64_t q = 0; q < count * REPEATS; q++) {
        float sum = added(look.softmax[q].sum);
        for (int d = 0; d < VALUE; d++)
            rows[q / REPEATS].out[q % REPEATS * VALUE + d] = put(look.seen[q * BROAD + d] / sum);
    }
}

/* How many rows look together, so that every thread has some pieces of work. */
static inline int64_t handful(int64_t rows, int64_t kv_heads, int64_t threads)
{
    int64_t count = rows * kv_heads / (4 * threads);
    return count < 1 ? 1 : count > FEW ? FEW : count;
}

/* Row i attends to the first lengths[i] tokens of the context whose pages are tables[owners[i]]; of those, to the last
   `window` where it is not 0. Queries (rows, heads, KEY) by strides, out (rows, heads, VALUE). */
void attend(const float *query, int64_t row_stride, int64_t head_stride, real *out, const real *keys, const real *values,
            int64_t capacity, int64_t rows, int64_t kv_heads, const int64_t *tables, int64_t width,
            const int64_t *owners, const int64_t *lengths, int64_t window, float scale, float cap)
{
#ifdef _OPENMP
    int64_t few = handful(rows, kv_heads, omp_get_max_threads());
#else
    int64_t few = handful(rows, kv_heads, 1);
#endif
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t head = 0; head < kv_heads; head++)
        for (int64_t begin = 0; begin < rows; begin += few) {
            struct Row some[FEW];
            int64_t count = rows - begin < few ? rows - begin : few;
            for (int64_t i = 0; i < count; i++) {
                int64_t row = begin + i, length = lengths[row];
                some[i] = (struct Row){query + row * row_stride + head * REPEATS * head_stride,
                                       tables + owners[row] * width, window && length > window ? length - window : 0,
                                       length, out + (row * kv_heads + head) * REPEATS * VALUE};
            }
            look(some, count, head_stride, keys + head * capacity * KEY, values + head * capacity * VALUE, scale, cap);
        }
}

/* A token's key and value of one head, where they belong: keys side by side in a page (KEY, PAGE), values one after
   another (PAGE, VALUE), and of what is summed up PAIR together. What would be paired with the last of a context, and is
   looked at with weight 0, becomes a number. */
static inline void store_one(const real *key, const real *value, real *keys, real *values, int64_t place, int last)
{
    int64_t at = place % PAGE;
    real *k = keys + (place - at) * KEY + at * PAIR, *v = values + (place - at % PAIR) * VALUE + at % PAIR;
    for (int d = 0; d < KEY; d++)
        k[(d - d % PAIR) * PAGE + d % PAIR] = key[d];
    for (int d = 0; d < VALUE; d++)
        v[d * PAIR] = value[d];
    for (int d = 0; last && place % PAIR == 0 && PAIR == 2 && d < VALUE; d++)
        v[d * PAIR + 1] = 0;
}

/* Whether row `r` is followed by no other of its page. */
static inline int is_last(const int64_t *places, int64_t r, int64_t rows)
{
    return r + 1 == rows || places[r + 1] != places[r] + 1;
}

/* All rows' keys and values (rows, kv_heads, size), by strides. */
void store(const real *key, int64_t key_row, int64_t key_head, const real *value, int64_t value_row, int64_t value_head,
           real *keys, real *values, int64_t capacity, int64_t rows, int64_t kv_heads, const int64_t *places)
{
#pragma omp parallel for collapse(2) schedule(static) if (rows > 64)
    for (int64_t head = 0; head < kv_heads; head++)
        for (int64_t row = 0; row < rows; row++)
            store_one(key + row * key_row + head * key_head, value + row * value_row + head * value_head, keys, values,
                      head * capacity + places[row], is_last(places, row, rows));
}

#define FOLD 256 /* numbers that are summed up in single precision */

static inline float weight_of(float logit, float heat, float top)
{
    float gap = logit / heat - top, weight = exponential(gap);
    return gap > -87 ? weight : 0;
}

static float fold(const float *logits, int64_t count, float heat, float top)
{
    float sum = 0;
    for (int64_t n = 0; n < count; n++)
        sum += weight_of(logits[n], heat, top);
    return sum;
}

/* The id at which the sums of weights pass `uniform` of their total; where rounding puts it past the end, the last of any
   weight. The logarithm of the total, too. */
static int64_t pass(const float *logits, int64_t size, float heat, float top, double uniform, double *norm)
{
    int64_t folds = (size + FOLD - 1) / FOLD, at = 0, last = 0;
    double sums[folds + 1], total = 0;
    sums[0] = 0;
    for (int64_t n = 0; n < folds; n++)
        sums[n + 1] = total += fold(logits + n * FOLD, size - n * FOLD < FOLD ? size - n * FOLD : FOLD, heat, top);
    *norm = log(total);
    while (at < folds - 1 && sums[at + 1] <= uniform * total && sums[at + 1] < total)
        at++;
    double sum = sums[at];
    for (int64_t n = at * FOLD; n < size && n < (at + 1) * FOLD; n++) {
        float weight = weight_of(logits[n], heat, top);
        sum += weight;
        if (weight > 0)
            last = n;
        if (sum > uniform * total)
            break;
    }
    return last;
}

/* The greatest number, or none where any is none. */
static float greatest(const float *x, int64_t count)
{
    float high[8], most = x[0];
    int odd = 0;
    for (int l = 0; l < 8; l++)
        high[l] = x[0];
    for (int64_t n = 0; n < count / 8 * 8; n += 8)
        for (int l = 0; l < 8; l++) {
            high[l] = x[n + l] > high[l] ? x[n + l] : high[l];
            odd |= x[n + l] != x[n + l];
        }
    for (int64_t n = count / 8 * 8; n < count; n++) {
        most = x[n] > most ? x[n] : most;
        odd |= x[n] != x[n];
    }
    for (int l = 0; l < 8; l++)
        most = high[l] > most ? high[l] : most;
    return odd ? NAN : most;
}

/* One id for each row of logits (rows, size), by its temperature and its number in [0, 1), or -1 where its logits are not
   finite; at temperature 0 the first of the likeliest ids. And the logarithm of its probability. */
void draw(const float *logits, int64_t rows, int64_t size, const float *temperatures, const double *uniforms,
          int64_t *tokens, double *logprobs)
{
#pragma omp parallel for schedule(dynamic) if (rows * size > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const float *row = logits + r * size;
        float heat = temperatures[r] > 0 ? temperatures[r] : 1, high = greatest(row, size);
        double norm;
        tokens[r] = -1;
        if (!isfinite(high))
            continue;
        int64_t id = pass(row, size, heat, high / heat, uniforms[r], &norm);
        if (temperatures[r] == 0)
            for (id = 0; row[id] < high;)
                id++;
        tokens[r] = id;
        logprobs[r] = (double)(row[id] / heat - high / heat) - norm;
    }
}

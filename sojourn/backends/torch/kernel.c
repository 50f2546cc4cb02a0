/* What a step of the engine does between its matrix products, without temporary tensors.

   Compiled for one model: REAL16 where numbers are bf16, KEY and VALUE (the sizes of a head), REPEATS (query heads for
   each key head), PAGE (tokens). The `capacity` of the cache, in tokens, is a multiple of PAGE. Rows are independent of
   each other: a token's result is the same whatever is computed beside it, on however many threads. */

#include "tile.c"

#ifdef _OPENMP
#include <omp.h>
#endif

/* exp for x <= 0 to float precision, in a form that compilers turn into vector instructions: x = n log 2 + r. */
static inline float exponential(float x)
{
    x = x < -87.0f ? -87.0f : x;
    float n = floorf(x * 1.44269504f + 0.5f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale;
}

/* Numbers that are worked on together. */
#if VALUE % 8 == 0
#define LANES 8
#elif VALUE % 4 == 0
#define LANES 4
#else
#define LANES 1
#endif
typedef float lanes __attribute__((vector_size(4 * LANES)));

static inline lanes load(const real *x)
{
    float f[LANES];
    lanes all;
    for (int l = 0; l < LANES; l++)
        f[l] = get(x[l]);
    memcpy(&all, f, sizeof all);
    return all;
}

/* Sums of a query head that are under way at once: all of them, over the heads, fit into registers. */
#define SIDE (REPEATS <= 3 ? 4 : REPEATS <= 6 ? 2 : 1)

/* s[r][t] = q[r] . k[t] for all keys of a page, which lie side by side (KEY, PAGE). */
static inline void products(float q[REPEATS][KEY], const real *k, float s[REPEATS][PAGE])
{
    for (int t = 0; t < PAGE; t += SIDE * LANES) {
        lanes sum[REPEATS][SIDE] = {{{0}}};
        for (int d = 0; d < KEY; d++)
            for (int n = 0; n < SIDE; n++) {
                lanes key = load(k + d * PAGE + t + n * LANES);
                for (int r = 0; r < REPEATS; r++)
                    sum[r][n] += q[r][d] * key;
            }
        for (int r = 0; r < REPEATS; r++)
            memcpy(s[r] + t, sum[r], sizeof sum[r]);
    }
}

#define CHUNK (VALUE / LANES % SIDE == 0 ? SIDE : 1)

/* seen[r] = seen[r] * shrink[r] + sum over t of s[r][t] v[t]. */
static inline void gather(lanes seen[REPEATS][VALUE / LANES], const float shrink[REPEATS], const real *v, int begin,
                          int end, float s[REPEATS][PAGE])
{
    for (int c = 0; c < VALUE / LANES; c += CHUNK) {
        lanes sum[REPEATS][CHUNK];
        for (int r = 0; r < REPEATS; r++)
            for (int n = 0; n < CHUNK; n++)
                sum[r][n] = seen[r][c + n] * shrink[r];
        for (int t = begin; t < end; t++)
            for (int n = 0; n < CHUNK; n++) {
                lanes value = load(v + t * VALUE + (c + n) * LANES);
                for (int r = 0; r < REPEATS; r++)
                    sum[r][n] += s[r][t] * value;
            }
        for (int r = 0; r < REPEATS; r++)
            for (int n = 0; n < CHUNK; n++)
                seen[r][c + n] = sum[r][n];
    }
}

#define FEW 8 /* rows that look at a page while it is near */

/* A token's queries of one key head, and the keys from `first` to `length` of its context, at which they look. */
struct Row {
    const float *query;
    const int64_t *table;
    int64_t first, length;
    real *out;
};

/* A softmax under way. */
struct Look {
    lanes seen[REPEATS][VALUE / LANES];
    float q[REPEATS][KEY], sum[REPEATS], top[REPEATS];
};

static inline void look_at(struct Look *look, const real *keys, const real *values, int begin, int end, float cap)
{
    float shrink[REPEATS], s[REPEATS][PAGE];
    products(look->q, keys, s);
    for (int r = 0; r < REPEATS; r++) {
        if (cap > 0)
            for (int t = begin; t < end; t++)
                s[r][t] = cap * tanhf(s[r][t] / cap);
        float high = look->top[r], added = 0;
        for (int t = begin; t < end; t++)
            high = s[r][t] > high ? s[r][t] : high;
        for (int t = begin; t < end; t++) {
            s[r][t] = exponential(s[r][t] - high);
            added += s[r][t];
        }
        shrink[r] = exponential(look->top[r] - high);
        look->sum[r] = look->sum[r] * shrink[r] + added;
        look->top[r] = high;
    }
    gather(look->seen, shrink, values, begin, end, s);
}

/* Page after page, each for all of at most FEW rows: those that share it find it in the processor's cache. */
static void look(const struct Row *rows, int64_t count, int64_t head_stride, const real *keys, const real *values,
                 float scale, float cap)
{
    struct Look looks[FEW];
    int64_t first = rows->first, length = rows->length;
    memset(looks, 0, count * sizeof *looks);
    for (int64_t i = 0; i < count; i++) {
        for (int r = 0; r < REPEATS; r++) {
            for (int d = 0; d < KEY; d++)
                looks[i].q[r][d] = rows[i].query[r * head_stride + d] * scale;
            looks[i].top[r] = -1e30f;
        }
        first = rows[i].first < first ? rows[i].first : first;
        length = rows[i].length > length ? rows[i].length : length;
    }
    for (int64_t page = first / PAGE; page * PAGE < length; page++)
        for (int64_t i = 0; i < count; i++) {
            int64_t begin = rows[i].first - page * PAGE, end = rows[i].length - page * PAGE;
            begin = begin > 0 ? begin : 0;
            end = end < PAGE ? end : PAGE;
            if (begin < end) {
                int64_t at = rows[i].table[page] * PAGE;
                look_at(looks + i, keys + at * KEY, values + at * VALUE, (int)begin, (int)end, cap);
            }
        }
    for (int64_t i = 0; i < count; i++)
        for (int r = 0; r < REPEATS; r++)
            for (int d = 0; d < VALUE; d++)
                rows[i].out[r * VALUE + d] = put(looks[i].seen[r][d / LANES][d % LANES] / looks[i].sum[r]);
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
   another (PAGE, VALUE). */
static inline void store_one(const real *key, const real *value, real *keys, real *values, int64_t place)
{
    int64_t at = place % PAGE;
    real *page = keys + (place - at) * KEY;
    for (int d = 0; d < KEY; d++)
        page[d * PAGE + at] = key[d];
    memcpy(values + place * VALUE, value, VALUE * sizeof(real));
}

/* All rows' keys and values (rows, kv_heads, size), by strides. */
void store(const real *key, int64_t key_row, int64_t key_head, const real *value, int64_t value_row, int64_t value_head,
           real *keys, real *values, int64_t capacity, int64_t rows, int64_t kv_heads, const int64_t *places)
{
#pragma omp parallel for collapse(2) schedule(static) if (rows > 64)
    for (int64_t head = 0; head < kv_heads; head++)
        for (int64_t row = 0; row < rows; row++)
            store_one(key + row * key_row + head * key_head, value + row * value_row + head * value_head, keys, values,
                      head * capacity + places[row]);
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

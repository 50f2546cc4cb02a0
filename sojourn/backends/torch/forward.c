/* A decoder of Llama's form in fp32, as one call of one team of threads.

   A sum runs over its terms in one order, whatever is computed beside it and on however many threads: a token's logits
   are the same to the bit in every batch, chunk and cache. Weights lie in panels: PANEL outputs side by side for each
   input, so that a panel is read once, from front to back, for all rows. */

#include "kernel.c"

#include <sched.h>

#ifdef __AVX512F__
#define WIDE 16 /* numbers of a register */
#define TALL 12 /* rows whose sums fit into the registers, for two of them side by side */
#else
#define WIDE 8
#define TALL 6
#endif
#define PANEL (2 * WIDE)
#define DEEP 384         /* inputs that are summed up at once: of a panel, they stay in the nearest cache */
#define BLOCK (16 * TALL) /* rows that stay in the next */
#define SHARE 6          /* panels that a thread takes at once, at most: of those, it fetches the next in time */
#define SPINS 4000       /* looks at what others do before they are let onto the core */
typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4)));

/* `bias`, `query_norm` and `key_norm` may be missing; `window` is 0 where a token looks at all before it. */
struct Layer {
    int64_t window;
    const float *before, *qkv, *bias, *query_norm, *key_norm, *out, *between, *gate, *up, *down;
    float *keys, *values;
};

struct Model {
    int64_t layers, hidden, heads, kv_heads, inner, vocabulary, capacity;
    const float *norm, *head;
    const struct Layer *layer;
    float eps, scale;
};

/* What a phase of a step has to do, in shares: how many were taken so far, and how many are done. */
struct Phase {
    int64_t taken, done;
};

/* Tokens (rows) of a step, with their embeddings; `keep` are those whose logits are wanted. */
struct Step {
    int64_t rows, kept, width;
    const int64_t *places, *tables, *owners, *lengths, *keep, *angles; /* each row's in the tables that follow */
    const float *cosines, *sines;
    float *hidden, *last, *normed, *qkv, *attended, *gate, *up, *logits;
    struct Phase *phases; /* all 0 at first */
};

/* The next share of a phase, or -1. */
static inline int64_t take(struct Phase *phase, int64_t count)
{
    int64_t share = __atomic_fetch_add(&phase->taken, 1, __ATOMIC_RELAXED);
    return share < count ? share : -1;
}

static inline void done(struct Phase *phase) { __atomic_fetch_add(&phase->done, 1, __ATOMIC_RELEASE); }

/* Waits for shares, not for threads: whoever is awake goes on, and a thread that comes late finds its work done. */
static void meet(struct Phase *phase, int64_t count)
{
    for (int spins = 0; __atomic_load_n(&phase->done, __ATOMIC_ACQUIRE) < count; spins++)
        if (spins > SPINS)
            sched_yield();
}

static inline int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }
static inline int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

/* y = x w, or y += x w where there is `more`, over `depth` inputs, for so many rows (a constant, once inlined) and a
   panel. Inputs lie `step` apart, rows `stride`. The sum begins at 0, so that what is large in y costs it no digits.
   Fetches what is read next. */
static inline __attribute__((always_inline)) void tile(int rows, const float *x, int64_t stride, int64_t step,
                                                       const float *w, int64_t depth, float *y, int64_t across,
                                                       int more, const float *next, int64_t hop)
{
    wide sum[TALL][2];
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = (wide){0};
    for (int64_t d = 0; d < depth; d++) {
        if (next)
            __builtin_prefetch(next + d * hop, 0, 2);
        wide low = *(const wide *)(w + d * PANEL), high = *(const wide *)(w + d * PANEL + WIDE);
        for (int r = 0; r < rows; r++) {
            float one = x[r * stride + d * step];
            sum[r][0] += one * low;
            sum[r][1] += one * high;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) {
            wide *to = (wide *)(y + r * across + h * WIDE);
            *to = more ? *to + sum[r][h] : sum[r][h];
        }
}

static void tiles(int rows, const float *x, int64_t stride, int64_t step, const float *w, int64_t depth, float *y,
                  int64_t across, int more, const float *next, int64_t hop)
{
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        if (next)                                                                                                      \
            tile(n, x, stride, step, w, depth, y, across, more, next, hop);                                            \
        else                                                                                                           \
            tile(n, x, stride, step, w, depth, y, across, more, 0, 0);                                                 \
        break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TALL > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

/* One panel for all rows of a block; the next one is fetched meanwhile, evenly, as memory would otherwise rest. */
static void panel(const float *x, int64_t rows, int64_t depth, const float *w, float *y, int64_t across, int more,
                  int fetch)
{
    int64_t deep = parts(depth, parts(depth, DEEP)), blocks = parts(rows, TALL), hop = parts(PANEL, blocks);
    for (int64_t k = 0; k < depth; k += deep) {
        int64_t d = least(depth - k, deep);
        for (int64_t b = 0; b < blocks; b++) {
            int64_t begin = b * rows / blocks, end = (b + 1) * rows / blocks;
            const float *next = fetch || k + d < depth ? w + (k + d) * PANEL + b * d * hop : 0;
            tiles((int)(end - begin), x + begin * depth + k, depth, 1, w + k * PANEL, d, y + begin * across, across,
                  more || k, next, hop);
        }
    }
}

/* y (rows, outs) = or += x (rows, depth) w, for the panels from `p` to `stop`. */
static void panels(const float *x, int64_t rows, int64_t depth, const float *w, int64_t outs, float *y, int more,
                   int64_t p, int64_t stop)
{
    for (; p < stop; p++) {
        const float *from = w + p * PANEL * depth;
        float *to = y + p * PANEL, part[BLOCK * PANEL];
        int64_t some = outs - p * PANEL;
        if (some >= PANEL) {
            panel(x, rows, depth, from, to, outs, more, some > PANEL);
            continue;
        }
        for (int64_t r = 0; more && r < rows; r++)
            memcpy(part + r * PANEL, to + r * outs, some * sizeof(float));
        panel(x, rows, depth, from, part, PANEL, more, 0);
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + r * outs, part + r * PANEL, some * sizeof(float));
    }
}

/* A block of rows and some panels of it: what one share of a product is. */
struct Piece {
    int64_t row, rows, panel, stop;
};

/* The pieces of a product that `threads` share. */
struct Pieces {
    int64_t rows, blocks, panels, size, wide, count;
};

static struct Pieces pieces(int64_t rows, int64_t outs, int64_t threads)
{
    int64_t blocks = parts(rows, BLOCK), all = parts(outs, PANEL);
    int64_t size = least(SHARE, 1 + all * blocks / (4 * threads)), wide = parts(all, size);
    return (struct Pieces){rows, blocks, all, size, wide, blocks * wide};
}

static inline int next_piece(struct Phase *phase, const struct Pieces *of, struct Piece *piece)
{
    int64_t share = take(phase, of->count);
    if (share < 0)
        return 0;
    int64_t block = share / of->wide;
    piece->row = block * of->rows / of->blocks;
    piece->rows = (block + 1) * of->rows / of->blocks - piece->row;
    piece->panel = share % of->wide * of->size;
    piece->stop = least(piece->panel + of->size, of->panels);
    return 1;
}

static void product(struct Phase *phase, int64_t threads, const float *x, int64_t rows, int64_t depth, const float *w,
                    int64_t outs, float *y, int more)
{
    struct Pieces all = pieces(rows, outs, threads);
    struct Piece at;
    while (next_piece(phase, &all, &at)) {
        panels(x + at.row * depth, at.rows, depth, w, outs, y + at.row * outs, more, at.panel, at.stop);
        done(phase);
    }
    meet(phase, all.count);
}

/* gate = silu(x g) * (x u). */
static void gated_product(struct Phase *phase, int64_t threads, const float *x, int64_t rows, const struct Model *model,
                          const struct Layer *layer, float *gate, float *up)
{
    int64_t inner = model->inner, depth = model->hidden;
    struct Pieces all = pieces(rows, inner, threads);
    struct Piece at;
    while (next_piece(phase, &all, &at)) {
        float *g = gate + at.row * inner, *u = up + at.row * inner;
        panels(x + at.row * depth, at.rows, depth, layer->gate, inner, g, 0, at.panel, at.stop);
        panels(x + at.row * depth, at.rows, depth, layer->up, inner, u, 0, at.panel, at.stop);
        int64_t begin = at.panel * PANEL, end = least(at.stop * PANEL, inner);
        for (int64_t r = 0; r < at.rows; r++)
            gated_row(g + r * inner + begin, u + r * inner + begin, g + r * inner + begin, end - begin);
        done(phase);
    }
    meet(phase, all.count);
}

static void norms(struct Phase *phase, const struct Model *model, float *hidden, const float *weight, float *out,
                  int64_t rows)
{
    int64_t share, size = model->hidden, count = parts(rows, FEW);
    while ((share = take(phase, count)) >= 0) {
        for (int64_t r = share * FEW; r < least(share * FEW + FEW, rows); r++)
            add_norm_row(hidden + r * size, 0, weight, out + r * size, size, model->eps);
        done(phase);
    }
    meet(phase, count);
}

static void norm_heads(float *row, int64_t heads, const float *weight, float eps)
{
    for (int64_t head = 0; weight && head < heads; head++)
        add_norm_row(row + head * KEY, 0, weight, row + head * KEY, KEY, eps);
}

/* Queries, keys and values are finished; keys and values stored. */
static void turns(struct Phase *phase, const struct Model *model, const struct Layer *layer, const struct Step *step)
{
    int64_t share, rotated = model->heads + model->kv_heads, size = rotated * KEY + model->kv_heads * VALUE;
    int64_t count = parts(step->rows, FEW);
    while ((share = take(phase, count)) >= 0) {
        for (int64_t r = share * FEW; r < least(share * FEW + FEW, step->rows); r++) {
            float *row = step->qkv + r * size;
            for (int64_t d = 0; layer->bias && d < size; d++)
                row[d] += layer->bias[d];
            norm_heads(row, model->heads, layer->query_norm, model->eps);
            norm_heads(row + model->heads * KEY, model->kv_heads, layer->key_norm, model->eps);
            rotate_row(row, rotated, step->cosines + step->angles[r] * KEY, step->sines + step->angles[r] * KEY);
            for (int64_t head = 0; head < model->kv_heads; head++)
                store_one(row + (model->heads + head) * KEY, row + rotated * KEY + head * VALUE, layer->keys,
                          layer->values, head * model->capacity + step->places[r]);
        }
        done(phase);
    }
    meet(phase, count);
}

/* All rows, or, where `keep` is given, those alone, whose sums so far become `step->last`. */
static void looks(struct Phase *phase, int64_t threads, const struct Model *model, const struct Layer *layer,
                  const struct Step *step, const int64_t *keep)
{
    int64_t share, rows = keep ? step->kept : step->rows, hidden = model->hidden;
    int64_t few = handful(rows, model->kv_heads, threads), all = parts(rows, few);
    int64_t size = (model->heads + model->kv_heads) * KEY + model->kv_heads * VALUE;
    while ((share = take(phase, all * model->kv_heads)) >= 0) {
        struct Row some[FEW];
        int64_t head = share / all, begin = share % all * few, count = least(few, rows - begin);
        for (int64_t i = 0; i < count; i++) {
            int64_t n = begin + i, r = keep ? keep[n] : n, length = step->lengths[r];
            some[i] = (struct Row){step->qkv + r * size + head * REPEATS * KEY,
                                   step->tables + step->owners[r] * step->width,
                                   layer->window && length > layer->window ? length - layer->window : 0, length,
                                   step->attended + (n * model->heads + head * REPEATS) * VALUE};
            if (keep && head == 0)
                memcpy(step->last + n * hidden, step->hidden + r * hidden, hidden * sizeof(float));
        }
        look(some, count, KEY, layer->keys + head * model->capacity * KEY,
             layer->values + head * model->capacity * VALUE, model->scale, 0);
        done(phase);
    }
    meet(phase, all * model->kv_heads);
}

/* What one thread does. */
static void walk(int64_t threads, const struct Model *model, const struct Step *step)
{
    int64_t qkv = (model->heads + model->kv_heads) * KEY + model->kv_heads * VALUE, rows = step->rows;
    struct Phase *phase = step->phases;
    float *hidden = step->hidden;
    for (int64_t n = 0; n < model->layers; n++) {
        const struct Layer *layer = model->layer + n;
        int last = n == model->layers - 1;
        norms(phase++, model, hidden, layer->before, step->normed, rows);
        product(phase++, threads, step->normed, rows, model->hidden, layer->qkv, qkv, step->qkv, 0);
        turns(phase++, model, layer, step);
        looks(phase++, threads, model, layer, step, last ? step->keep : 0);
        if (last)
            hidden = step->last, rows = step->kept;
        product(phase++, threads, step->attended, rows, model->heads * VALUE, layer->out, model->hidden, hidden, 1);
        norms(phase++, model, hidden, layer->between, step->normed, rows);
        gated_product(phase++, threads, step->normed, rows, model, layer, step->gate, step->up);
        product(phase++, threads, step->gate, rows, model->inner, layer->down, model->hidden, hidden, 1);
    }
    norms(phase++, model, hidden, model->norm, step->normed, rows);
    product(phase++, threads, step->normed, rows, model->hidden, model->head, model->vocabulary, step->logits, 0);
}

void forward(const struct Model *model, const struct Step *step, int64_t threads)
{
#pragma omp parallel num_threads((int)threads)
    walk(threads, model, step);
}

/* Puts a weight (outs, depth) into panels, as their outputs from `begin` on. */
void pack(const float *weight, int64_t outs, int64_t depth, float *out, int64_t begin)
{
    int64_t first = begin / PANEL, stop = parts(begin + outs, PANEL);
#pragma omp parallel for
    for (int64_t p = first; p < stop; p++) {
        int64_t from = p * PANEL > begin ? p * PANEL : begin, to = least((p + 1) * PANEL, begin + outs);
        for (int64_t d = 0; d < depth; d++)
            for (int64_t o = from; o < to; o++)
                out[(p * depth + d) * PANEL + o % PANEL] = weight[(o - begin) * depth + d];
    }
}

int64_t panel_size(void) { return PANEL; }

/* A decoder of Llama's form, as one call of one team of threads: with REAL16 its weights, what they multiply, keys and
   values are bf16, all else is fp32. A token's logits are the same to the bit in every batch, chunk and cache. */

#include "kernel.c"

#include <sched.h>

#define SPINS 4000       /* looks at what others do before they are let onto the core */

/* `bias`, `query_norm` and `key_norm` may be missing; `window` is 0 where a token looks at all before it. */
struct Layer {
    int64_t window;
    const float *before, *bias, *query_norm, *key_norm, *between;
    const real *qkv, *out, *gate, *up, *down;
    real *keys, *values;
};

struct Model {
    int64_t layers, hidden, heads, kv_heads, inner, vocabulary, capacity;
    const float *norm;
    const real *head, *embedding; /* (vocabulary, hidden) */
    const struct Layer *layer;
    float eps, scale;
};

#define PHASES 8 /* of a layer, and three besides */

/* What a phase of a step has to do, in shares: how many were taken so far, and how many are done. */
struct Phase {
    int64_t taken, done;
};

/* Tokens (rows) of a step; `keep` are those whose logits are wanted. */
struct Step {
    int64_t rows, kept, width;
    const int64_t *tokens, *places, *tables, *owners, *lengths, *keep, *angles; /* each row's in the tables that follow */
    const float *cosines, *sines;
    float *hidden, *last, *qkv, *gate, *up;
    real *normed, *attended, *gated;
    float *logits;
    struct Phase *phases;
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

/* By half-split rotary positions. */
static inline void rotate_row(float *row, int64_t heads, const float *cosines, const float *sines)
{
    for (int64_t head = 0; head < heads; head++) {
        float *x = row + head * KEY;
        for (int d = 0; d < KEY / 2; d++) {
            float low = x[d], high = x[d + KEY / 2];
            x[d] = low * cosines[d] - high * sines[d];
            x[d + KEY / 2] = high * cosines[d + KEY / 2] + low * sines[d + KEY / 2];
        }
    }
}

/* One over the root mean square. */
static inline float shrink_of(const float *x, int64_t size, float eps)
{
    float squares = 0;
    for (int64_t d = 0; d < size; d++)
        squares += x[d] * x[d];
    return 1 / sqrtf(squares / size + eps);
}

static inline void gated_row(const float *gate, const float *up, real *out, int64_t size)
{
    for (int64_t d = 0; d < size; d++) {
        float g = gate[d], e = exponential(-fabsf(g)); /* 1 / (1 + exp(-g)), without overflow */
        float sigmoid = (g < 0 ? e : 1) / (1 + e);
        out[d] = put(g * sigmoid * up[d]);
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

static void product(struct Phase *phase, int64_t threads, const real *x, int64_t rows, int64_t depth, const real *w,
                    int64_t outs, float *y, int more)
{
    struct Pieces all = pieces(rows, outs, threads);
    struct Piece at;
    while (next_piece(phase, &all, &at)) {
        panels(x + at.row * depth, 0, at.rows, depth, w, outs, y + at.row * outs, outs, more, at.panel,
               at.stop);
        done(phase);
    }
    meet(phase, all.count);
}

/* gated = silu(x g) * (x u). */
static void gated_product(struct Phase *phase, int64_t threads, const struct Step *step, int64_t rows,
                          const struct Model *model, const struct Layer *layer)
{
    int64_t inner = model->inner, depth = model->hidden;
    struct Pieces all = pieces(rows, inner, threads);
    struct Piece at;
    while (next_piece(phase, &all, &at)) {
        const real *x = step->normed + at.row * depth;
        float *gate = step->gate + at.row * inner, *up = step->up + at.row * inner;
        panels(x, 0, at.rows, depth, layer->gate, inner, gate, inner, 0, at.panel, at.stop);
        panels(x, 0, at.rows, depth, layer->up, inner, up, inner, 0, at.panel, at.stop);
        int64_t begin = at.panel * PANEL, end = least(at.stop * PANEL, inner);
        for (int64_t r = 0; r < at.rows; r++)
            gated_row(gate + r * inner + begin, up + r * inner + begin, step->gated + (at.row + r) * inner + begin,
                      end - begin);
        done(phase);
    }
    meet(phase, all.count);
}

static void norms(struct Phase *phase, const struct Model *model, const float *hidden, const float *weight, real *out,
                  int64_t rows)
{
    int64_t share, size = model->hidden, count = parts(rows, FEW);
    while ((share = take(phase, count)) >= 0) {
        for (int64_t r = share * FEW; r < least(share * FEW + FEW, rows); r++) {
            const float *x = hidden + r * size;
            float shrink = shrink_of(x, size, model->eps);
            for (int64_t d = 0; d < size; d++)
                out[r * size + d] = put(weight[d] * (x[d] * shrink));
        }
        done(phase);
    }
    meet(phase, count);
}

static void norm_heads(float *row, int64_t heads, const float *weight, float eps)
{
    for (int64_t head = 0; weight && head < heads; head++) {
        float *x = row + head * KEY, shrink = shrink_of(x, KEY, eps);
        for (int64_t d = 0; d < KEY; d++)
            x[d] = weight[d] * (x[d] * shrink);
    }
}

static void keep_one(const float *key, const float *value, const struct Layer *layer, int64_t place, int last)
{
    real k[KEY], v[VALUE];
    for (int d = 0; d < KEY; d++)
        k[d] = put(key[d]);
    for (int d = 0; d < VALUE; d++)
        v[d] = put(value[d]);
    store_one(k, v, layer->keys, layer->values, place, last);
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
                keep_one(row + (model->heads + head) * KEY, row + rotated * KEY + head * VALUE, layer,
                         head * model->capacity + step->places[r], is_last(step->places, r, step->rows));
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

static void embeddings(struct Phase *phase, const struct Model *model, const struct Step *step)
{
    int64_t share, size = model->hidden, count = parts(step->rows, FEW);
    while ((share = take(phase, count)) >= 0) {
        for (int64_t r = share * FEW; r < least(share * FEW + FEW, step->rows); r++)
            for (int64_t d = 0; d < size; d++)
                step->hidden[r * size + d] = get(model->embedding[step->tokens[r] * size + d]);
        done(phase);
    }
    meet(phase, count);
}

/* What one thread does. */
static void walk(int64_t threads, const struct Model *model, const struct Step *step)
{
    int64_t qkv = (model->heads + model->kv_heads) * KEY + model->kv_heads * VALUE, rows = step->rows;
    struct Phase *phase = step->phases;
    float *hidden = step->hidden;
    embeddings(phase++, model, step);
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
        gated_product(phase++, threads, step, rows, model, layer);
        product(phase++, threads, step->gated, rows, model->inner, layer->down, model->hidden, hidden, 1);
    }
    norms(phase++, model, hidden, model->norm, step->normed, rows);
    product(phase++, threads, step->normed, rows, model->hidden, model->head, model->vocabulary, step->logits, 0);
}

void forward(const struct Model *model, const struct Step *step, int64_t threads)
{
    memset(step->phases, 0, (PHASES * model->layers + 3) * sizeof *step->phases);
#pragma omp parallel num_threads((int)threads)
    walk(threads, model, step);
}

/* Puts a weight (outs, depth) into panels, as their outputs from `begin` on. */
void pack(const real *weight, int64_t outs, int64_t depth, real *out, int64_t begin)
{
    int64_t first = begin / PANEL, stop = parts(begin + outs, PANEL);
#pragma omp parallel for
    for (int64_t p = first; p < stop; p++) {
        int64_t from = p * PANEL > begin ? p * PANEL : begin, to = least((p + 1) * PANEL, begin + outs);
        for (int64_t d = 0; d < depth; d++)
            for (int64_t o = from; o < to; o++)
                out[p * depth * PANEL + place(d, o % PANEL)] = weight[(o - begin) * depth + d];
    }
}

int64_t panel_size(void) { return PANEL; }

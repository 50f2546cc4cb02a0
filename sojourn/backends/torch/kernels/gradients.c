/* What a layer of the trainer does between its matrix products, forward and backward, in fp32.

   Attention is over a tree whose nodes are numbered depth first: node t is seen by the nodes from t to ends[t] and,
   under a window, by those less than `window` positions later. Scores are made for a block of queries and a panel of
   keys at a time, where any of them see each other. The forward pass keeps none; the backward pass makes them again
   from each row's logarithm of its sum, and keeps those of some blocks of one head. Every sum has one order on however
   many threads.
   (Dao et al. 2022, arXiv:2205.14135, is where blocks, sums under way and scores made again are from.) */

#include "forward.c"

#define CUT (3 * PANEL) /* queries of a block */
#define SPAN 8          /* panels of keys that are worked on together */
#define ACROSS (SPAN * PANEL)

enum Sight { NOTHING, SOME, ALL }; /* how many pairs of a block and a panel see each other */

/* `asked` are the nodes (queries) that look, ascending: queries and what they give have a row for each. `ends` and
   `positions` go on to the end of the last panel, with ends of 0. `sights` and `numbers` (blocks, panels): what
   `tree_sights` found, and how many it found before. Strides of queries, keys and values from row to row and from head
   to head. */
struct Tree {
    int64_t nodes, queries, heads, kv_heads, window, tiles;
    int64_t query_row, query_head, key_row, key_head, value_row, value_head;
    const int32_t *ends, *positions, *asked;
    int8_t *sights;
    int32_t *numbers;
    float scale;
};

static inline int64_t panels_of(const struct Tree *tree) { return parts(tree->nodes, PANEL); }
static inline int64_t blocks_of(const struct Tree *tree) { return parts(tree->queries, CUT); }
static inline int64_t block_rows(const struct Tree *tree, int64_t block)
{
    return least(CUT, tree->queries - block * CUT);
}

/* Of a panel's nodes: their first and last end, and their least and greatest position. */
struct Bounds {
    int64_t start, stop, soonest, latest, low, high;
};

static struct Bounds bounds(const struct Tree *tree, int64_t panel)
{
    struct Bounds of = {panel * PANEL, (panel + 1) * PANEL, INT64_MAX, 0, INT64_MAX, 0};
    for (int64_t n = of.start; n < of.stop; n++) {
        int64_t end = tree->ends[n], position = tree->positions[n];
        of.soonest = least(end, of.soonest);
        of.latest = -least(-end, -of.latest);
        of.low = least(position, of.low);
        of.high = -least(-position, -of.high);
    }
    return of;
}

static enum Sight sight(const struct Tree *tree, int64_t block, struct Bounds keys)
{
    int64_t window = tree->window ? tree->window : INT64_MAX, some = 0, all = 1;
    for (int64_t r = 0; r < block_rows(tree, block); r++) {
        int64_t query = tree->asked[block * CUT + r], position = tree->positions[query];
        some |= keys.start <= query && query < keys.latest && position - keys.high < window;
        all &= keys.stop - 1 <= query && query < keys.soonest && position - keys.low < window;
    }
    return all ? ALL : some ? SOME : NOTHING;
}

/* Fills in what sees what; the number of tiles, a block of queries by a panel of keys, that are not hidden. */
int64_t tree_sights(const struct Tree *tree)
{
    int64_t panels = panels_of(tree), found = 0;
    for (int64_t block = 0; block < blocks_of(tree); block++) {
        for (int64_t p = 0; p < panels; p++) {
            enum Sight seen = sight(tree, block, bounds(tree, p));
            tree->sights[block * panels + p] = seen;
            tree->numbers[block * panels + p] = found;
            found += seen != NOTHING;
        }
    }
    return found;
}

/* Panels one after another that are not hidden from a block: at most SPAN of them, from `panel` on. */
struct Stretch {
    int64_t panel, count;
    const int8_t *sights;
};

/* The block's next stretch, or 0. */
static int next_stretch(const struct Tree *tree, int64_t block, struct Stretch *at)
{
    int64_t p = at->panel + at->count, panels = panels_of(tree);
    const int8_t *sights = tree->sights + block * panels;
    while (p < panels && sights[p] == NOTHING)
        p++;
    *at = (struct Stretch){p, 0, sights + p};
    while (p + at->count < panels && at->count < SPAN && at->sights[at->count] != NOTHING)
        at->count++;
    return at->count > 0;
}

/* y = or += x w for at most CUT rows and a panel. */
static void rows_by_panel(int64_t rows, const float *x, int64_t stride, int64_t step, const float *w, int64_t depth,
                          float *y, int64_t across, int more)
{
    int64_t blocks = parts(rows, TALL);
    for (int64_t b = 0; b < blocks; b++) {
        int64_t begin = b * rows / blocks, end = (b + 1) * rows / blocks;
        tiles((int)(end - begin), x + begin * stride, stride, step, w, PANEL, depth, y + begin * across, across, more, 0,
              0);
    }
}

/* Room for heads' rows (nodes, size), with whole panels. */
static int64_t room(int64_t nodes, int64_t heads, int64_t size) { return heads * parts(nodes, PANEL) * PANEL * size; }

/* Numbers of a head's queries, with whole panels. */
static inline int64_t spread(const struct Tree *tree) { return room(tree->queries, 1, 1); }

/* Panels of nodes side by side, for each number of a row. */
static float *across(const float *packed, int64_t panels, int64_t head, int64_t panel, int64_t size)
{
    return (float *)packed + (head * panels + panel) * size * PANEL;
}

/* Panels of numbers side by side, for each node. */
static float *along(const float *packed, int64_t panels, int64_t head, int64_t column, int64_t panel, int64_t size)
{
    return (float *)packed + ((head * COLUMNS(size) + column) * panels + panel) * PANEL * PANEL;
}

static void pack_across(const float *x, int64_t row, int64_t count, int64_t size, float *to)
{
    if (count < PANEL)
        memset(to, 0, size * PANEL * sizeof(float));
    for (int64_t d = 0; d < size; d++)
        for (int64_t n = 0; n < count; n++)
            to[d * PANEL + n] = x[n * row + d];
}

static void pack_along(const float *x, int64_t row, int64_t count, int64_t some, float *to)
{
    if (count < PANEL || some < PANEL)
        memset(to, 0, PANEL * PANEL * sizeof(float));
    for (int64_t n = 0; n < count; n++)
        memcpy(to + n * PANEL, x + n * row, some * sizeof(float));
}

/* Rows, by their strides, to one of the two, or both. */
static void pack_rows(const float *x, int64_t row, int64_t head_stride, int64_t nodes, int64_t heads, int64_t size,
                      float *side, float *tall)
{
    int64_t panels = parts(nodes, PANEL);
#pragma omp parallel for collapse(2) schedule(static) if (nodes > 256)
    for (int64_t head = 0; head < heads; head++)
        for (int64_t p = 0; p < panels; p++) {
            const float *from = x + head * head_stride + p * PANEL * row;
            int64_t count = least(nodes - p * PANEL, PANEL);
            if (side)
                pack_across(from, row, count, size, across(side, panels, head, p, size));
            for (int64_t c = 0; tall && c < COLUMNS(size); c++)
                pack_along(from + c * PANEL, row, count, least(size - c * PANEL, PANEL),
                           along(tall, panels, head, c, p, size));
        }
}

/* The products of a block's rows with the panels of a stretch: (rows, ACROSS). */
static void against(int64_t rows, const float *x, int64_t stride, const float *of, int64_t panels, int64_t head,
                    const struct Stretch *at, int64_t size, float *products)
{
    for (int64_t i = 0; i < at->count; i++)
        rows_by_panel(rows, x, stride, 1, across(of, panels, head, at->panel + i, size), size, products + i * PANEL,
                      ACROSS, 0);
}

/* sums (rows, columns of a panel each) += weights (rows, ACROSS) times the panels' rows. */
static void collect(int64_t rows, const float *weights, const float *of, int64_t panels, int64_t head,
                    const struct Stretch *at, int64_t size, float *sums)
{
    for (int64_t c = 0; c < COLUMNS(size); c++)
        rows_by_panel(rows, weights, ACROSS, 1, along(of, panels, head, c, at->panel, size), at->count * PANEL,
                      sums + c * PANEL, COLUMNS(size) * PANEL, 1);
}

/* Scores (rows, ACROSS) of what does not see each other become NEVER. */
static void hide(const struct Tree *tree, int64_t start, int64_t rows, const struct Stretch *at, float *scores)
{
    for (int64_t i = 0; i < at->count; i++) {
        int32_t first = (at->panel + i) * PANEL, window = tree->window ? tree->window : INT32_MAX;
        const int32_t *ends = tree->ends + first, *positions = tree->positions + first;
        for (int64_t r = 0; at->sights[i] == SOME && r < rows; r++) {
            int32_t query = tree->asked[start + r], position = tree->positions[query];
            float *score = scores + r * ACROSS + i * PANEL;
            for (int32_t l = 0; l < PANEL; l++) {
                int seen = (first + l <= query) & (query < ends[l]) & (position - positions[l] < window);
                score[l] = seen ? score[l] : NEVER;
            }
        }
    }
}

/* Queries of one head and block; `norms` are logarithms, to the base of 2, of the sums of weights. */
static void attend_block(const struct Tree *tree, const float *query, const float *key, const float *value,
                         float *out, float *norms, int64_t head, int64_t block)
{
    float scores[CUT * ACROSS], seen[CUT * COLUMNS(VALUE) * PANEL] = {0};
    struct Softmax softmax[CUT];
    int64_t panels = panels_of(tree), rows = block_rows(tree, block), start = block * CUT, kv = head / REPEATS;
    struct Stretch at = {0};
    query += start * tree->query_row + head * tree->query_head;
    for (int64_t r = 0; r < rows; r++)
        softmax[r] = (struct Softmax){.top = LOWEST};
    while (next_stretch(tree, block, &at)) {
        against(rows, query, tree->query_row, key, panels, kv, &at, KEY, scores);
        hide(tree, start, rows, &at, scores);
        for (int64_t r = 0; r < rows; r++) {
            float *row = scores + r * ACROSS;
            float shrink = soften(row, row, at.count * PANEL, tree->scale * LOG2E, softmax + r);
            for (int64_t d = 0; shrink != 1 && d < COLUMNS(VALUE) * PANEL; d++)
                seen[r * COLUMNS(VALUE) * PANEL + d] *= shrink;
        }
        collect(rows, scores, value, panels, kv, &at, VALUE, seen);
    }
    for (int64_t r = 0; r < rows; r++) {
        float sum = added(softmax[r].sum);
        norms[head * spread(tree) + start + r] = softmax[r].top + log2f(sum);
        for (int64_t d = 0; d < VALUE; d++)
            out[((start + r) * tree->heads + head) * VALUE + d] = seen[r * COLUMNS(VALUE) * PANEL + d] / sum;
    }
}

#define TILE (CUT * PANEL)
#define HELD 256 /* tiles of weights and gradients that a pass keeps at once */

/* Blocks one after another. Of a head, the backward pass keeps weights and the gradients to scores of so many at once,
   tile by tile (CUT, PANEL): of at most HELD tiles, or of one block. */
struct Group {
    int64_t first, stop;
};

/* Tiles of the blocks before. */
static inline int64_t tiles_before(const struct Tree *tree, int64_t block)
{
    return block < blocks_of(tree) ? tree->numbers[block * panels_of(tree)] : tree->tiles;
}

static struct Group group_from(const struct Tree *tree, int64_t first)
{
    struct Group group = {first, least(first + 1, blocks_of(tree))};
    while (group.stop < blocks_of(tree) && tiles_before(tree, group.stop + 1) - tiles_before(tree, first) <= HELD)
        group.stop++;
    return group;
}

/* Where a pass keeps what it packs. */
struct Scratch {
    float *key_across, *value_along, *key_along, *value_across, *query_along, *slope_along, *dots, *weights, *bends;
    int64_t size;
};

static struct Scratch scratch_of(const struct Tree *tree, float *memory, int backward)
{
    struct Scratch at = {0};
    int64_t nodes = tree->nodes, heads = backward ? tree->heads : 0, kv = backward ? tree->kv_heads : 0;
    int64_t tiles = 0;
    for (struct Group g = {0}; backward && g.stop < blocks_of(tree);) {
        g = group_from(tree, g.stop);
        int64_t some = tiles_before(tree, g.stop) - tiles_before(tree, g.first);
        tiles = some * TILE > tiles ? some * TILE : tiles;
    }
    struct {
        float **place;
        int64_t size;
    } all[] = {{&at.key_across, room(nodes, tree->kv_heads, KEY)},
               {&at.value_along, room(nodes, tree->kv_heads, COLUMNS(VALUE) * PANEL)},
               {&at.key_along, room(nodes, kv, COLUMNS(KEY) * PANEL)},
               {&at.value_across, room(nodes, kv, VALUE)},
               {&at.query_along, room(tree->queries, heads, COLUMNS(KEY) * PANEL)},
               {&at.slope_along, room(tree->queries, heads, COLUMNS(VALUE) * PANEL)},
               {&at.dots, room(tree->queries, heads, 1)},
               {&at.weights, tiles},
               {&at.bends, tiles}};
    for (int64_t n = 0; n < (int64_t)(sizeof all / sizeof *all); n++) {
        *all[n].place = memory ? memory + at.size : 0;
        at.size += all[n].size;
    }
    return at;
}

/* Numbers of scratch memory that a pass needs. */
int64_t tree_scratch(const struct Tree *tree, int64_t backward) { return scratch_of(tree, 0, backward).size; }

/* out (queries, heads, VALUE), norms (heads, queries to the end of the last panel). */
void tree_forward(const struct Tree *tree, const float *query, const float *key, const float *value, float *out,
                  float *norms, float *memory)
{
    int64_t nodes = tree->nodes, kv_heads = tree->kv_heads;
    struct Scratch kept = scratch_of(tree, memory, 0);
    pack_rows(key, tree->key_row, tree->key_head, nodes, kv_heads, KEY, kept.key_across, 0);
    pack_rows(value, tree->value_row, tree->value_head, nodes, kv_heads, VALUE, 0, kept.value_along);
#pragma omp parallel for collapse(2) schedule(dynamic) if (nodes > CUT)
    for (int64_t block = blocks_of(tree) - 1; block >= 0; block--)
        for (int64_t head = 0; head < tree->heads; head++)
            attend_block(tree, query, kept.key_across, kept.value_along, out, norms, head, block);
}

/* What the backward pass reads: `slope` is the gradient to `out`. */
struct Back {
    const float *query, *slope, *norms;
    struct Scratch kept;
};

/* For a block's queries: what it keeps, from tile `base` on, and the gradient to them. */
static void to_queries(const struct Tree *tree, const struct Back *back, float *out, int64_t head, int64_t block,
                       int64_t base)
{
    float scores[CUT * ACROSS], slopes[CUT * ACROSS], sums[CUT * COLUMNS(KEY) * PANEL] = {0};
    int64_t panels = panels_of(tree), rows = block_rows(tree, block), start = block * CUT, kv = head / REPEATS;
    int64_t own = head * spread(tree) + start, stride = tree->heads * VALUE;
    struct Stretch at = {0};
    const float *query = back->query + start * tree->query_row + head * tree->query_head;
    while (next_stretch(tree, block, &at)) {
        int64_t number = tree->numbers[block * panels + at.panel] - base;
        against(rows, query, tree->query_row, back->kept.key_across, panels, kv, &at, KEY, scores);
        hide(tree, start, rows, &at, scores);
        against(rows, back->slope + start * stride + head * VALUE, stride, back->kept.value_across, panels, kv, &at,
                VALUE, slopes);
        for (int64_t r = 0; r < rows; r++) {
            float norm = back->norms[own + r], dot = back->kept.dots[own + r], scale = tree->scale;
            float *score = scores + r * ACROSS, *slope = slopes + r * ACROSS;
            for (int64_t n = 0; n < at.count * PANEL; n += WIDE) {
                wide *weight = (wide *)(score + n), *bend = (wide *)(slope + n);
                *weight = power(*weight * (scale * LOG2E) - norm);
                *bend = *weight * (*bend - dot) * scale;
            }
            for (int64_t i = 0; i < at.count; i++) {
                int64_t to = (number + i) * TILE + r * PANEL;
                memcpy(back->kept.weights + to, score + i * PANEL, PANEL * sizeof(float));
                memcpy(back->kept.bends + to, slope + i * PANEL, PANEL * sizeof(float));
            }
        }
        collect(rows, slopes, back->kept.key_along, panels, kv, &at, KEY, sums);
    }
    for (int64_t r = 0; r < rows; r++)
        memcpy(out + ((start + r) * tree->heads + head) * KEY, sums + r * COLUMNS(KEY) * PANEL, KEY * sizeof(float));
}

/* For a panel of keys: the gradients to them and their values through a group of one head, added to those of the groups
   before it and of the heads before it that look at the same. */
static void to_keys(const struct Tree *tree, const struct Back *back, float *to_key, float *to_value, int64_t head,
                    int64_t panel, struct Group group)
{
    float keys[PANEL * COLUMNS(KEY) * PANEL] = {0}, values[PANEL * COLUMNS(VALUE) * PANEL] = {0};
    int64_t panels = panels_of(tree), start = panel * PANEL, count = least(PANEL, tree->nodes - start);
    int64_t asked = parts(tree->queries, PANEL), base = tiles_before(tree, group.first);
    int fresh = head % REPEATS == 0 && group.first == 0, more = fresh;
    for (int64_t block = group.first; block < group.stop; block++) {
        int64_t at = block * panels + panel, depth = block_rows(tree, block), first = block * CUT / PANEL;
        if (tree->sights[at] == NOTHING)
            continue;
        const float *weights = back->kept.weights + (tree->numbers[at] - base) * TILE;
        const float *bends = back->kept.bends + (tree->numbers[at] - base) * TILE;
        more = 1;
        for (int64_t c = 0; c < COLUMNS(KEY); c++)
            rows_by_panel(PANEL, bends, 1, PANEL, along(back->kept.query_along, asked, head, c, first, KEY), depth,
                          keys + c * PANEL, COLUMNS(KEY) * PANEL, 1);
        for (int64_t c = 0; c < COLUMNS(VALUE); c++)
            rows_by_panel(PANEL, weights, 1, PANEL, along(back->kept.slope_along, asked, head, c, first, VALUE), depth,
                          values + c * PANEL, COLUMNS(VALUE) * PANEL, 1);
    }
    for (int64_t r = 0; more && r < count; r++) {
        int64_t at = (start + r) * tree->kv_heads + head / REPEATS;
        for (int64_t d = 0; d < KEY; d++)
            to_key[at * KEY + d] = (fresh ? 0 : to_key[at * KEY + d]) + keys[r * COLUMNS(KEY) * PANEL + d];
        for (int64_t d = 0; d < VALUE; d++)
            to_value[at * VALUE + d] = (fresh ? 0 : to_value[at * VALUE + d]) + values[r * COLUMNS(VALUE) * PANEL + d];
    }
}

static void dot_rows(const struct Tree *tree, const float *out, const float *slope, float *dots)
{
    int64_t size = spread(tree);
#pragma omp parallel for schedule(static) if (tree->queries > 256)
    for (int64_t n = 0; n < tree->queries; n++)
        for (int64_t head = 0; head < tree->heads; head++) {
            float sum = 0;
            for (int64_t d = 0; d < VALUE; d++)
                sum += out[(n * tree->heads + head) * VALUE + d] * slope[(n * tree->heads + head) * VALUE + d];
            dots[head * size + n] = sum;
        }
}

/* From the gradient to `out` those to queries, keys and values, all without gaps. */
void tree_backward(const struct Tree *tree, const float *query, const float *key, const float *value, const float *out,
                   const float *norms, const float *slope, float *to_query, float *to_key, float *to_value,
                   float *memory)
{
    int64_t nodes = tree->nodes, queries = tree->queries, heads = tree->heads, kv_heads = tree->kv_heads;
    struct Scratch kept = scratch_of(tree, memory, 1);
    struct Back back = {query, slope, norms, kept};
    dot_rows(tree, out, slope, kept.dots);
    pack_rows(key, tree->key_row, tree->key_head, nodes, kv_heads, KEY, kept.key_across, kept.key_along);
    pack_rows(value, tree->value_row, tree->value_head, nodes, kv_heads, VALUE, kept.value_across, 0);
    pack_rows(query, tree->query_row, tree->query_head, queries, heads, KEY, 0, kept.query_along);
    pack_rows(slope, heads * VALUE, VALUE, queries, heads, VALUE, 0, kept.slope_along);
#pragma omp parallel if (nodes > CUT)
    for (int64_t head = 0; head < heads; head++) {
        struct Group group = {0};
        do {
            group = group_from(tree, group.stop);
#pragma omp for schedule(dynamic)
            for (int64_t block = group.stop - 1; block >= group.first; block--)
                to_queries(tree, &back, to_query, head, block, tiles_before(tree, group.first));
#pragma omp for schedule(dynamic)
            for (int64_t panel = 0; panel < parts(nodes, PANEL); panel++)
                to_keys(tree, &back, to_key, to_value, head, panel, group);
        } while (group.stop < blocks_of(tree));
    }
}

/* sum = hidden + more, and out = sum / rms(sum) * weight; `scales` is one over each row's root mean square. Without
   `more`, hidden is the sum and no other is written. */
void norm_forward(const float *hidden, const float *more, const float *weight, float *sum, float *out, float *scales,
                  int64_t rows, int64_t size, float eps)
{
#pragma omp parallel for schedule(static) if (rows * size > 16384)
    for (int64_t i = 0; i < rows; i++) {
        const float *x = hidden + i * size;
        float squares = 0;
        if (more) {
            float *to = sum + i * size;
            for (int64_t d = 0; d < size; d++)
                to[d] = x[d] + more[i * size + d];
            x = to;
        }
        for (int64_t d = 0; d < size; d++)
            squares += x[d] * x[d];
        float scale = scales[i] = 1 / sqrtf(squares / size + eps);
        for (int64_t d = 0; d < size; d++)
            out[i * size + d] = weight[d] * (x[d] * scale);
    }
}

#define SHARED 64 /* rows whose gradients to the weight are added up together */

/* to_sum = the gradient through the norm, and `beside`, where there is one; to_weight, where there is one, holds a row
   of sums for every SHARED rows. */
void norm_backward(const float *sum, const float *weight, const float *scales, const float *slope, const float *beside,
                   float *to_sum, float *to_weight, int64_t rows, int64_t size)
{
#pragma omp parallel for schedule(static) if (rows * size > 16384)
    for (int64_t block = 0; block < parts(rows, SHARED); block++) {
        float *gathered = to_weight ? to_weight + block * size : 0;
        if (gathered)
            memset(gathered, 0, size * sizeof(float));
        for (int64_t i = block * SHARED; i < least((block + 1) * SHARED, rows); i++) {
            const float *x = sum + i * size, *s = slope + i * size;
            float *to = to_sum + i * size, scale = scales[i], dot = 0;
            for (int64_t d = 0; d < size; d++)
                dot += s[d] * weight[d] * x[d];
            float back = scale * scale * scale * dot / size;
            for (int64_t d = 0; d < size; d++)
                to[d] = s[d] * weight[d] * scale - x[d] * back;
            for (int64_t d = 0; beside && d < size; d++)
                to[d] += beside[i * size + d];
            for (int64_t d = 0; gathered && d < size; d++)
                gathered[d] += s[d] * x[d] * scale;
        }
    }
}

#define STRIP 4096 /* numbers that a thread takes at once */

/* out = silu(gate) * up. */
void gate_forward(const float *gate, const float *up, float *out, int64_t count)
{
#pragma omp parallel for schedule(static) if (count > 2 * STRIP)
    for (int64_t n = 0; n < count; n += STRIP)
        gated_row(gate + n, up + n, out + n, least(STRIP, count - n));
}

void gate_backward(const float *gate, const float *up, const float *slope, float *to_gate, float *to_up, int64_t count)
{
#pragma omp parallel for schedule(static) if (count > 2 * STRIP)
    for (int64_t n = 0; n < count; n++) {
        float g = gate[n], e = exponential(-fabsf(g)), sigmoid = (g < 0 ? e : 1) / (1 + e);
        to_up[n] = slope[n] * g * sigmoid;
        to_gate[n] = slope[n] * up[n] * sigmoid * (1 + g * (1 - sigmoid));
    }
}

/* By half-split rotary positions, or with `sign` -1, back: rows (rows, heads, KEY), tables (rows, KEY) of two equal
   halves. */
void turn_rows(const float *x, float *out, int64_t rows, int64_t heads, const float *cosines, const float *sines,
               float sign)
{
#pragma omp parallel for schedule(static) if (rows * heads * KEY > 16384)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t head = 0; head < heads; head++) {
            const float *from = x + (i * heads + head) * KEY, *c = cosines + i * KEY, *s = sines + i * KEY;
            float *to = out + (i * heads + head) * KEY;
            for (int d = 0; d < KEY / 2; d++) {
                float low = from[d], high = from[d + KEY / 2], sine = sign * s[d];
                to[d] = low * c[d] - high * sine;
                to[d + KEY / 2] = high * c[d] + low * sine;
            }
        }
}

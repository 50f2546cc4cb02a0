/* Computes attention over a tree whose nodes are in depth-first order, forward and backward, in fp32.

   `struct Tree` says which nodes attend to which. Scores are computed tile by tile (a block of queries by a panel of
   keys); tiles that are masked out entirely are skipped. The forward pass stores no scores. The backward pass
   recomputes them, and the weights from each row's log-sum-exp, and stores those of a group of blocks of one head at a
   time. The order of every sum does not depend on the number of threads. Blocks, the online softmax and recomputation
   are those of FlashAttention (Dao et al. 2022, arXiv:2205.14135). */

#include "decoder.c"

#define QUERY_BLOCK (QUERY_BLOCK_PANELS * PANEL)
#define SPAN_PANELS 8 /* the most panels of keys that are processed together */
#define SPAN (SPAN_PANELS * PANEL)

enum Mask { HIDDEN, PARTIAL, VISIBLE }; /* how many of a tile's queries and keys attend: none, some, or all pairs */

static inline int64_t key_panels(const struct Tree *tree) { return ceil_div(tree->nodes, PANEL); }
static inline int64_t query_blocks(const struct Tree *tree) { return ceil_div(tree->queries, QUERY_BLOCK); }
static inline int64_t block_rows(const struct Tree *tree, int64_t block)
{
    return min64(QUERY_BLOCK, tree->queries - block * QUERY_BLOCK);
}

/* A panel's nodes, from `start` to `stop`, and the least and greatest of their subtrees' ends and their positions. */
struct Bounds {
    int64_t start, stop, min_end, max_end, min_position, max_position;
};

static struct Bounds panel_bounds(const struct Tree *tree, int64_t panel)
{
    struct Bounds bounds = {panel * PANEL, (panel + 1) * PANEL, INT64_MAX, 0, INT64_MAX, 0};
    for (int64_t n = bounds.start; n < bounds.stop; n++) {
        int64_t end = tree->subtree_ends[n], position = tree->positions[n];
        bounds.min_end = min64(end, bounds.min_end);
        bounds.max_end = -min64(-end, -bounds.max_end);
        bounds.min_position = min64(position, bounds.min_position);
        bounds.max_position = -min64(-position, -bounds.max_position);
    }
    return bounds;
}

/* Returns how much of a tile is visible. It is judged by the panel's bounds, so a tile that is HIDDEN or VISIBLE may be
   called PARTIAL, never the reverse. */
static enum Mask tile_mask(const struct Tree *tree, int64_t block, struct Bounds keys)
{
    int64_t window = tree->window ? tree->window : INT64_MAX, any = 0, all = 1;
    for (int64_t r = 0; r < block_rows(tree, block); r++) {
        int64_t query = tree->query_nodes[block * QUERY_BLOCK + r], position = tree->positions[query];
        any |= keys.start <= query && query < keys.max_end && position - keys.max_position < window;
        all &= keys.stop - 1 <= query && query < keys.min_end && position - keys.min_position < window;
    }
    return all ? VISIBLE : any ? PARTIAL : HIDDEN;
}

/* Fills in `block_mask` and, for each tile, the number of tiles before it that are not hidden. Returns the number of
   all tiles that are not hidden. */
int64_t tree_block_mask(const struct Tree *tree)
{
    int64_t panels = key_panels(tree), blocks = query_blocks(tree), count = 0;
    for (int64_t p = 0; p < panels; p++) {
        struct Bounds keys = panel_bounds(tree, p);
        for (int64_t block = 0; block < blocks; block++)
            tree->block_mask[block * panels + p] = tile_mask(tree, block, keys);
    }
    for (int64_t tile = 0; tile < blocks * panels; tile++) {
        tree->tile_index[tile] = count;
        count += tree->block_mask[tile] != HIDDEN;
    }
    return count;
}

/* At most SPAN_PANELS consecutive panels, from `panel` on, none of them hidden from a block. */
struct Span {
    int64_t panel, count;
    const int8_t *mask;
};

/* Moves on to the block's next span. Returns 0 if there is none. */
static int next_span(const struct Tree *tree, int64_t block, struct Span *span)
{
    int64_t p = span->panel + span->count, panels = key_panels(tree);
    const int8_t *mask = tree->block_mask + block * panels;
    while (p < panels && mask[p] == HIDDEN)
        p++;
    *span = (struct Span){p, 0, mask + p};
    while (p + span->count < panels && span->count < SPAN_PANELS && span->mask[span->count] != HIDDEN)
        span->count++;
    return span->count > 0;
}

/* Computes y = x w, or adds it to y with `accumulate`, for at most QUERY_BLOCK rows and one panel. */
static void block_product(int64_t rows, const float *x, int64_t x_stride, int64_t x_step, const float *w, int64_t depth,
                          float *y, int64_t y_stride, int accumulate)
{
    int64_t groups = ceil_div(rows, TILE_ROWS);
    for (int64_t g = 0; g < groups; g++) {
        int64_t begin = g * rows / groups, end = (g + 1) * rows / groups;
        tile_products((int)(end - begin), x + begin * x_stride, x_stride, x_step, w, PANEL, depth, y + begin * y_stride,
                      y_stride, accumulate, 0, 0);
    }
}

/* Returns how many numbers the rows (nodes, size) of all heads take in whole panels. */
static int64_t packed_size(int64_t nodes, int64_t heads, int64_t size)
{
    return heads * ceil_div(nodes, PANEL) * PANEL * size;
}

/* Returns how many rows a head's queries take in whole panels. */
static inline int64_t padded_queries(const struct Tree *tree) { return packed_size(tree->queries, 1, 1); }

/* Rows are packed in two layouts. A node panel (size, PANEL) holds the rows of PANEL nodes, transposed: a product with
   it sums over the head's size. A column panel (PANEL, PANEL) holds PANEL columns of the rows of PANEL nodes: a product
   with it sums over nodes. */
static float *node_panel(const float *packed, int64_t panels, int64_t head, int64_t panel, int64_t size)
{
    return (float *)packed + (head * panels + panel) * size * PANEL;
}

static float *column_panel(const float *packed, int64_t panels, int64_t head, int64_t column, int64_t panel,
                           int64_t size)
{
    return (float *)packed + ((head * COLUMNS(size) + column) * panels + panel) * PANEL * PANEL;
}

static void pack_node_panel(const float *x, int64_t row, int64_t count, int64_t size, float *to)
{
    if (count < PANEL)
        memset(to, 0, size * PANEL * sizeof(float));
    for (int64_t d = 0; d < size; d++)
        for (int64_t n = 0; n < count; n++)
            to[d * PANEL + n] = x[n * row + d];
}

static void pack_column_panel(const float *x, int64_t row, int64_t count, int64_t width, float *to)
{
    if (count < PANEL || width < PANEL)
        memset(to, 0, PANEL * PANEL * sizeof(float));
    for (int64_t n = 0; n < count; n++)
        memcpy(to + n * PANEL, x + n * row, width * sizeof(float));
}

/* Packs rows, given by their strides, as node panels where `by_node` is not 0 and as column panels where `by_column` is
   not 0. */
static void pack_rows(const float *x, int64_t row, int64_t head_stride, int64_t nodes, int64_t heads, int64_t size,
                      float *by_node, float *by_column)
{
    int64_t panels = ceil_div(nodes, PANEL);
#pragma omp parallel for collapse(2) schedule(static) if (nodes > 256)
    for (int64_t head = 0; head < heads; head++)
        for (int64_t p = 0; p < panels; p++) {
            const float *from = x + head * head_stride + p * PANEL * row;
            int64_t count = min64(nodes - p * PANEL, PANEL);
            if (by_node)
                pack_node_panel(from, row, count, size, node_panel(by_node, panels, head, p, size));
            for (int64_t c = 0; by_column && c < COLUMNS(size); c++)
                pack_column_panel(from + c * PANEL, row, count, min64(size - c * PANEL, PANEL),
                                  column_panel(by_column, panels, head, c, p, size));
        }
}

/* Computes the products of a block's rows with the rows of a span's nodes: (rows, SPAN). */
static void span_scores(int64_t rows, const float *x, int64_t x_stride, const float *packed, int64_t panels,
                        int64_t head, const struct Span *span, int64_t size, float *scores)
{
    for (int64_t i = 0; i < span->count; i++)
        block_product(rows, x, x_stride, 1, node_panel(packed, panels, head, span->panel + i, size), size,
                      scores + i * PANEL, SPAN, 0);
}

/* Adds the products of weights (rows, SPAN) and the span's rows to sums (rows, size in whole panels). */
static void add_weighted_rows(int64_t rows, const float *weights, const float *packed, int64_t panels, int64_t head,
                              const struct Span *span, int64_t size, float *sums)
{
    for (int64_t c = 0; c < COLUMNS(size); c++)
        block_product(rows, weights, SPAN, 1, column_panel(packed, panels, head, c, span->panel, size),
                      span->count * PANEL, sums + c * PANEL, COLUMNS(size) * PANEL, 1);
}

/* Sets the scores (rows, SPAN) of masked pairs to MASKED. */
static void apply_mask(const struct Tree *tree, int64_t start, int64_t rows, const struct Span *span, float *scores)
{
    for (int64_t i = 0; i < span->count; i++) {
        int32_t first = (span->panel + i) * PANEL, window = tree->window ? tree->window : INT32_MAX;
        const int32_t *ends = tree->subtree_ends + first, *positions = tree->positions + first;
        for (int64_t r = 0; span->mask[i] == PARTIAL && r < rows; r++) {
            int32_t query = tree->query_nodes[start + r], position = tree->positions[query];
            float *score = scores + r * SPAN + i * PANEL;
            for (int32_t l = 0; l < PANEL; l++) {
                int visible = (first + l <= query) & (query < ends[l]) & (position - positions[l] < window);
                score[l] = visible ? score[l] : MASKED;
            }
        }
    }
}

/* Computes the attention of one head for a block of queries. `log_sums` are the base-2 log-sum-exp of each query's
   scores. */
static void attend_block(const struct Tree *tree, const float *query, const float *key, const float *value,
                         float *out, float *log_sums, int64_t head, int64_t block)
{
    float scores[QUERY_BLOCK * SPAN], sums[QUERY_BLOCK * PADDED_VALUE] = {0};
    struct Softmax softmax[QUERY_BLOCK];
    int64_t panels = key_panels(tree), rows = block_rows(tree, block), start = block * QUERY_BLOCK;
    int64_t kv_head = head / REPEATS;
    struct Span span = {0};
    query += start * tree->query_row + head * tree->query_head;
    for (int64_t r = 0; r < rows; r++)
        softmax[r] = (struct Softmax){.max = LOWEST};
    while (next_span(tree, block, &span)) {
        span_scores(rows, query, tree->query_row, key, panels, kv_head, &span, KEY, scores);
        apply_mask(tree, start, rows, &span, scores);
        for (int64_t r = 0; r < rows; r++) {
            float *row = scores + r * SPAN;
            float factor = online_softmax(row, row, span.count * PANEL, tree->scale * LOG2E, softmax + r);
            for (int64_t d = 0; factor != 1 && d < PADDED_VALUE; d++)
                sums[r * PADDED_VALUE + d] *= factor;
        }
        add_weighted_rows(rows, scores, value, panels, kv_head, &span, VALUE, sums);
    }
    for (int64_t r = 0; r < rows; r++) {
        float sum = sum_lanes(softmax[r].sum);
        log_sums[head * padded_queries(tree) + start + r] = softmax[r].max + log2f(sum);
        for (int64_t d = 0; d < VALUE; d++)
            out[((start + r) * tree->heads + head) * VALUE + d] = sums[r * PADDED_VALUE + d] / sum;
    }
}

#define TILE (QUERY_BLOCK * PANEL)
#define GROUP_TILES 256

/* Consecutive blocks whose weights and gradients to scores the backward pass stores at the same time, tile by tile
   (QUERY_BLOCK, PANEL). A group has at most GROUP_TILES tiles of one head, or is a single block. */
struct Group {
    int64_t first, stop;
};

/* Returns the number of visible tiles of the blocks before this one. */
static inline int64_t tiles_before(const struct Tree *tree, int64_t block)
{
    return block < query_blocks(tree) ? tree->tile_index[block * key_panels(tree)] : tree->tiles;
}

/* Returns the group that begins with block `first`. */
static struct Group group_from(const struct Tree *tree, int64_t first)
{
    struct Group group = {first, min64(first + 1, query_blocks(tree))};
    while (group.stop < query_blocks(tree) &&
           tiles_before(tree, group.stop + 1) - tiles_before(tree, first) <= GROUP_TILES)
        group.stop++;
    return group;
}

/* The parts of a pass's scratch memory, `size` numbers in all. */
struct Scratch {
    float *key_nodes, *value_columns, *key_columns, *value_nodes, *query_columns, *grad_columns, *dots, *weights,
        *score_grads;
    int64_t size;
};

static struct Scratch divide_scratch(const struct Tree *tree, float *memory, int backward)
{
    struct Scratch scratch = {0};
    int64_t nodes = tree->nodes, heads = backward ? tree->heads : 0, kv_heads = backward ? tree->kv_heads : 0;
    int64_t tiles = 0;
    for (struct Group g = {0}; backward && g.stop < query_blocks(tree);) {
        g = group_from(tree, g.stop);
        int64_t count = tiles_before(tree, g.stop) - tiles_before(tree, g.first);
        tiles = count * TILE > tiles ? count * TILE : tiles;
    }
    struct {
        float **pointer;
        int64_t size;
    } parts[] = {{&scratch.key_nodes, packed_size(nodes, tree->kv_heads, KEY)},
                 {&scratch.value_columns, packed_size(nodes, tree->kv_heads, COLUMNS(VALUE) * PANEL)},
                 {&scratch.key_columns, packed_size(nodes, kv_heads, COLUMNS(KEY) * PANEL)},
                 {&scratch.value_nodes, packed_size(nodes, kv_heads, VALUE)},
                 {&scratch.query_columns, packed_size(tree->queries, heads, COLUMNS(KEY) * PANEL)},
                 {&scratch.grad_columns, packed_size(tree->queries, heads, COLUMNS(VALUE) * PANEL)},
                 {&scratch.dots, packed_size(tree->queries, heads, 1)},
                 {&scratch.weights, tiles},
                 {&scratch.score_grads, tiles}};
    for (int64_t n = 0; n < (int64_t)(sizeof parts / sizeof *parts); n++) {
        *parts[n].pointer = memory ? memory + scratch.size : 0;
        scratch.size += parts[n].size;
    }
    return scratch;
}

/* Returns how many numbers of scratch memory a pass needs. */
int64_t tree_scratch_size(const struct Tree *tree, int64_t backward) { return divide_scratch(tree, 0, backward).size; }

/* Computes out (queries, heads, VALUE) and log_sums (heads, queries to the end of the last panel). */
void tree_attention_forward(const struct Tree *tree, const float *query, const float *key, const float *value,
                            float *out, float *log_sums, float *memory)
{
    int64_t nodes = tree->nodes, kv_heads = tree->kv_heads;
    struct Scratch scratch = divide_scratch(tree, memory, 0);
    pack_rows(key, tree->key_row, tree->key_head, nodes, kv_heads, KEY, scratch.key_nodes, 0);
    pack_rows(value, tree->value_row, tree->value_head, nodes, kv_heads, VALUE, 0, scratch.value_columns);
#pragma omp parallel for collapse(2) schedule(dynamic) if (nodes > QUERY_BLOCK)
    for (int64_t block = query_blocks(tree) - 1; block >= 0; block--)
        for (int64_t head = 0; head < tree->heads; head++)
            attend_block(tree, query, scratch.key_nodes, scratch.value_columns, out, log_sums, head, block);
}

/* The inputs of the backward pass: `grad` is the gradient to `out`. */
struct Backward {
    const float *query, *grad, *log_sums;
    struct Scratch scratch;
};

/* Computes the gradient to a block's queries, and stores the weights and the gradients to scores of its tiles; the tile
   with index `base` comes first in memory. */
static void query_gradients(const struct Tree *tree, const struct Backward *backward, float *query_grad, int64_t head,
                            int64_t block, int64_t base)
{
    float scores[QUERY_BLOCK * SPAN], grads[QUERY_BLOCK * SPAN], sums[QUERY_BLOCK * COLUMNS(KEY) * PANEL] = {0};
    int64_t panels = key_panels(tree), rows = block_rows(tree, block), start = block * QUERY_BLOCK;
    int64_t kv_head = head / REPEATS, first = head * padded_queries(tree) + start, stride = tree->heads * VALUE;
    struct Span span = {0};
    const struct Scratch *scratch = &backward->scratch;
    const float *query = backward->query + start * tree->query_row + head * tree->query_head;
    while (next_span(tree, block, &span)) {
        int64_t tile = tree->tile_index[block * panels + span.panel] - base;
        span_scores(rows, query, tree->query_row, scratch->key_nodes, panels, kv_head, &span, KEY, scores);
        apply_mask(tree, start, rows, &span, scores);
        span_scores(rows, backward->grad + start * stride + head * VALUE, stride, scratch->value_nodes, panels, kv_head,
                    &span, VALUE, grads);
        for (int64_t r = 0; r < rows; r++) {
            float log_sum = backward->log_sums[first + r], dot = scratch->dots[first + r], scale = tree->scale;
            float *score = scores + r * SPAN, *grad = grads + r * SPAN;
            for (int64_t n = 0; n < span.count * PANEL; n += LANES) {
                vec *weight = (vec *)(score + n), *score_grad = (vec *)(grad + n);
                *weight = exp2_vec(*weight * (scale * LOG2E) - log_sum);
                *score_grad = *weight * (*score_grad - dot) * scale;
            }
            for (int64_t i = 0; i < span.count; i++) {
                int64_t to = (tile + i) * TILE + r * PANEL;
                memcpy(scratch->weights + to, score + i * PANEL, PANEL * sizeof(float));
                memcpy(scratch->score_grads + to, grad + i * PANEL, PANEL * sizeof(float));
            }
        }
        add_weighted_rows(rows, grads, scratch->key_columns, panels, kv_head, &span, KEY, sums);
    }
    for (int64_t r = 0; r < rows; r++)
        memcpy(query_grad + ((start + r) * tree->heads + head) * KEY, sums + r * COLUMNS(KEY) * PANEL,
               KEY * sizeof(float));
}

/* Computes, for a panel of keys, the gradients to keys and values through a group of blocks of one head, and adds them
   to those of the groups before it and of the heads before it that share the key head. */
static void key_gradients(const struct Tree *tree, const struct Backward *backward, float *key_grad, float *value_grad,
                          int64_t head, int64_t panel, struct Group group)
{
    float keys[PANEL * COLUMNS(KEY) * PANEL] = {0}, values[PANEL * PADDED_VALUE] = {0};
    int64_t panels = key_panels(tree), start = panel * PANEL, count = min64(PANEL, tree->nodes - start);
    int64_t query_panels = ceil_div(tree->queries, PANEL), base = tiles_before(tree, group.first);
    int first = head % REPEATS == 0 && group.first == 0, write = first;
    const struct Scratch *scratch = &backward->scratch;
    for (int64_t block = group.first; block < group.stop; block++) {
        int64_t at = block * panels + panel, depth = block_rows(tree, block), query_panel = block * QUERY_BLOCK / PANEL;
        if (tree->block_mask[at] == HIDDEN)
            continue;
        const float *weights = scratch->weights + (tree->tile_index[at] - base) * TILE;
        const float *score_grads = scratch->score_grads + (tree->tile_index[at] - base) * TILE;
        write = 1;
        for (int64_t c = 0; c < COLUMNS(KEY); c++)
            block_product(PANEL, score_grads, 1, PANEL,
                          column_panel(scratch->query_columns, query_panels, head, c, query_panel, KEY), depth,
                          keys + c * PANEL, COLUMNS(KEY) * PANEL, 1);
        for (int64_t c = 0; c < COLUMNS(VALUE); c++)
            block_product(PANEL, weights, 1, PANEL,
                          column_panel(scratch->grad_columns, query_panels, head, c, query_panel, VALUE), depth,
                          values + c * PANEL, PADDED_VALUE, 1);
    }
    for (int64_t r = 0; write && r < count; r++) {
        int64_t at = (start + r) * tree->kv_heads + head / REPEATS;
        for (int64_t d = 0; d < KEY; d++)
            key_grad[at * KEY + d] = (first ? 0 : key_grad[at * KEY + d]) + keys[r * COLUMNS(KEY) * PANEL + d];
        for (int64_t d = 0; d < VALUE; d++)
            value_grad[at * VALUE + d] = (first ? 0 : value_grad[at * VALUE + d]) + values[r * PADDED_VALUE + d];
    }
}

/* Computes the dot product of each query's output and its gradient ("delta" in FlashAttention): dots (heads, queries in
   whole panels). */
static void dot_rows(const struct Tree *tree, const float *out, const float *grad, float *dots)
{
    int64_t size = padded_queries(tree);
#pragma omp parallel for schedule(static) if (tree->queries > 256)
    for (int64_t n = 0; n < tree->queries; n++)
        for (int64_t head = 0; head < tree->heads; head++) {
            float sum = 0;
            for (int64_t d = 0; d < VALUE; d++)
                sum += out[(n * tree->heads + head) * VALUE + d] * grad[(n * tree->heads + head) * VALUE + d];
            dots[head * size + n] = sum;
        }
}

/* Computes the gradients to queries, keys and values from `grad`, the gradient to `out`; all of them are contiguous. */
void tree_attention_backward(const struct Tree *tree, const float *query, const float *key, const float *value,
                             const float *out, const float *log_sums, const float *grad, float *query_grad,
                             float *key_grad, float *value_grad, float *memory)
{
    int64_t nodes = tree->nodes, queries = tree->queries, heads = tree->heads, kv_heads = tree->kv_heads;
    struct Scratch scratch = divide_scratch(tree, memory, 1);
    struct Backward backward = {query, grad, log_sums, scratch};
    dot_rows(tree, out, grad, scratch.dots);
    pack_rows(key, tree->key_row, tree->key_head, nodes, kv_heads, KEY, scratch.key_nodes, scratch.key_columns);
    pack_rows(value, tree->value_row, tree->value_head, nodes, kv_heads, VALUE, scratch.value_nodes, 0);
    pack_rows(query, tree->query_row, tree->query_head, queries, heads, KEY, 0, scratch.query_columns);
    pack_rows(grad, heads * VALUE, VALUE, queries, heads, VALUE, 0, scratch.grad_columns);
#pragma omp parallel if (nodes > QUERY_BLOCK)
    for (int64_t head = 0; head < heads; head++) {
        struct Group group = {0};
        do {
            group = group_from(tree, group.stop);
#pragma omp for schedule(dynamic)
            for (int64_t block = group.stop - 1; block >= group.first; block--)
                query_gradients(tree, &backward, query_grad, head, block, tiles_before(tree, group.first));
#pragma omp for schedule(dynamic)
            for (int64_t panel = 0; panel < ceil_div(nodes, PANEL); panel++)
                key_gradients(tree, &backward, key_grad, value_grad, head, panel, group);
        } while (group.stop < query_blocks(tree));
    }
}

/* What Python and the C sources share: the structures that pass between them, the functions that Python calls, and the
   constants that both need. C includes this file; Python reads it with cffi, whose parser knows no preprocessor: no
   directive may stand here.

   In C, `real` is the type of a model's weights, keys and values: bf16 with REAL16, else fp32. KEY and VALUE are the
   sizes of a head's keys and values. In Python every pointer to numbers is the address as an integer, and 0 where a
   pointer may be missing. Shapes are in C order. */

enum Constants {
    DECODER_LAYER_PHASES = 12, /* phases of a decoder's step for each layer */
    DECODER_OTHER_PHASES = 3, /* further phases: the embeddings, the last norm, the logits */
    QUERY_BLOCK_PANELS = 3,   /* size of a block of queries in tree attention, in panels */
    MAX_JOINED = 3,           /* weights whose inputs are the same, at most: queries, keys and values */
    ADAPTED_ROWS = 96,        /* rows of `struct AdaptedRows`, at most */
    NORM_GRAD_ROWS = 64,      /* rows whose gradients to a norm's weight are summed together */
};

/* Returns one of the sizes, offsets and constants of this file as the compiler sees them; `header.py` generates it. */
int64_t header_layout(int64_t entry);

/* Returns how many outputs, or keys, form a panel; it depends on the processor. */
int64_t panel_width(void);

/* A layer of a decoder. `qkv_bias`, `query_norm` and `key_norm` may be missing; `window` is 0 where a token attends to
   all tokens before it. `keys` and `values` are the layer's cache: (kv_heads, cache_tokens, head size). */
struct Layer {
    int64_t window;
    const float *input_norm, *qkv_bias, *query_norm, *key_norm, *post_attention_norm;
    const real *qkv, *out, *gate, *up, *down; /* packed by `pack_weight` */
    real *keys, *values;
};

struct Model {
    int64_t layer_count, hidden_size, heads, kv_heads, intermediate_size, vocab_size, cache_tokens;
    const float *final_norm;
    const real *lm_head, *embedding; /* packed; (vocab_size, hidden_size) */
    const struct Layer *layers;
    float norm_eps, attention_scale;
};

/* What an adapter adds to one of the weights of a product, by `rank` of the numbers that `down` makes, from `column` on.
   `up` holds the product's panels from `first_panel` to `stop_panel`, `up_stride` apart; those outputs of them that are
   not of this weight are 0. Where the weight is not adapted, there are no panels. */
struct AdaptedWeight {
    int64_t rank, column, first_panel, stop_panel, up_stride;
    const real *up;
};

/* What an adapter adds to a product: `down` makes `width` numbers of a row, in whole vectors, for all weights that share
   its inputs. The panels of gate and up are each counted from 0. */
struct AdaptedProduct {
    int64_t width;
    const real *down;
    struct AdaptedWeight weights[3];
};

/* Consecutive rows of one adapter, with four products for each layer: qkv, out, gate and up, down. */
struct AdaptedRows {
    int64_t first, count;
    const struct AdaptedProduct *products;
};

/* What is added to the hidden states that a layer returns: `vector` has one number for each of theirs. */
struct Steering {
    int64_t layer;
    const float *vector;
};

/* A phase of a step: a count of tasks that threads have taken so far, and a count of those that are done. */
struct Phase {
    int64_t taken, done;
};

/* One step of a decoder over `rows` tokens. Each has its id, its slot in the cache, its context's row in `page_tables`
   (contexts, pages), the length of that context up to itself, and its position in `cosines` and `sines` (positions,
   KEY). Logits are computed for the `logit_count` rows in `logit_rows`. Adapters are added to the rows in `adapted`; in
   `adapted_logits` the same rows are counted among `logit_rows`. `steered` (rows) numbers the one of `steerings` that is
   added to a row, -1 for none; it may be missing. The pointers after `steerings` are scratch memory for `rows` rows,
   except the output `logits` (logit_count, vocab_size) and `phases`; `low` has `low_width` numbers for each row, in whole
   vectors. */
struct Step {
    int64_t rows, logit_count, pages;
    int64_t adapted_count, adapted_logit_count, low_width;
    const int64_t *tokens, *slots, *page_tables, *contexts, *lengths, *logit_rows, *positions;
    const float *cosines, *sines;
    const struct AdaptedRows *adapted;
    const struct AdaptedRows *adapted_logits;
    const int64_t *steered;
    const struct Steering *steerings;
    float *hidden, *last_hidden, *qkv, *gate, *up;
    real *normed, *attended, *gated, *low;
    float *logits;
    struct Phase *phases;
};

void decoder_forward(const struct Model *model, const struct Step *step, int64_t threads);
void pack_weight(const real *weight, int64_t outputs, int64_t depth, real *panels, int64_t first_output);

void paged_attention(const float *query, int64_t row_stride, int64_t head_stride, real *out, const real *keys,
                     const real *values, int64_t cache_tokens, int64_t rows, int64_t kv_heads,
                     const int64_t *page_tables, int64_t pages, const int64_t *contexts, const int64_t *lengths,
                     int64_t window, float scale, float softcap);
void store_kv(const real *key, int64_t key_row, int64_t key_head, const real *value, int64_t value_row,
              int64_t value_head, real *keys, real *values, int64_t cache_tokens, int64_t rows, int64_t kv_heads,
              const int64_t *slots);
void sample_tokens(const float *logits, int64_t rows, int64_t vocab_size, const float *temperatures,
                   const double *uniforms, int64_t *tokens, double *logprobs);

/* Attention over a tree of nodes in depth-first order. `query_nodes` are the nodes whose attention is computed,
   ascending; queries, outputs and their gradients have a row for each. Node q attends to node t if t <= q <
   subtree_ends[t], so that t is q or one of its ancestors, and, where `window` is not 0, if q lies fewer than `window`
   positions after t. `subtree_ends` and `positions` are padded with zeros to a whole panel. `tree_block_mask` fills in
   `block_mask` and `tile_index` (query blocks, key panels); it returns `tiles`, the number of tiles that are not masked
   out. The strides are from row to row and from head to head. */
struct Tree {
    int64_t nodes, queries, heads, kv_heads, window, tiles;
    int64_t query_row, query_head, key_row, key_head, value_row, value_head;
    const int32_t *subtree_ends, *positions, *query_nodes;
    int8_t *block_mask;
    int32_t *tile_index;
    float scale;
};

int64_t tree_block_mask(const struct Tree *tree);
int64_t tree_scratch_size(const struct Tree *tree, int64_t backward);
void tree_attention_forward(const struct Tree *tree, const float *query, const float *key, const float *value,
                            float *out, float *log_sums, float *scratch);
void tree_attention_backward(const struct Tree *tree, const float *query, const float *key, const float *value,
                             const float *out, const float *log_sums, const float *grad, float *query_grad,
                             float *key_grad, float *value_grad, float *scratch);

void rms_norm_forward(const float *hidden, const float *residual, const float *weight, float *sum, float *out,
                      float *scales, int64_t rows, int64_t size, float eps);
void rms_norm_backward(const float *sum, const float *weight, const float *scales, const float *grad,
                       const float *sum_grad, float *hidden_grad, float *weight_grads, int64_t rows, int64_t size);
void silu_gate_forward(const float *gate, const float *up, float *out, int64_t count);
void silu_gate_backward(const float *gate, const float *up, const float *grad, float *gate_grad, float *up_grad,
                        int64_t count);
void rotate_rows(const float *x, float *out, int64_t rows, int64_t heads, const float *cosines, const float *sines,
                 float sign);

/* Returns whether products of bf16 use the processor's matrix unit (AMX). */
int64_t uses_matrix_unit(void);
int64_t matmul_scratch_size(int64_t rows, int64_t depth, int64_t outputs);
void matmul(const float *a, int64_t a_row, int64_t a_column, const float *b, int64_t b_row, int64_t b_column,
            int64_t rows, int64_t depth, int64_t outputs, float *y, real *scratch);

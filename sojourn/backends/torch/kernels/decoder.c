/* A decoder of Llama's form, as one call in which every thread runs the whole step. With REAL16 its weights, their
   inputs, keys and values are bf16; all else is fp32. A token's logits are the same to the bit in every batch, chunk
   and cache. */

#include "paged_attention.c"
#include "sampling.c"

#include "adapters.c"

/* Applies half-split rotary position embeddings in place. */
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

/* Returns 1 / rms(x), by which an RMS norm scales its input. */
static inline float inverse_rms(const float *x, int64_t size, float eps)
{
    float squares = 0;
    for (int64_t d = 0; d < size; d++)
        squares += x[d] * x[d];
    return 1 / sqrtf(squares / size + eps);
}

/* Computes out = silu(gate) * up. */
static inline void silu_gate_row(const float *gate, const float *up, real *out, int64_t size)
{
    for (int64_t d = 0; d < size; d++) {
        float g = gate[d], e = exponential(-fabsf(g)); /* 1 / (1 + exp(-g)), without overflow */
        float sigmoid = (g < 0 ? e : 1) / (1 + e);
        out[d] = to_real(g * sigmoid * up[d]);
    }
}

/* Computes y (rows, outputs) = x (rows, depth) w, or adds it to y with `accumulate`; what adapters add to it comes
   last. */
static void product(struct Phase *phase, int64_t threads, const real *x, int64_t rows, int64_t depth, const real *w,
                    int64_t outputs, float *y, int accumulate, const struct Additions *additions)
{
    struct ProductPlan plan = plan_product(rows, outputs, threads);
    struct ProductTask task;
    while (next_task(phase, &plan, &task)) {
        panel_products(x + task.row * depth, 0, task.rows, depth, w, outputs, y + task.row * outputs, outputs,
                       accumulate, task.panel, task.stop);
        for (int weight = 0; additions && weight < MAX_JOINED; weight++)
            up_products(additions, weight, &task, y, outputs);
        finish(phase);
    }
    wait_for(phase, plan.count);
}

/* Computes gated = silu(x gate) * (x up). */
static void gated_product(struct Phase *phase, int64_t threads, const struct Step *step, int64_t rows,
                          const struct Model *model, const struct Layer *layer, const struct Additions *additions)
{
    int64_t size = model->intermediate_size, depth = model->hidden_size;
    struct ProductPlan plan = plan_product(rows, size, threads);
    struct ProductTask task;
    while (next_task(phase, &plan, &task)) {
        const real *x = step->normed + task.row * depth;
        float *gate = step->gate + task.row * size, *up = step->up + task.row * size;
        panel_products(x, 0, task.rows, depth, layer->gate, size, gate, size, 0, task.panel, task.stop);
        panel_products(x, 0, task.rows, depth, layer->up, size, up, size, 0, task.panel, task.stop);
        up_products(additions, 0, &task, step->gate, size);
        up_products(additions, 1, &task, step->up, size);
        int64_t begin = task.panel * PANEL, end = min64(task.stop * PANEL, size);
        for (int64_t r = 0; r < task.rows; r++)
            silu_gate_row(gate + r * size + begin, up + r * size + begin, step->gated + (task.row + r) * size + begin,
                          end - begin);
        finish(phase);
    }
    wait_for(phase, plan.count);
}

/* Adds to a row of hidden states after a layer what the steering of that row says. */
static inline void steer_row(const struct Step *step, int64_t layer, int64_t row, float *x, int64_t size)
{
    if (!step->steered || step->steered[row] < 0)
        return;
    const struct Steering *steering = step->steerings + step->steered[row];
    if (steering->layer == layer)
        for (int64_t d = 0; d < size; d++)
            x[d] += steering->vector[d];
}

/* Computes the norms of the hidden states after the layer number `after`, once they are steered in place; -1 is no
   layer. Where `logit_rows` is given, they are those of these rows of the step. */
static void rms_norm(struct Phase *phase, const struct Model *model, const struct Step *step, int64_t after,
                     float *hidden, const float *weight, real *out, int64_t rows, const int64_t *logit_rows)
{
    int64_t task, size = model->hidden_size, count = ceil_div(rows, GROUP_ROWS);
    while ((task = take(phase, count)) >= 0) {
        for (int64_t r = task * GROUP_ROWS; r < min64(task * GROUP_ROWS + GROUP_ROWS, rows); r++) {
            float *x = hidden + r * size;
            steer_row(step, after, logit_rows ? logit_rows[r] : r, x, size);
            float scale = inverse_rms(x, size, model->norm_eps);
            for (int64_t d = 0; d < size; d++)
                out[r * size + d] = to_real(weight[d] * (x[d] * scale));
        }
        finish(phase);
    }
    wait_for(phase, count);
}

/* Applies an RMS norm to each head in place; does nothing without a weight. */
static void norm_heads(float *row, int64_t heads, const float *weight, float eps)
{
    for (int64_t head = 0; weight && head < heads; head++) {
        float *x = row + head * KEY, scale = inverse_rms(x, KEY, eps);
        for (int64_t d = 0; d < KEY; d++)
            x[d] = weight[d] * (x[d] * scale);
    }
}

/* Rounds a token's key and value to `real` and stores them in the cache. */
static void store_rounded(const float *key, const float *value, const struct Layer *layer, int64_t slot, int last)
{
    real k[KEY], v[VALUE];
    for (int d = 0; d < KEY; d++)
        k[d] = to_real(key[d]);
    for (int d = 0; d < VALUE; d++)
        v[d] = to_real(value[d]);
    store_one(k, v, layer->keys, layer->values, slot, last);
}

/* Adds biases to queries, keys and values, normalises queries and keys, applies rotary positions to them, and stores
   keys and values in the cache. */
static void qkv_rope(struct Phase *phase, const struct Model *model, const struct Layer *layer, const struct Step *step)
{
    int64_t task, rotated = model->heads + model->kv_heads, size = rotated * KEY + model->kv_heads * VALUE;
    int64_t count = ceil_div(step->rows, GROUP_ROWS);
    while ((task = take(phase, count)) >= 0) {
        for (int64_t r = task * GROUP_ROWS; r < min64(task * GROUP_ROWS + GROUP_ROWS, step->rows); r++) {
            float *row = step->qkv + r * size;
            for (int64_t d = 0; layer->qkv_bias && d < size; d++)
                row[d] += layer->qkv_bias[d];
            norm_heads(row, model->heads, layer->query_norm, model->norm_eps);
            norm_heads(row + model->heads * KEY, model->kv_heads, layer->key_norm, model->norm_eps);
            rotate_row(row, rotated, step->cosines + step->positions[r] * KEY, step->sines + step->positions[r] * KEY);
            for (int64_t head = 0; head < model->kv_heads; head++)
                store_rounded(row + (model->heads + head) * KEY, row + rotated * KEY + head * VALUE, layer,
                              head * model->cache_tokens + step->slots[r], is_last(step->slots, r, step->rows));
        }
        finish(phase);
    }
    wait_for(phase, count);
}

/* Computes the attention of all rows or, where `logit_rows` is given, of those rows alone. In the second case their
   hidden states are copied to `step->last_hidden`, from which the rest of the last layer is computed. */
static void layer_attention(struct Phase *phase, int64_t threads, const struct Model *model, const struct Layer *layer,
                            const struct Step *step, const int64_t *logit_rows)
{
    int64_t task, rows = logit_rows ? step->logit_count : step->rows, hidden = model->hidden_size;
    int64_t group = group_rows(rows, model->kv_heads, threads), groups = ceil_div(rows, group);
    int64_t size = (model->heads + model->kv_heads) * KEY + model->kv_heads * VALUE;
    while ((task = take(phase, groups * model->kv_heads)) >= 0) {
        struct Row some[GROUP_ROWS];
        int64_t head = task / groups, begin = task % groups * group, count = min64(group, rows - begin);
        for (int64_t i = 0; i < count; i++) {
            int64_t n = begin + i, r = logit_rows ? logit_rows[n] : n, length = step->lengths[r];
            some[i] = (struct Row){step->qkv + r * size + head * REPEATS * KEY,
                                   step->page_tables + step->contexts[r] * step->pages,
                                   layer->window && length > layer->window ? length - layer->window : 0, length,
                                   step->attended + (n * model->heads + head * REPEATS) * VALUE};
            if (logit_rows && head == 0)
                memcpy(step->last_hidden + n * hidden, step->hidden + r * hidden, hidden * sizeof(float));
        }
        attention(some, count, KEY, layer->keys + head * model->cache_tokens * KEY,
                  layer->values + head * model->cache_tokens * VALUE, model->attention_scale, 0);
        finish(phase);
    }
    wait_for(phase, groups * model->kv_heads);
}

static void embed(struct Phase *phase, const struct Model *model, const struct Step *step)
{
    int64_t task, size = model->hidden_size, count = ceil_div(step->rows, GROUP_ROWS);
    while ((task = take(phase, count)) >= 0) {
        for (int64_t r = task * GROUP_ROWS; r < min64(task * GROUP_ROWS + GROUP_ROWS, step->rows); r++)
            for (int64_t d = 0; d < size; d++)
                step->hidden[r * size + d] = to_float(model->embedding[step->tokens[r] * size + d]);
        finish(phase);
    }
    wait_for(phase, count);
}

/* Runs one thread's part of a step, which has DECODER_LAYER_PHASES phases for each layer and DECODER_OTHER_PHASES
   others. */
static void decode_thread(int64_t threads, const struct Model *model, const struct Step *step)
{
    int64_t qkv = (model->heads + model->kv_heads) * KEY + model->kv_heads * VALUE, rows = step->rows;
    int64_t size = model->hidden_size, inner = model->intermediate_size;
    struct Additions additions = {step->adapted, step->adapted_count, 0, step->low_width, step->low};
    struct Phase *phase = step->phases;
    float *hidden = step->hidden;
    embed(phase++, model, step);
    for (int64_t n = 0; n < model->layer_count; n++) {
        const struct Layer *layer = model->layers + n;
        int last = n == model->layer_count - 1;
        rms_norm(phase++, model, step, n - 1, hidden, layer->input_norm, step->normed, rows, 0);
        down_products(phase++, &additions, step->normed, size);
        product(phase++, threads, step->normed, rows, size, layer->qkv, qkv, step->qkv, 0, &additions);
        qkv_rope(phase++, model, layer, step);
        layer_attention(phase++, threads, model, layer, step, last ? step->logit_rows : 0);
        if (last) {
            hidden = step->last_hidden, rows = step->logit_count;
            additions.rows = step->adapted_logits, additions.count = step->adapted_logit_count;
        }
        additions.index++;
        down_products(phase++, &additions, step->attended, model->heads * VALUE);
        product(phase++, threads, step->attended, rows, model->heads * VALUE, layer->out, size, hidden, 1, &additions);
        rms_norm(phase++, model, step, -1, hidden, layer->post_attention_norm, step->normed, rows, 0);
        additions.index++;
        down_products(phase++, &additions, step->normed, size);
        gated_product(phase++, threads, step, rows, model, layer, &additions);
        additions.index++;
        down_products(phase++, &additions, step->gated, inner);
        product(phase++, threads, step->gated, rows, inner, layer->down, size, hidden, 1, &additions);
        additions.index++;
    }
    rms_norm(phase++, model, step, model->layer_count - 1, hidden, model->final_norm, step->normed, rows,
             step->logit_rows);
    product(phase++, threads, step->normed, rows, size, model->lm_head, model->vocab_size, step->logits, 0, 0);
}

void decoder_forward(const struct Model *model, const struct Step *step, int64_t threads)
{
    int64_t phases = DECODER_LAYER_PHASES * model->layer_count + DECODER_OTHER_PHASES;
    memset(step->phases, 0, phases * sizeof *step->phases);
#pragma omp parallel num_threads((int)threads)
    decode_thread(threads, model, step);
}

/* Packs a weight (outputs, depth) into panels; output o of the weight becomes output first_output + o of the panels. */
void pack_weight(const real *weight, int64_t outputs, int64_t depth, real *panels, int64_t first_output)
{
    int64_t first = first_output / PANEL, stop = ceil_div(first_output + outputs, PANEL);
#pragma omp parallel for
    for (int64_t p = first; p < stop; p++) {
        int64_t from = p * PANEL > first_output ? p * PANEL : first_output;
        int64_t to = min64((p + 1) * PANEL, first_output + outputs);
        for (int64_t d = 0; d < depth; d++)
            for (int64_t o = from; o < to; o++)
                panels[p * depth * PANEL + panel_offset(d, o % PANEL)] = weight[(o - first_output) * depth + d];
    }
}

int64_t panel_width(void) { return PANEL; }

/* Computes what a layer of the trainer needs between its matrix products, forward and backward, in fp32: attention over
   a tree, norms, gates and rotary positions. The order of every sum does not depend on the number of threads. */

#include "tree_attention.c"

/* Computes sum = hidden + residual, and out = sum / rms(sum) * weight; `scales` are one over each row's root mean
   square. Without `residual`, hidden is the sum, and `sum` is not written. */
void rms_norm_forward(const float *hidden, const float *residual, const float *weight, float *sum, float *out,
                      float *scales, int64_t rows, int64_t size, float eps)
{
#pragma omp parallel for schedule(static) if (rows * size > 16384)
    for (int64_t i = 0; i < rows; i++) {
        const float *x = hidden + i * size;
        float squares = 0;
        if (residual) {
            float *to = sum + i * size;
            for (int64_t d = 0; d < size; d++)
                to[d] = x[d] + residual[i * size + d];
            x = to;
        }
        for (int64_t d = 0; d < size; d++)
            squares += x[d] * x[d];
        float scale = scales[i] = 1 / sqrtf(squares / size + eps);
        for (int64_t d = 0; d < size; d++)
            out[i * size + d] = weight[d] * (x[d] * scale);
    }
}

/* Computes the gradient through the norm, plus `sum_grad` where it is given. `weight_grads`, where it is given,
   receives a row of sums for every NORM_GRAD_ROWS rows. */
void rms_norm_backward(const float *sum, const float *weight, const float *scales, const float *grad,
                       const float *sum_grad, float *hidden_grad, float *weight_grads, int64_t rows, int64_t size)
{
#pragma omp parallel for schedule(static) if (rows * size > 16384)
    for (int64_t block = 0; block < ceil_div(rows, NORM_GRAD_ROWS); block++) {
        float *weight_grad = weight_grads ? weight_grads + block * size : 0;
        if (weight_grad)
            memset(weight_grad, 0, size * sizeof(float));
        for (int64_t i = block * NORM_GRAD_ROWS; i < min64((block + 1) * NORM_GRAD_ROWS, rows); i++) {
            const float *x = sum + i * size, *g = grad + i * size;
            float *to = hidden_grad + i * size, scale = scales[i], dot = 0;
            for (int64_t d = 0; d < size; d++)
                dot += g[d] * weight[d] * x[d];
            float back = scale * scale * scale * dot / size;
            for (int64_t d = 0; d < size; d++)
                to[d] = g[d] * weight[d] * scale - x[d] * back;
            for (int64_t d = 0; sum_grad && d < size; d++)
                to[d] += sum_grad[i * size + d];
            for (int64_t d = 0; weight_grad && d < size; d++)
                weight_grad[d] += g[d] * x[d] * scale;
        }
    }
}

#define STRIP 4096 /* numbers that a thread takes at once */

/* Computes out = silu(gate) * up. */
void silu_gate_forward(const float *gate, const float *up, float *out, int64_t count)
{
#pragma omp parallel for schedule(static) if (count > 2 * STRIP)
    for (int64_t n = 0; n < count; n += STRIP)
        silu_gate_row(gate + n, up + n, out + n, min64(STRIP, count - n));
}

void silu_gate_backward(const float *gate, const float *up, const float *grad, float *gate_grad, float *up_grad,
                        int64_t count)
{
#pragma omp parallel for schedule(static) if (count > 2 * STRIP)
    for (int64_t n = 0; n < count; n++) {
        float g = gate[n], e = exponential(-fabsf(g)), sigmoid = (g < 0 ? e : 1) / (1 + e);
        up_grad[n] = grad[n] * g * sigmoid;
        gate_grad[n] = grad[n] * up[n] * sigmoid * (1 + g * (1 - sigmoid));
    }
}

/* Applies half-split rotary positions or, with `sign` -1, their inverse, to rows (rows, heads, KEY). The tables (rows,
   KEY) have two equal halves. */
void rotate_rows(const float *x, float *out, int64_t rows, int64_t heads, const float *cosines, const float *sines,
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

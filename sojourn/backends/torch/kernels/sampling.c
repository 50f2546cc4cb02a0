/* Sampling of tokens from whole distributions, with the log-probability of what was sampled. Included after
   `vector_math.c`. */

/* Weights are summed in blocks of this size in single precision; the sums of blocks are added in double precision. */
#define SUM_BLOCK 256

/* Returns exp(logit / temperature - max), and 0 where that is too small for a float. */
static inline float weight_of(float logit, float temperature, float max)
{
    float gap = logit / temperature - max, weight = exponential(gap);
    return gap > -87 ? weight : 0;
}

static float sum_block(const float *logits, int64_t count, float temperature, float max)
{
    float sum = 0;
    for (int64_t n = 0; n < count; n++)
        sum += weight_of(logits[n], temperature, max);
    return sum;
}

/* Returns the id at which the cumulative weights pass `uniform` times their total or, where rounding puts that past the
   end, the last id with a weight. Sets `log_total` to the logarithm of the total. */
static int64_t inverse_cdf(const float *logits, int64_t vocab_size, float temperature, float max, double uniform,
                           double *log_total)
{
    int64_t blocks = (vocab_size + SUM_BLOCK - 1) / SUM_BLOCK, at = 0, last = 0;
    double sums[blocks + 1], total = 0;
    sums[0] = 0;
    for (int64_t n = 0; n < blocks; n++)
        sums[n + 1] = total +=
            sum_block(logits + n * SUM_BLOCK, min64(vocab_size - n * SUM_BLOCK, SUM_BLOCK), temperature, max);
    *log_total = log(total);
    while (at < blocks - 1 && sums[at + 1] <= uniform * total && sums[at + 1] < total)
        at++;
    double sum = sums[at];
    for (int64_t n = at * SUM_BLOCK; n < vocab_size && n < (at + 1) * SUM_BLOCK; n++) {
        float weight = weight_of(logits[n], temperature, max);
        sum += weight;
        if (weight > 0)
            last = n;
        if (sum > uniform * total)
            break;
    }
    return last;
}

/* Returns the greatest number, or NaN where any is NaN. */
static float max_or_nan(const float *x, int64_t count)
{
    float lanes[8], max = x[0];
    int nan = 0;
    for (int l = 0; l < 8; l++)
        lanes[l] = x[0];
    for (int64_t n = 0; n < count / 8 * 8; n += 8)
        for (int l = 0; l < 8; l++) {
            lanes[l] = x[n + l] > lanes[l] ? x[n + l] : lanes[l];
            nan |= x[n + l] != x[n + l];
        }
    for (int64_t n = count / 8 * 8; n < count; n++) {
        max = x[n] > max ? x[n] : max;
        nan |= x[n] != x[n];
    }
    for (int l = 0; l < 8; l++)
        max = lanes[l] > max ? lanes[l] : max;
    return nan ? NAN : max;
}

/* Samples one id from each row of logits (rows, vocab_size), by its temperature and its uniform number in [0, 1), with
   its log-probability; -1 where the row's logits are not finite. At temperature 0 it is the first of the likeliest ids,
   and the log-probability that at temperature 1. */
void sample_tokens(const float *logits, int64_t rows, int64_t vocab_size, const float *temperatures,
                   const double *uniforms, int64_t *tokens, double *logprobs)
{
#pragma omp parallel for schedule(dynamic) if (rows * vocab_size > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const float *row = logits + r * vocab_size;
        float temperature = temperatures[r] > 0 ? temperatures[r] : 1, max = max_or_nan(row, vocab_size);
        double log_total;
        tokens[r] = -1;
        if (!isfinite(max / temperature))
            continue;
        int64_t id = inverse_cdf(row, vocab_size, temperature, max / temperature, uniforms[r], &log_total);
        if (temperatures[r] == 0)
            for (id = 0; row[id] < max;)
                id++;
        tokens[r] = id;
        logprobs[r] = (double)(row[id] / temperature - max / temperature) - log_total;
    }
}

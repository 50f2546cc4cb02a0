/* Exponentials, reductions over the lanes of a vector, and an online softmax. */

#include "panels.c"

#define MASKED -1e30f /* the score of a masked key */
#define LOWEST -1e20f /* the initial maximum of a softmax: below every score that is not masked, above MASKED */
#define LOG2E 1.44269504f

/* Approximates 2^r for r from -1/2 to 1/2 to a relative error of 2e-7, the least of a polynomial of this degree that is
   1 at 0. */
#define EXP2_POLYNOMIAL(r)                                                                                             \
    (((((1.32647271e-3f * (r) + 9.67151264e-3f) * (r) + 5.55073374e-2f) * (r) + 0.240222421f) * (r) + 0.693146978f) *  \
         (r) +                                                                                                         \
     1)

/* Returns exp(x) for x <= 0, in a form that compilers vectorise. */
static inline float exponential(float x)
{
    x = x * LOG2E < -126.0f ? -126.0f : x * LOG2E;
    float n = floorf(x + 0.5f), r = x - n, scale;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    memcpy(&scale, &bits, 4);
    return EXP2_POLYNOMIAL(r) * scale;
}

/* exp2_vec returns 2^x for each lane x <= 0, and 0 where that is below the normal floats (with AVX-512: below all
   floats). */
#ifdef __AVX512F__
static inline vec exp2_vec(vec x)
{
    vec n = (vec)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = x - n;
    return (vec)_mm512_scalef_ps((__m512)EXP2_POLYNOMIAL(r), (__m512)n);
}

static inline vec max_vec(vec one, vec other) { return (vec)_mm512_max_ps((__m512)one, (__m512)other); }
static inline int any_above(vec x, float limit)
{
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
}
static inline float max_lane(vec x) { return _mm512_reduce_max_ps((__m512)x); }
static inline float sum_lanes(vec x) { return _mm512_reduce_add_ps((__m512)x); }
#else
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

static inline vec max_vec(vec one, vec other)
{
    ivec greater = one > other;
    return (vec)(((ivec)one & greater) | ((ivec)other & ~greater));
}

static inline vec exp2_vec(vec x)
{
    ivec normal = x > -126.0f;
    vec clamped = max_vec(x, (vec){0} - 126.0f);
    ivec n = __builtin_convertvector(clamped - 0.5f, ivec);
    vec r = clamped - __builtin_convertvector(n, vec);
    return (vec)((ivec)(EXP2_POLYNOMIAL(r) * (vec)((n + 127) << 23)) & normal);
}

static inline float max_lane(vec x)
{
    float max = x[0];
    for (int l = 1; l < LANES; l++)
        max = x[l] > max ? x[l] : max;
    return max;
}

static inline int any_above(vec x, float limit) { return max_lane(x) > limit; }

static inline float sum_lanes(vec x)
{
    float sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += x[l];
    return sum;
}
#endif

static inline void store_vec(vec x, real *to)
{
#if defined REAL16 && defined __AVX512BF16__
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    for (int l = 0; l < LANES; l++)
        to[l] = to_real(x[l]);
#endif
}

/* The state of an online softmax: the greatest score so far, and the sums of the weights 2^(score - max), one for each
   lane. */
struct Softmax {
    vec sum;
    float max;
};

/* Turns scores, multiplied by `scale`, into weights and adds them to a row's softmax. Returns the factor by which
   sums under earlier weights must be multiplied, since the maximum may have risen. */
static inline float online_softmax(const float *scores, real *weights, int64_t count, float scale, struct Softmax *row)
{
    vec highest = *(const vec *)scores;
    float factor = 1;
    for (int64_t n = LANES; n < count; n += LANES)
        highest = max_vec(*(const vec *)(scores + n), highest);
    if (any_above(highest * scale, row->max)) {
        float before = row->max;
        row->max = max_lane(highest * scale);
        factor = exp2_vec((vec){0} + (before - row->max))[0];
        row->sum *= factor;
    }
    for (int64_t n = 0; n < count; n += LANES) {
        vec weight = exp2_vec(*(const vec *)(scores + n) * scale - row->max);
        row->sum += weight;
        store_vec(weight, weights + n);
    }
    return factor;
}

/* The step with a D that forgets, momentum, a bound on the scaled gradient, annealed noise.
 *
 * Each knob is one coefficient or two, which are 1 or infinity without the knob, so one loop serves
 * every combination. Normals come from a buffer. This is simpler than the pipeline of update.h, and
 * slower, since drawing and updating overlap only as far as the processor looks ahead. */
#ifndef ASGLD_WIDER_H
#define ASGLD_WIDER_H

#include "update64.h"

/* d^c for all normal d below 2^126, since a D that forgets has no smallest value for a table.
 * With e = 32 h + j one table holds 2^(c (j - 16)), another 2^(c (32 h + 16)). */
typedef struct {
    power near;
    float far[ORDERS]; /* at h modulo 8 */
    power_range range;
} wide_power;

static void plan_wide_power(wide_power *p, double exponent) {
    const uint32_t smallest = 0x00800000, largest = 0x7e800000;
    p->near.exponent = exponent;
    p->near.scale = 1.0;
    interpolate(exponent, p->near.coefficient);
    for (int i = 0; i < ORDERS; i++) {
        int h = i % 8 < 4 ? i % 8 : i % 8 - 8;
        p->near.table[i] = (float)exp2(exponent * (i - 16));
        p->far[i] = (float)exp2(exponent * (32 * h + 16));
    }
    p->range = (power_range){smallest, exponent < -1.0 ? 0 : largest - smallest};
}

/* The numbers that all elements of a tensor share at a step. The first line are the Coefficients of
 * asgld/optim/functional.py. */
typedef struct {
    double lr, noise, keep, correction, shift, bound, gain;
    double inertia;       /* factor of the old momentum */
    double opposed;       /* factor of momentum against the newest gradient */
    double decay, weight; /* S becomes decay S + weight g^2 */
    double grad_factor;   /* negative to maximize */
    int alpha, beta;      /* kinds, as in update.h */
    const wide_power *drift_power, *noise_power;
    const power64 *drift_power64, *noise_power64;
} wide_rule;

INLINE f32v inverse_power(int kind, const wide_power *p, f32v d) {
    if (kind != GENERAL) return quotient(kind, 1.0f, d, kind == ROOT ? sqrt32(d) : d);
    split parts;
    f32v result = d;
    UNROLL for (int step = 0; step < SPLIT_STEPS; step++) split_step(step, d, &parts);
    UNROLL for (int step = 0; step < POWER_STEPS; step++)
        result = power_step(step, &p->near, &parts, result);
    result = result * lookup32(p->far, parts.order >> 5);
    if (__builtin_expect(any_above((u32v)d - p->range.low, p->range.span), 0)) {
        float base[LANES];
        store(base, d);
        result = mended(&p->near, p->range, base, result);
    }
    return result;
}

/* The step along momentum m: m times max(opposed, sign(m) sign(g)). The signs are compared, since
 * the product m g could vanish. Where g is 0 that is 0 m for a negative `opposed`, which is NAN for
 * an infinite m. NAN makes all comparisons of m false, so NAN stays. */
INLINE f32v heeded(float opposed, f32v m, f32v g) {
    if (opposed == 1.0f) return m;
    u32v against = (u32v)(((m < 0.0f) & (g >= 0.0f)) | ((m > 0.0f) & (g <= 0.0f)));
    u32v taken = ((u32v)(m * opposed) & against) | ((u32v)m & ~against);
    if (opposed >= 0.0f) return (f32v)taken;
    u32v idle = (u32v)(g == 0.0f);
    return (f32v)(((u32v)(m * 0.0f) & idle) | (taken & ~idle));
}

INLINE f64v heeded64(double opposed, f64v m, f64v g) {
    if (opposed == 1.0) return m;
    i64v against = (i64v)(((m < 0.0) & (g >= 0.0)) | ((m > 0.0) & (g <= 0.0)));
    i64v taken = ((i64v)(m * opposed) & against) | ((i64v)m & ~against);
    if (opposed >= 0.0) return (f64v)taken;
    i64v idle = (i64v)(g == 0.0);
    return (f64v)(((i64v)(m * 0.0) & idle) | (taken & ~idle));
}

/* Update `count` elements, and padding behind them up to a whole number of vectors. `momentum` and
 * `z` may be NULL. `has_sum` is a constant. Without a sum both factors are constant. */
INLINE void update_wide_run(int has_sum, const wide_rule *k, float *param, const float *grad,
                            float *sum, float *momentum, const float *z, int64_t count) {
    const f32v lr = splat((float)k->lr), noise = splat((float)k->noise);
    const f32v keep = splat((float)k->keep), bound = splat((float)k->bound);
    const f32v correction = splat((float)k->correction), shift = splat((float)k->shift);
    const f32v gain = splat((float)k->gain), inertia = splat((float)k->inertia);
    const f32v decay = splat((float)k->decay), weight = splat((float)k->weight);
    const f32v factor = splat((float)k->grad_factor);
    const float opposed = (float)k->opposed;
    const int alpha = has_sum ? k->alpha : CONSTANT, beta = has_sum ? k->beta : TIED;
    for (int64_t i = 0; i < count; i += LANES) {
        f32v s = has_sum ? load(sum + i) : splat(0.0f);
        f32v g = load(grad + i) * factor, d = visible(fma32(s, correction, shift));
        f32v inverse = inverse_power(alpha, k->drift_power, d);
        f32v u = clamp32(g * inverse, bound);
        if (momentum) {
            u = fma32(u, gain, load(momentum + i) * inertia);
            store(momentum + i, u);
            u = heeded(opposed, u, g);
        }
        f32v x = fnma32(u, lr, load(param + i) * keep);
        if (z) {
            if (beta != TIED) inverse = inverse_power(beta, k->noise_power, d);
            x = fma32(load(z + i) * inverse, noise, x);
        }
        store(param + i, x);
        if (has_sum) store(sum + i, fma32(g * weight, g, s * decay));
    }
}

static void update_wide(const wide_rule *k, float *param, const float *grad, float *sum,
                        float *momentum, const float *z, int64_t count) {
    update_wide_run(1, k, param, grad, sum, momentum, z, count);
}

static void update_wide_bare(const wide_rule *k, float *param, const float *grad, float *momentum,
                             const float *z, int64_t count) {
    update_wide_run(0, k, param, grad, NULL, momentum, z, count);
}

INLINE void update_wide_some64(int has_sum, const wide_rule *k, place64 at, const double *z) {
    const int alpha = has_sum ? k->alpha : CONSTANT, beta = has_sum ? k->beta : TIED;
    for (int i = 0; i < BLOCK; i += LANES64) {
        f64v s = has_sum ? load64(at.sum + i) : (f64v){0};
        f64v g = load64(at.grad + i) * k->grad_factor;
        f64v d = visible64(s * k->correction + k->shift);
        f64v inverse = factor_of(alpha, 1.0, k->drift_power64, d);
        f64v u = clamp64(g * inverse, k->bound);
        if (at.momentum) {
            u = u * k->gain + load64(at.momentum + i) * k->inertia;
            store64(at.momentum + i, u);
            u = heeded64(k->opposed, u, g);
        }
        const f64v lr = (f64v){0} + k->lr, noise = (f64v){0} + k->noise;
        f64v x = fma64(-u, lr, load64(at.param + i) * k->keep);
        if (z) {
            if (beta != TIED) inverse = factor_of(beta, 1.0, k->noise_power64, d);
            x = fma64(load64(z + i) * inverse, noise, x);
        }
        store64(at.param + i, x);
        if (has_sum) store64(at.sum + i, g * k->weight * g + s * k->decay);
    }
}

INLINE void update_wide_block64(const void *rule, place64 at, const double *z) {
    update_wide_some64(1, rule, at, z);
}

INLINE void update_wide_bare_block64(const void *rule, place64 at, const double *z) {
    update_wide_some64(0, rule, at, z);
}

static void update_wide64(const wide_rule *given, place64 at, int64_t count, uint64_t index,
                          const draw *noise) {
    const wide_rule copy = *given; /* no store into a tensor can alias it */
    update_blocks64(update_wide_block64, 1, &copy, at, count, index, noise, copy.beta != NO_NOISE);
}

static void update_wide_bare64(const wide_rule *given, place64 at, int64_t count, uint64_t index,
                               const draw *noise) {
    const wide_rule copy = *given;
    const int has_noise = copy.beta != NO_NOISE;
    update_blocks64(update_wide_bare_block64, 0, &copy, at, count, index, noise, has_noise);
}

#endif

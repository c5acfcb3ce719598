/* scale d^c for vectors of positive d, in steps that a software pipeline can interleave.
 *
 * With d = m 2^e, m in [0.75, 1.5), it is (scale 2^(c e)) m^c: a table of 32 floats, indexed by e,
 * times a polynomial in m - 1 that interpolates m^c in Chebyshev points. D never falls below the
 * part of it that all elements share, so 32 binary orders from there on suffice; libm serves the
 * rare d beyond them, and exponents steeper than 1. Within 4 ulp for -1 <= c <= 0. */
#ifndef ASGLD_POWER_H
#define ASGLD_POWER_H

#include "simd.h"

enum { DEGREE = 9, ORDERS = 32 };

typedef struct {
    double exponent, scale;
    float coefficient[DEGREE + 1]; /* highest power first */
    float table[ORDERS];           /* scale 2^(c e) at e modulo 32 */
} power;

/* The bit patterns of d that the tables serve are low to low + span. */
typedef struct {
    uint32_t low, span;
} power_range;

static void interpolate(double exponent, float *coefficient) {
    double node[DEGREE + 1], newton[DEGREE + 1], monomial[DEGREE + 1] = {0};
    for (int i = 0; i <= DEGREE; i++) {
        node[i] = 0.125 + 0.375 * cos(3.14159265358979323846 * (i + 0.5) / (DEGREE + 1));
        newton[i] = pow(1.0 + node[i], exponent);
    }
    for (int order = 1; order <= DEGREE; order++) /* divided differences */
        for (int i = DEGREE; i >= order; i--)
            newton[i] = (newton[i] - newton[i - 1]) / (node[i] - node[i - order]);
    for (int i = DEGREE; i >= 0; i--) { /* Horner: multiply by (f - node) and add */
        for (int k = DEGREE; k >= 0; k--)
            monomial[k] = (k ? monomial[k - 1] : newton[i]) - node[i] * monomial[k];
    }
    for (int k = 0; k <= DEGREE; k++) coefficient[k] = (float)monomial[DEGREE - k];
}

/* The lowest of the binary orders that serve d >= smallest. */
INLINE int lowest_order(double smallest) {
    int e = smallest > 0.0 ? ilogb(smallest) : -120;
    return e < -120 ? -120 : e > 90 ? 90 : e;
}

static power_range range_of(double smallest, double first, double second) {
    int is_steep = first < -1.0 || second < -1.0;
    uint32_t low = (uint32_t)(lowest_order(smallest) + 127) << 23;
    return (power_range){low, is_steep ? 0 : (ORDERS - 2u) << 23};
}

static void plan_power(power *p, double exponent, double scale, double smallest) {
    const int lowest = lowest_order(smallest);
    p->exponent = exponent;
    p->scale = scale;
    interpolate(exponent, p->coefficient);
    double entry = scale * exp2(exponent * lowest), factor = exp2(exponent);
    for (int e = lowest; e < lowest + ORDERS; e++, entry *= factor)
        p->table[(uint32_t)e % ORDERS] = (float)entry;
}

/* Replace the results where d is out of range: huge, infinite, NAN, zero. */
static __attribute__((noinline, cold)) void mend_powers(
    const power *p, power_range range, const float *d, float *result) {
    for (int i = 0; i < LANES; i++) {
        uint32_t bits;
        memcpy(&bits, d + i, sizeof bits);
        if (bits - range.low > range.span)
            result[i] = (float)(p->scale * pow((double)d[i], p->exponent));
    }
}

INLINE f32v mended(const power *p, power_range range, const float *d, f32v power) {
    float result[LANES];
    store(result, power);
    mend_powers(p, range, d, result);
    return load(result);
}

typedef struct {
    f32v f;
    u32v order;
} split;

enum { SPLIT_STEPS = 2, POWER_STEPS = SPLIT_STEPS + DEGREE + 1 };

INLINE void split_step(int step, f32v d, split *x) {
    if (step == 0) {
        x->f = mantissa(d);
        x->order = (u32v)d - (u32v)x->f;
    }
    if (step == 1) {
        x->f = x->f - 1.0f;
        x->order >>= 23;
    }
}

INLINE f32v power_step(int step, const power *p, const split *x, f32v result) {
    step -= SPLIT_STEPS;
    if (step == 0) result = splat(p->coefficient[0]);
    if (step >= 0 && step < DEGREE) result = fma32(result, x->f, splat(p->coefficient[step + 1]));
    if (step == DEGREE) result = result * lookup32(p->table, x->order);
    return result;
}

#endif

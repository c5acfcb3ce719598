/* The step on float64. Multiply-adds into a parameter are fused, as torch's are; no other is. */
#ifndef ASGLD_UPDATE64_H
#define ASGLD_UPDATE64_H

#include "update.h"

enum { LANES64 = LANES / 2 };

typedef double f64v __attribute__((vector_size(8 * LANES64)));
typedef int64_t i64v __attribute__((vector_size(8 * LANES64)));
typedef int32_t i32half __attribute__((vector_size(4 * LANES64)));
typedef uint32_t u32half __attribute__((vector_size(4 * LANES64)));

INLINE f64v load64(const double *from) {
    f64v v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store64(double *to, f64v v) { memcpy(to, &v, sizeof v); }

INLINE f64v sqrt64(f64v a) {
#if LANES > 4
    return V(sqrt_pd)(a);
#else
    UNROLL for (int i = 0; i < LANES64; i++) a[i] = sqrt(a[i]);
    return a;
#endif
}

INLINE f64v fma64(f64v a, f64v b, f64v c) {
#if LANES > 4
    return V(fmadd_pd)(a, b, c);
#else
    UNROLL for (int i = 0; i < LANES64; i++) c[i] = fma(a[i], b[i], c[i]);
    return c;
#endif
}

/* `visible` of simd.h */
INLINE f64v visible64(f64v d) {
#if LANES > 4
    return V(fmadd_pd)(d, (f64v){0}, d);
#else
    return d + (d - d);
#endif
}

/* NAN stays NAN. */
INLINE f64v clamp64(f64v a, double bound) {
#if LANES > 4
    const f64v most = (f64v){0} + bound;
    return V(min_pd)(most, V(max_pd)(-most, a));
#else
    UNROLL for (int i = 0; i < LANES64; i++)
        a[i] = a[i] > bound ? bound : a[i] < -bound ? -bound : a[i];
    return a;
#endif
}

INLINE f64v polynomial(f64v x, const double *coefficient, int degree) {
    f64v p = x * coefficient[0] + coefficient[1];
    UNROLL for (int k = 2; k <= degree; k++) p = p * x + coefficient[k];
    return p;
}

/* a = m 2^e with m in [0.75, 1.5), for positive normal a; returns m. */
INLINE f64v split64(f64v a, u64v *biased_e) {
    u64v above = (u64v)a - 0x3fe8000000000000u + 0x3ff0000000000000u;
    *biased_e = above >> 52;
    return (f64v)((u64v)a - (above & 0xfff0000000000000u) + 0x3ff0000000000000u);
}

/* sqrt(-2 ln u) cos(pi t) and its sine. -2 ln m = s p(s^2) with s = (m - 1) / (m + 1); the angle
 * as in noise.h. All relative errors of the polynomials are below 2^-53. */
INLINE void normal_pairs64(const uint32_t *even, const uint32_t *odd, f64v *cosine, f64v *sine) {
    static const double log_of[] = {
        -0x1.1bd6784baa2d1p-2, -0x1.0dbd251282cb8p-2, -0x1.3b36c3c4d4c0cp-2, -0x1.745c413b1dfb8p-2,
        -0x1.c71c74c3e66cfp-2, -0x1.24924921944c2p-1, -0x1.999999999c993p-1, -0x1.555555555554cp+0,
        -4.0};
    static const double sine_of[] = {
        0x1.07a3dcef6df93p-52, 0x1.353de076f1fbcp-45, 0x1.483e16bc7f42bp-38, 0x1.11c6fb6f982fcp-31,
        0x1.5d88cf5df3ae9p-25, 0x1.47182e777bcb6p-19, 0x1.a67ec47b987b3p-14, 0x1.57d7a865eebcbp-9,
        0x1.2d97c7f3321e2p-5, 0x1.921fb54442d18p-3};
    static const double cosine_of[] = {
        0x1.318574f79bc76p-56, 0x1.8b0237eae0c6ap-49, 0x1.d3a0bb9636555p-42, 0x1.b90186b86bb8ap-35,
        0x1.4413d6d0a84bep-28, 0x1.65b940eee8746p-22, 0x1.1a3ad777373cap-16, 0x1.288322b577404p-11,
        0x1.736c631deae2fp-7, 0x1.c71c71c71c71cp-4, 0x1.5555555555555p-2};
    const double two_ln_2 = 0x1.62e42fefa39efp+0;
    u32half radius_word;
    i32half angle_word;
    memcpy(&radius_word, even, sizeof radius_word);
    memcpy(&angle_word, odd, sizeof angle_word);

    f64v u = __builtin_convertvector((i32half)(radius_word >> 1), f64v) * 0x1p-31 + 0x1p-32;
    u64v biased_e;
    f64v m = split64(u, &biased_e), s = (m - 1.0) / (m + 1.0);
    /* e + 1023 in the low bits of 2^52 is the number 2^52 + e + 1023. */
    f64v e = (f64v)(biased_e | 0x4330000000000000u) - (0x1p52 + 1023);
    f64v radius = sqrt64(s * polynomial(s * s, log_of, 8) - e * two_ln_2);

    f64v t = __builtin_convertvector(angle_word, f64v) * 0x1p-30;
    f64v a = (2.0 - t) * (2.0 + t), b = (1.0 - t) * (1.0 + t);
    *cosine = b * polynomial(a, cosine_of, 10) * radius;
    *sine = t * a * polynomial(a, sine_of, 9) * radius;
}

/* The normals of the next block, in order. */
INLINE void next_normals64(philox *x, double *z) {
    uint32_t words[BLOCK], even[LANES], odd[LANES];
    next_words(x, ROUNDS, words);
    UNROLL for (int i = 0; i < LANES; i++) {
        even[i] = words[2 * i];
        odd[i] = words[2 * i + 1];
    }
    UNROLL for (int h = 0; h < LANES; h += LANES64) {
        f64v cosine, sine;
        normal_pairs64(even + h, odd + h, &cosine, &sine);
        UNROLL for (int i = 0; i < LANES64; i++) {
            z[2 * (h + i)] = cosine[i];
            z[2 * (h + i) + 1] = sine[i];
        }
    }
}

/* scale d^c = (scale 2^(c e)) (piece^c) (1 + r)^c: d = m 2^e, m lies in one of 16 pieces, and r is
 * at most 1/31 in size, where twelve terms of the binomial series suffice. libm serves what lies
 * 64 binary orders above the smallest d, and exponents below -4. Within 8 ulp. */
enum { TERMS = 12, PIECES = 16, ORDERS64 = 64 };

typedef struct {
    double exponent, scale;
    double coefficient[TERMS + 1]; /* highest power first */
    double of_order[ORDERS64], of_piece[PIECES], inverse[PIECES];
    uint64_t low, span; /* the bit patterns of d that the tables serve */
} power64;

static void plan_power64(power64 *p, double exponent, double scale, double smallest) {
    p->exponent = exponent;
    p->scale = scale;
    double term = 1.0;
    for (int k = 0; k <= TERMS; k++, term *= (exponent - k + 1) / k)
        p->coefficient[TERMS - k] = term;
    /* Four bits of the mantissa count pieces of [1, 1.5) from 0 and of [0.75, 1) from 8. */
    for (int i = 0; i < PIECES; i++) {
        double middle = i < 8 ? 1.0 + (i + 0.5) / 16 : 0.5 + (i + 0.5) / 32;
        p->inverse[i] = i == PIECES - 1 ? 1.0 : rint(1024 / middle) / 1024;
        p->of_piece[i] = pow(1.0 / p->inverse[i], exponent);
    }
    int lowest = smallest > 0.0 ? ilogb(smallest) : -1000;
    lowest = lowest < -1000 ? -1000 : lowest > 900 ? 900 : lowest;
    for (int e = lowest; e < lowest + ORDERS64; e++) {
        double product = exponent * e, rest = fma(exponent, e, -product) * 0.6931471805599453;
        p->of_order[(e + 1023) % ORDERS64] = scale * exp2(product) * (1.0 + rest);
    }
    p->low = (uint64_t)(lowest + 1023) << 52;
    p->span = exponent < -4.0 ? 0 : (uint64_t)(ORDERS64 - 2) << 52;
}

INLINE f64v power_of(const power64 *p, f64v d) {
    u64v biased_e, special = (u64v)((u64v)d - p->low > p->span);
    f64v m = split64(d, &biased_e), inverse, factor;
    u64v piece = (u64v)m >> 48 & (PIECES - 1), order = biased_e % ORDERS64;
    UNROLL for (int i = 0; i < LANES64; i++) {
        inverse[i] = p->inverse[piece[i]];
        factor[i] = p->of_order[order[i]] * p->of_piece[piece[i]];
    }
    f64v result = polynomial(m * inverse - 1.0, p->coefficient, TERMS) * factor;
    UNROLL for (int i = 0; i < LANES64; i++)
        if (__builtin_expect(special[i] != 0, 0)) result[i] = p->scale * pow(d[i], p->exponent);
    return result;
}

typedef struct {
    double lr, noise, ratio, keep, shift, grad_factor;
    int alpha, beta; /* kinds, as for float32 */
    const power64 *drift_power, *noise_power;
} rule64;

INLINE f64v factor_of(int kind, double scale, const power64 *power, f64v d) {
    if (kind == ROOT) return scale / sqrt64(d);
    if (kind == WHOLE) return scale / d;
    if (kind == GENERAL) return power_of(power, d);
    return (f64v){0} + scale;
}

typedef struct {
    double *param;
    const double *grad;
    double *sum, *momentum; /* or NULL */
} place64;

/* Update the block at a place. */
typedef void block64(const void *rule, place64 at, const double *z);

/* `has_sum` is a constant. Without a sum both factors are constant. */
INLINE void update_some64(int has_sum, const rule64 *k, place64 at, const double *z) {
    const int alpha = has_sum ? k->alpha : CONSTANT;
    for (int i = 0; i < BLOCK; i += LANES64) {
        f64v s = has_sum ? load64(at.sum + i) : (f64v){0};
        f64v g = load64(at.grad + i) * k->grad_factor, d = visible64(s + k->shift);
        f64v x = load64(at.param + i) * k->keep;
        f64v drift = factor_of(alpha, k->lr, k->drift_power, d);
        x = fma64(-drift, g, x);
        if (k->beta == TIED) x = fma64(drift, k->ratio * load64(z + i), x);
        else if (k->beta != NO_NOISE)
            x = fma64(factor_of(has_sum ? k->beta : CONSTANT, k->noise, k->noise_power, d),
                      load64(z + i), x);
        store64(at.param + i, x);
        if (has_sum) store64(at.sum + i, s + g * g);
    }
}

INLINE void update_block64(const void *rule, place64 at, const double *z) {
    update_some64(1, rule, at, z);
}

INLINE void update_bare_block64(const void *rule, place64 at, const double *z) {
    update_some64(0, rule, at, z);
}

/* Update block by block. A block that is partly in the run works on a padded copy. */
INLINE void update_blocks64(block64 *update, int has_sum, const void *rule, place64 at,
                            int64_t count, uint64_t index, const draw *noise, int has_noise) {
    philox x;
    double normals[BLOCK], padded[4][BLOCK] = {{0}};
    const double *z = has_noise ? normals : NULL;
    const place64 copy = {padded[0], padded[1], padded[2], at.momentum ? padded[3] : NULL};
    int64_t skip = (int64_t)(index % BLOCK);
    philox_begin(&x, noise, index);
    for (int64_t i = 0; i < count; skip = 0) {
        int64_t part = BLOCK - skip < count - i ? BLOCK - skip : count - i;
        size_t bytes = (size_t)part * sizeof(double);
        double *momentum = at.momentum ? at.momentum + i : NULL;
        if (has_noise) next_normals64(&x, normals);
        if (part == BLOCK) {
            double *sum = has_sum ? at.sum + i : NULL;
            update(rule, (place64){at.param + i, at.grad + i, sum, momentum}, z);
        } else {
            memcpy(padded[0] + skip, at.param + i, bytes);
            memcpy(padded[1] + skip, at.grad + i, bytes);
            if (has_sum) memcpy(padded[2] + skip, at.sum + i, bytes);
            if (momentum) memcpy(padded[3] + skip, momentum, bytes);
            update(rule, copy, z);
            memcpy(at.param + i, padded[0] + skip, bytes);
            if (has_sum) memcpy(at.sum + i, padded[2] + skip, bytes);
            if (momentum) memcpy(momentum, padded[3] + skip, bytes);
        }
        i += part;
    }
}

static void update64(const rule64 *given, place64 at, int64_t count, uint64_t index,
                     const draw *noise) {
    const rule64 copy = *given; /* no store into a tensor can alias it */
    update_blocks64(update_block64, 1, &copy, at, count, index, noise, copy.beta != NO_NOISE);
}

/* The same without a sum. */
static void update_bare64(const rule64 *given, place64 at, int64_t count, uint64_t index,
                          const draw *noise) {
    const rule64 copy = *given;
    update_blocks64(update_bare_block64, 0, &copy, at, count, index, noise, copy.beta != NO_NOISE);
}

#endif

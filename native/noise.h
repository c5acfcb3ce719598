/* Philox4x32 and the Box-Muller transform, in steps that a software pipeline can interleave.
 *
 * A block is 2 * LANES consecutive elements: LANES / 2 counters, LANES pairs of words, 2 * LANES
 * normals. The contract (which counter, which word, which normal) is in asgld/noise.py. */
#ifndef ASGLD_NOISE_H
#define ASGLD_NOISE_H

#include "simd.h"

enum { BLOCK = 2 * LANES, ROUNDS = 10, ROUNDS_OF_ROUND = 7 };
static const uint32_t PHILOX_0 = 0xD2511F53u, PHILOX_1 = 0xCD9E8D57u;
static const uint32_t WEYL_0 = 0x9E3779B9u, WEYL_1 = 0xBB67AE85u;

/* The purposes of words in asgld/noise.py. */
enum { UPDATE, ROUND };

INLINE int rounds_of(uint32_t purpose) { return purpose == ROUND ? ROUNDS_OF_ROUND : ROUNDS; }

/* The key, and the counter without the block number. */
typedef struct {
    uint64_t seed;
    uint32_t stream, step, purpose;
} draw;

/* The part of Philox that all blocks of a run share. Of the counter words only q low varies along a
 * run, so the share of the other words in the first three rounds is computed once. */
typedef struct {
    uint32_t key[2 * ROUNDS];
    uint32_t mix_0, mix_1a, mix_1b, mix_2; /* constants of rounds 0, 1, 1 and 2 */
    uint64_t last_key;                     /* for even words in the low half, for odd in the high */
} philox_key;

typedef struct {
    philox_key key;
    u32v product; /* PHILOX_0 * q for the counters of the next block */
} philox;

/* Begin at the block that holds element `index`. q must not cross a multiple of 2^32 in a run. */
INLINE void philox_begin(philox *x, const draw *d, uint64_t index) {
    uint64_t q = index / BLOCK * (BLOCK / 4);
    uint32_t key_0 = (uint32_t)d->seed, key_1 = (uint32_t)(d->seed >> 32);
    uint32_t q_high = (uint32_t)(q >> 32) | d->purpose << 29;
    uint64_t of_step = (uint64_t)PHILOX_1 * d->step;
    uint64_t of_word_0 = (uint64_t)PHILOX_0 * ((uint32_t)(of_step >> 32) ^ q_high ^ key_0);
    philox_key *k = &x->key;
    k->mix_0 = d->stream ^ key_1;
    k->mix_1a = (uint32_t)of_step ^ (key_0 + WEYL_0);
    k->mix_1b = (uint32_t)(of_word_0 >> 32) ^ (key_1 + WEYL_1);
    k->mix_2 = (uint32_t)of_word_0 ^ (key_1 + 2u * WEYL_1);
    for (int r = 0; r < ROUNDS; r++) {
        k->key[2 * r] = key_0 + (uint32_t)r * WEYL_0;
        k->key[2 * r + 1] = key_1 + (uint32_t)r * WEYL_1;
    }
    int last = rounds_of(d->purpose) - 1;
    k->last_key = k->key[2 * last] | (uint64_t)k->key[2 * last + 1] << 32;
    /* Counters in the order in which interleaving cosines and sines yields consecutive elements. */
    u64v product;
    for (int i = 0; i < LANES / 2; i++)
        product[i] = (uint64_t)PHILOX_0 * (uint32_t)(q + i / 2 + i % 2 * (LANES / 4));
    x->product = (u32v)product;
}

/* A block on its way through the pipeline. */
typedef struct {
    u32v product_0, product_1, high_0, high_1, c0, c1, c2, c3; /* Philox; only low words count */
    u32v even, odd;                                            /* words of even and odd elements */
    f32v u, m, e, f, p, radius, t, a, b, w, cosine, sine;      /* Box-Muller */
    f32v z_low, z_high;                                        /* the block's normals, in order */
} block;

/* Three steps per round: multiply, shift, exclusive or. These are the steps of an update's words. */
enum { PHILOX_STEPS = 3 * ROUNDS };

INLINE void philox_enter(philox *x, block *b) {
    b->product_0 = x->product;
    x->product = (u32v)((u64v)x->product + (uint64_t)PHILOX_0 * (BLOCK / 4));
}

INLINE void philox_step_of(int rounds, int step, const philox_key *k, block *b) {
    int r = step / 3, part = step % 3;
    if (part == 0) {
        if (r >= 2) b->product_0 = multiply_low(b->c0, splat_low(PHILOX_0));
        if (r >= 1) b->product_1 = multiply_low(b->c2, splat_low(PHILOX_1));
    } else if (part == 1) {
        if (r == rounds - 1) {
            b->high_0 = pair_low(b->c1, b->c3);
            b->high_1 = pair_high(b->product_1, b->product_0);
            b->odd = pair_low(b->product_1, b->product_0);
        } else {
            if (r != 1) b->high_0 = high_to_low(b->product_0);
            if (r >= 1) b->high_1 = high_to_low(b->product_1);
        }
    } else if (r == 0) {
        b->c2 = b->high_0 ^ splat_word(k->mix_0);
    } else if (r == 1) {
        b->c0 = b->high_1 ^ splat_word(k->mix_1a);
        b->c1 = b->product_1;
        b->c2 = b->product_0 ^ splat_word(k->mix_1b);
    } else if (r == rounds - 1) {
        b->even = xor3(b->high_1, b->high_0, (u32v)((u64v){0} + k->last_key));
    } else {
        b->c0 = xor3(b->high_1, b->c1, splat_word(k->key[2 * r]));
        b->c2 = r == 2 ? b->high_0 ^ splat_word(k->mix_2)
                       : xor3(b->high_0, b->c3, splat_word(k->key[2 * r + 1]));
        b->c1 = b->product_1;
        b->c3 = b->product_0;
    }
}

INLINE void philox_step(int step, const philox_key *k, block *b) {
    philox_step_of(ROUNDS, step, k, b);
}

/* Polynomials of the Box-Muller transform, highest power first. */
typedef struct {
    float radius[9], sine[5], cosine[5];
} coefficients;

static const coefficients COEFFICIENTS = {
    .radius = {-0x1.42f40ap-4f, 0x1.682c40p-3f, -0x1.bc8948p-3f, 0x1.f0d5c6p-3f, -0x1.27015ap-2f,
               0x1.713bd6p-2f, -0x1.ec7290p-2f, 0x1.715490p-1f, -0x1.715476p+0f},
    .sine = {0x1.c84f44p-16f, 0x1.edee34p-11f, 0x1.503776p-6f, 0x1.d97702p-3f, 0x1.d976f4p-1f},
    .cosine = {0x1.714286p-13f, 0x1.3a307ep-8f, 0x1.411172p-4f, 0x1.2d6ac8p-1f, 0x1.2d6abep+0f},
};

/* radius = sqrt(-log2 u), with u and its logarithm to 1 ulp: u = m 2^e, m in [0.75, 1.5),
 * -log2 m = f p(f), f = m - 1, relative error of p below 2^-25. For u near 1 e is 0 and f exact.
 * The factor sqrt(2 ln 2) that makes it sqrt(-2 ln u) is in the coefficients of the angle. */
INLINE void radius_step(int step, const coefficients *k, block *b) {
    if (step == 0) b->even >>= 1;
    if (step == 1) b->u = to_float(b->even);
    if (step == 2) b->u = b->u + 0.5f; /* 2^31 u, rounded once, as u is in the contract */
    if (step == 3) {
        b->m = mantissa(b->u);
        b->u = (f32v)((u32v)b->u - (31u << 23));
    }
    if (step == 4) {
        b->f = b->m - 1.0f;
        b->e = (f32v)((u32v)b->u - (u32v)b->m);
    }
    if (step == 5) b->e = (f32v)((i32v)b->e >> 23);
    if (step == 6) b->e = to_float((u32v)b->e);
    if (step == 5) b->p = splat(k->radius[0]);
    if (step >= 5 && step < 13) b->p = fma32(b->p, b->f, splat(k->radius[step - 4]));
    if (step == 13) b->p = fms32(b->p, b->f, b->e);
    if (step == 14) b->radius = sqrt32(b->p);
}

/* With T = |2t|, w = 1 - T and a = T (2 - T) = 1 - w^2: |sin(pi t)| = a s(a), cos(pi t) = w c(a).
 * The factors in front hold the zeros and are accurate to an ulp, so sine and cosine are accurate
 * everywhere; s and c are smooth and positive, with relative errors below 2^-26. */
enum { ANGLE_STEPS = 10 };

INLINE void angle_step(int step, const coefficients *k, block *b) {
    if (step == 0) b->t = to_float(b->odd);
    if (step == 1) b->t = scale_down(b->t, 30);
    if (step == 2) b->a = (f32v)((u32v)b->t & 0x7fffffffu);
    if (step == 3) {
        b->w = 1.0f - b->a;
        b->b = 2.0f - b->a;
    }
    if (step == 4) b->a = b->a * b->b;
    if (step == 5) {
        b->t = (f32v)(((u32v)b->t & 0x80000000u) | (u32v)b->a); /* a, with the sign of t */
        b->sine = splat(k->sine[0]);
        b->cosine = splat(k->cosine[0]);
    }
    if (step >= 5 && step < 9) {
        b->sine = fma32(b->sine, b->a, splat(k->sine[step - 4]));
        b->cosine = fma32(b->cosine, b->a, splat(k->cosine[step - 4]));
    }
    if (step == 9) {
        b->sine = b->t * b->sine;
        b->cosine = b->w * b->cosine;
    }
}

/* Steps of the transform, counted from its first one. The gap before JOIN_AT hides a square root. */
enum { ANGLE_AT = 7, JOIN_AT = 20, NORMAL_STEPS = 22 };

INLINE void normal_step(int step, const coefficients *k, block *b) {
    radius_step(step, k, b);
    angle_step(step - ANGLE_AT, k, b);
    if (step == JOIN_AT) {
        b->cosine = b->cosine * b->radius;
        b->sine = b->sine * b->radius;
    }
    if (step == JOIN_AT + 1) {
        b->z_low = interleave_low(b->cosine, b->sine);
        b->z_high = interleave_high(b->cosine, b->sine);
    }
}

/* The words of the next block, in order. */
INLINE void next_words(philox *x, int rounds, uint32_t *words) {
    block b;
    philox_enter(x, &b);
    UNROLL for (int step = 0; step < 3 * rounds; step++) philox_step_of(rounds, step, &x->key, &b);
    u32v low = (u32v)interleave_low((f32v)b.even, (f32v)b.odd);
    u32v high = (u32v)interleave_high((f32v)b.even, (f32v)b.odd);
    memcpy(words, &low, sizeof low);
    memcpy(words + LANES, &high, sizeof high);
}

/* The normals of the next block, in order. */
INLINE void next_normals(philox *x, float *z) {
    block b;
    philox_enter(x, &b);
    UNROLL for (int step = 0; step < PHILOX_STEPS; step++) philox_step(step, &x->key, &b);
    UNROLL for (int step = 0; step < NORMAL_STEPS; step++) normal_step(step, &COEFFICIENTS, &b);
    store(z, b.z_low);
    store(z + LANES, b.z_high);
}

/* The normals of the next GROUP blocks, in order. Each step is done for all blocks before the next
 * step: one block alone is a chain of dependent steps that leaves the processor idle. */
enum { GROUP = 4 };

INLINE void next_group(philox *x, float *z) {
    block b[GROUP];
    const philox_key *key = opaque(&x->key);
    const coefficients *k = opaque(&COEFFICIENTS);
    UNROLL for (int i = 0; i < GROUP; i++) philox_enter(x, &b[i]);
    UNROLL for (int step = 0; step < PHILOX_STEPS; step++)
        UNROLL for (int i = 0; i < GROUP; i++) philox_step(step, key, &b[i]);
    UNROLL for (int step = 0; step < NORMAL_STEPS; step++)
        UNROLL for (int i = 0; i < GROUP; i++) normal_step(step, k, &b[i]);
    UNROLL for (int i = 0; i < GROUP; i++) {
        store(z + i * BLOCK, b[i].z_low);
        store(z + i * BLOCK + LANES, b[i].z_high);
    }
}

/* The index at which to split a run, since the high word of q changes there. */
INLINE uint64_t next_high_word(uint64_t index) { return ((index >> 34) + 1) << 34; }

#endif

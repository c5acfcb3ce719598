/* The step on float32: x - lr D^(-alpha/2) g + noise D^(-beta/2) z and S + g^2, in one pass.
 *
 * `has_sum` is a constant like the kinds alpha and beta. Without a sum both factors are constant.
 *
 * With noise an element takes some 50 dependent steps, many more than a processor can look ahead.
 * So the loop is pipelined by hand: while the first words of one block are multiplied, an earlier
 * block is in its last rounds, one before that in its logarithm, and the oldest is updated. An
 * iteration has n phases and performs, in phase i, step i of the youngest block, step i + n of the
 * next and so on. Dependent steps are then at least a phase apart, and the processor always has
 * independent work. A larger n means more distance and more registers. */
#ifndef ASGLD_UPDATE_H
#define ASGLD_UPDATE_H

#include "noise.h"
#include "power.h"

/* How a factor depends on D. TIED: the noise has the exponent of the drift, and one factor serves
 * x - lr D^(-alpha/2) (g - ratio z). */
enum { CONSTANT, ROOT, WHOLE, GENERAL, TIED, NO_NOISE };

typedef struct {
    float lr, noise, ratio; /* lr is negative to maximize */
    float keep;             /* 1 - lr * weight_decay */
    float shift;            /* D - S */
    int decays;
    const power *drift_power, *noise_power; /* where the exponents are general */
    power_range range;
} rule;

/* Consecutive elements, `index` being the first one's place in the whole parameter. */
typedef struct {
    float *param;
    const float *grad;
    float *sum; /* or NULL */
    int64_t count;
    uint64_t index;
    draw noise;
} run;

INLINE f32v quotient(int kind, float scale, f32v d, f32v root) {
    return kind == ROOT ? splat(scale) / root : kind == WHOLE ? splat(scale) / d : splat(scale);
}

/* The data of one half of a block, which is one vector, without its normals. */
typedef struct {
    f32v d, root, grad, drift, quiet; /* drift and quiet are the factors of gradient and noise */
    split split;
    int is_special;
} half;

typedef struct {
    block noise;
    half low, high;
} work;

enum { FINAL_STEPS = 5, SIMPLE_STEPS = 6 };
enum { NOISY_STEPS = PHILOX_STEPS + JOIN_AT + FINAL_STEPS };

/* The phases of an iteration with simple and with general powers; see the top of this file. */
#if LANES == 16
enum { SIMPLE_PHASES = 11, GENERAL_PHASES = 12 };
#elif LANES == 8
enum { SIMPLE_PHASES = 14, GENERAL_PHASES = 20 };
#else
enum { SIMPLE_PHASES = NOISY_STEPS, GENERAL_PHASES = NOISY_STEPS };
#endif

enum { MAX_DEPTH = (NOISY_STEPS + SIMPLE_PHASES - 1) / SIMPLE_PHASES };
enum { HISTORY = 8 }; /* blocks whose D is remembered; at least MAX_DEPTH */

/* The place of a block's elements. The pipeline also computes blocks before the first and behind
 * the last, on memory that is not read. A block that is partly in the run works on a padded copy. */
typedef struct {
    float param[BLOCK], grad[BLOCK], sum[BLOCK];
} padded;

typedef struct {
    float *param;
    const float *grad;
    float *sum;
} place;

typedef struct {
    padded head, tail, unused;
    int64_t skip; /* elements of the first block that precede the run */
    int64_t blocks;
    int64_t whole_from, whole_to; /* the blocks that lie in the run as a whole */
} frame;

INLINE place place_of(int has_sum, const run *r, frame *f, int64_t j) {
    if (j >= f->whole_from && j < f->whole_to) {
        int64_t i = j * BLOCK - f->skip;
        return (place){r->param + i, r->grad + i, has_sum ? r->sum + i : NULL};
    }
    padded *p = j == 0 ? &f->head : j > 0 && j == f->blocks - 1 ? &f->tail : &f->unused;
    return (place){p->param, p->grad, p->sum};
}

static void copy_part(const run *r, const frame *f, padded *into, int64_t j, int is_back) {
    int64_t from = j * BLOCK - f->skip, to = from + BLOCK, at = from < 0 ? -from : 0;
    from = from < 0 ? 0 : from;
    to = to > r->count ? r->count : to;
    size_t bytes = (size_t)(to - from) * sizeof(float);
    if (is_back) {
        memcpy(r->param + from, into->param + at, bytes);
        if (r->sum) memcpy(r->sum + from, into->sum + at, bytes);
    } else {
        memcpy(into->param + at, r->param + from, bytes);
        memcpy(into->grad + at, r->grad + from, bytes);
        if (r->sum) memcpy(into->sum + at, r->sum + from, bytes);
    }
}

static void copy_parts(const run *r, frame *f, int is_back) {
    if (f->whole_from > 0) copy_part(r, f, &f->head, 0, is_back);
    if (f->blocks > 1 && f->whole_to < f->blocks) copy_part(r, f, &f->tail, f->blocks - 1, is_back);
}

static void frame_begin(const run *r, frame *f) {
    memset(f, 0, sizeof *f);
    f->skip = (int64_t)(r->index % BLOCK);
    f->blocks = (f->skip + r->count + BLOCK - 1) / BLOCK;
    f->whole_from = f->skip > 0 || r->count < BLOCK;
    f->whole_to = (f->skip + r->count) / BLOCK;
    copy_parts(r, f, 0);
}

/* D and the factors of drift and noise, for one half of a block. */
INLINE void metric_step(int step, int alpha, int beta, int has_sum, const rule *k, place at, int h,
                        float *history, half *w) {
    if (step == 0 && has_sum) {
        f32v sum = load(at.sum + h * LANES);
        w->grad = load(at.grad + h * LANES);
        w->d = visible(sum + k->shift);
        store(at.sum + h * LANES, fma32(w->grad, w->grad, sum));
    }
    if (step == 0 && !has_sum) w->grad = load(at.grad + h * LANES);
    if (alpha == GENERAL || beta == GENERAL) {
        if (step == 0) {
            w->is_special = any_above((u32v)w->d - k->range.low, k->range.span);
            store(history + h * LANES, w->d);
        }
        split_step(step, w->d, &w->split);
        if (alpha == GENERAL) w->drift = power_step(step, k->drift_power, &w->split, w->drift);
        if (beta == GENERAL) w->quiet = power_step(step, k->noise_power, &w->split, w->quiet);
    }
    if (step == 1 + 2 * h && (alpha == ROOT || beta == ROOT)) w->root = sqrt32(w->d);
    if (step == 4 + 2 * h) {
        if (alpha != GENERAL) w->drift = quotient(alpha, k->lr, w->d, w->root);
        if (beta < GENERAL) w->quiet = quotient(beta, k->noise, w->d, w->root);
    }
}

INLINE void final_step(int step, int alpha, int beta, const rule *k, place at, int h,
                       const float *history, f32v z, half *w) {
    if (step == 2) {
        if (alpha == GENERAL || beta == GENERAL) {
            w->grad = load(at.grad + h * LANES);
            if (__builtin_expect(w->is_special, 0)) {
                const float *d = history + h * LANES;
                if (alpha == GENERAL) w->drift = mended(k->drift_power, k->range, d, w->drift);
                if (beta == GENERAL) w->quiet = mended(k->noise_power, k->range, d, w->quiet);
            }
        }
        if (beta == TIED) w->grad = fnma32(splat(k->ratio), z, w->grad);
    }
    if (step == 3 + h) {
        f32v x = load(at.param + h * LANES);
        if (k->decays) x = x * k->keep;
        x = fnma32(w->drift, w->grad, x);
        if (beta != TIED) x = fma32(w->quiet, z, x);
        store(at.param + h * LANES, x);
    }
}

INLINE void update_noisy(int alpha, int beta, int has_sum, const rule *given, const run *r) {
    const int is_general = alpha == GENERAL || beta == GENERAL;
    const int phases = is_general ? GENERAL_PHASES : SIMPLE_PHASES;
    const int depth = (NOISY_STEPS + phases - 1) / phases;
    const int final_at = depth * phases - FINAL_STEPS, normal_at = final_at - JOIN_AT;
    const int philox_at = normal_at - PHILOX_STEPS;
    const int metric_at = is_general ? final_at + 2 - POWER_STEPS : final_at - SIMPLE_STEPS;

    const rule copy = *given, *k = &copy; /* no store into a tensor can alias it */
    float history[HISTORY][BLOCK];
    work w[MAX_DEPTH] = {0};
    frame f;
    philox x;
    frame_begin(r, &f);
    philox_begin(&x, &r->noise, r->index);
    for (int64_t j = 1 - depth; j < f.blocks; j++) {
        const int64_t early = j + depth - 1 - metric_at / phases;
        place last = place_of(has_sum, r, &f, j);
        place first = early == j ? last : place_of(has_sum, r, &f, early);
        float *old = history[(uint64_t)j % HISTORY], *new = history[(uint64_t)early % HISTORY];
        const philox_key *key = opaque(&x.key);
        const coefficients *c = opaque(&COEFFICIENTS);
        UNROLL for (int i = depth - 1; i > 0; i--) w[i] = w[i - 1];
        UNROLL for (int phase = 0; phase < phases; phase++) {
            UNROLL for (int i = 0; i < depth; i++) {
                const int step = i * phases + phase;
                block *b = &w[i].noise;
                half *low = &w[i].low, *high = &w[i].high;
                if (step == philox_at) philox_enter(&x, b);
                if (step >= philox_at && step < normal_at) philox_step(step - philox_at, key, b);
                normal_step(step - normal_at, c, b);
                metric_step(step - metric_at, alpha, beta, has_sum, k, first, 0, new, low);
                metric_step(step - metric_at, alpha, beta, has_sum, k, first, 1, new, high);
                final_step(step - final_at, alpha, beta, k, last, 0, old, b->z_low, low);
                final_step(step - final_at, alpha, beta, k, last, 1, old, b->z_high, high);
            }
        }
    }
    copy_parts(r, &f, 1);
}

/* Without noise nothing is drawn, and memory, not arithmetic, sets the pace. */
INLINE void update_quiet(int alpha, int has_sum, const rule *given, place at, int64_t count) {
    const rule copy = *given, *k = &copy; /* no store into a tensor can alias it */
    UNROLL_BY_4 for (int64_t i = 0; i < count; i += LANES) {
        f32v sum = has_sum ? load(at.sum + i) : splat(0.0f);
        f32v grad = load(at.grad + i), x = load(at.param + i);
        f32v d = visible(sum + k->shift), drift = d;
        if (alpha == GENERAL) {
            split parts;
            UNROLL for (int step = 0; step < SPLIT_STEPS; step++) split_step(step, d, &parts);
            UNROLL for (int step = 0; step < POWER_STEPS; step++)
                drift = power_step(step, k->drift_power, &parts, drift);
            if (__builtin_expect(any_above((u32v)d - k->range.low, k->range.span), 0)) {
                float base[LANES];
                store(base, d);
                drift = mended(k->drift_power, k->range, base, drift);
            }
        } else {
            drift = quotient(alpha, k->lr, d, sqrt32(d));
        }
        if (k->decays) x = x * k->keep;
        store(at.param + i, fnma32(drift, grad, x));
        if (has_sum) store(at.sum + i, fma32(grad, grad, sum));
    }
}

INLINE void update_run(int alpha, int beta, int has_sum, const rule *k, const run *r) {
    if (beta != NO_NOISE) {
        update_noisy(alpha, beta, has_sum, k, r);
        return;
    }
    int64_t whole = r->count / LANES * LANES;
    update_quiet(alpha, has_sum, k, (place){r->param, r->grad, r->sum}, whole);
    if (whole < r->count) {
        run rest = {r->param + whole, r->grad + whole, has_sum ? r->sum + whole : NULL,
                    r->count - whole, 0, r->noise};
        frame f;
        frame_begin(&rest, &f);
        update_quiet(alpha, has_sum, k, (place){f.head.param, f.head.grad, f.head.sum}, BLOCK);
        copy_parts(&rest, &f, 1);
    }
}

#define KERNEL(alpha, beta) \
    static void update_##alpha##_##beta(const rule *k, const run *r) { \
        update_run(alpha, beta, 1, k, r); \
    }
#define KERNELS(alpha) \
    KERNEL(alpha, CONSTANT) KERNEL(alpha, ROOT) KERNEL(alpha, WHOLE) \
    KERNEL(alpha, GENERAL) KERNEL(alpha, TIED) KERNEL(alpha, NO_NOISE)
#define NAMES(alpha) \
    {update_##alpha##_CONSTANT, update_##alpha##_ROOT, update_##alpha##_WHOLE, \
     update_##alpha##_GENERAL, update_##alpha##_TIED, update_##alpha##_NO_NOISE}

KERNELS(CONSTANT) KERNELS(ROOT) KERNELS(WHOLE) KERNELS(GENERAL)

typedef void kernel(const rule *, const run *);
static kernel *const KERNEL_OF[4][6] = {
    NAMES(CONSTANT), NAMES(ROOT), NAMES(WHOLE), NAMES(GENERAL)};

/* For tensors without a sum. */
#define BARE_KERNEL(beta) \
    static void update_bare_##beta(const rule *k, const run *r) { \
        update_run(CONSTANT, beta, 0, k, r); \
    }

BARE_KERNEL(CONSTANT) BARE_KERNEL(TIED) BARE_KERNEL(NO_NOISE)

INLINE kernel *bare_kernel_of(int beta) {
    return beta == NO_NOISE ? update_bare_NO_NOISE
           : beta == TIED   ? update_bare_TIED
                            : update_bare_CONSTANT;
}

INLINE int kind_of(double exponent) {
    return exponent == 0.0 ? CONSTANT : exponent == 1.0 ? ROOT : exponent == 2.0 ? WHOLE : GENERAL;
}

#endif

/* One optimizer step over a list of tensors, behind a plain C interface.
 *
 * asgld/optim/_native.py is the only caller. All elements of the list, in order, form one range
 * that the threads share in chunks, so many small tensors are as parallel as a large one. Each
 * element's result depends on that element alone: neither the number of threads nor the chunks nor
 * the order of the list shows in it. */
#include "convert.h"
#include "update.h"
#include "update64.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    void *param;
    const void *grad;
    void *sum;
    int64_t *step; /* steps taken so far; the call adds one */
    int64_t count;
    /* Element j of a shard is element offset + j / row_length * row_stride + j % row_length of the
     * whole parameter. */
    int64_t offset, row_length, row_stride;
    uint64_t stream;
    int32_t param_type, sum_type;
} tensor;

typedef struct {
    double lr, alpha, beta, sigma, delta, d_init, weight_decay, grad_factor;
    uint64_t seed;
    int32_t maximize, stochastic_rounding, threads, unused;
} options;

enum { STAGE = 2048 }; /* elements that are converted at a time; three buffers fit the L1 cache */

typedef struct {
    const options *o;
    kernel *update;
    rule rule;
    rule64 rule64;
    power drift_power, noise_power;
    power64 drift_power64, noise_power64;
    double planned; /* the least D that the powers are planned for; NAN for none */
    int is_planned_for_double;
} step_plan;

static void plan_step(step_plan *p, const options *o) {
    int has_noise = o->sigma != 0.0 && o->lr != 0.0 && o->beta < INFINITY;
    double lr = o->maximize ? -o->lr : o->lr;
    double noise = has_noise ? sqrt(2.0 * o->lr) * o->sigma : 0.0;
    double ratio = has_noise ? noise / lr : 0.0, keep = 1.0 - o->lr * o->weight_decay;
    int is_tied = o->alpha == o->beta && fabs(ratio) < 1e30;
    int alpha = kind_of(o->alpha), beta = !has_noise ? NO_NOISE : is_tied ? TIED : kind_of(o->beta);
    p->o = o;
    p->rule = (rule){.lr = (float)lr, .noise = (float)noise, .ratio = (float)ratio,
                     .keep = (float)keep, .decays = o->weight_decay != 0.0,
                     .drift_power = &p->drift_power, .noise_power = &p->noise_power};
    p->rule64 = (rule64){.lr = lr, .noise = noise, .ratio = ratio, .keep = keep,
                         .grad_factor = o->grad_factor, .alpha = alpha, .beta = beta,
                         .drift_power = &p->drift_power64, .noise_power = &p->noise_power64};
    p->update = KERNEL_OF[alpha][beta];
    p->planned = NAN;
}

/* What depends on the steps that a tensor has taken, and on whether it is of doubles. */
static void plan_tensor(step_plan *p, const tensor *t) {
    int is_double = t->param_type == FLOAT64;
    double shift = p->o->d_init + p->o->delta * (double)*t->step;
    p->rule.shift = (float)shift;
    p->rule64.shift = shift;
    if (p->planned == shift && p->is_planned_for_double == is_double) return;
    p->planned = shift;
    p->is_planned_for_double = is_double;
    double drift = -p->o->alpha / 2, quiet = -p->o->beta / 2;
    const rule64 *k = &p->rule64;
    if (is_double) {
        if (k->alpha == GENERAL) plan_power64(&p->drift_power64, drift, k->lr, shift);
        if (k->beta == GENERAL) plan_power64(&p->noise_power64, quiet, k->noise, shift);
    } else {
        p->rule.range = range_of(shift, drift, k->beta == GENERAL ? quiet : 0.0);
        if (k->alpha == GENERAL) plan_power(&p->drift_power, drift, k->lr, shift);
        if (k->beta == GENERAL) plan_power(&p->noise_power, quiet, k->noise, shift);
    }
}

static void draw_words(const draw *d, uint64_t index, int64_t count, uint32_t *out) {
    philox x;
    uint32_t words[BLOCK];
    int64_t skip = (int64_t)(index % BLOCK);
    philox_begin(&x, d, index);
    for (int64_t i = 0; i < count; skip = 0) {
        int64_t part = BLOCK - skip < count - i ? BLOCK - skip : count - i;
        next_words(&x, words);
        memcpy(out + i, words + skip, (size_t)part * sizeof *words);
        i += part;
    }
}

static int is_narrow(int type) { return type == BFLOAT16 || type == FLOAT16; }

/* Consecutive elements whose dtypes, or whose gradient scale, the kernel does not take as they
 * are: they pass through float32 buffers. */
static void update_staged(const step_plan *p, const tensor *t, int64_t at,
                          int64_t count, uint64_t index, draw noise) {
    float param[STAGE], grad[STAGE], sum[STAGE];
    uint32_t words[STAGE];
    const float factor = (float)p->o->grad_factor;
    const int is_dithered = p->o->stochastic_rounding &&
                            (is_narrow(t->param_type) || is_narrow(t->sum_type));
    for (int64_t part; count > 0; at += part, index += (uint64_t)part, count -= part) {
        part = STAGE - (int64_t)(index % STAGE);
        part = part < count ? part : count;
        widen(t->param_type, t->param, at, param, part);
        widen(t->param_type, t->grad, at, grad, part);
        widen(t->sum_type, t->sum, at, sum, part);
        if (factor != 1.0f)
            for (int64_t i = 0; i < part; i++) grad[i] *= factor;
        noise.purpose = UPDATE;
        run r = {param, grad, sum, part, index, noise};
        p->update(&p->rule, &r);
        if (is_dithered) {
            noise.purpose = ROUND;
            draw_words(&noise, index, part, words);
            if (is_narrow(t->param_type)) dither(t->param_type, param, words, part);
            for (int64_t i = 0; i < part; i++) words[i] >>= 16; /* the other half is for the sum */
            if (is_narrow(t->sum_type)) dither(t->sum_type, sum, words, part);
        }
        narrow(t->param_type, param, t->param, at, part);
        narrow(t->sum_type, sum, t->sum, at, part);
    }
}

/* Elements [at, end) of a tensor, run by run. */
static void update_part(step_plan *p, const tensor *t, int64_t at, int64_t end) {
    plan_tensor(p, t);
    draw noise = {p->o->seed, (uint32_t)t->stream, (uint32_t)*t->step, UPDATE};
    int is_direct = t->param_type == FLOAT32 && t->sum_type == FLOAT32 && p->o->grad_factor == 1.0;
    while (at < end) {
        int64_t column = at % t->row_length, count = t->row_length - column;
        uint64_t index = (uint64_t)(t->offset + at / t->row_length * t->row_stride + column);
        uint64_t room = next_high_word(index) - index;
        count = count < end - at ? count : end - at;
        count = (uint64_t)count < room ? count : (int64_t)room;
        if (t->param_type == FLOAT64) {
            update64(&p->rule64, (double *)t->param + at, (const double *)t->grad + at,
                     (double *)t->sum + at, count, index, &noise);
        } else if (is_direct) {
            run r = {(float *)t->param + at, (const float *)t->grad + at, (float *)t->sum + at,
                     count, index, noise};
            p->update(&p->rule, &r);
        } else {
            update_staged(p, t, at, count, index, noise);
        }
        at += count;
    }
}

/* Elements [from, to) of the list. */
static void update_range(step_plan *p, const tensor *tensors, int64_t from, int64_t to) {
    int64_t begin = 0;
    for (const tensor *t = tensors; begin < to; begin += t->count, t++) {
        int64_t first = from > begin ? from - begin : 0, last = to - begin;
        last = last < t->count ? last : t->count;
        if (first < last) update_part(p, t, first, last);
    }
}

/* A chunk is worth the time of handing it out; below the smallest a second thread does not pay. */
enum { CHUNK = 1 << 15, SMALLEST = 1 << 13 };

static void update_all(const tensor *tensors, int64_t total, const options *o) {
    if (o->threads == 1 || total <= 2 * SMALLEST) {
        step_plan p;
        plan_step(&p, o);
        update_range(&p, tensors, 0, total);
        return;
    }
    int64_t chunk = total / (8 * o->threads) / BLOCK * BLOCK;
    chunk = chunk < SMALLEST ? SMALLEST : chunk > CHUNK ? CHUNK : chunk;
#pragma omp parallel num_threads(o->threads)
    {
        step_plan p;
        plan_step(&p, o);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t from = 0; from < total; from += chunk)
            update_range(&p, tensors, from, from + chunk < total ? from + chunk : total);
    }
}

/* Return 0, or, with nothing changed, 1 if a step count does not fit the noise counter. */
EXPORT int32_t asgld_step(const tensor *tensors, int64_t number, const options *o) {
    int64_t total = 0;
    for (int64_t i = 0; i < number; i++) {
        if (*tensors[i].step < 0 || *tensors[i].step > UINT32_MAX) return 1;
        total += tensors[i].count;
    }
    if (total > 0) update_all(tensors, total, o);
    for (int64_t i = 0; i < number; i++) ++*tensors[i].step;
    return 0;
}

/* For tests: the words and normals of elements [index, index + count). */
EXPORT void asgld_words(uint64_t seed, uint32_t stream, uint32_t step, uint32_t purpose,
                        uint64_t index, int64_t count, uint32_t *out) {
    draw d = {seed, stream, step, purpose};
    for (int64_t part; count > 0; index += (uint64_t)part, out += part, count -= part) {
        uint64_t room = next_high_word(index) - index;
        part = (uint64_t)count < room ? count : (int64_t)room;
        draw_words(&d, index, part, out);
    }
}

EXPORT void asgld_normals(uint64_t seed, uint32_t stream, uint32_t step, uint64_t index,
                          int64_t count, int32_t is_double, void *out) {
    draw d = {seed, stream, step, UPDATE};
    philox x;
    float z[BLOCK];
    double z64[BLOCK];
    for (int64_t i = 0; i < count; i++, index++) {
        if (i == 0 || index % BLOCK == 0) {
            philox_begin(&x, &d, index);
            if (is_double) next_normals64(&x, z64);
            else next_normals(&x, z);
        }
        if (is_double) ((double *)out)[i] = z64[index % BLOCK];
        else ((float *)out)[i] = z[index % BLOCK];
    }
}

EXPORT int32_t asgld_lanes(void) { return LANES; }

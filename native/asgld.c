/* One optimizer step over a list of tensors, behind a plain C interface.
 *
 * asgld/optim/_native.py is the only caller. All elements of the list, in order, form one range
 * that the threads share in chunks, so many small tensors are as parallel as a large one. The
 * result of an element depends on that element alone, not on the number of threads, the chunks or
 * the order of the list. */
#include "convert.h"
#include "wider.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    void *param;
    const void *grad;
    void *sum;      /* NULL where the step takes no power of D, and keeps no sum */
    void *momentum; /* in the working precision, or NULL without momentum */
    int64_t *step; /* steps taken so far; the call adds one */
    int64_t count;
    /* Element j of a shard is element offset + j / row_length * row_stride + j % row_length of the
     * whole parameter. */
    int64_t offset, row_length, row_stride;
    uint64_t stream;
    int16_t param_type, grad_type, sum_type, unused;
} tensor;

typedef struct {
    /* The numbers of `Rule` in asgld/optim/rule.py, in its order; NAN stands for None. */
    double lr, alpha, beta, sigma, delta, d_init, weight_decay;
    double decay, momentum, clip, annealing, opposed, noise, noise_bound;
    double grad_factor;
    uint64_t seed;
    int32_t maximize, stochastic_rounding, threads;
} options;

enum { STAGE = 2048 }; /* elements per conversion; three buffers fit the L1 cache */

typedef struct {
    const options *o;
    kernel *update, *update_bare; /* with a sum and without */
    rule rule;
    rule64 rule64;
    power drift_power, noise_power;
    power64 drift_power64, noise_power64;
    double planned; /* the least D that the powers serve; NAN before the first plan */
    int is_planned_for_double;
    int is_wide; /* use the fields below, of the wider rule; else those above, of the paper's */
    wide_rule wide;
    wide_power wide_drift_power, wide_noise_power;
    int64_t planned_step; /* the step of `wide`; -1 before the first plan */
} step_plan;

/* Standard deviation of the noise, before D and annealing scale it. */
static double noise_of(const options *o) {
    return isnan(o->noise) ? sqrt(2.0 * o->lr) * o->sigma : o->lr * o->noise;
}

static int draws(const options *o) { return noise_of(o) != 0.0 && o->beta < INFINITY; }

static void plan_step(step_plan *p, const options *o) {
    int has_noise = draws(o);
    double lr = o->maximize ? -o->lr : o->lr;
    double noise = has_noise ? noise_of(o) : 0.0;
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
    p->update_bare = bare_kernel_of(beta);
    p->planned = NAN;
    p->is_wide = !isnan(o->decay) || !isnan(o->clip) || o->momentum != 0.0 || o->annealing != 0.0 ||
                 (has_noise && !isnan(o->noise_bound));
    p->planned_step = -1;
}

/* Plan what depends on a tensor's step count and precision. */
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

/* The coefficients of a step of the wider rule: `coefficients` in asgld/optim/functional.py. */
static wide_rule coefficients_of(const options *o, int64_t step) {
    const double k = (double)step, later = step > 1 ? k : 1.0;
    const int forgets = !isnan(o->decay), fills = forgets && o->d_init == 0.0;
    wide_rule w = {
        .lr = o->lr, .noise = noise_of(o) * pow(later, -o->annealing / 2),
        .correction = 1.0, .shift = o->d_init + o->delta * k,
        .bound = isnan(o->clip) ? INFINITY : pow(later, o->clip),
        .gain = 1.0 - o->momentum, .inertia = o->momentum, .opposed = o->opposed,
        .decay = forgets ? o->decay : 1.0, .weight = forgets ? 1.0 - o->decay : 1.0,
        .grad_factor = o->maximize ? -o->grad_factor : o->grad_factor};
    if (forgets && !fills) w.shift = o->delta + pow(o->decay, k) * o->d_init;
    if (fills) {
        w.shift = o->delta;
        w.correction = 1.0 / (1.0 - pow(o->decay, later));
    }
    if (!isnan(o->noise_bound) && w.noise != 0.0 && o->beta < INFINITY)
        w.shift += pow(w.noise / (o->noise_bound * o->lr * sqrt(later)), 2.0 / o->beta);
    if (fills && step == 0) { /* there is no D yet to scale the first gradient: it moves nothing */
        w.lr = w.noise = w.correction = w.gain = 0.0;
        w.shift = 1.0;
    }
    w.keep = 1.0 - w.lr * o->weight_decay;
    int has_noise = w.noise != 0.0 && o->beta < INFINITY;
    w.alpha = kind_of(o->alpha);
    w.beta = !has_noise ? NO_NOISE : o->alpha == o->beta ? TIED : kind_of(o->beta);
    return w;
}

static void plan_wide(step_plan *p, const tensor *t) {
    int is_double = t->param_type == FLOAT64;
    if (p->planned_step == *t->step && p->is_planned_for_double == is_double) return;
    p->planned_step = *t->step;
    p->is_planned_for_double = is_double;
    wide_rule *k = &p->wide;
    *k = coefficients_of(p->o, *t->step);
    k->drift_power = &p->wide_drift_power;
    k->noise_power = &p->wide_noise_power;
    k->drift_power64 = &p->drift_power64;
    k->noise_power64 = &p->noise_power64;
    double drift = -p->o->alpha / 2, quiet = -p->o->beta / 2;
    double smallest = fmax(k->shift, 0x1p-40); /* the shift of an average may be 0 */
    if (is_double) {
        if (k->alpha == GENERAL) plan_power64(&p->drift_power64, drift, 1.0, smallest);
        if (k->beta == GENERAL) plan_power64(&p->noise_power64, quiet, 1.0, smallest);
    } else {
        if (k->alpha == GENERAL) plan_wide_power(&p->wide_drift_power, drift);
        if (k->beta == GENERAL) plan_wide_power(&p->wide_noise_power, quiet);
    }
}

/* The words that round elements [index, index + count). */
static void draw_words(draw d, uint64_t index, int64_t count, uint32_t *out) {
    philox x;
    uint32_t words[BLOCK];
    int64_t skip = (int64_t)(index % BLOCK);
    d.purpose = ROUND;
    philox_begin(&x, &d, index);
    for (int64_t i = 0; i < count; skip = 0) {
        int64_t part = BLOCK - skip < count - i ? BLOCK - skip : count - i;
        next_words(&x, ROUNDS_OF_ROUND, words);
        memcpy(out + i, words + skip, (size_t)part * sizeof *words);
        i += part;
    }
}

/* The normals of the next blocks, at least `count`. */
static void draw_normals(philox *given, float *z, int64_t count) {
    philox x = *given;
    int64_t i = 0;
    for (; i + GROUP * BLOCK <= count; i += GROUP * BLOCK) next_group(&x, z + i);
    for (; i < count; i += BLOCK) next_normals(&x, z + i);
    *given = x;
}

static int is_narrow(int type) { return type == BFLOAT16 || type == FLOAT16; }

/* Store results in the dtypes of the tensors. A sum that is not there counts as float32. */
static void store_stage(const step_plan *p, const tensor *t, float *param, float *sum,
                        int64_t at, int64_t count, uint64_t index, draw noise) {
    if (p->o->stochastic_rounding && (is_narrow(t->param_type) || is_narrow(t->sum_type))) {
        uint32_t words[STAGE];
        draw_words(noise, index, count, words);
        if (is_narrow(t->param_type)) dither(t->param_type, param, words, count);
        for (int64_t i = 0; i < count; i++) words[i] >>= 16; /* the other half is for the sum */
        if (is_narrow(t->sum_type)) dither(t->sum_type, sum, words, count);
    }
    narrow(t->param_type, param, t->param, at, count);
    if (t->sum) narrow(t->sum_type, sum, t->sum, at, count);
}

/* Update consecutive elements through float32 buffers, for other dtypes and scaled gradients. */
static void update_staged(const step_plan *p, const tensor *t, int64_t at,
                          int64_t count, uint64_t index, draw noise) {
    float param[STAGE], grad[STAGE], sum[STAGE];
    const float factor = (float)p->o->grad_factor;
    kernel *update = t->sum ? p->update : p->update_bare;
    for (int64_t part; count > 0; at += part, index += (uint64_t)part, count -= part) {
        part = STAGE - (int64_t)(index % STAGE);
        part = part < count ? part : count;
        widen(t->param_type, t->param, at, param, part);
        widen(t->grad_type, t->grad, at, grad, part);
        if (t->sum) widen(t->sum_type, t->sum, at, sum, part);
        if (factor != 1.0f)
            for (int64_t i = 0; i < part; i++) grad[i] *= factor;
        run r = {param, grad, t->sum ? sum : NULL, part, index, noise};
        update(&p->rule, &r);
        store_stage(p, t, param, sum, at, part, index, noise);
    }
}

/* Elements of the wider rule per pass: draw their normals, then update them. So few that memory
 * does not wait long for the normals. A multiple of BLOCK. */
enum { WIDE_STAGE = 256 };

/* A place to update `count` elements: the tensor itself, or a copy padded to whole vectors. */
static float *stage_of(int type, const void *from, int64_t at, float *copy, int64_t count) {
    if (type == FLOAT32 && count % LANES == 0) return (float *)from + at;
    widen(type, from, at, copy, count);
    while (count % LANES) copy[count++] = 1.0f;
    return copy;
}

/* Update consecutive elements by the wider rule. */
static void update_wide_staged(const step_plan *p, const tensor *t, int64_t at,
                               int64_t count, uint64_t index, draw noise) {
    float copy[4][WIDE_STAGE], z[WIDE_STAGE + BLOCK];
    float *param, *grad, *sum = NULL, *momentum = NULL, *normals;
    const int has_noise = p->wide.beta != NO_NOISE, has_momentum = p->o->momentum != 0.0;
    philox x;
    philox_begin(&x, &noise, index);
    for (int64_t part; count > 0; at += part, index += (uint64_t)part, count -= part) {
        const int64_t skip = (int64_t)(index % BLOCK);
        part = WIDE_STAGE - (int64_t)(index % WIDE_STAGE);
        part = part < count ? part : count;
        param = stage_of(t->param_type, t->param, at, copy[0], part);
        grad = stage_of(t->grad_type, t->grad, at, copy[1], part);
        if (t->sum) sum = stage_of(t->sum_type, t->sum, at, copy[2], part);
        if (has_momentum) momentum = stage_of(FLOAT32, t->momentum, at, copy[3], part);
        if (has_noise) draw_normals(&x, z, skip + part);
        normals = has_noise ? z + skip : NULL;
        if (t->sum) update_wide(&p->wide, param, grad, sum, momentum, normals, part);
        else update_wide_bare(&p->wide, param, grad, momentum, normals, part);
        if (has_momentum) narrow(FLOAT32, momentum, t->momentum, at, part);
        store_stage(p, t, param, sum, at, part, index, noise);
    }
}

/* Update elements [at, end) of a tensor, run by run. */
static void update_part(step_plan *p, const tensor *t, int64_t at, int64_t end) {
    if (p->is_wide) plan_wide(p, t);
    else plan_tensor(p, t);
    draw noise = {p->o->seed, (uint32_t)t->stream, (uint32_t)*t->step, UPDATE};
    int is_direct = t->param_type == FLOAT32 && t->grad_type == FLOAT32 &&
                    t->sum_type == FLOAT32 && p->o->grad_factor == 1.0;
    while (at < end) {
        int64_t column = at % t->row_length, count = t->row_length - column;
        uint64_t index = (uint64_t)(t->offset + at / t->row_length * t->row_stride + column);
        uint64_t room = next_high_word(index) - index;
        count = count < end - at ? count : end - at;
        count = (uint64_t)count < room ? count : (int64_t)room;
        if (t->param_type == FLOAT64) {
            double *momentum = p->o->momentum != 0.0 ? (double *)t->momentum + at : NULL;
            double *sum = t->sum ? (double *)t->sum + at : NULL;
            place64 place = {(double *)t->param + at, (const double *)t->grad + at, sum, momentum};
            if (p->is_wide && sum) update_wide64(&p->wide, place, count, index, &noise);
            else if (p->is_wide) update_wide_bare64(&p->wide, place, count, index, &noise);
            else if (sum) update64(&p->rule64, place, count, index, &noise);
            else update_bare64(&p->rule64, place, count, index, &noise);
        } else if (p->is_wide) {
            update_wide_staged(p, t, at, count, index, noise);
        } else if (is_direct) {
            float *sum = t->sum ? (float *)t->sum + at : NULL;
            run r = {(float *)t->param + at, (const float *)t->grad + at, sum, count, index, noise};
            (sum ? p->update : p->update_bare)(&p->rule, &r);
        } else {
            update_staged(p, t, at, count, index, noise);
        }
        at += count;
    }
}

/* Update elements [from, to) of the list. */
static void update_range(step_plan *p, const tensor *tensors, int64_t from, int64_t to) {
    int64_t begin = 0;
    for (const tensor *t = tensors; begin < to; begin += t->count, t++) {
        int64_t first = from > begin ? from - begin : 0, last = to - begin;
        last = last < t->count ? last : t->count;
        if (first < last) update_part(p, t, first, last);
    }
}

/* Largest and smallest chunk of a thread. Below the smallest a second thread does not pay. */
enum { CHUNK = 1 << 15, SMALLEST = 1 << 13 };

/* With noise, arithmetic sets the pace, and small chunks let a delayed thread do less of the work.
 * Without noise, memory sets the pace, and serves one long stream per thread best. */
static int64_t chunk_of(int64_t total, const options *o) {
    int64_t pieces = draws(o) ? 8 * o->threads : o->threads;
    int64_t chunk = (total + pieces * BLOCK - 1) / (pieces * BLOCK) * BLOCK;
    if (draws(o) && chunk > CHUNK) chunk = CHUNK;
    return chunk < SMALLEST ? SMALLEST : chunk;
}

static void update_all(const tensor *tensors, int64_t total, const options *o) {
    if (o->threads == 1 || total <= 2 * SMALLEST) {
        step_plan p;
        plan_step(&p, o);
        update_range(&p, tensors, 0, total);
        return;
    }
    const int64_t chunk = chunk_of(total, o);
#pragma omp parallel num_threads(o->threads)
    {
        step_plan p;
        plan_step(&p, o);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t from = 0; from < total; from += chunk)
            update_range(&p, tensors, from, from + chunk < total ? from + chunk : total);
    }
}

/* The version of the structs above. asgld.optim._native asks for it: a library of another version
   would misread the addresses it is given. Raise it there and here with every change of a struct or
   of its meaning. */
EXPORT int32_t asgld_interface(void) { return 2; }

/* Whether every step count fits the noise counter. */
EXPORT int32_t asgld_can_count(const tensor *tensors, int64_t number) {
    for (int64_t i = 0; i < number; i++)
        if (*tensors[i].step < 0 || *tensors[i].step > UINT32_MAX) return 0;
    return 1;
}

/* Take a step and return 0. Or change nothing and return 1: a step count does not fit the counter. */
EXPORT int32_t asgld_step(const tensor *tensors, int64_t number, const options *o) {
    int64_t total = 0;
    if (!asgld_can_count(tensors, number)) return 1;
    for (int64_t i = 0; i < number; i++) total += tensors[i].count;
    if (total > 0) update_all(tensors, total, o);
    for (int64_t i = 0; i < number; i++) ++*tensors[i].step;
    return 0;
}

"""The GPU kernels of the update per coordinate; `_triton_matrix` has those of matrices.

`update_chunk` has one program per chunk of a tensor. The program finds the tensor in a table of
addresses. One call of Philox serves four elements. `begin_step` runs first where the host may not
count the steps (a captured graph, a gradient scaler) or where the coefficients of a step are not
simple (a D that forgets). It has one lane per tensor. The lane computes the coefficients that all
elements of the tensor share at this step, and advances the step count.

The code says where a multiplication and an addition are fused (`tl.fma`); the compiler fuses no
others. So an element gets the same bits in every list, chunk and shard.

With TRITON_INTERPRET=1 in the environment when this file is imported, the kernels run on the CPU,
for tests.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from asgld import noise
from asgld.noise import Purpose, rounds_of

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# Columns of the table of addresses: one row of 64-bit integers per tensor.
PARAM, SUM, MOMENTUM, STEP = (tl.constexpr(i) for i in range(4))
COUNT, OFFSET, ROW_LENGTH, ROW_STRIDE, STREAM = (tl.constexpr(i) for i in range(4, 9))
ROW = tl.constexpr(9)
# Columns of the coefficients: one row in the working precision per tensor; see
# asgld.optim.functional.Coefficients.
LR, NOISE, KEEP, CORRECTION, SHIFT = (tl.constexpr(i) for i in range(5))
BOUND, GAIN, FACTOR, SKIPS = (tl.constexpr(i) for i in range(5, 9))
SHARED = tl.constexpr(9)
# Columns of the knobs: one row of doubles, the numbers of asgld.optim.rule.Rule in its order.
LEARNING_RATE, ALPHA, BETA, SIGMA, DELTA, D_INIT = (tl.constexpr(i) for i in range(6))
WEIGHT_DECAY, DECAY, INERTIA, CLIP, ANNEALING = (tl.constexpr(i) for i in range(6, 11))
OPPOSED, NOISE_RATIO, NOISE_BOUND = (tl.constexpr(i) for i in range(11, 14))

# Purposes of random words, and their rounds of Philox; see asgld.noise.
MAX_STEP = tl.constexpr(noise.MAX_STEP)
UPDATE, ROUND = tl.constexpr(Purpose.UPDATE.value), tl.constexpr(Purpose.ROUND.value)
ROUNDS, ROUNDS_OF_ROUND = (tl.constexpr(rounds_of(p)) for p in (Purpose.UPDATE, Purpose.ROUND))

# Ways to take a power of D.
NO_NOISE, ONE, ROOT, WHOLE, GENERAL = (tl.constexpr(i) for i in range(5))
_IN_PTX = tl.constexpr(not IS_INTERPRETED and torch.version.hip is None)
PART = 1024  # elements that a program has in registers


# ----------------------------------------------------------------------------------------------
# Random numbers: the contract of asgld.noise
# ----------------------------------------------------------------------------------------------


@triton.jit
def _multiply(word, by: tl.constexpr):
    """Return the 64 bits of a product of two words. NVIDIA has one instruction for it; products of
    64-bit integers, or the two halves on their own, take two."""
    if _IN_PTX:
        return tl.inline_asm_elementwise(
            "mul.wide.u32 $0, $1, $2;", "=l,r,r", [word, by], tl.uint64, is_pure=True, pack=1
        )
    else:
        return word.to(tl.uint64) * by


@triton.jit
def _philox(q, purpose: tl.constexpr, step, stream, seed):
    """Return the four unsigned words of each block number in q. All arguments have 64 bits."""
    c0 = q.to(tl.uint32)
    c1 = ((q >> 32) | (purpose << 29)).to(tl.uint32)
    c2 = (q * 0 + step).to(tl.uint32)
    c3 = (q * 0 + stream).to(tl.uint32)
    key_0 = seed & 0xFFFFFFFF
    key_1 = (seed >> 32) & 0xFFFFFFFF
    for _ in tl.static_range(ROUNDS_OF_ROUND if purpose == ROUND else ROUNDS):
        product_0 = _multiply(c0, 0xD2511F53)
        product_1 = _multiply(c2, 0xCD9E8D57)
        c0 = (product_1 >> 32).to(tl.uint32) ^ c1 ^ key_0.to(tl.uint32)
        c2 = (product_0 >> 32).to(tl.uint32) ^ c3 ^ key_1.to(tl.uint32)
        c1 = product_1.to(tl.uint32)
        c3 = product_0.to(tl.uint32)
        key_0 = (key_0 + 0x9E3779B9) & 0xFFFFFFFF
        key_1 = (key_1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


@triton.jit
def _box_muller(radius_word, angle_word, is_double: tl.constexpr):
    """Return two normals from two words."""
    signed = angle_word.to(tl.int32, bitcast=True)
    if is_double:
        u = (radius_word >> 1).to(tl.float64) * 4.656612873077393e-10 + 2.3283064365386963e-10
        radius = tl.sqrt(-2.0 * tl.log(u))
        angle = signed.to(tl.float64) * 4.656612873077393e-10 * 3.141592653589793
        return radius * tl.cos(angle), radius * tl.sin(angle)
    else:
        # As in native/noise.h: u = m 2^e with m in [0.75, 1.5), -log2 u = f p(f) - e, f = m - 1.
        scaled = (radius_word >> 1).to(tl.int32, bitcast=True).to(tl.float32) + 0.5
        bits = scaled.to(tl.int32, bitcast=True) - (31 << 23)
        exponent = (bits - 0x3F400000) >> 23
        f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
        p = tl.fma(f, -0.07884601503610611, 0.17586565017700195)
        p = tl.fma(p, f, -0.2170587182044983)
        p = tl.fma(p, f, 0.24259524047374725)
        p = tl.fma(p, f, -0.28809109330177307)
        p = tl.fma(p, f, 0.36057981848716736)
        p = tl.fma(p, f, -0.48090577125549316)
        p = tl.fma(p, f, 0.7213482856750488)
        p = tl.fma(p, f, -1.4426950216293335)
        radius = tl.sqrt(tl.fma(p, f, -exponent.to(tl.float32)))
        # T = |2t|, w = 1 - T, a = T (2 - T): |sin(pi t)| = a s(a), cos(pi t) = w c(a). Both have
        # the factor sqrt(2 ln 2) that turns log2 into ln.
        t = signed.to(tl.float32) * 9.313225746154785e-10
        size = tl.abs(t)
        rest = 2.0 - size
        a = size * rest
        s = tl.fma(a, 2.71981734840665e-05, 0.0009420976275578141)
        s = tl.fma(s, a, 0.02052103541791439)
        s = tl.fma(s, a, 0.23118402063846588)
        s = tl.fma(s, a, 0.9247356653213501)
        c = tl.fma(a, 0.00017607682093512267, 0.004794150125235319)
        c = tl.fma(c, a, 0.07838577777147293)
        c = tl.fma(c, a, 0.58870530128479)
        c = tl.fma(c, a, 1.1774100065231323)
        return (1.0 - size) * c * radius, t * rest * s * radius


@triton.jit
def _interleave(a, b, c, d, size: tl.constexpr):
    """Return the `size` / 4 rows a0 b0 c0 d0, a1 b1 c1 d1, ..."""
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [size // 4, 4])


@triton.jit
def _words(
    index, purpose: tl.constexpr, step, stream, seed, size: tl.constexpr, in_fours: tl.constexpr
):
    """Return rows of four words. `in_fours`: an index stands for four elements, else for one."""
    w0, w1, w2, w3 = _philox(index >> 2, purpose, step, stream, seed)
    if in_fours:
        return _interleave(w0, w1, w2, w3, size)
    else:
        even, odd = _pick(index, w0, w1, w2, w3)
        return tl.where((index & 1) != 0, odd, even)


@triton.jit
def _pick(index, w0, w1, w2, w3):
    """Return the two words of an element's normal."""
    is_first = (index & 2) == 0
    return tl.where(is_first, w0, w2), tl.where(is_first, w1, w3)


@triton.jit
def _normals(
    index, step, stream, seed, size: tl.constexpr, in_fours: tl.constexpr, is_double: tl.constexpr
):
    """Return rows of four normals. `in_fours`: an index stands for four elements, else for one."""
    w0, w1, w2, w3 = _philox(index >> 2, UPDATE, step, stream, seed)
    if in_fours:
        z0, z1 = _box_muller(w0, w1, is_double)
        z2, z3 = _box_muller(w2, w3, is_double)
        return _interleave(z0, z1, z2, z3, size)
    else:
        even, odd = _pick(index, w0, w1, w2, w3)
        cosine, sine = _box_muller(even, odd, is_double)
        return tl.where((index & 1) != 0, sine, cosine)


# ----------------------------------------------------------------------------------------------
# The step
# ----------------------------------------------------------------------------------------------


@triton.jit
def begin_step(
    rows, shared, taken, knobs, lr_high, lr_low, lr_tensor, grad_scale, found_inf, number,
    has_lr: tl.constexpr, has_scale: tl.constexpr, has_inf: tl.constexpr,
    forgets: tl.constexpr, fills: tl.constexpr, anneals: tl.constexpr, clips: tl.constexpr,
    follows_lr: tl.constexpr, is_bounded: tl.constexpr, waits: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    """Compute the coefficients of this step, one tensor per lane, and advance the step counts. The
    formulas are those of asgld.optim.functional.coefficients."""
    if waits:
        gdc_launch_dependents()
    i = tl.program_id(0) * lanes + tl.arange(0, lanes)
    mask = i < number
    counter = tl.load(rows + i * ROW + STEP, mask, other=0).to(tl.pointer_type(tl.int64))
    k = tl.load(counter, mask, other=0)
    later = tl.maximum(k, 1).to(tl.float64)
    zero = later * 0.0
    if has_lr:
        lr = tl.load(lr_tensor).to(tl.float64) + zero
    else:
        lr = zero + lr_high + lr_low
    # The host has not checked lr and count here. If one is illegal, the step changes nothing.
    is_legal = (lr >= 0.0) & (lr < float("inf")) & (k >= 0) & (k <= MAX_STEP)
    if follows_lr:
        noise = lr * tl.load(knobs + NOISE_RATIO)
    else:
        noise = tl.sqrt(2.0 * tl.maximum(lr, 0.0)) * tl.load(knobs + SIGMA)
    if anneals:
        noise *= tl.exp2(-0.5 * tl.load(knobs + ANNEALING) * tl.log2(later))
    bound = zero
    if clips:
        bound = tl.exp2(tl.load(knobs + CLIP) * tl.log2(later))
    gain = 1.0 - tl.load(knobs + INERTIA) + zero
    delta, d_init = tl.load(knobs + DELTA), tl.load(knobs + D_INIT)
    correction = zero + 1.0
    if forgets:
        log_decay = tl.log2(tl.load(knobs + DECAY))
        if fills:
            # There is no D yet to scale the first gradient: the gradient only enters the average.
            is_first = k == 0
            lr = tl.where(is_first, 0.0, lr)
            noise = tl.where(is_first, 0.0, noise)
            gain = tl.where(is_first, 0.0, gain)
            shift = tl.where(is_first, 1.0, zero + delta)
            correction = tl.where(is_first, 0.0, 1.0 / (1.0 - tl.exp2(later * log_decay)))
        else:
            shift = delta + tl.exp2(k.to(tl.float64) * log_decay) * d_init
    else:
        shift = d_init + delta * k.to(tl.float64)
    if is_bounded:
        bound_of_noise = tl.load(knobs + NOISE_BOUND) * lr * tl.sqrt(later)
        ratio = noise / tl.where(bound_of_noise > 0.0, bound_of_noise, 1.0)
        floor = tl.exp2(2.0 / tl.load(knobs + BETA) * tl.log2(ratio))
        shift += tl.where((bound_of_noise > 0.0) & (noise > 0.0), floor, 0.0)
    factor = zero + 1.0
    if has_scale:
        factor = 1.0 / (tl.load(grad_scale).to(tl.float64) + zero)
    skips = tl.where(is_legal, zero, 1.0)
    if has_inf:
        skips = tl.where(tl.load(found_inf).to(tl.float64) + zero != 0.0, 1.0, skips)
    row = shared + i * SHARED
    tl.store(row + LR, lr, mask)
    tl.store(row + NOISE, noise, mask)
    tl.store(row + KEEP, 1.0 - lr * tl.load(knobs + WEIGHT_DECAY), mask)
    tl.store(row + CORRECTION, correction, mask)
    tl.store(row + SHIFT, shift, mask)
    tl.store(row + BOUND, bound, mask)
    tl.store(row + GAIN, gain, mask)
    tl.store(row + FACTOR, factor, mask)
    tl.store(taken + i, k, mask)
    tl.store(row + SKIPS, skips, mask)
    tl.store(counter, tl.where(skips != 0.0, k, k + 1), mask)


@triton.jit
def _inverse_power(metric, kind: tl.constexpr, exponent):
    """Return D^(-exponent / 2); `exponent` is an address."""
    if kind == ROOT:
        return tl.rsqrt(metric)
    elif kind == WHOLE:
        return 1.0 / metric
    else:
        return tl.exp2(tl.log2(metric) * (-0.5 * tl.load(exponent)).to(metric.dtype))


@triton.jit
def _round(value, word, into: tl.constexpr):
    """Round float32 to bfloat16 or float16 at random, without bias; see
    asgld.noise.round_stochastically."""
    bits = value.to(tl.uint32, bitcast=True)
    if into == tl.bfloat16:
        # The upper half of the bits is the result. Infinities have no lower half to carry from.
        upper = ((bits + (word & 0xFFFF)) >> 16).to(tl.uint16)
        return tl.where(value == value, upper, 0x7FC0).to(tl.uint16).to(into, bitcast=True)
    else:
        noisy = (bits + (word & 0x1FFF)) & 0xFFFFE000
        size = tl.abs(value)
        is_plain = (size >= 6.103515625e-05) & (size < 65504.0)
        return tl.where(is_plain, noisy.to(tl.float32, bitcast=True), value).to(into)


@triton.jit
def _update_part(
    param, grad, total, average, first, count, offset, length, stride, step, stream, seed,
    lr, noise, keep, correction, shift, bound, gain, factor, inertia, decay, weight, powers,
    param_type: tl.constexpr, sum_type: tl.constexpr,
    alpha: tl.constexpr, beta: tl.constexpr, is_tied: tl.constexpr,
    decays: tl.constexpr, maximizes: tl.constexpr, is_scaled: tl.constexpr, forgets: tl.constexpr,
    clips: tl.constexpr, has_sum: tl.constexpr, has_momentum: tl.constexpr,
    opposed: tl.constexpr, rounds: tl.constexpr,
    has_rows: tl.constexpr, in_fours: tl.constexpr, is_masked: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Update `size` elements of a tensor from `first` on."""
    is_double: tl.constexpr = param_type == tl.float64
    work: tl.constexpr = tl.float64 if is_double else tl.float32
    # Rows of four, for every dtype: a thread then holds the four elements of its block of words in
    # all of its tensors, and threads exchange nothing.
    quad = tl.arange(0, size // 4) * 4
    j = quad[:, None] + tl.arange(0, 4)[None, :]
    if is_masked:
        mask = first + j < count
    else:
        mask = None
    x = tl.load(param + first + j, mask).to(work)
    g = tl.load(grad + first + j, mask).to(work)
    if has_sum:
        s = tl.load(total + first + j, mask).to(work)
    if maximizes:
        g = -g
    if is_scaled:
        g = g * factor

    if has_sum:
        if forgets:
            metric = tl.fma(s, correction, shift)
        else:
            metric = s + shift
        # An infinite D must not look like a coordinate that waits.
        metric = tl.where(metric < float("inf"), metric, float("nan"))
    u = g
    if alpha != ONE:
        inverse = _inverse_power(metric, alpha, powers)
        u = g * inverse
    if clips:
        # Not by minimum and maximum: they would take NaN for a bound.
        u = tl.where(u > bound, bound, tl.where(u < -bound, -bound, u))
    if has_momentum:
        u = tl.fma(u, gain, tl.load(average + first + j, mask) * inertia)
        tl.store(average + first + j, u, mask)
        if opposed != 1.0:
            is_opposed = ((u < 0.0) & (g >= 0.0)) | ((u > 0.0) & (g <= 0.0))
            u = tl.where(is_opposed, u * tl.full((), opposed, u.dtype), u)
            if opposed < 0.0:
                u = tl.where(g == 0.0, u * tl.full((), 0.0, u.dtype), u)
    if decays:
        x = x * keep
    x = tl.fma(u, -lr, x)

    if in_fours:
        local = first + quad
    else:
        local = first + j
    index = offset + local
    if has_rows:
        index += local // length * (stride - length)
    if beta != NO_NOISE:
        z = _normals(index, step, stream, seed, size, in_fours, is_double)
        if is_tied:
            z = z * inverse
        elif beta != ONE:
            z = z * _inverse_power(metric, beta, powers + 1)
        x = tl.fma(z, noise, x)

    if has_sum:
        if forgets:
            s = tl.fma(g * weight, g, s * decay)
        else:
            s = tl.fma(g, g, s)
    rounds_param: tl.constexpr = rounds and (param_type == tl.bfloat16 or param_type == tl.float16)
    rounds_sum: tl.constexpr = rounds and has_sum and sum_type == tl.bfloat16
    if rounds_param or rounds_sum:
        word = _words(index, ROUND, step, stream, seed, size, in_fours)
    if rounds_param:
        tl.store(param + first + j, _round(x, word, param_type), mask)
    else:
        tl.store(param + first + j, x.to(param_type), mask)
    if rounds_sum:
        tl.store(total + first + j, _round(s, word >> 16, sum_type), mask)
    elif has_sum:
        tl.store(total + first + j, s.to(sum_type), mask)


@triton.jit(do_not_specialize=["num_steps"])
def update_chunk(
    rows, grads, shared, taken, knobs, seeds, chunks, num_steps, lr, noise, keep,
    param_type: tl.constexpr, grad_type: tl.constexpr, sum_type: tl.constexpr,
    alpha: tl.constexpr, beta: tl.constexpr, is_tied: tl.constexpr,
    decays: tl.constexpr, maximizes: tl.constexpr, is_scaled: tl.constexpr, forgets: tl.constexpr,
    clips: tl.constexpr, has_sum: tl.constexpr, has_momentum: tl.constexpr,
    opposed: tl.constexpr, rounds: tl.constexpr,
    has_rows: tl.constexpr, in_fours: tl.constexpr, is_aligned: tl.constexpr,
    waits: tl.constexpr, is_alone: tl.constexpr, chunk: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Update one chunk of one tensor, `size` elements at a time. With `is_alone` no `begin_step`
    ran: this is step `num_steps` after the counts in `taken`, and the host passes lr, noise, keep.
    """
    work: tl.constexpr = tl.float64 if param_type == tl.float64 else tl.float32
    place = tl.load(chunks + tl.program_id(0))
    which = place & 0xFFFFFFFF
    begin = (place >> 32) * chunk
    row = rows + which * ROW
    param = tl.load(row + PARAM).to(tl.pointer_type(param_type))
    grad = tl.load(grads + which).to(tl.pointer_type(grad_type))
    total = tl.load(row + SUM).to(tl.pointer_type(sum_type))
    average = tl.load(row + MOMENTUM).to(tl.pointer_type(work))
    if is_aligned:
        param = tl.multiple_of(param, 16)
        grad = tl.multiple_of(grad, 16)
        total = tl.multiple_of(total, 16)
        average = tl.multiple_of(average, 16)
    count = tl.load(row + COUNT)
    offset, stream = tl.load(row + OFFSET), tl.load(row + STREAM)
    length, stride = tl.load(row + ROW_LENGTH), tl.load(row + ROW_STRIDE)
    seed = tl.load(seeds)
    inertia = tl.load(knobs + INERTIA).to(work)
    decay = tl.load(knobs + DECAY)
    weight = (1.0 - decay).to(work)
    if is_alone:
        step = tl.load(taken + which) + num_steps
        shift = (tl.load(knobs + D_INIT) + tl.load(knobs + DELTA) * step.to(tl.float64)).to(work)
        correction, bound, gain, factor = lr, lr, lr, lr  # not used
        skips = (step < 0) | (step > MAX_STEP)
        if (begin == 0) & (not skips):  # the first chunk writes the count; no chunk reads it
            tl.store(tl.load(row + STEP).to(tl.pointer_type(tl.int64)), step + 1)
    else:
        if waits:
            gdc_wait()
        step = tl.load(taken + which)
        common = shared + which * SHARED
        lr, noise = tl.load(common + LR), tl.load(common + NOISE)
        keep, correction = tl.load(common + KEEP), tl.load(common + CORRECTION)
        shift, bound = tl.load(common + SHIFT), tl.load(common + BOUND)
        gain, factor = tl.load(common + GAIN), tl.load(common + FACTOR)
        skips = tl.load(common + SKIPS) != 0.0
    end = tl.where(skips, begin, tl.minimum(begin + chunk, count))
    for first in range(begin, end, size):
        # Loads without a mask are wider.
        if first + size <= end:
            _update_part(
                param, grad, total, average, first, end, offset, length, stride, step, stream,
                seed, lr, noise, keep, correction, shift, bound, gain, factor, inertia,
                decay.to(work), weight, knobs + ALPHA, param_type, sum_type, alpha, beta, is_tied,
                decays, maximizes, is_scaled, forgets, clips, has_sum, has_momentum, opposed,
                rounds, has_rows, in_fours, False, size,
            )  # fmt: skip
        else:
            _update_part(
                param, grad, total, average, first, end, offset, length, stride, step, stream,
                seed, lr, noise, keep, correction, shift, bound, gain, factor, inertia,
                decay.to(work), weight, knobs + ALPHA, param_type, sum_type, alpha, beta, is_tied,
                decays, maximizes, is_scaled, forgets, clips, has_sum, has_momentum, opposed,
                rounds, has_rows, in_fours, True, size,
            )  # fmt: skip

/* Conversions between float32 and the stored dtypes, and stochastic rounding. */
#ifndef ASGLD_CONVERT_H
#define ASGLD_CONVERT_H

#include "noise.h"

enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 };

static const int64_t SIZE_OF[] = {4, 8, 2, 2};

INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE float of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE uint16_t to_bfloat16(float x) {
    uint32_t bits = bits_of(x);
    return x != x ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Powers of two align the mantissas, and the processor rounds to nearest, ties to even. */
INLINE uint16_t to_float16(float x) {
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 0x1ff));
    if (size >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000) /* subnormal: 0.5 has the last place of float16's smallest */
        return (uint16_t)(sign | (bits_of(of_bits(size) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13));
}

INLINE float of_float16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, size = half & 0x7fff;
    if (size >= 0x7c00) /* infinite or NAN, which becomes a quiet NAN */
        return of_bits(sign | 0x7f800000 | size << 13 | (size > 0x7c00 ? 1u << 22 : 0));
    float x = size < 0x400 ? (float)size * 0x1p-24f : of_bits((size << 13) + 0x38000000);
    return of_bits(sign | bits_of(x));
}

static void widen(int type, const void *from, int64_t at, float *to, int64_t count) {
    const uint16_t *half = (const uint16_t *)from + at;
    int64_t i = 0;
    if (type == FLOAT32) memcpy(to, (const float *)from + at, (size_t)count * sizeof(float));
    if (type == FLOAT64)
        for (; i < count; i++) to[i] = (float)((const double *)from)[at + i];
    if (type == BFLOAT16)
        for (; i < count; i++) to[i] = of_bits((uint32_t)half[i] << 16);
    if (type == FLOAT16) {
#if defined(__F16C__)
        for (; i + 8 <= count; i += 8)
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + i))));
#endif
        for (; i < count; i++) to[i] = of_float16(half[i]);
    }
}

static void narrow(int type, const float *from, void *to, int64_t at, int64_t count) {
    uint16_t *half = (uint16_t *)to + at;
    int64_t i = 0;
    if (type == FLOAT32 && from != (float *)to + at)
        memcpy((float *)to + at, from, (size_t)count * sizeof(float));
    if (type == FLOAT64)
        for (; i < count; i++) ((double *)to)[at + i] = from[i];
    if (type == BFLOAT16)
        for (; i < count; i++) half[i] = to_bfloat16(from[i]);
    if (type == FLOAT16) {
#if defined(__F16C__)
        for (; i + 8 <= count; i += 8)
            _mm_storeu_si128((__m128i *)(half + i),
                             _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
        for (; i < count; i++) half[i] = to_float16(from[i]);
    }
}

/* Make what `narrow` stores an unbiased choice between the two nearest values: random bits are
 * added below the bits that will stay, and the sum is cut off there. */
static void dither(int type, float *x, const uint32_t *words, int64_t count) {
    const uint32_t mask = type == BFLOAT16 ? 0xffff : 0x1fff;
    const float low = type == BFLOAT16 ? 0.0f : 0x1p-14f; /* float16 keeps to its normal range */
    const float high = type == BFLOAT16 ? INFINITY : 65504.0f;
    for (int64_t i = 0; i < count; i++) {
        float size = fabsf(x[i]), noisy = of_bits((bits_of(x[i]) + (words[i] & mask)) & ~mask);
        x[i] = size >= low && size < high ? noisy : x[i];
    }
}

#endif

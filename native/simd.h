/* One vector of floats or words, and the few operations that C has no operator for.
 *
 * The width is the only difference between the builds. Every operation is correctly rounded or an
 * integer one, so all builds give the same bits. */
#ifndef ASGLD_SIMD_H
#define ASGLD_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernel reads 64-bit products as pairs of words, low word first"
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 128")
#define UNROLL_BY_4 _Pragma("GCC unroll 4")

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define LANES 16
#define V(operation) _mm512_##operation
typedef __m512i native_int;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LANES 8
#define V(operation) _mm256_##operation
typedef __m256i native_int;
#else
#define LANES 4
#endif

typedef float f32v __attribute__((vector_size(4 * LANES)));
typedef int32_t i32v __attribute__((vector_size(4 * LANES)));
typedef uint32_t u32v __attribute__((vector_size(4 * LANES)));
typedef uint64_t u64v __attribute__((vector_size(4 * LANES)));

INLINE u32v splat_word(uint32_t x) { return (u32v){0} + x; }

/* The word in the low half, where multiplications read, of every 64-bit lane. */
INLINE u32v splat_low(uint32_t x) { return (u32v)((u64v){0} + x); }

INLINE f32v splat(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (f32v)splat_word(bits);
}

/* Return the pointer, but hide from the compiler that it is the same one every time. With 16 lanes
 * there are more constants than registers. The compiler would keep the constants as vectors, and
 * broadcasting them from memory is faster. */
INLINE const void *opaque(const void *pointer) {
#if LANES == 16
    __asm__ volatile("" : "+r"(pointer));
#endif
    return pointer;
}

INLINE f32v load(const float *from) {
    f32v v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store(float *to, f32v v) { memcpy(to, &v, sizeof v); }
/* Whether any word is above the bound. */
INLINE int any_above(u32v v, uint32_t bound) {
#if LANES == 16
    return _mm512_cmpgt_epu32_mask((__m512i)v, (__m512i)splat_word(bound)) != 0;
#else
    u32v is_above = (u32v)(v > bound);
#if LANES == 8
    return _mm256_movemask_epi8((__m256i)is_above) != 0;
#else
    uint32_t any = 0;
    UNROLL for (int i = 0; i < LANES; i++) any |= is_above[i];
    return any != 0;
#endif
#endif
}

/* table[index % 32] */
INLINE f32v lookup32(const float *table, u32v index) {
#if LANES == 16
    return _mm512_permutex2var_ps(load(table), (__m512i)index, load(table + 16));
#elif LANES == 8
    return _mm256_i32gather_ps(table, (__m256i)(index & 31u), 4);
#else
    return (f32v){table[index[0] & 31], table[index[1] & 31], table[index[2] & 31],
                  table[index[3] & 31]};
#endif
}

INLINE f32v to_float(u32v v) { return __builtin_convertvector((i32v)v, f32v); }
INLINE u32v high_to_low(u32v v) { return (u32v)((u64v)v >> 32); }

#if LANES > 4

INLINE f32v fma32(f32v a, f32v b, f32v c) { return V(fmadd_ps)(a, b, c); }   /* ab + c */
INLINE f32v fms32(f32v a, f32v b, f32v c) { return V(fmsub_ps)(a, b, c); }   /* ab - c */
INLINE f32v fnma32(f32v a, f32v b, f32v c) { return V(fnmadd_ps)(a, b, c); } /* c - ab */
INLINE f32v sqrt32(f32v a) { return V(sqrt_ps)(a); }
INLINE f32v clamp32(f32v a, f32v bound) { /* NAN stays NAN */
    return V(min_ps)(bound, V(max_ps)(-bound, a));
}
INLINE f32v interleave_low(f32v a, f32v b) { return V(unpacklo_ps)(a, b); }
INLINE f32v interleave_high(f32v a, f32v b) { return V(unpackhi_ps)(a, b); }

/* D, with NAN where it is infinite: what is divided by an infinite D is zero, and would look like a
 * coordinate that waits, for ever. */
INLINE f32v visible(f32v d) { return fma32(d, splat(0.0f), d); }

/* 64-bit products of the low words. */
INLINE u32v multiply_low(u32v a, u32v b) {
    return (u32v)V(mul_epu32)((native_int)a, (native_int)b);
}

/* a 2^-power for a = 0 or |a| >= 1: saturation keeps zero, and no multiplier is occupied. */
INLINE f32v scale_down(f32v a, int power) {
    return (f32v)V(subs_epu16)((native_int)a, (native_int)splat_word((uint32_t)power << 23));
}

#else

#if defined(__FP_FAST_FMAF) || !defined(__SSE2__)
INLINE f32v fma32(f32v a, f32v b, f32v c) {
    f32v v;
    UNROLL for (int i = 0; i < LANES; i++) v[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return v;
}
#else
/* The product is exact in double, and rounding the sum to odd makes the second rounding harmless
 * (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008). */
static __attribute__((noinline, cold)) f32v fma_with_care(f32v a, f32v b, f32v c) {
    f32v v;
    for (int i = 0; i < LANES; i++) {
        double product = (double)a[i] * b[i], sum = product + c[i], back = sum - product;
        double error = (product - (sum - back)) + (c[i] - back);
        int64_t bits;
        memcpy(&bits, &sum, sizeof bits);
        int is_inexact = error < 0.0 || error > 0.0; /* false where the sum is not finite */
        if (is_inexact && !(bits & 1)) bits += (error > 0.0) == (sum > 0.0) ? 1 : -1;
        memcpy(&sum, &bits, sizeof sum);
        v[i] = (float)sum;
    }
    return v;
}

/* Two roundings differ from one only where the first ends half-way between floats, or where the
 * result is subnormal. */
static __attribute__((noinline)) f32v fma32(f32v a, f32v b, f32v c) {
    __m128d low = _mm_cvtps_pd(a) * _mm_cvtps_pd(b) + _mm_cvtps_pd(c);
    __m128d high = _mm_cvtps_pd(_mm_movehl_ps(a, a)) * _mm_cvtps_pd(_mm_movehl_ps(b, b)) +
                   _mm_cvtps_pd(_mm_movehl_ps(c, c));
    i32v end = (i32v)_mm_shuffle_ps((__m128)low, (__m128)high, _MM_SHUFFLE(2, 0, 2, 0));
    f32v v = _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
    i32v needs_care = ((end & 0x1fffffff) == 0x10000000) | (((i32v)v & 0x7fffffff) <= 0x00800000);
    if (__builtin_expect(_mm_movemask_epi8((__m128i)needs_care), 0)) return fma_with_care(a, b, c);
    return v;
}
#endif

INLINE f32v fms32(f32v a, f32v b, f32v c) { return fma32(a, b, -c); }
INLINE f32v fnma32(f32v a, f32v b, f32v c) { return fma32(-a, b, c); }

INLINE f32v sqrt32(f32v a) {
    f32v v;
    UNROLL for (int i = 0; i < LANES; i++) v[i] = __builtin_sqrtf(a[i]);
    return v;
}

INLINE f32v clamp32(f32v a, f32v bound) {
    UNROLL for (int i = 0; i < LANES; i++)
        a[i] = a[i] > bound[i] ? bound[i] : a[i] < -bound[i] ? -bound[i] : a[i];
    return a;
}

INLINE f32v visible(f32v d) { return d + (d - d); }

INLINE f32v interleave_low(f32v a, f32v b) { return (f32v){a[0], b[0], a[1], b[1]}; }
INLINE f32v interleave_high(f32v a, f32v b) { return (f32v){a[2], b[2], a[3], b[3]}; }

INLINE u32v multiply_low(u32v a, u32v b) {
#if defined(__SSE2__)
    return (u32v)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (u32v)(((u64v)a & 0xffffffffu) * ((u64v)b & 0xffffffffu));
#endif
}

INLINE f32v scale_down(f32v a, int power) { return a * ldexpf(1.0f, -power); }

#endif

#if LANES == 16

INLINE u32v xor3(u32v a, u32v b, u32v c) {
    return (u32v)_mm512_ternarylogic_epi32((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
}

/* (low of a, low of b) and (high of a, high of b) in every 64-bit lane. */
INLINE u32v pair_low(u32v a, u32v b) {
    return (u32v)_mm512_mask_shuffle_epi32((__m512i)a, 0xAAAA, (__m512i)b, _MM_PERM_CCAA);
}

INLINE u32v pair_high(u32v a, u32v b) {
    return (u32v)_mm512_mask_shuffle_epi32((__m512i)b, 0x5555, (__m512i)a, _MM_PERM_DDBB);
}

/* The mantissa of a positive normal number, in [0.75, 1.5). */
INLINE f32v mantissa(f32v a) {
    return _mm512_getmant_ps(a, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
}

#else

INLINE u32v xor3(u32v a, u32v b, u32v c) { return a ^ b ^ c; }

#if LANES == 8
INLINE u32v pair_low(u32v a, u32v b) {
    return (u32v)_mm256_blend_epi32((__m256i)a, _mm256_slli_epi64((__m256i)b, 32), 0xAA);
}

INLINE u32v pair_high(u32v a, u32v b) {
    return (u32v)_mm256_blend_epi32(_mm256_srli_epi64((__m256i)a, 32), (__m256i)b, 0xAA);
}
#else
INLINE u32v pair_low(u32v a, u32v b) {
    return (u32v)(((u64v)a & 0xffffffffu) | ((u64v)b << 32));
}

INLINE u32v pair_high(u32v a, u32v b) {
    return (u32v)(((u64v)a >> 32) | ((u64v)b & 0xffffffff00000000u));
}
#endif

INLINE f32v mantissa(f32v a) {
    return (f32v)((u32v)a - (((u32v)a - 0x3f400000u) & 0xff800000u));
}

#endif
#endif

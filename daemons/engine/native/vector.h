// Vectors of the widest kind that the compiler may use, and what is done with them.
//
// Arithmetic is written with the compiler's vector types, so that it compiles everywhere; only
// what these cannot say (bf16 dot products, transposes) is written for AVX-512 as well.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace pd {

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

using Floats = float __attribute__((vector_size(LANES * 4)));
using Ints = int32_t __attribute__((vector_size(LANES * 4)));
using Words = uint32_t __attribute__((vector_size(LANES * 4)));

// A bf16 is the upper half of a float.
struct Bf16 {
    uint16_t bits;
};

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

inline Floats load(const float* from) {
    Floats all;
    std::memcpy(&all, from, sizeof all);
    return all;
}
inline void store(float* to, Floats all) { std::memcpy(to, &all, sizeof all); }
inline Floats all(float one) { return one - Floats{}; }

inline Ints counted() {  // 0, 1, 2, ...
    Ints out;
    for (int i = 0; i < LANES; i++) out[i] = i;
    return out;
}

inline float widen(float x) { return x; }
inline float widen(Bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}
inline void narrow(float x, float& to) { to = x; }
inline void narrow(float x, Bf16& to) {  // to nearest, ties to even; a NaN stays one
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        to.bits = uint16_t((bits >> 16) | 0x40);
    } else {
        to.bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

inline Floats widened(const float* from) { return load(from); }
inline Floats widened(const Bf16* from) {
#if defined(__AVX512F__)
    if constexpr (LANES == 16) {
        __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return Floats(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)));
    }
#endif
    Floats out;
    for (int i = 0; i < LANES; i++) out[i] = widen(from[i]);
    return out;
}
inline void narrowed(float* to, Floats x) { store(to, x); }
inline void narrowed(Bf16* to, Floats x) {
#if defined(__AVX512BF16__)
    if constexpr (LANES == 16) {  // what is smaller than the smallest normal becomes 0
        __m256i half = (__m256i)_mm512_cvtneps_pbh(__m512(x));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
        return;
    }
#elif defined(__AVX512F__)
    if constexpr (LANES == 16) {
        __m512i bits = _mm512_castps_si512(__m512(x));
        __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        __mmask16 is_nan = _mm512_cmp_ps_mask(__m512(x), __m512(x), _CMP_UNORD_Q);
        rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
        __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
        return;
    }
#endif
    for (int i = 0; i < LANES; i++) narrow(x[i], to[i]);
}

inline float sum(Floats x) {
#if defined(__AVX512F__)
    if constexpr (LANES == 16) return _mm512_reduce_add_ps(__m512(x));
#endif
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++) x[i] += x[i + step];
    return x[0];
}
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline float largest(Floats x) {
#if defined(__AVX512F__)
    if constexpr (LANES == 16) return _mm512_reduce_max_ps(__m512(x));
#endif
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

// e to the power of x for x <= 88, within 2 units of the last place; 0 below -87.
inline Floats exponential(Floats x) {
    constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    Floats shifted = x * 1.44269504088896341f + ROUND;
    Floats whole = shifted - ROUND;
    Floats rest = x - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    // Source: the coefficients of Cephes' expf.
    Floats curve = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    curve = curve * rest + 8.3334519073e-3f;
    curve = curve * rest + 4.1665795894e-2f;
    curve = curve * rest + 1.6666665459e-1f;
    curve = curve * rest + 5.0000001201e-1f;
    curve = curve * (rest * rest) + rest + 1.0f;
    Words scale = (Words(shifted) << 23) + Words(all(1.0f));  // 2^whole; the rest is shifted out
    return x < -87.0f ? Floats{} : curve * Floats(scale);
}

// 2 to the power of x for x <= 127, within 2.1 units of the last place; 0 below -125.
inline Floats power_of_two(Floats x) {
    constexpr float ROUND = 12582912.0f;  // as above
    Floats shifted = x + ROUND;
    Floats whole = shifted - ROUND;
    Floats rest = x - whole;
    // The least relative error of the fifth degree on [-1/2, 1/2]: 9.2e-8.
    Floats curve = rest * 1.326472731307149e-3f + 9.671512991189957e-3f;
    curve = curve * rest + 5.550733581185341e-2f;
    curve = curve * rest + 2.4022242426872253e-1f;
    curve = curve * rest + 6.931470036506653e-1f;
    curve = curve * rest + 1.0f;
#if defined(__AVX512F__)
    if constexpr (LANES == 16) {
        __mmask16 counts = _mm512_cmp_ps_mask(__m512(x), _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
        return Floats(_mm512_maskz_scalef_ps(counts, __m512(curve), __m512(whole)));
    }
#endif
    Words scale = (Words(shifted) << 23) + Words(all(1.0f));
    return x < -125.0f ? Floats{} : curve * Floats(scale);
}

// 1 / x within 2 units of the last place, for x from 1 to 2^126.
inline Floats reciprocal(Floats x) {
#if defined(__AVX512F__)
    if constexpr (LANES == 16) {
        Floats guess = Floats(_mm512_rcp14_ps(__m512(x)));
        return guess + guess * (1.0f - x * guess);
    }
#endif
    return 1.0f / x;
}

// Both saturate: beyond +-30 the result is exact in single precision.
inline Floats clipped(Floats x, float most) {
    x = x > most ? all(most) : x;
    return x < -most ? all(-most) : x;
}
inline Floats hyperbolic_tangent(Floats x) {
    Floats squared = exponential(clipped(x, 15.0f) * 2.0f);
    return (squared - 1.0f) / (squared + 1.0f);
}
inline Floats silu(Floats x) {
    Floats inverse = x < -80.0f ? all(80.0f) : -x;
    return x * reciprocal(1.0f + exponential(inverse));
}
inline Floats gelu_tanh(Floats x) {
    Floats inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
}

}  // namespace pd

// Panels of 32 columns, and how one of eight or four bits becomes one that is multiplied.
//
// What comes out is the weight that torch expands (daemons/engine/quant.py), to the bit in bf16: a
// product, and for four bits a sum, in fp32, rounded once. It is a panel like any other, so what is
// computed with it depends on nothing but the row.
#pragma once

#include <cstddef>
#include <type_traits>

#include "vector.h"

namespace pd {

constexpr int PANEL = 32;             // columns
constexpr int PARTS = PANEL / LANES;  // vectors of a panel's width
constexpr int SCALED = 32;            // inputs that share a scale in four bits

// How many of k's entries lie together in a panel: fp32 has [k][32], bf16 [k / 2][32][2].
template <class T>
constexpr int GROUP = std::is_same_v<T, Bf16> ? 2 : 1;

using Bytes = int8_t __attribute__((vector_size(LANES)));
using Octets = uint8_t __attribute__((vector_size(LANES)));

inline Floats as_floats(const int8_t* from) {
#if defined(__AVX512F__)
    if constexpr (LANES == 16)
        return Floats(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))));
#endif
    Bytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats);
}
inline Ints as_ints(const uint8_t* from) {
#if defined(__AVX512F__)
    if constexpr (LANES == 16)
        return Ints(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#endif
    Octets octets;
    std::memcpy(&octets, from, sizeof octets);
    return __builtin_convertvector(octets, Ints);
}

// A vector's columns of two neighbouring lines of k.
inline void put_pair(float* to, Floats first, Floats second) {
    store(to, first);
    store(to + PANEL, second);
}
inline Words rounded_bits(Floats x) {
    Words bits = Words(x);
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}
inline void put_pair(Bf16* to, Floats first, Floats second) {
#if defined(__AVX512BF16__)
    if constexpr (LANES == 16) {
        __m512i lines = (__m512i)_mm512_cvtne2ps_pbh(__m512(second), __m512(first));
        __m512i turns = _mm512_mullo_epi32(_mm512_set1_epi32(0x10001), __m512i(counted()));
        turns = _mm512_add_epi32(turns, _mm512_set1_epi32(16 << 16));  // 0, 16, 1, 17, ...
        _mm512_storeu_si512(to, _mm512_permutexvar_epi16(turns, lines));
        return;
    }
#endif
    Words both = (rounded_bits(first) >> 16) | (rounded_bits(second) & 0xffff0000u);
    std::memcpy(to, &both, sizeof both);
}

constexpr int BYTES_AHEAD = 1024;  // of rounded weights, about what memory's latency is worth

template <class T>
void expand8(const int8_t* from, const T* scales, int depth, T* to) {  // from [depth][32]
    Floats scale[PARTS];
    for (int part = 0; part < PARTS; part++) scale[part] = widened(scales + part * LANES);
    for (int i = 0; i < depth; i += 2, from += 2 * PANEL, to += 2 * PANEL) {
        __builtin_prefetch(from + BYTES_AHEAD);
#pragma GCC unroll 8
        for (int part = 0; part < PARTS; part++)
            put_pair(to + part * LANES * GROUP<T>, as_floats(from + part * LANES) * scale[part],
                     as_floats(from + PANEL + part * LANES) * scale[part]);
    }
}

template <class T>
void expand4(const uint8_t* from, const T* scales, const T* lows, int depth, T* to) {
    for (int group = 0; group < depth / SCALED; group++, scales += PANEL, lows += PANEL) {
        Floats scale[PARTS], low[PARTS];
        for (int part = 0; part < PARTS; part++) {
            scale[part] = widened(scales + part * LANES);
            low[part] = widened(lows + part * LANES);
        }
        for (int i = 0; i < SCALED; i += 2, from += PANEL, to += 2 * PANEL) {  // from [depth / 2][32]
            __builtin_prefetch(from + BYTES_AHEAD);
#pragma GCC unroll 8
            for (int part = 0; part < PARTS; part++) {
                Ints both = as_ints(from + part * LANES);
                Floats first = __builtin_convertvector(both & 15, Floats);
                Floats second = __builtin_convertvector(both >> 4, Floats);
                put_pair(to + part * LANES * GROUP<T>, first * scale[part] + low[part],
                         second * scale[part] + low[part]);
            }
        }
    }
}

}  // namespace pd

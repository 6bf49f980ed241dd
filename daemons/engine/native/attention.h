// Attention over pages where they lie, for chunks and for single tokens alike.
//
// The past is looked at in blocks of 128 positions, counted from position 0. Each block has its own
// largest score, sum and weighted values, and blocks are merged in order: the same arithmetic
// whatever the chunk, the batch or the number of threads, so that the result is the same too.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "matrix.h"
#include "team.h"
#include "vector.h"

namespace pd {

constexpr int BLOCK = 128;      // positions
constexpr int UNIT_ROWS = 192;  // queries (of all heads of a group) that share a packed block
constexpr int SPLIT_BLOCKS = 4; // a single token's past is cut into shares of so many blocks

// How the cache of one layer lies: [kind][kv_heads][pages][page_size][head_dim].
struct Cache {
    void* base;
    int64_t pages;
    int page_size, kv_heads, head_dim;
    int windowed;  // pages are those of the batch's window tables

    template <class T>
    T* page(int kind, int head, int64_t page) const {
        int64_t row = ((kind * int64_t(kv_heads) + head) * pages + page) * page_size;
        return static_cast<T*>(base) + row * head_dim;
    }
};

// An item of the batch: `tokens` rows from `first`, at positions from `start`.
struct Span {
    int32_t first, tokens, start, pages_at;  // where its page table begins
};

struct Rule {
    int window;     // tokens that a query sees, itself included; 0: all before it
    float scale;
    float softcap;  // 0: none
};

// Between rows of scores and of weights: an odd number of cache lines, as in stride_of.
constexpr int SCORE_STRIDE = BLOCK + 16;
constexpr int WEIGHT_STRIDE = BLOCK + 32;

// One thread's memory for a packed block and the scores of a tile, one part behind the other so that
// they share the first cache.
struct Desk {
    float *keys, *values, *scores, *weights, *tile, *state;

    bool fit(int head_dim) {
        size_t wide = rounded_up(head_dim, PANEL);
        float** parts[] = {&keys, &values, &scores, &weights, &tile, &state};
        size_t sizes[] = {BLOCK * wide, BLOCK * wide, MOST_ROWS * SCORE_STRIDE,
                          MOST_ROWS * WEIGHT_STRIDE, MOST_ROWS * (wide + LANES),
                          UNIT_ROWS * (wide + 2)};
        size_t total = 0;
        for (size_t size : sizes) total += size;
        if (!grow(memory, sizeof(float) * total)) return false;
        float* at = memory.as<float>();
        for (int part = 0; part < 6; at += sizes[part++]) *parts[part] = at;
        return true;
    }

  private:
    Memory memory;
};

#if defined(__AVX512F__) && defined(__AVX512BW__)
// to[c][r] = from[r][c], 16 by 16 words; rows of `from` and `to` lie so many words apart.
inline void transpose_16(const uint32_t* const* from, size_t at, uint32_t* to, size_t stride) {
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(from[i] + at);
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            r[4 * i + 2 * half] = _mm512_unpacklo_epi64(t[4 * i + half], t[4 * i + 2 + half]);
            r[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(t[4 * i + half], t[4 * i + 2 + half]);
        }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        _mm512_storeu_si512(to + i * stride, _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88));
        _mm512_storeu_si512(to + (8 + i) * stride, _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd));
    }
}
#endif

// Keys as panels of 32 positions over the head's entries; absent positions (nullptr) are zeros.
template <class T>
void pack_keys(const T* const* rows, int count, int head_dim, T* to) {
    int words = head_dim / GROUP<T>, depth = rounded_up(head_dim, GROUP<T>);
    for (int first = 0; first < count; first += PANEL, to += size_t(depth) * PANEL) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
        if (head_dim % (16 * GROUP<T>) == 0) {
            alignas(64) static const uint32_t zeros[1024] = {};
            for (int half = 0; half < PANEL; half += 16) {
                const uint32_t* from[16];
                for (int i = 0; i < 16; i++) {
                    const T* row = first + half + i < count ? rows[first + half + i] : nullptr;
                    from[i] = row ? reinterpret_cast<const uint32_t*>(row) : zeros;
                }
                for (int at = 0; at < words; at += 16)
                    transpose_16(from, at, reinterpret_cast<uint32_t*>(to) + at * PANEL + half,
                                 PANEL);
            }
            continue;
        }
#endif
        for (int column = 0; column < PANEL; column++) {
            const T* row = first + column < count ? rows[first + column] : nullptr;
            for (int i = 0; i < depth; i++)
                to[i / GROUP<T> * GROUP<T> * PANEL + column * GROUP<T> + i % GROUP<T>] =
                    row && i < head_dim ? row[i] : T{};
        }
    }
}

// Values as panels of 32 of the head's entries over positions; `depth` of them, the rest is zeros.
template <class T>
void pack_values(const T* const* rows, int count, int depth, int head_dim, T* to) {
    for (int first = 0; first < head_dim; first += PANEL, to += size_t(depth) * PANEL) {
        int width = std::min(PANEL, head_dim - first);
        for (int at = 0; at < depth; at += GROUP<T>) {
            T* line = to + size_t(at) * PANEL;
            const T* one = at < count ? rows[at] : nullptr;
            if constexpr (GROUP<T> == 1) {
                if (one && width == PANEL) {
                    std::memcpy(line, one + first, PANEL * sizeof(T));
                    continue;
                }
                for (int i = 0; i < PANEL; i++) line[i] = one && i < width ? one[first + i] : T{};
            } else {
                const T* two = at + 1 < count ? rows[at + 1] : nullptr;
#if defined(__AVX512F__) && defined(__AVX512BW__)
                if (width == PANEL) {
                    __m512i a = one ? _mm512_loadu_si512(one + first) : __m512i{};
                    __m512i b = two ? _mm512_loadu_si512(two + first) : __m512i{};
                    __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
                    const __m512i front = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
                    const __m512i back = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
                    _mm512_storeu_si512(line, _mm512_permutex2var_epi64(low, front, high));
                    _mm512_storeu_si512(line + PANEL, _mm512_permutex2var_epi64(low, back, high));
                    continue;
                }
#endif
                for (int i = 0; i < PANEL; i++) {
                    line[2 * i] = one && i < width ? one[first + i] : T{};
                    line[2 * i + 1] = two && i < width ? two[first + i] : T{};
                }
            }
        }
    }
}

// What one query made of some blocks: largest score, sum of weights, weighted values.
struct Partial {
    float *largest, *sum, *values;  // values: [wide]
};

// Scores, weights and shares are powers of two: a score times this is one of e.
constexpr float LOG2_E = 1.44269504088896341f;

// A block's partial joins those before it, each by its share; never inlined, so that there is one
// arithmetic for all who join.
[[gnu::noinline]] inline void join_shares(Partial into, float old_share, float sum, const float* values,
                                          float new_share, int wide) {
    *into.sum = *into.sum * old_share + sum * new_share;
    for (int i = 0; i < wide; i += LANES)
        store(into.values + i,
              load(into.values + i) * all(old_share) + load(values + i) * all(new_share));
}

// The same for some rows at once; `largest` of either may be "nothing seen".
template <class Into>
void merge(int rows, Into&& into_of, const float* largest, const float* sums, const float* values,
           int stride, int wide) {
    alignas(64) float old_shares[MOST_ROWS + LANES], new_shares[MOST_ROWS + LANES];
    for (int row = 0; row < rows; row++) {
        float was = *into_of(row).largest, most = std::max(was, largest[row]);
        old_shares[row] = was - most;
        new_shares[row] = largest[row] - most;
    }
    for (int row = rows; row % LANES; row++) old_shares[row] = new_shares[row] = 0.0f;
    for (int row = 0; row < rows; row += LANES) {
        store(old_shares + row, power_of_two(load(old_shares + row)));
        store(new_shares + row, power_of_two(load(new_shares + row)));
    }
    for (int row = 0; row < rows; row++, values += stride) {
        if (largest[row] == NOTHING) continue;
        Partial into = into_of(row);
        if (*into.largest == NOTHING) {
            *into.largest = largest[row];
            *into.sum = sums[row];
            std::memcpy(into.values, values, sizeof(float) * wide);
            continue;
        }
        *into.largest = std::max(*into.largest, largest[row]);
        join_shares(into, old_shares[row], sums[row], values, new_shares[row], wide);
    }
}

// Scores of one query over a block, made ready: capped, and nothing where it does not see. Returns
// what makes them powers of two. How much of the block a row sees changes no score that it does see:
// whether it sees all of it depends on its company.
inline float prepare(float* scores, int low, int high, int depth, const Rule& rule) {
    float factor = rule.scale * LOG2_E;
    bool is_whole = low <= 0 && high >= depth, is_plain = !(rule.softcap > 0) && factor > 0;
    if (is_whole && is_plain) return factor;
    for (int i = 0; i < depth; i += LANES) {
        Floats score = load(scores + i);
        if (!is_plain) score = score * all(rule.scale);
        if (rule.softcap > 0)
            score = hyperbolic_tangent(score / all(rule.softcap)) * all(rule.softcap);
        Ints at = counted() + i;
        store(scores + i, (at >= low) & (at < high) ? score : all(NOTHING));
    }
    return is_plain ? factor : LOG2_E;
}

constexpr int WEIGHED = LANES == 16 ? 4 : 2;  // rows in turns, as many as the registers hold

// Such scores of some rows become weights; `peaks` are the largest scores, as powers of two. A row
// that sees nothing (its peak says so) gets weights without a meaning.
template <int ROWS, class T>
[[gnu::noinline]] void weigh(const float* scores, int depth, float factor, T* to, float* peaks,
                             float* sums) {
    Floats most[ROWS], peak[ROWS], total[ROWS];
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; row++) most[row] = load(scores + row * SCORE_STRIDE);
    for (int i = LANES; i < depth; i += LANES)
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++)
            most[row] = larger(load(scores + row * SCORE_STRIDE + i), most[row]);
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; row++) {
        peaks[row] = largest(most[row]) * factor;
        peak[row] = all(peaks[row]);
        total[row] = Floats{};
    }
    for (int i = 0; i < depth; i += LANES)
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            Floats score = load(scores + row * SCORE_STRIDE + i);
            Floats weight = power_of_two(score * all(factor) - peak[row]);
            total[row] = total[row] + weight;
            narrowed(to + row * WEIGHT_STRIDE + i, weight);
        }
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; row++) sums[row] = sum(total[row]);
}

// Some blocks of a span's past, for queries of one kv head: rows of (token, head of the group).
template <class T>
struct Unit {
    const Cache& cache;
    const Rule& rule;
    const int32_t* table;  // pages, by position / page_size
    const T* query;        // [rows][head_dim], behind each other
    int head, group;       // query heads of a kv head
    int position;          // of the first row's token
    int rows;
    int first_block, last_block;  // exclusive

    int high_of(int row) const { return position + row / group + 1; }
    int low_of(int row) const {
        return rule.window > 0 ? std::max(0, high_of(row) - rule.window) : 0;
    }

    // state: [rows] partials, empty before.
    template <class State>
    void run(Desk& desk, Multiplier<T>& multiplier, State&& state_of) const {
        int dim = cache.head_dim, wide = rounded_up(dim, PANEL);
        int depth = rounded_up(dim, GROUP<T>);
        const T* keys[BLOCK];
        const T* values[BLOCK];
        for (int block = first_block; block < last_block; block++) {
            int begin = block * BLOCK;
            int count = std::min(BLOCK, high_of(rows - 1) - begin);
            for (int i = 0, low = low_of(0) - begin; i < count; i++) {
                keys[i] = values[i] = nullptr;
                if (i < low) continue;  // nobody here sees it, its page may be gone
                int at = begin + i;
                int64_t page = table[at / cache.page_size];
                size_t offset = size_t(at % cache.page_size) * dim;
                keys[i] = cache.template page<T>(0, head, page) + offset;
                values[i] = cache.template page<T>(1, head, page) + offset;
            }
            int whole = rounded_up(count, PANEL);
            pack_keys<T>(keys, count, dim, packed_keys(desk));
            pack_values<T>(values, count, whole, dim, packed_values(desk));
            run_block(desk, multiplier, begin, whole, depth, wide, state_of);
        }
    }

    template <class State>
    void run_block(Desk& desk, Multiplier<T>& multiplier, int begin, int whole, int depth, int wide,
                   State&& state_of) const {
        T* weights = reinterpret_cast<T*>(desk.weights);
        int out_stride = wide + LANES;
        for (int first = 0, next; first < rows; first = next) {
            int height = multiplier.height(rows - first, depth);
            next = first + height;
            // What the last row of the tile sees is the most that any of them does.
            int seen = std::min(whole, rounded_up(high_of(next - 1) - begin, PANEL));
            if (seen <= 0 || low_of(first) >= begin + seen) continue;
            float peaks[MOST_ROWS], sums[MOST_ROWS];
            const T* x = query + size_t(first) * cache.head_dim;
            for (int at = 0; at < seen; at += PANEL)
                multiplier.template multiply<LATELY>(x, cache.head_dim,
                                                     packed_keys(desk) + size_t(at) * depth, depth,
                                                     height, desk.scores + at, SCORE_STRIDE);
            float factor = 0.0f;  // the same for all rows
            for (int row = 0; row < height; row++) {
                int low = low_of(first + row) - begin, high = high_of(first + row) - begin;
                factor = prepare(desk.scores + row * SCORE_STRIDE, low, high, seen, rule);
            }
            for (int row = 0, some; row < height; row += some) {
                some = height - row < WEIGHED ? 1 : WEIGHED;
                auto together = some == 1 ? weigh<1, T> : weigh<WEIGHED, T>;
                together(desk.scores + row * SCORE_STRIDE, seen, factor,
                         weights + row * WEIGHT_STRIDE, peaks + row, sums + row);
            }
            for (int row = 0; row < height; row++)
                if (peaks[row] == NOTHING)
                    std::memset(weights + row * WEIGHT_STRIDE, 0, sizeof(T) * seen);
            for (int at = 0; at < wide; at += PANEL)
                multiplier.template multiply<LATELY>(weights, WEIGHT_STRIDE,
                                                     packed_values(desk) + size_t(at) * whole, seen,
                                                     height, desk.tile + at, out_stride);
            int block = block_of(begin);
            merge(height, [&](int row) { return state_of(first + row, block); }, peaks, sums,
                  desk.tile, out_stride, wide);
        }
    }
    static T* packed_keys(const Desk& desk) { return reinterpret_cast<T*>(desk.keys); }
    static T* packed_values(const Desk& desk) { return reinterpret_cast<T*>(desk.values); }
    static int block_of(int begin) { return begin / BLOCK; }
};

template <class T>
void put_out(Partial state, T* to, int head_dim) {
    float factor = 1.0f / *state.sum;
    int whole = head_dim / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) narrowed(to + i, load(state.values + i) * all(factor));
    for (int i = whole; i < head_dim; i++) narrow(state.values[i] * factor, to[i]);
}

}  // namespace pd

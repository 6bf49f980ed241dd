// Weights packed for one way of multiplying: a few rows at once with panels of 32 columns.
//
// An output is the sum over k in order, one fused multiply-add after the other (for bf16: one pair
// after the other, or 32 together in tile registers), whatever the number of rows, threads or
// chunks. So a row's result never depends on what else is in the batch.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "panel.h"
#include "team.h"
#include "tiles.h"

namespace pd {

constexpr int TALLEST = LANES == 16 ? 12 : LANES == 8 ? 3 : 1;  // rows that fit the registers

inline int rounded_up(int x, int to) { return (x + to - 1) / to * to; }

constexpr size_t HUGE = 2 << 20;    // a large page
constexpr size_t ARENA = 32 << 20;  // so much is asked for at once for smaller matrices

// Zeroed memory in large pages, where the system has them: weights are read from end to end.
class Memory {
  public:
    Memory() = default;
    explicit Memory(size_t bytes) : bytes_(bytes ? bytes : 1) {
        size_t whole = bytes_ + HUGE;
        void* at = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) return;
        if (bytes_ >= HUGE) madvise(at, whole, MADV_HUGEPAGE);
        from_ = at;
        at_ = reinterpret_cast<void*>((reinterpret_cast<size_t>(at) + HUGE - 1) / HUGE * HUGE);
    }
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept {
        std::swap(from_, other.from_);
        std::swap(at_, other.at_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Memory() {
        if (from_) munmap(from_, bytes_ + HUGE);
    }
    template <class T>
    T* as() const { return static_cast<T*>(at_); }
    bool is_there() const { return at_ != nullptr; }
    size_t bytes() const { return at_ ? bytes_ : 0; }

  private:
    void *from_ = nullptr, *at_ = nullptr;
    size_t bytes_ = 0;
};

// A part of a larger piece of memory, which lives as long as any part of it: matrices lie densely,
// in the order in which they are read, and small ones are in large pages too.
class Part {
  public:
    Part() = default;
    explicit Part(size_t bytes) {
        static std::mutex one_at_a_time;
        static std::weak_ptr<Memory> newest;
        static size_t used = 0;
        std::lock_guard guard(one_at_a_time);
        bytes = (bytes + 63) / 64 * 64;
        std::shared_ptr<Memory> whole = newest.lock();
        if (!whole || whole->bytes() - used < bytes) {
            whole = std::make_shared<Memory>(std::max(bytes, ARENA));
            if (!whole->is_there()) return;
            newest = whole;
            used = 0;
        }
        at_ = whole->as<char>() + used;
        used += bytes;
        whole_ = std::move(whole);
    }
    template <class T>
    T* as() const { return reinterpret_cast<T*>(at_); }
    bool is_there() const { return at_ != nullptr; }

  private:
    std::shared_ptr<Memory> whole_;
    char* at_ = nullptr;
};

// Makes room for so many bytes; what was there before is lost.
inline bool grow(Memory& memory, size_t bytes) {
    if (memory.bytes() >= bytes) return true;
    memory = Memory(bytes + bytes / 2);
    return memory.is_there();
}

struct Matrix {
    int n;       // outputs
    int k;       // inputs
    int depth;   // k, filled up with zeros to a whole group
    int panels;
    bool gated;  // a panel holds 16 columns of the gate, then the 16 of the up that belong to them
    Part weights;
    Part bias;  // fp32 [panels * 32] in the panels' order; absent: none
    int bits = 0;        // of a weight that was rounded; 0: none was
    Part scales, lows;   // of T: [panels][32], for four bits [panels][k / SCALED][32]

    // Which output stands in a panel's column; -1: filled up.
    int output_of(int column) const {
        if (!gated) return column < n ? column : -1;
        constexpr int HALF = PANEL / 2;
        int within = column % PANEL, of = column / PANEL * HALF + within % HALF;
        if (of >= n / 2) return -1;
        return within < HALF ? of : n / 2 + of;
    }
    template <class T>
    const T* panel(int index) const {
        return weights.as<T>() + size_t(index) * depth * PANEL;
    }
    // The same, expanded where it was rounded, into memory of the thread's own.
    template <class T>
    const T* ready_panel(int index) const {
        if (!bits) return panel<T>(index);
        thread_local Memory space;
        if (space.bytes() < sizeof(T) * depth * PANEL) space = Memory(sizeof(T) * depth * PANEL);
        if (!space.is_there()) std::abort();
        const uint8_t* from = weights.as<uint8_t>() + size_t(index) * depth * PANEL * bits / 8;
        int groups = bits == 8 ? 1 : depth / SCALED;
        const T* scale = scales.as<T>() + size_t(index) * groups * PANEL;
        if (bits == 8) {
            expand8(reinterpret_cast<const int8_t*>(from), scale, depth, space.as<T>());
        } else {
            expand4(from, scale, lows.as<T>() + size_t(index) * groups * PANEL, depth,
                    space.as<T>());
        }
        return space.as<T>();
    }
    const float* bias_of(int index) const {
        return bias.is_there() ? bias.as<float>() + size_t(index) * PANEL : nullptr;
    }
};

template <class T>
Matrix* packed(const T* rows, const T* bias, int n, int k, bool gated) {
    int outputs = gated ? n / 2 : n;
    int panels = (outputs + (gated ? PANEL / 2 : PANEL) - 1) / (gated ? PANEL / 2 : PANEL);
    auto* made = new Matrix{n, k, rounded_up(k, GROUP<T>), panels, gated, {}, {}};
    made->weights = Part(size_t(panels) * PANEL * made->depth * sizeof(T));
    if (bias) made->bias = Part(size_t(panels) * PANEL * sizeof(float));
    if (!made->weights.is_there() || (bias && !made->bias.is_there())) {
        delete made;
        return nullptr;
    }
    for (int column = 0; column < panels * PANEL; column++) {
        int output = made->output_of(column);
        if (output < 0) continue;
        T* to = made->weights.as<T>() + size_t(column / PANEL) * made->depth * PANEL;
        to += column % PANEL * GROUP<T>;
        const T* from = rows + size_t(output) * k;
        for (int i = 0; i < k; i++) to[i / GROUP<T> * GROUP<T> * PANEL + i % GROUP<T>] = from[i];
        if (bias) made->bias.as<float>()[column] = widen(bias[output]);
    }
    return made;
}

// The same of weights that were rounded: `values` are int8 [n][k] with `scales` [n], or pairs of
// four bits [n][k / 2] with `scales` and `lows` [n][k / SCALED]. `k` is even.
template <class T>
Matrix* packed_rounded(int bits, const uint8_t* values, const T* scales, const T* lows,
                       const T* bias, int n, int k, bool gated) {
    int outputs = gated ? n / 2 : n;
    int panels = (outputs + (gated ? PANEL / 2 : PANEL) - 1) / (gated ? PANEL / 2 : PANEL);
    int groups = bits == 8 ? 1 : k / SCALED, lines = bits == 8 ? k : k / 2;
    auto* made = new Matrix{n, k, k, panels, gated, {}, {}, bits, {}, {}};
    made->weights = Part(size_t(panels) * PANEL * lines);
    made->scales = Part(size_t(panels) * PANEL * groups * sizeof(T));
    if (lows) made->lows = Part(size_t(panels) * PANEL * groups * sizeof(T));
    if (bias) made->bias = Part(size_t(panels) * PANEL * sizeof(float));
    if (!made->weights.is_there() || !made->scales.is_there() || (lows && !made->lows.is_there()) ||
        (bias && !made->bias.is_there())) {
        delete made;
        return nullptr;
    }
    for (int column = 0; column < panels * PANEL; column++) {
        int output = made->output_of(column);
        if (output < 0) continue;
        size_t panel = column / PANEL, within = column % PANEL;
        uint8_t* to = made->weights.as<uint8_t>() + panel * lines * PANEL + within;
        for (int i = 0; i < lines; i++) to[size_t(i) * PANEL] = values[size_t(output) * lines + i];
        for (int i = 0; i < groups; i++) {
            size_t at = (panel * groups + i) * PANEL + within, from = size_t(output) * groups + i;
            made->scales.as<T>()[at] = scales[from];
            if (lows) made->lows.as<T>()[at] = lows[from];
        }
        if (bias) made->bias.as<float>()[column] = widen(bias[output]);
    }
    return made;
}

// One row of what was packed, e.g. a token's embedding out of the vocabulary's projection.
template <class T>
void unpack_row(const Matrix& matrix, int row, float* to, float scale) {
    if (matrix.bits) {  // eight: a table has no fewer
        const int8_t* from = matrix.weights.as<int8_t>() + size_t(row / PANEL) * matrix.k * PANEL;
        float step = widen(matrix.scales.as<T>()[row]);
        for (int i = 0; i < matrix.k; i++) {
            T rounded;
            narrow(from[size_t(i) * PANEL + row % PANEL] * step, rounded);
            to[i] = widen(rounded) * scale;
        }
        return;
    }
    const T* from = matrix.panel<T>(row / PANEL) + row % PANEL * GROUP<T>;
    for (int i = 0; i < matrix.k; i++)
        to[i] = widen(from[i / GROUP<T> * GROUP<T> * PANEL + i % GROUP<T>]) * scale;
}

#if defined(__AVX512BF16__)
#define PD_HAS_BF16_DOT 1
#else
#define PD_HAS_BF16_DOT 0
#endif

inline void add_product(Floats& to, const float* x, const float* w) { to += all(*x) * load(w); }
inline void add_product(Floats& to, const Bf16* x, const Bf16* w) {
    Words pairs;
    std::memcpy(&pairs, w, sizeof pairs);
#if PD_HAS_BF16_DOT
    int32_t both;
    std::memcpy(&both, x, 4);
    to = Floats(_mm512_dpbf16_ps(__m512(to), (__m512bh)_mm512_set1_epi32(both), (__m512bh)pairs));
#else
    to += all(widen(x[0])) * Floats(pairs << 16);
    to += all(widen(x[1])) * Floats(pairs & 0xffff0000u);
#endif
}

constexpr int AHEAD_BYTES = 4096;  // of the weights, about what memory's latency is worth

// out[P][M][32] = x[M][depth] * each of P panels that lie behind each other; rows of `x` and of
// `out` lie so many elements apart.
template <class T, int P, int M>
void multiply_tile(const T* x, size_t stride, const T* panel, int depth, float* out,
                   size_t out_stride) {
    Floats sums[P][M][PARTS];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
#pragma GCC unroll 16
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int part = 0; part < PARTS; part++) sums[p][m][part] = Floats{};
    for (int i = 0; i < depth; i += GROUP<T>) {
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const T* w = panel + (size_t(p) * depth + i) * PANEL;
            __builtin_prefetch(reinterpret_cast<const char*>(w) + AHEAD_BYTES);
            __builtin_prefetch(reinterpret_cast<const char*>(w) + AHEAD_BYTES + 64);
#pragma GCC unroll 16
            for (int m = 0; m < M; m++)
#pragma GCC unroll 8
                for (int part = 0; part < PARTS; part++)
                    add_product(sums[p][m][part], x + m * stride + i, w + part * LANES * GROUP<T>);
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
#pragma GCC unroll 16
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int part = 0; part < PARTS; part++)
                store(out + (p * M + m) * out_stride + part * LANES, sums[p][m][part]);
}

template <class T>
using Tile = void (*)(const T*, size_t, const T*, int, float*, size_t);

template <class T, int P, size_t... M>
constexpr std::array<Tile<T>, sizeof...(M)> tiles_of(std::index_sequence<M...>) {
    return {multiply_tile<T, P, int(M) + 1>...};
}
template <class T, int P>
constexpr auto TILES = tiles_of<T, P>(std::make_index_sequence<TALLEST / P>{});

constexpr int MOST_ROWS = std::max(TALLEST, GRIP_ROWS);  // that are multiplied at once

// One thread's way to multiply during a phase: in its tile registers where that can be, else in
// vectors. Which of the two is a matter of the depth alone.
template <class T>
struct Multiplier {
    Grip grip;
    const bool has_tiles = std::is_same_v<T, Bf16> && are_tiles_allowed();

    bool takes(int depth) const { return has_tiles && depth % TILE_DEPTH == 0; }

    // How many rows of so many that are left are multiplied next.
    int height(int left, int depth) const {
        if (takes(depth)) return std::min(left, GRIP_ROWS);
        int tiles = (left + TALLEST - 1) / TALLEST;
        return (left + tiles - 1) / tiles;
    }
    // out[height][32] = x[height][depth] * panel
    template <Read PANEL_READ>
    void multiply(const T* x, size_t stride, const T* panel, int depth, int height, float* out,
                  size_t out_stride) {
        if constexpr (std::is_same_v<T, Bf16>)
            if (takes(depth)) return grip.template multiply<PANEL_READ>(x, stride, panel, depth, height, out, out_stride);
        TILES<T, 1>[height - 1](x, stride, panel, depth, out, out_stride);
    }

    // How many panels so few rows can meet at once. Weights that come from memory come faster in
    // some streams than in one.
    int streams(int rows, int depth) const {
        if (takes(depth)) return rows <= TILE_ROWS ? 2 : 1;
        return rows * 4 <= TALLEST ? 4 : rows * 2 <= TALLEST ? 2 : 1;
    }
    // out[count][height][32] of some panels that lie behind each other, as many as `streams` allows.
    void multiply_some(const T* x, size_t stride, const T* panel, int depth, int height, int count,
                       float* out) {
        if constexpr (std::is_same_v<T, Bf16>)
            if (takes(depth)) return grip.multiply_two(x, stride, panel, depth, height, out, PANEL);
        if constexpr (TALLEST >= 4)
            if (count == 4) return TILES<T, 4>[height - 1](x, stride, panel, depth, out, PANEL);
        if constexpr (TALLEST >= 2)
            return TILES<T, 2>[height - 1](x, stride, panel, depth, out, PANEL);
    }
};

constexpr int BLOCK_ROWS = 256;  // of the inputs, small enough for the second cache

// A phase: all rows against all panels, in shares. `done(row, rows, panel, out)` takes out[rows][32].
template <class T, class Done>
void multiply(Team& team, int member, const T* x, size_t stride, int rows, const Matrix& matrix,
              Done&& done) {
    alignas(64) float out[MOST_ROWS * PANEL];
    Multiplier<T> multiplier;
    int blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, depth = matrix.depth;
    int most = matrix.bits ? 1 : multiplier.streams(rows, depth);
    int chunk = std::clamp(matrix.panels / (team.members() * 4), 1, blocks > 1 ? 16 : most);
    int chunks = (matrix.panels + chunk - 1) / chunk, shares = chunks * blocks;
    for (int share; (share = team.take_near(member, shares)) >= 0;) {
        int block = share % blocks, first_panel = share / blocks * chunk;
        int first = int(int64_t(rows) * block / blocks);
        int last = int(int64_t(rows) * (block + 1) / blocks);
        int end = std::min(matrix.panels, first_panel + chunk);
        for (int panel = first_panel, count; panel < end; panel += count) {
            count = std::min(most, end - panel);
            if (count > 1) {
                count = count / 2 * 2;
                multiplier.multiply_some(x, stride, matrix.panel<T>(panel), depth, rows, count, out);
                for (int i = 0; i < count; i++) done(0, rows, panel + i, out + i * rows * PANEL);
                continue;
            }
            const T* weights = matrix.ready_panel<T>(panel);
            for (int row = first, height; row < last; row += height) {
                height = multiplier.height(last - row, depth);
                const T* from = x + row * stride;
                if (row == first)
                    multiplier.template multiply<NEVER>(from, stride, weights, depth, height, out,
                                                        PANEL);
                else
                    multiplier.template multiply<BEFORE>(from, stride, weights, depth, height, out,
                                                         PANEL);
                done(row, height, panel, out);
            }
        }
    }
}

}  // namespace pd

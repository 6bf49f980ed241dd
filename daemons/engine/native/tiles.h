// The processor's tile registers (AMX), where it has them: bf16 products of 16 rows at once.
//
// A tile product adds, for each output, the products of 32 inputs, even and odd ones apart, and then
// the two sums to what was there. That is another order than the vectors' own, so which of the two
// is used depends on the matrix alone, never on how many rows there are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "panel.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define PD_HAS_TILES 1
#else
#define PD_HAS_TILES 0
#endif

namespace pd {

constexpr int TILE_ROWS = 16;
constexpr int TILE_DEPTH = 32;            // inputs that one product adds up
constexpr int GRIP_ROWS = 2 * TILE_ROWS;  // rows at once: two tiles by the panel's two

// Whether this process may use them; the kernel is asked once, and refuses some hosts.
inline bool are_tiles_allowed() {
#if PD_HAS_TILES
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
    static const bool allowed = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return allowed;
#else
    return false;
#endif
}

// When a panel was read last, which tells what is worth fetching ahead: the panel itself, the inputs
// that meet it, or nothing, since all was just written.
enum Read { NEVER, BEFORE, LATELY };

#if PD_HAS_TILES

// One thread's hold on its tile registers during a phase: tiles 0 to 3 are sums, 4 and 5 inputs,
// 6 and 7 weights. Let go at the end, since others in this process shape them differently.
class Grip {
  public:
    Grip() = default;
    Grip(const Grip&) = delete;
    Grip& operator=(const Grip&) = delete;
    ~Grip() {
        if (height_) _tile_release();
    }

    // out[height][32] = x[height][depth] * panel; all strides in elements.
    template <Read PANEL_READ>
    void multiply(const Bf16* x, size_t stride, const Bf16* panel, int depth, int height, float* out,
                  size_t out_stride) {
        shape(height);
        asm volatile("" ::: "memory");  // the compiler does not know what a tile reads
        size_t x_bytes = stride * sizeof(Bf16), out_bytes = out_stride * sizeof(float);
        constexpr size_t LINE = PANEL * 2 * sizeof(Bf16);
        _tile_zero(0);
        _tile_zero(1);
        if (height <= TILE_ROWS) {
            for (int i = 0; i < depth; i += TILE_DEPTH, panel += TILE_DEPTH * PANEL) {
                fetch_ahead<PANEL_READ>(panel, x + i, stride, height);
                _tile_loadd(4, x + i, x_bytes);
                _tile_loadd(6, panel, LINE);
                _tile_loadd(7, panel + PANEL, LINE);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
            }
        } else {
            const Bf16* lower = x + TILE_ROWS * stride;
            _tile_zero(2);
            _tile_zero(3);
            for (int i = 0; i < depth; i += TILE_DEPTH, panel += TILE_DEPTH * PANEL) {
                fetch_ahead<PANEL_READ>(panel, x + i, stride, height);
                _tile_loadd(6, panel, LINE);
                _tile_loadd(4, x + i, x_bytes);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(7, panel + PANEL, LINE);
                _tile_dpbf16ps(1, 4, 7);
                _tile_loadd(5, lower + i, x_bytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(2, out + TILE_ROWS * out_stride, out_bytes);
            _tile_stored(3, out + TILE_ROWS * out_stride + TILE_ROWS, out_bytes);
        }
        _tile_stored(0, out, out_bytes);
        _tile_stored(1, out + TILE_ROWS, out_bytes);
        asm volatile("" ::: "memory");
    }

    // out[2][height][32] of two panels behind each other, for at most 16 rows: fetched in turns with
    // the products, two streams of weights come faster than one.
    void multiply_two(const Bf16* x, size_t stride, const Bf16* panel, int depth, int height,
                      float* out, size_t out_stride) {
        shape(height);
        asm volatile("" ::: "memory");
        size_t x_bytes = stride * sizeof(Bf16), out_bytes = out_stride * sizeof(float);
        constexpr size_t LINE = PANEL * 2 * sizeof(Bf16);
        const Bf16* second = panel + size_t(depth) * PANEL;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int i = 0; i < depth; i += TILE_DEPTH, panel += TILE_DEPTH * PANEL,
                 second += TILE_DEPTH * PANEL) {
            const Bf16* after = panel + AHEAD * TILE_DEPTH * PANEL;
            const Bf16* second_after = second + AHEAD * TILE_DEPTH * PANEL;
            _tile_loadd(4, x + i, x_bytes);
            fetch_half(after);
            _tile_loadd(6, panel, LINE);
            _tile_dpbf16ps(0, 4, 6);
            fetch_half(second_after);
            _tile_loadd(7, panel + PANEL, LINE);
            _tile_dpbf16ps(1, 4, 7);
            fetch_half(after + TILE_ROWS * PANEL);
            _tile_loadd(6, second, LINE);
            _tile_dpbf16ps(2, 4, 6);
            fetch_half(second_after + TILE_ROWS * PANEL);
            _tile_loadd(7, second + PANEL, LINE);
            _tile_dpbf16ps(3, 4, 7);
        }
        float* other = out + height * out_stride;
        _tile_stored(0, out, out_bytes);
        _tile_stored(1, out + TILE_ROWS, out_bytes);
        _tile_stored(2, other, out_bytes);
        _tile_stored(3, other + TILE_ROWS, out_bytes);
        asm volatile("" ::: "memory");
    }

  private:
    static constexpr int AHEAD = 2;  // steps of 2 KiB each, about what memory's latency is worth

    static void fetch_half(const Bf16* panel) {  // of a step: 16 cache lines
#pragma GCC unroll 16
        for (int line = 0; line < 16; line++) __builtin_prefetch(panel + line * PANEL);
    }
    template <Read PANEL_READ>
    static void fetch_ahead(const Bf16* panel, const Bf16* x, size_t stride, int height) {
        if constexpr (PANEL_READ == NEVER) {
            fetch_half(panel + AHEAD * TILE_DEPTH * PANEL);
            fetch_half(panel + AHEAD * TILE_DEPTH * PANEL + TILE_ROWS * PANEL);
        } else if constexpr (PANEL_READ == BEFORE) {
            for (int row = 0; row < height; row++)
                __builtin_prefetch(x + TILE_DEPTH + row * stride);
        }
    }
    void shape(int height) {
        if (height == height_) return;
        struct alignas(64) Shape {
            uint8_t palette = 1, start = 0, unused[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } wanted;
        int upper = height < TILE_ROWS ? height : TILE_ROWS, lower = height - upper;
        int others = lower ? lower : upper;  // of the rows below, or of a second panel
        int rows[] = {upper, upper, others, others, upper, lower, TILE_ROWS, TILE_ROWS};
        for (int tile = 0; tile < 8; tile++) {
            wanted.rows[tile] = uint8_t(rows[tile]);
            wanted.bytes[tile] = rows[tile] ? 64 : 0;
        }
        asm volatile("" : : "m"(wanted) : "memory");
        _tile_loadconfig(&wanted);
        height_ = height;
    }
    int height_ = 0;
};

#else

class Grip {
  public:
    template <Read>
    void multiply(const Bf16*, size_t, const Bf16*, int, int, float*, size_t) {}
    void multiply_two(const Bf16*, size_t, const Bf16*, int, int, float*, size_t) {}
};

#endif

}  // namespace pd

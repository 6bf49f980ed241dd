// Copies combs into memory of a neighbour that is mapped here, with everything that is looked at
// before, between and after. daemons/transfer/native/mover.py says the same in Python's words.

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t LINE = 64;        // bytes of a cache line
constexpr int64_t BLOCK = 4096;     // of a piece that is read in several places at once
constexpr int LANES = 4;            // places; one alone waits for memory at each page's beginning
constexpr int64_t STREAMED = 65536;  // bytes of a write that is not kept in the caches

struct Comb {
    int64_t source, target, length, teeth, source_step, target_step;
};

// Regions by address. The first entry is nothing: what lies before all others.
struct Regions {
    const int64_t *begins, *ends;
    const int64_t *shifts;  // from an address to where its byte is here; 0: it is not
    int64_t count;
};

struct Neighbour {
    Regions regions;
    const uint8_t *notice;  // as it is now
    const uint8_t *page;    // as it was found
    int64_t page_bytes;
    int32_t life;  // a pidfd
};

enum Answer : int32_t { DONE, UNLIKE, STRAY, CHANGED, CLOSED };

bool has_ended(const Neighbour &peer) {
    pollfd life{peer.life, POLLIN, 0};
    int ready;
    do ready = poll(&life, 1, 0);  // which a signal ends even where it does not wait
    while (ready < 0 && errno == EINTR);
    return ready != 0;
}

bool is_as_found(const Neighbour &peer) {
    return std::memcmp(peer.notice, peer.page, size_t(peer.page_bytes)) == 0 && !has_ended(peer);
}

// Which region holds some pieces, all of them; 0: none.
int64_t region_of(const Regions &in, int64_t first, int64_t length, int64_t teeth, int64_t step) {
    if (length <= 0 || teeth <= 0) return 0;
    const __int128 last = first + __int128(teeth - 1) * step;
    const __int128 begin = std::min<__int128>(first, last);
    const __int128 end = std::max<__int128>(first, last) + length;
    const int64_t *after = std::upper_bound(in.begins, in.begins + in.count, begin);
    const int64_t index = std::max<int64_t>(0, after - in.begins - 1);
    return end <= in.ends[index] ? index : 0;
}

#if defined(__AVX512F__)
void stream_line(uint8_t *to, const uint8_t *from) {
    _mm512_stream_si512(reinterpret_cast<__m512i *>(to), _mm512_loadu_si512(from));
}
#elif defined(__AVX__)
void stream_line(uint8_t *to, const uint8_t *from) {
    for (int at = 0; at < LINE; at += 32) {
        const auto some = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + at));
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to + at), some);
    }
}
#elif defined(__SSE2__)
void stream_line(uint8_t *to, const uint8_t *from) {
    for (int at = 0; at < LINE; at += 16) {
        const auto some = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + at));
        _mm_stream_si128(reinterpret_cast<__m128i *>(to + at), some);
    }
}
#else
void stream_line(uint8_t *to, const uint8_t *from) { std::memcpy(to, from, LINE); }
#endif

// What was streamed is seen by others before anything that is written after this.
void fence() {
#if defined(__SSE2__)
    _mm_sfence();
#else
    __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

// Whole lines, from and to LANES places that are steps apart.
void stream_lanes(uint8_t *to, const uint8_t *from, int64_t to_step, int64_t from_step,
                  int64_t bytes) {
    int64_t at = 0;
    for (; at + 2 * LINE <= bytes; at += 2 * LINE)
        for (int lane = 0; lane < LANES; lane++) {
            uint8_t *there = to + lane * to_step + at;
            const uint8_t *here = from + lane * from_step + at;
            stream_line(there, here);
            stream_line(there + LINE, here + LINE);
        }
    if (at < bytes)
        for (int lane = 0; lane < LANES; lane++)
            stream_line(to + lane * to_step + at, from + lane * from_step + at);
}

void stream_piece(uint8_t *to, const uint8_t *from, int64_t bytes) {
    const int64_t head = std::min(bytes, int64_t(-reinterpret_cast<uintptr_t>(to) & (LINE - 1)));
    std::memcpy(to, from, size_t(head));
    to += head, from += head, bytes -= head;
    for (; bytes >= LANES * BLOCK; bytes -= LANES * BLOCK) {
        stream_lanes(to, from, BLOCK, BLOCK, BLOCK);
        to += LANES * BLOCK, from += LANES * BLOCK;
    }
    for (; bytes >= LINE; bytes -= LINE) {
        stream_line(to, from);
        to += LINE, from += LINE;
    }
    std::memcpy(to, from, size_t(bytes));
}

void copy(const Comb &comb, int64_t shift, bool streamed) {
    auto *to = reinterpret_cast<uint8_t *>(comb.target + shift);
    const auto *from = reinterpret_cast<const uint8_t *>(comb.source);
    int64_t tooth = 0;
    const int64_t odd = (comb.target + shift) | comb.target_step | comb.length;
    if (streamed && odd % LINE == 0)
        for (; tooth + LANES <= comb.teeth; tooth += LANES)
            stream_lanes(to + tooth * comb.target_step, from + tooth * comb.source_step,
                         comb.target_step, comb.source_step, comb.length);
    for (; tooth < comb.teeth; tooth++) {
        uint8_t *there = to + tooth * comb.target_step;
        const uint8_t *here = from + tooth * comb.source_step;
        if (streamed)
            stream_piece(there, here, comb.length);
        else
            std::memcpy(there, here, size_t(comb.length));
    }
    if (streamed) fence();
}

// Where a comb's pieces are here, as far as from what the neighbour calls it; 0: not mapped.
int64_t shift_of(const Regions &theirs, const Comb &comb) {
    return theirs.shifts[region_of(theirs, comb.target, comb.length, comb.teeth,
                                   comb.target_step)];
}

// Whether a single piece lies behind the last one of a comb as its others do.
bool goes_on(const Comb &comb, const Comb &last, const Comb &next) {
    const int64_t source_step = next.source - last.source;
    const int64_t target_step = next.target - last.target;
    return last.teeth == 1 && next.teeth == 1 && next.length == comb.length &&
           (comb.teeth == 1 || (source_step == comb.source_step && target_step == comb.target_step));
}

// The comb at ``at`` and the single pieces that make it a longer one.
Comb taken(const Comb *combs, int64_t count, int64_t &at, const Regions &theirs, int64_t shift) {
    Comb comb = combs[at++];
    for (; at < count && goes_on(comb, combs[at - 1], combs[at]); at++) {
        if (shift_of(theirs, combs[at]) != shift) break;
        comb.source_step = combs[at].source - combs[at - 1].source;
        comb.target_step = combs[at].target - combs[at - 1].target;
        comb.teeth++;
    }
    return comb;
}

Answer look_again(const Neighbour &peer, const int32_t *closed) {
    if (__atomic_load_n(closed, __ATOMIC_ACQUIRE)) return CLOSED;
    return is_as_found(peer) ? DONE : CHANGED;
}

}  // namespace

extern "C" {

int32_t pd_neighbour_bytes() { return sizeof(Neighbour); }

// Nothing has been written when it answers UNLIKE or STRAY. Pieces must not overlap.
int32_t pd_move(const Comb *combs, int64_t count, const Regions *ours, const Neighbour *peer,
                const int32_t *closed, int64_t call_bytes) {
    if (!is_as_found(*peer)) return UNLIKE;
    const Regions &theirs = peer->regions;
    int64_t bytes = 0;  // of each comb as far as it tells: its product is any number
    for (int64_t i = 0; i < count; i++) {
        const Comb &comb = combs[i];
        if (!region_of(*ours, comb.source, comb.length, comb.teeth, comb.source_step) ||
            !shift_of(theirs, comb))
            return STRAY;
        bytes += int64_t(std::min<__int128>(STREAMED, __int128(comb.length) * comb.teeth));
    }
    const bool streamed = bytes >= STREAMED;
    int64_t moved = 0;  // since the last look
    for (int64_t at = 0; at < count;) {
        const int64_t shift = shift_of(theirs, combs[at]);
        Comb part = taken(combs, count, at, theirs, shift);
        const int64_t each = std::max<int64_t>(1, call_bytes / part.length);
        while (part.teeth > 0) {
            const int64_t left = part.teeth;
            part.teeth = std::min(each, left);
            const int64_t part_bytes = part.teeth * part.length;
            if (moved && moved + part_bytes > call_bytes) {
                if (const Answer answer = look_again(*peer, closed)) return answer;
                moved = 0;
            }
            copy(part, shift, streamed);
            moved += part_bytes;
            if (left > part.teeth) {  // a single piece's steps are any numbers
                part.source += part.teeth * part.source_step;
                part.target += part.teeth * part.target_step;
            }
            part.teeth = left - part.teeth;
        }
    }
    return look_again(*peer, closed);
}
}

// Choosing tokens from rows of logits: the steps of daemons/engine/sampler.py, row by row.
//
// A row is never sorted. Each block of it knows its largest, so the likeliest few lie in few blocks;
// what a limit leaves is told by one key, the last that is left. All sums and weights are fp64, so
// that torch, which adds them in another order, comes to the same tokens.
#pragma once

#include <algorithm>
#include <new>
#include <vector>

#include "team.h"
#include "vector.h"

namespace pd {

// --- numbers of double width ---------------------------------------------------------------------

constexpr int WIDE = LANES / 2;
using Doubles = double __attribute__((vector_size(WIDE * 8)));
using Longs = int64_t __attribute__((vector_size(WIDE * 8)));
using Halves = float __attribute__((vector_size(WIDE * 4)));

inline bool any(Longs mask) {
#if defined(__AVX512DQ__)
    if constexpr (WIDE == 8) return _mm512_movepi64_mask(__m512i(mask)) != 0;
#endif
    int64_t found = 0;
    for (int i = 0; i < WIDE; i++) found |= mask[i];
    return found != 0;
}

// e to the power of x for x <= 0, within 2 units of the last place.
inline Doubles exponential(Doubles x) {
    constexpr double ROUND = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number
    constexpr double LEAST = -708.0, NOTHING_LEFT = -746.0;
    Longs is_low = x < LEAST;
    if (any(is_low) && !any(x >= LEAST) && !any(x >= NOTHING_LEFT)) return Doubles{};
    Doubles shifted = x * 1.44269504088896340736 + ROUND;
    Doubles whole = shifted - ROUND;
    Doubles rest = x - whole * 6.93147180369123816490e-1;  // ln 2 in two parts, as in fdlibm
    rest = rest - whole * 1.90821492927058770002e-10;
    Doubles curve = rest * (1.0 / 6227020800.0) + 1.0 / 479001600;  // Taylor's series, to the 13th
    curve = curve * rest + 1.0 / 39916800;
    curve = curve * rest + 1.0 / 3628800;
    curve = curve * rest + 1.0 / 362880;
    curve = curve * rest + 1.0 / 40320;
    curve = curve * rest + 1.0 / 5040;
    curve = curve * rest + 1.0 / 720;
    curve = curve * rest + 1.0 / 120;
    curve = curve * rest + 1.0 / 24;
    curve = curve * rest + 1.0 / 6;
    curve = curve * rest + 0.5;
    curve = curve * rest + 1.0;
    curve = curve * rest + 1.0;
    Longs scale = (Longs(shifted) << 52) + Longs(1.0 - Doubles{});  // 2^whole
    Doubles out = curve * Doubles(scale);
    if (any(is_low))
        for (int i = 0; i < WIDE; i++)
            if (is_low[i]) out[i] = x[i] < NOTHING_LEFT ? 0.0 : std::exp(x[i]);
    return out;
}

inline Doubles loaded(const float* from, int count) {  // -inf behind the last
    Halves some;
    if (count >= WIDE) {
        std::memcpy(&some, from, sizeof some);
    } else {
        for (int i = 0; i < WIDE; i++) some[i] = i < count ? from[i] : NOTHING;
    }
    return __builtin_convertvector(some, Doubles);
}

// --- what a room wants, and what it gets ---------------------------------------------------------

enum Fault : int32_t { FINE = 0, NOT_FINITE = 1, NO_TOKEN = 2 };
enum Named : int32_t { NO_LOGS = 0, RAW = 1, DRAWN = 2 };

struct Wish {
    const int32_t *said, *counts;  // tokens that penalties are about, and how often in the output
    const int32_t* biased;
    const float* biases;
    const uint32_t* allowed;  // by the grammar, a bit a token
    const int32_t* ends;      // tokens that are out
    double temperature, top_p, min_p, share;
    float repetition, frequency, presence;
    int32_t said_count, biased_count, ends_count;
    int32_t top_k;  // 0: all
    int32_t token;  // already chosen, only its logs are wanted; -1: none is
    int32_t logs;   // Named
    int32_t tops;   // how many of the likeliest to name
};

struct Drawn {
    double log;
    int32_t token, fault, tops;
};

// A token's place among all: smaller is likelier, the lowest id among equals.
using Key = uint64_t;
constexpr Key LAST = ~Key(0);

inline Key key_of(float score, int token) {
    uint32_t bits;
    score += 0.0f;  // one zero
    std::memcpy(&bits, &score, 4);
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;  // grows with the score
    return Key(~bits) << 32 | uint32_t(token);
}
inline int token_of(Key key) { return int(uint32_t(key)); }
inline float score_of(Key key) {
    uint32_t bits = ~uint32_t(key >> 32);
    bits ^= bits >> 31 ? 0x80000000u : 0xffffffffu;
    float score;
    std::memcpy(&score, &bits, 4);
    return score;
}

// --- a row ---------------------------------------------------------------------------------------

// Where one member works; nothing is reserved later.
struct Tray {
    std::vector<float> scores, maxima, order;
    std::vector<double> sums, weights;
    std::vector<Key> keys, tops;
    std::vector<int32_t> tokens;
};

struct Row {
    static constexpr int BLOCK = 64;  // tokens

    const float* scores;
    int count;
    Tray& tray;
    float largest = NOTHING;
    double inverse = 1.0;  // of the temperature

    int blocks() const { return (count + BLOCK - 1) / BLOCK; }
    int end(int block) const { return std::min(count, (block + 1) * BLOCK); }

    // Notes the largest of each block and of all; returns whether none is NaN.
    bool look() {
        Ints odd{};
        Floats most = all(NOTHING);
        for (int block = 0; block < count / BLOCK; block++) {
            const float* from = scores + block * BLOCK;
            Floats own = load(from);
            odd |= own != own;
            for (int i = LANES; i < BLOCK; i += LANES) {
                Floats some = load(from + i);
                odd |= some != some;
                own = larger(own, some);
            }
            most = larger(most, own);
            tray.maxima[block] = pd::largest(own);
        }
        largest = pd::largest(most);
        bool has_nan = false;
        if (count % BLOCK) {
            float own = NOTHING;
            for (int i = count - count % BLOCK; i < count; i++) {
                has_nan |= scores[i] != scores[i];
                own = std::max(own, scores[i]);
            }
            tray.maxima[blocks() - 1] = own;
            largest = std::max(largest, own);
        }
        for (int i = 0; i < LANES; i++) has_nan |= odd[i] != 0;
        return !has_nan;
    }

    int best() const {
        int block = 0;
        while (tray.maxima[block] != largest) block++;
        int token = block * BLOCK;
        while (scores[token] != largest) token++;
        return token;
    }

    double exponent(float score) const { return (double(score) - double(largest)) * inverse; }
    Doubles weights(const float* from, int some) const {
        return exponential((loaded(from, some) - double(largest)) * inverse);
    }
    // The same for one, to the last bit: a limit must not part what two ways of counting call equal.
    double weight_of(float score) const { return exponential(Doubles{} + exponent(score))[0]; }

    // The sum of all weights not below `least`; those of the blocks are noted.
    double total(double least) {
        double sum = 0;
        for (int block = 0; block < blocks(); block++) {
            Doubles own{};
            for (int i = block * BLOCK; i < end(block); i += WIDE) {
                Doubles some = weights(scores + i, end(block) - i);
                own += some < least ? Doubles{} : some;
            }
            double whole = 0;
            for (int i = 0; i < WIDE; i++) whole += own[i];
            tray.sums[block] = whole;
            sum += whole;
        }
        return sum;
    }

    // Collects the keys of all tokens that score at least so much, and more than nothing.
    int collect(float least, std::vector<Key>& keys) const {
        int found = 0;
        for (int block = 0; block < blocks(); block++) {
            if (tray.maxima[block] < least || tray.maxima[block] == NOTHING) continue;
            for (int token = block * BLOCK; token < end(block); token++) {
                keys[found] = key_of(scores[token], token);
                found += (scores[token] >= least) & (scores[token] > NOTHING);
            }
        }
        return found;
    }

    // Collects the keys of the likeliest, in no order; fewer when fewer score more than nothing.
    int likeliest(int wanted, std::vector<Key>& keys) const {
        wanted = std::min(wanted, count);
        auto& order = tray.order;
        std::copy_n(tray.maxima.begin(), blocks(), order.begin());
        float least;  // so much at least do so many score, or some more than that
        if (wanted <= blocks()) {
            std::nth_element(order.begin(), order.begin() + wanted - 1, order.begin() + blocks(),
                             std::greater<float>());
            least = order[wanted - 1];
        } else {
            least = *std::min_element(order.begin(), order.begin() + blocks());
        }
        int found = collect(least, keys);
        if (found < wanted && least > NOTHING) found = collect(NOTHING, keys);
        if (found <= wanted) return found;
        std::nth_element(keys.begin(), keys.begin() + wanted, keys.begin() + found);
        return wanted;
    }

    double weight(const Key* keys, int some) const {  // of all of them
        Doubles sum{};
        float scores[WIDE];
        for (int first = 0; first < some; first += WIDE) {
            int here = std::min(WIDE, some - first);
            for (int i = 0; i < here; i++) scores[i] = score_of(keys[first + i]);
            sum += weights(scores, here);
        }
        double whole = 0;
        for (int i = 0; i < WIDE; i++) whole += sum[i];
        return whole;
    }

    // The last key of the fewest whose weights reach `wanted`, at least of one.
    Key nucleus(Key* keys, int some, double wanted) const {
        double before = 0;
        while (some > BLOCK) {
            int half = some / 2;
            std::nth_element(keys, keys + half, keys + some);
            double own = weight(keys, half);
            if (before + own < wanted) {
                before += own;
                keys += half;
                some -= half;
            } else {
                some = half;
            }
        }
        std::sort(keys, keys + some);
        for (int i = 0; i < some; i++) {
            before += weight_of(score_of(keys[i]));
            if (before >= wanted) return keys[i];
        }
        return keys[some - 1];
    }
};

// --- a choice ------------------------------------------------------------------------------------

struct Chooser {
    const Wish& wish;
    Row row;
    Drawn& out;
    int32_t* names;
    double* values;

    void run() {
        out = {0.0, -1, FINE, 0};
        bool good = row.look() && std::abs(row.largest) < -NOTHING;
        if (!good) {
            out.fault = NOT_FINITE;
            return;
        }
        const float* raw = row.scores;
        float largest = row.largest;
        double log_total = 0;
        if (wish.logs == RAW) {
            log_total = std::log(row.total(0));
            name(LAST, 0, log_total);
        }
        out.token = wish.token;
        if (wish.token < 0 && !choose()) return;
        if (wish.logs == RAW)
            out.log = double(raw[out.token]) - double(largest) - log_total;
    }

  private:
    bool choose() {
        if (is_shaped()) {
            shape();
            bool has_numbers = row.look();  // a penalty near 0 makes others of -inf
            if (!has_numbers || !(std::abs(row.largest) < -NOTHING)) {
                out.fault = has_numbers && row.largest == NOTHING ? NO_TOKEN : NOT_FINITE;
                return false;
            }
        }
        if (wish.temperature > 0) {
            // A temperature near 0 must not become an infinity, whose product with 0 is none.
            row.inverse = std::min(1.0 / wish.temperature, 1e300);
            draw();
            return true;
        }
        out.token = row.best();
        if (wish.logs == DRAWN) tell(LAST, 0, row.total(0));
        return true;
    }

    bool is_shaped() const {
        return wish.said_count || wish.biased_count || wish.allowed || wish.ends_count;
    }

    // Steps 1 to 5, on a copy. Products are exact in fp64, so they round as torch's.
    void shape() {
        auto& scores = row.tray.scores;
        std::copy_n(row.scores, row.count, scores.begin());
        for (int i = 0; i < wish.said_count; i++) {
            double score = scores[wish.said[i]], p = wish.repetition;
            score = score > 0 ? score / p : score * p;
            score -= double(wish.frequency) * wish.counts[i];
            if (wish.counts[i] > 0) score -= double(wish.presence);
            scores[wish.said[i]] = float(score);
        }
        for (int i = 0; i < wish.biased_count; i++) scores[wish.biased[i]] += wish.biases[i];
        if (wish.allowed) forbid(scores.data());
        for (int i = 0; i < wish.ends_count; i++) scores[wish.ends[i]] = NOTHING;
        row.scores = scores.data();
    }

    void forbid(float* scores) const {
        for (int first = 0; first < row.count; first += 32) {
            uint32_t word = wish.allowed[first / 32];
            int last = std::min(row.count, first + 32);
            if (word == 0xffffffffu) continue;
            for (int token = first; token < last; token++)
                scores[token] = word >> (token - first) & 1 ? scores[token] : NOTHING;
        }
    }

    // Steps 7 to 10.
    void draw() {
        Key limit = LAST;
        auto& keys = row.tray.keys;
        int found = 0;
        bool has_limit = wish.top_k > 0 && wish.top_k < row.count;
        if (has_limit) {
            found = row.likeliest(wish.top_k, keys);
            limit = *std::max_element(keys.begin(), keys.begin() + found);
        }
        if (wish.top_p < 1) {
            double wanted = wish.top_p * (has_limit ? row.weight(keys.data(), found) : row.total(0));
            if (!has_limit) found = enough(wanted);
            limit = row.nucleus(keys.data(), found, wanted);
            has_limit = true;
        }
        if (has_limit) {
            draw_from_few(limit);
        } else {
            draw_from_all();
        }
    }

    // Collects keys, the likeliest first of all, whose weights reach `wanted`.
    int enough(double wanted) {
        for (double reach : {5.0, 10.0, 20.0}) {
            int found = row.collect(float(row.largest - reach / row.inverse), row.tray.keys);
            if (row.weight(row.tray.keys.data(), found) >= wanted) return found;
        }
        return row.collect(NOTHING, row.tray.keys);
    }

    void draw_from_few(Key limit) {
        auto& tray = row.tray;
        float least = score_of(limit);
        int found = 0;
        for (int block = 0; block < row.blocks(); block++) {
            if (tray.maxima[block] < least) continue;
            for (int token = block * Row::BLOCK; token < row.end(block); token++) {
                if (key_of(row.scores[token], token) > limit) continue;
                tray.tokens[found] = token;
                tray.weights[found++] = row.weight_of(row.scores[token]);
            }
        }
        double total = 0;
        for (int i = 0; i < found; i++) {
            if (tray.weights[i] < wish.min_p) tray.weights[i] = 0;
            total += tray.weights[i];
        }
        double aim = wish.share * total, sum = 0;
        for (int i = 0; i < found && sum <= aim; i++) {
            sum += tray.weights[i];
            if (tray.weights[i] > 0) out.token = tray.tokens[i];
        }
        if (wish.logs == DRAWN) tell(limit, wish.min_p, total);
    }

    void draw_from_all() {
        double total = row.total(wish.min_p), aim = wish.share * total, sum = 0;
        int block = 0, last = 0;
        for (; block < row.blocks(); block++) {
            if (row.tray.sums[block] > 0) last = block;
            if (sum + row.tray.sums[block] > aim) break;
            sum += row.tray.sums[block];
        }
        if (block == row.blocks()) sum = NOTHING;  // rounded up: the last that weighs anything
        for (int token = last * Row::BLOCK; token < row.end(last) && sum <= aim; token++) {
            double weight = row.weight_of(row.scores[token]);
            if (weight < wish.min_p || weight == 0) continue;
            sum += weight;
            out.token = token;
        }
        if (wish.logs == DRAWN) tell(LAST, wish.min_p, total);
    }

    void tell(Key limit, double least, double total) {
        double log_total = std::log(total);
        name(limit, least, log_total);
        out.log = row.exponent(row.scores[out.token]) - log_total;
    }

    // Names the likeliest of those that are left.
    void name(Key limit, double least, double log_total) {
        auto& keys = row.tray.tops;
        int found = wish.tops ? row.likeliest(wish.tops, keys) : 0;
        std::sort(keys.begin(), keys.begin() + found);
        for (int i = 0; i < found && keys[i] <= limit; i++) {
            double exponent = row.exponent(score_of(keys[i]));
            double weight = row.weight_of(score_of(keys[i]));
            if (weight < least || (wish.logs == DRAWN && weight == 0)) break;
            names[i] = token_of(keys[i]);
            values[i] = exponent - log_total;
            out.tops = i + 1;
        }
    }
};

// A room for each member to work in, and what they do together: a row is one's.
struct Sampler {
    std::vector<Tray> trays;
    int count;  // tokens

    Sampler(int members, int vocabulary) : trays(members), count(vocabulary) {
        int blocks = (count + Row::BLOCK - 1) / Row::BLOCK;
        for (auto& tray : trays) {
            tray.scores.resize(count);
            tray.maxima.resize(blocks);
            tray.order.resize(blocks);
            tray.sums.resize(blocks);
            tray.weights.resize(count);
            tray.keys.resize(count + 1);
            tray.tops.resize(count + 1);
            tray.tokens.resize(count);
        }
    }
};

struct Sampling {
    Sampler& sampler;
    const float* logits;  // [rows][vocabulary]
    int rows, widest;
    const Wish* wishes;
    Drawn* drawn;
    int32_t* names;  // [rows][widest]
    double* values;

    static void work(void* self, Team& team, int member) {
        static_cast<Sampling*>(self)->run(team, member);
    }
    void run(Team& team, int member) {
        for (int row = team.take(); row < rows; row = team.take()) choose(row, member);
    }
    void choose(int row, int member) {
        Row own{logits + size_t(row) * sampler.count, sampler.count, sampler.trays[member]};
        size_t at = size_t(row) * widest;
        Chooser{wishes[row], own, drawn[row], names + at, values + at}.run();
    }
};

}  // namespace pd

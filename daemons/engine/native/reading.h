// Reading alone, from end to end: what a step of decode has for its limit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "team.h"
#include "vector.h"

namespace pd {

// Each member goes through a part of its own, in some streams at once.
struct Reading {
    const char* from;
    int64_t bytes;
    int streams;
    std::atomic<uint32_t> sum{0};  // of all words: so that nothing is left unread

    static constexpr int LINE = 64, AHEAD = 2048;

    static void work(void* self, Team& team, int member) {
        static_cast<Reading*>(self)->run(member, team.members());
    }
    void run(int member, int members) {
        int64_t lines = bytes / LINE / members / streams;  // of a stream; a rest is left out
        const char* own = from + lines * LINE * streams * member;
        Words sums[LINE / sizeof(Words)] = {};
        for (int64_t line = 0; line < lines; line++)
            for (int stream = 0; stream < streams; stream++) {
                const char* at = own + (stream * lines + line) * LINE;
                __builtin_prefetch(at + AHEAD);
                for (size_t part = 0; part < LINE / sizeof(Words); part++) {
                    Words words;
                    std::memcpy(&words, at + part * sizeof words, sizeof words);
                    sums[part] += words;
                }
            }
        uint32_t total = 0;
        for (Words& words : sums)
            for (int lane = 0; lane < LANES; lane++) total += words[lane];
        sum.fetch_add(total);
    }
};

}  // namespace pd

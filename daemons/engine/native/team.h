// Threads that run one function together, phase by phase.
//
// They spin briefly for each other and then sleep in the kernel: a team without work costs
// nothing, and one whose core was taken away does not burn the others'.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <thread>
#include <vector>

namespace pd {

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A number that only grows; whoever waits for it sleeps after a while.
class Epoch {
  public:
    uint32_t now() const { return value_.load(std::memory_order_acquire); }
    void advance() {
        value_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0)
            syscall(SYS_futex, address(), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
    void wait_beyond(uint32_t seen, int spins) {
        for (int i = 0; i < spins; i++) {
            if (now() != seen) return;
            pause_briefly();
        }
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        while (now() == seen)
            syscall(SYS_futex, address(), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }

  private:
    uint32_t* address() { return reinterpret_cast<uint32_t*>(&value_); }
    std::atomic<uint32_t> value_{0};
    std::atomic<int> sleepers_{0};
};

class Team {
  public:
    using Work = void (*)(void* argument, Team& team, int member);

    // `cores`: one for each member but the first, which is the caller; negative means anywhere.
    Team(int members, const int* cores) : members_(members), parts_(members) {
        for (int member = 1; member < members; member++) {
            int core = cores ? cores[member - 1] : -1;
            threads_.emplace_back([this, member, core] { live(member, core); });
        }
    }
    ~Team() {
        leaving_.store(true);
        started_.advance();
        for (auto& thread : threads_) thread.join();
    }

    int members() const { return members_; }

    // Has every member run `work`; the caller is member 0.
    void run(Work work, void* argument) {
        work_ = work;
        argument_ = argument;
        begin_anew();
        if (members_ > 1) started_.advance();
        work(argument, *this, 0);
        meet();
    }

    // The end of a phase: nobody goes on before all are here. Shares are counted from 0 again.
    void meet() {
        if (members_ == 1) {
            begin_anew();
            return;
        }
        uint32_t phase = phase_.now();
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) {
            arrived_.store(0, std::memory_order_relaxed);
            begin_anew();
            phase_.advance();
        } else {
            phase_.wait_beyond(phase, PHASE_SPINS);
        }
    }

    // The next share of a phase's work that nobody took.
    int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

    // The same for shares that lie behind each other in memory: a member goes through a part of
    // its own from end to end, then helps the others; -1 when all is taken.
    int take_near(int member, int shares) {
        for (int i = 0; i < members_; i++) {
            int owner = (member + i) % members_;
            int first = int(int64_t(shares) * owner / members_);
            int last = int(int64_t(shares) * (owner + 1) / members_);
            if (parts_[owner].taken.load(std::memory_order_relaxed) >= last - first) continue;
            int share = first + parts_[owner].taken.fetch_add(1, std::memory_order_relaxed);
            if (share < last) return share;
        }
        return -1;
    }

  private:
    static constexpr int PHASE_SPINS = 4000;  // some 50 us
    static constexpr int START_SPINS = 4000;

    struct alignas(64) Part {
        std::atomic<int> taken{0};
    };

    void begin_anew() {
        next_.store(0, std::memory_order_relaxed);
        for (auto& part : parts_) part.taken.store(0, std::memory_order_relaxed);
    }

    void live(int member, int core) {
        if (core >= 0) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(core, &set);
            pthread_setaffinity_np(pthread_self(), sizeof set, &set);
        }
        uint32_t seen = 0;
        while (true) {
            started_.wait_beyond(seen, START_SPINS);
            seen++;
            if (leaving_.load()) return;
            work_(argument_, *this, member);
            meet();
        }
    }

    const int members_;
    std::vector<Part> parts_;
    std::vector<std::thread> threads_;
    Work work_ = nullptr;
    void* argument_ = nullptr;
    std::atomic<bool> leaving_{false};
    alignas(64) Epoch started_;
    alignas(64) Epoch phase_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> next_{0};
};

}  // namespace pd

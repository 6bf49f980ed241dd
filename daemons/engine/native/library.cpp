// What Python calls, by plain C; daemons/engine/native/abi.py says the same in its words.
//
// Nothing throws across this border: what cannot be done comes back as a sentence or a null.
#include <array>
#include <new>

#include "decoder.h"
#include "reading.h"
#include "sample.h"

using namespace pd;

namespace {

template <class T>
const char* forward(const Model& model, Team& team, Workspace& space, const Batch& batch,
                    const Cache* caches, float* stream) {
    Forward<T> all{model, batch, space, {}, caches, stream};
    if (const char* fault = all.prepare(team.members())) return fault;
    team.run(Forward<T>::work, &all);
    return nullptr;
}

template <class T>
const char* logits(const Model& model, Team& team, Workspace& space, const float* stream,
                   const int32_t* rows, int count, float* to) {
    Logits<T> all{{model, space, stream, rows, count}, to};
    if (!all.head.prepare()) return "no memory for logits";
    team.run(Logits<T>::work, &all);
    return nullptr;
}

template <class T>
const char* likeliest(const Model& model, Team& team, Workspace& space, const float* stream,
                      const int32_t* rows, int count, int32_t* tokens) {
    Likeliest<T> all{{model, space, stream, rows, count}, nullptr};
    bool good = grow(space.found, sizeof(Found) * size_t(count) * team.members());
    if (!good || !all.head.prepare()) return "no memory for logits";
    all.found = space.found.as<Found>();
    team.run(Likeliest<T>::work, &all);
    for (int row = 0; row < count; row++) {
        Found& own = all.found[row];
        for (int member = 1; member < team.members(); member++)
            own.merge(all.found[size_t(member) * count + row]);
        tokens[row] = own.chosen();
    }
    return nullptr;
}

// Attention of one layer for a model that runs elsewhere.
template <class T>
struct Alone {
    const Cache& cache;
    const Batch& batch;
    const Plan& plan;
    Rule rule;
    int group;
    const T *query, *kv;  // [tokens][heads][head_dim], [tokens][2 * kv_heads][head_dim]
    int64_t query_stride, kv_stride;
    T* mixed;
    Workspace& space;

    static void work(void* self, Team& team, int member) {
        static_cast<Alone*>(self)->run(team, member);
    }
    void run(Team& team, int member) {
        int dim = cache.head_dim;
        for (int span = team.take(); span < batch.span_count; span = team.take())
            for (int i = 0; i < batch.spans[span].tokens; i++) place(batch.spans[span], i);
        team.meet();
        Attention<T>{cache, batch, plan, rule, group, space.query.as<T>(), mixed,
                     cache.kv_heads * group * dim, space}
            .run(team, member);
    }
    void place(const Span& span, int token) {
        int dim = cache.head_dim, row = span.first + token, position = span.start + token;
        int64_t page = batch.pages[span.pages_at + position / cache.page_size];
        size_t at = size_t(position % cache.page_size) * dim, head_bytes = sizeof(T) * dim;
        for (int head = 0; head < cache.kv_heads; head++) {
            const T* key = kv + row * kv_stride + head * dim;
            std::memcpy(cache.template page<T>(0, head, page) + at, key, head_bytes);
            std::memcpy(cache.template page<T>(1, head, page) + at, key + cache.kv_heads * dim,
                        head_bytes);
            std::memcpy(space.query.as<T>() + (size_t(head) * batch.tokens + row) * group * dim,
                        query + row * query_stride + head * group * dim, head_bytes * group);
        }
    }
};

template <class T>
const char* attend(Team& team, Workspace& space, const Batch& any, const Cache& cache,
                   const Rule& rule, int group, const void* query, int64_t query_stride,
                   const void* kv, int64_t kv_stride, void* mixed) {
    const Batch batch = any.over(cache);
    Plan plan = plan_for(batch, rule.window, cache.kv_heads, group, team.members());
    size_t width = size_t(cache.kv_heads) * group * cache.head_dim;
    bool good = grow(space.query, sizeof(T) * batch.tokens * width);
    good &= grow(space.partials,
                 sizeof(float) * plan.partials * (rounded_up(cache.head_dim, PANEL) + 2));
    for (auto& desk : space.desks) good &= desk.fit(cache.head_dim);
    if (!good) return "no memory for attention";
    Alone<T> all{cache, batch, plan, rule, group, static_cast<const T*>(query),
                 static_cast<const T*>(kv), query_stride, kv_stride, static_cast<T*>(mixed), space};
    team.run(Alone<T>::work, &all);
    return nullptr;
}

}  // namespace

extern "C" {

int32_t pd_layer_bytes() { return sizeof(Layer); }
int32_t pd_model_bytes() { return sizeof(Model); }
int32_t pd_cache_bytes() { return sizeof(Cache); }
int32_t pd_batch_bytes() { return sizeof(Batch); }
int32_t pd_wish_bytes() { return sizeof(Wish); }

Team* pd_team_new(int32_t members, const int32_t* cores) {
    try {
        return new Team(members, cores);
    } catch (...) {
        return nullptr;
    }
}
void pd_team_free(Team* team) { delete team; }

uint32_t pd_read(Team* team, const void* from, int64_t bytes, int32_t streams) {
    Reading all{static_cast<const char*>(from), bytes, streams};
    team->run(Reading::work, &all);
    return all.sum.load();
}

Workspace* pd_workspace_new(int32_t members) { return new (std::nothrow) Workspace(members); }
void pd_workspace_free(Workspace* space) { delete space; }

Matrix* pd_matrix_new(int32_t is_bf16, const void* rows, const void* bias, int32_t n, int32_t k,
                      int32_t is_gated) {
    if (is_bf16)
        return packed(static_cast<const Bf16*>(rows), static_cast<const Bf16*>(bias), n, k, is_gated);
    return packed(static_cast<const float*>(rows), static_cast<const float*>(bias), n, k, is_gated);
}
Matrix* pd_rounded_new(int32_t is_bf16, int32_t bits, const void* values, const void* scales,
                       const void* lows, const void* bias, int32_t n, int32_t k, int32_t is_gated) {
    auto* from = static_cast<const uint8_t*>(values);
    if (is_bf16)
        return packed_rounded(bits, from, static_cast<const Bf16*>(scales),
                              static_cast<const Bf16*>(lows), static_cast<const Bf16*>(bias), n, k,
                              is_gated);
    return packed_rounded(bits, from, static_cast<const float*>(scales),
                          static_cast<const float*>(lows), static_cast<const float*>(bias), n, k,
                          is_gated);
}
void pd_matrix_free(Matrix* matrix) { delete matrix; }

const char* pd_forward(const Model* model, Team* team, Workspace* space, const Batch* batch,
                       const Cache* caches, float* stream) {
    return model->is_bf16 ? forward<Bf16>(*model, *team, *space, *batch, caches, stream)
                          : forward<float>(*model, *team, *space, *batch, caches, stream);
}

const char* pd_logits(const Model* model, Team* team, Workspace* space, const float* stream,
                      const int32_t* rows, int32_t count, float* to) {
    return model->is_bf16 ? logits<Bf16>(*model, *team, *space, stream, rows, count, to)
                          : logits<float>(*model, *team, *space, stream, rows, count, to);
}

const char* pd_likeliest(const Model* model, Team* team, Workspace* space, const float* stream,
                         const int32_t* rows, int32_t count, int32_t* tokens) {
    return model->is_bf16
               ? likeliest<Bf16>(*model, *team, *space, stream, rows, count, tokens)
               : likeliest<float>(*model, *team, *space, stream, rows, count, tokens);
}

const char* pd_attend(Team* team, Workspace* space, const Batch* batch, const Cache* cache,
                      const Rule* rule, int32_t is_bf16, int32_t group, const void* query,
                      int64_t query_stride, const void* kv, int64_t kv_stride, void* mixed) {
    auto run = is_bf16 ? attend<Bf16> : attend<float>;
    return run(*team, *space, *batch, *cache, *rule, group, query, query_stride, kv, kv_stride, mixed);
}

Sampler* pd_sampler_new(int32_t members, int32_t vocabulary) {
    try {
        return new Sampler(members, vocabulary);
    } catch (...) {
        return nullptr;
    }
}
void pd_sampler_free(Sampler* sampler) { delete sampler; }

void pd_sample(Team* team, Sampler* sampler, const float* logits, int32_t rows, const Wish* wishes,
               Drawn* drawn, int32_t widest, int32_t* names, double* values) {
    Sampling all{*sampler, logits, rows, widest, wishes, drawn, names, values};
    if (rows == 1) return all.choose(0, 0);  // waking the others takes longer
    team->run(Sampling::work, &all);
}
}

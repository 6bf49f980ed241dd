// One forward of a whole decoder: from token ids to what its last layer leaves, and to logits.
//
// Members of the team go through the same phases together. The stream between layers is fp32;
// what is multiplied, and the cache, are of the model's type.
#pragma once

#include <cstdlib>
#include <vector>

#include "attention.h"

namespace pd {

constexpr int FEW_ROWS = 12;  // so few are normed by each member for itself, which saves a meeting
constexpr int ROPES = 4;

// Both structs are read by daemons/engine/native/abi.py, field by field.
struct Layer {
    const float *before_attention, *after_attention, *before_mlp, *after_mlp;  // [hidden] or null
    const float *query_norm, *key_norm;                                        // [head_dim] or null
    const Matrix *qkv, *out, *gate_up, *down;
    int32_t rope, window;
    float scale, softcap;
};
struct Model {
    const Layer* layers;
    const float* norm;
    const Matrix* head;
    const void* embedding;      // [vocabulary][hidden]; null: it is the head
    const float* angles[ROPES]; // [head_dim / 2]
    float amplitudes[ROPES];
    int32_t layer_count, ropes, hidden, heads, kv_heads, head_dim, middle, vocabulary;
    int32_t is_bf16, is_gelu;
    float eps, embedding_scale, logits_softcap;
};
struct Batch {
    const int32_t *ids, *positions;  // [tokens]
    const Span *spans, *window_spans;  // the same but for their page tables
    const int32_t* pages;              // all page tables, behind each other
    int32_t tokens, span_count;
    int64_t* layers_done;            // raised as layers are in the cache; null: nobody looks

    // The same tokens with the page tables that a layer's pages are found by.
    Batch over(const Cache& cache) const {
        Batch own = *this;
        if (cache.windowed) own.spans = window_spans;
        return own;
    }
};

// Between rows that are multiplied: an odd number of cache lines, so that rows do not lie in the same
// few places of the first cache.
template <class T>
int stride_of(int width) {
    constexpr int LINE = 64 / sizeof(T);
    return (rounded_up(width, LINE) / LINE | 1) * LINE;
}

struct Share {  // of attention: queries of one kv head, and some blocks of what they see
    int span, head, token, tokens, first_block, last_block;
    int64_t partials;  // where the parts of a split go; -1: it is whole
};
struct Split {  // a token whose blocks were shared out
    int row, head, blocks;
    int64_t partials;
};
struct Plan {
    int window;
    std::vector<Share> shares;
    std::vector<Split> splits;
    int64_t partials = 0;
};

inline Plan plan_for(const Batch& batch, int window, int kv_heads, int group, int members) {
    Plan plan{window, {}, {}, 0};
    bool is_scarce = batch.tokens * kv_heads < 4 * members;
    bool is_plenty = int64_t(batch.tokens) * kv_heads * group >= int64_t(4) * members * UNIT_ROWS;
    int step = std::max(1, (is_plenty ? UNIT_ROWS : UNIT_ROWS / 2) / group);
    for (int span = 0; span < batch.span_count; span++) {
        const Span& own = batch.spans[span];
        // The last tokens see the most, so they go first.
        for (int token = (own.tokens - 1) / step * step; token >= 0; token -= step)
            for (int head = 0; head < kv_heads; head++) {
                int tokens = std::min(step, own.tokens - token);
                int low = window > 0 ? std::max(0, own.start + token + 1 - window) : 0;
                int first = low / BLOCK, last = (own.start + token + tokens - 1) / BLOCK + 1;
                if (tokens == 1 && is_scarce && last - first > SPLIT_BLOCKS) {
                    plan.splits.push_back({own.first + token, head, last - first, plan.partials});
                    for (int at = first; at < last; at += SPLIT_BLOCKS) {
                        int end = std::min(last, at + SPLIT_BLOCKS);
                        plan.shares.push_back({span, head, token, 1, at, end,
                                               plan.partials + int64_t(at - first) * group});
                    }
                    plan.partials += int64_t(last - first) * group;
                } else {
                    plan.shares.push_back({span, head, token, tokens, first, last, -1});
                }
            }
    }
    return plan;
}

// Memory between phases; grows with the batch and stays.
struct Workspace {
    explicit Workspace(int members) : desks(members), own(members) {}
    std::vector<Desk> desks;
    std::vector<Memory> own;  // a member's few normed rows
    Memory normed, qkv, query, mixed, opened, between, cosines, sines, partials, found;
    int rows = 0;
};

template <class T>
void norm_row(const float* row, const float* weight, int width, float eps, T* to) {
    Floats squares = Floats{};
    int whole = width / LANES * LANES;
    for (int i = 0; i < whole; i += LANES) squares += load(row + i) * load(row + i);
    float total = sum(squares);
    for (int i = whole; i < width; i++) total += row[i] * row[i];
    float factor = 1.0f / std::sqrt(total / width + eps);
    for (int i = 0; i < whole; i += LANES)
        narrowed(to + i, load(row + i) * all(factor) * load(weight + i));
    for (int i = whole; i < width; i++) narrow(row[i] * factor * weight[i], to[i]);
}

// Attention alone: the cache is written, `query` is [kv_heads][tokens][group][head_dim].
template <class T>
struct Attention {
    const Cache& cache;
    const Batch& batch;
    const Plan& plan;
    Rule rule;
    int group;
    const T* query;
    T* mixed;  // [tokens][heads * head_dim], rows `stride` apart
    int stride;
    Workspace& space;

    int wide() const { return rounded_up(cache.head_dim, PANEL); }
    T* out_of(int row, int head, int of) const {
        return mixed + size_t(row) * stride + (head * group + of) * cache.head_dim;
    }
    static Partial partial_at(float* base, int64_t index, int wide) {
        float* at = base + index * (wide + 2);
        return {at + wide, at + wide + 1, at};
    }
    void run(Team& team, int member) const {
        int count = int(plan.shares.size());
        Multiplier<T> multiplier;
        for (int share = team.take(); share < count; share = team.take())
            run_share(plan.shares[share], space.desks[member], multiplier);
        if (plan.splits.empty()) return;
        team.meet();
        count = int(plan.splits.size());
        for (int split = team.take(); split < count; split = team.take())
            join(plan.splits[split], space.desks[member]);
    }
    void run_share(const Share& share, Desk& desk, Multiplier<T>& multiplier) const {
        const Span& span = batch.spans[share.span];
        int row = span.first + share.token, rows = share.tokens * group, width = wide();
        const T* from = query + (size_t(share.head) * batch.tokens + row) * group * cache.head_dim;
        Unit<T> unit{cache, rule, batch.pages + span.pages_at, from, share.head, group,
                     span.start + share.token, rows, share.first_block, share.last_block};
        if (share.partials >= 0) {
            float* base = space.partials.as<float>();
            for (int64_t i = 0; i < int64_t(share.last_block - share.first_block) * group; i++)
                *partial_at(base, share.partials + i, width).largest = NOTHING;
            unit.run(desk, multiplier, [&](int of, int block) {
                int64_t index = share.partials + int64_t(block - share.first_block) * group + of;
                return partial_at(base, index, width);
            });
            return;
        }
        float* base = desk.state;
        for (int i = 0; i < rows; i++) *partial_at(base, i, width).largest = NOTHING;
        unit.run(desk, multiplier, [&](int of, int) { return partial_at(base, of, width); });
        for (int i = 0; i < rows; i++)
            put_out(partial_at(base, i, width), out_of(row + i / group, share.head, i % group),
                    cache.head_dim);
    }
    void join(const Split& split, Desk& desk) const {
        int width = wide();
        Partial whole = partial_at(desk.state, 0, width);
        for (int of = 0; of < group; of++) {
            *whole.largest = NOTHING;
            for (int block = 0; block < split.blocks; block++) {
                int64_t index = split.partials + int64_t(block) * group + of;
                Partial part = partial_at(space.partials.as<float>(), index, width);
                merge(1, [&](int) { return whole; }, part.largest, part.sum, part.values, width, width);
            }
            put_out(whole, out_of(split.row, split.head, of), cache.head_dim);
        }
    }
};

template <class T>
struct Forward {
    const Model& model;
    const Batch& batch;
    Workspace& space;
    std::vector<Plan> plans;
    const Cache* caches; // by layer
    float* stream;       // [tokens][hidden]

    int group() const { return model.heads / model.kv_heads; }
    int across() const { return model.heads * model.head_dim; }
    int projected() const { return across() + 2 * model.kv_heads * model.head_dim; }
    static int strided(int width) { return stride_of<T>(width); }

    const char* prepare(int members) {
        size_t rows = batch.tokens, dim = model.head_dim;
        int64_t partials = 0;
        for (int i = 0; i < model.layer_count; i++) {
            int window = model.layers[i].window;
            bool is_known = false;
            for (auto& plan : plans) is_known |= plan.window == window;
            if (!is_known) plans.push_back(plan_for(batch, window, model.kv_heads, group(), members));
        }
        for (auto& plan : plans) partials = std::max(partials, plan.partials);
        bool good = grow(space.normed, sizeof(T) * rows * strided(model.hidden));
        good &= grow(space.qkv, sizeof(float) * rows * projected());
        good &= grow(space.query, sizeof(T) * rows * across());
        good &= grow(space.mixed, sizeof(T) * rows * strided(across()));
        good &= grow(space.opened, sizeof(T) * rows * strided(model.middle));
        good &= grow(space.between, sizeof(float) * rows * model.hidden);
        good &= grow(space.cosines, sizeof(float) * rows * dim / 2 * model.ropes);
        good &= grow(space.sines, sizeof(float) * rows * dim / 2 * model.ropes);
        good &= grow(space.partials, sizeof(float) * partials * (rounded_up(dim, PANEL) + 2));
        for (int i = 0; i < members; i++) {
            good &= space.desks[i].fit(dim);
            good &= grow(space.own[i], sizeof(T) * FEW_ROWS * strided(model.hidden));
        }
        return good ? nullptr : "no memory for a forward";
    }

    const Plan& plan_of(int window) const {
        for (auto& plan : plans)
            if (plan.window == window) return plan;
        std::abort();
    }

    static void work(void* self, Team& team, int member) {
        static_cast<Forward*>(self)->run(team, member);
    }
    void run(Team& team, int member) {
        embed(team);
        team.meet();
        for (int i = 0; i < model.layer_count; i++) {
            const Layer& layer = model.layers[i];
            const T* x = normed(team, member, layer.before_attention);
            project(team, member, x, layer);
            team.meet();
            const Cache& own = caches[i];
            const Batch paged = batch.over(own);
            turn(team, layer, own, paged);
            team.meet();
            if (member == 0 && batch.layers_done)
                __atomic_store_n(batch.layers_done, int64_t(i + 1), __ATOMIC_RELEASE);
            Rule rule{layer.window, layer.scale, layer.softcap};
            Attention<T>{own, paged, plan_of(layer.window), rule, group(), space.query.as<T>(),
                         space.mixed.as<T>(), strided(across()), space}
                .run(team, member);
            team.meet();
            add(team, member, space.mixed.as<T>(), strided(across()), *layer.out, layer.after_attention);
            x = normed(team, member, layer.before_mlp);
            open(team, member, x, *layer.gate_up);
            team.meet();
            add(team, member, space.opened.as<T>(), strided(model.middle), *layer.down, layer.after_mlp);
        }
    }

    template <class Each>
    void each_row(Team& team, int rows_at_once, Each&& each) {
        int shares = (batch.tokens + rows_at_once - 1) / rows_at_once;
        for (int share = team.take(); share < shares; share = team.take()) {
            int end = std::min(batch.tokens, (share + 1) * rows_at_once);
            for (int row = share * rows_at_once; row < end; row++) each(row);
        }
    }

    void embed(Team& team) {
        int half = model.head_dim / 2;
        each_row(team, 8, [&](int row) {
            float* to = stream + size_t(row) * model.hidden;
            int id = batch.ids[row];
            if (model.embedding) {
                const T* from = static_cast<const T*>(model.embedding) + size_t(id) * model.hidden;
                for (int i = 0; i < model.hidden; i++) to[i] = widen(from[i]) * model.embedding_scale;
            } else {
                unpack_row<T>(*model.head, id, to, model.embedding_scale);
            }
            for (int rope = 0; rope < model.ropes; rope++) {
                size_t at = (size_t(rope) * batch.tokens + row) * half;
                for (int i = 0; i < half; i++) {
                    float angle = float(batch.positions[row]) * model.angles[rope][i];
                    space.cosines.as<float>()[at + i] = std::cos(angle) * model.amplitudes[rope];
                    space.sines.as<float>()[at + i] = std::sin(angle) * model.amplitudes[rope];
                }
            }
        });
    }

    const T* normed(Team& team, int member, const float* weight) {
        int stride = strided(model.hidden);
        if (batch.tokens <= FEW_ROWS) {
            T* own = space.own[member].as<T>();
            for (int row = 0; row < batch.tokens; row++)
                norm_row(stream + size_t(row) * model.hidden, weight, model.hidden, model.eps,
                         own + row * stride);
            return own;
        }
        T* shared = space.normed.as<T>();
        each_row(team, 8, [&](int row) {
            norm_row(stream + size_t(row) * model.hidden, weight, model.hidden, model.eps,
                     shared + size_t(row) * stride);
        });
        team.meet();
        return shared;
    }

    void project(Team& team, int member, const T* x, const Layer& layer) {
        float* to = space.qkv.as<float>();
        int width = projected();
        multiply(team, member, x, strided(model.hidden), batch.tokens, *layer.qkv,
                 [&](int row, int rows, int panel, const float* out) {
                     put(out, rows, layer.qkv->bias_of(panel), to + size_t(row) * width, width,
                         panel * PANEL, width);
                 });
    }

    // A tile's columns, as far as there are any, with their bias.
    static void put(const float* out, int rows, const float* bias, float* to, int stride, int first,
                    int width) {
        int columns = std::min(PANEL, width - first);
        for (int row = 0; row < rows; row++, out += PANEL, to += stride)
            for (int i = 0; i < columns; i++) to[first + i] = bias ? out[i] + bias[i] : out[i];
    }

    void turn_head(float* head, const float* weight, const float* cosines, const float* sines) {
        int dim = model.head_dim, half = dim / 2;
        if (weight) norm_row(head, weight, dim, model.eps, head);
        for (int i = 0; i < half; i++) {
            float one = head[i], two = head[i + half];
            head[i] = one * cosines[i] - two * sines[i];
            head[i + half] = two * cosines[i] + one * sines[i];
        }
    }

    // Norm and rotate queries and keys; keys and values go into the cache.
    void turn(Team& team, const Layer& layer, const Cache& own, const Batch& paged) {
        int dim = model.head_dim, half = dim / 2, width = projected();
        int shares = (batch.tokens + 7) / 8;
        for (int share = team.take(); share < shares; share = team.take()) {
            int row = share * 8, end = std::min(batch.tokens, row + 8);
            const Span* span = span_of(paged, row);
            for (; row < end; row++) {
                while (row >= span->first + span->tokens) span++;
                float* qkv = space.qkv.as<float>() + size_t(row) * width;
                size_t table = (size_t(layer.rope) * batch.tokens + row) * half;
                const float* cosines = space.cosines.as<float>() + table;
                const float* sines = space.sines.as<float>() + table;
                for (int head = 0; head < model.heads; head++) {
                    float* from = qkv + head * dim;
                    turn_head(from, layer.query_norm, cosines, sines);
                    size_t of = (size_t(head / group()) * batch.tokens + row) * group();
                    T* to = space.query.as<T>() + (of + head % group()) * dim;
                    for (int i = 0; i < dim; i++) narrow(from[i], to[i]);
                }
                int position = span->start + row - span->first;
                int64_t page = paged.pages[span->pages_at + position / own.page_size];
                size_t place = size_t(position % own.page_size) * dim;
                for (int head = 0; head < model.kv_heads; head++) {
                    float* key = qkv + across() + head * dim;
                    const float* value = key + model.kv_heads * dim;
                    turn_head(key, layer.key_norm, cosines, sines);
                    T* keys = own.template page<T>(0, head, page) + place;
                    T* values = own.template page<T>(1, head, page) + place;
                    for (int i = 0; i < dim; i++) narrow(key[i], keys[i]);
                    for (int i = 0; i < dim; i++) narrow(value[i], values[i]);
                }
            }
        }
    }
    static const Span* span_of(const Batch& paged, int row) {
        const Span* end = paged.spans + paged.span_count;
        const Span* after = std::upper_bound(paged.spans, end, row,
                                             [](int of, const Span& span) { return of < span.first; });
        return after - 1;
    }

    // stream += norm(x * matrix); ends with a meeting.
    void add(Team& team, int member, const T* x, int stride, const Matrix& matrix, const float* norm) {
        int hidden = model.hidden;
        float* between = space.between.as<float>();
        multiply(team, member, x, stride, batch.tokens, matrix,
                 [&](int row, int rows, int panel, const float* out) {
                     const float* bias = matrix.bias_of(panel);
                     int first = panel * PANEL, columns = std::min(PANEL, hidden - first);
                     if (norm) {
                         put(out, rows, bias, between + size_t(row) * hidden, hidden, first, hidden);
                         return;
                     }
                     for (int i = 0; i < rows; i++, out += PANEL) {
                         float* to = stream + size_t(row + i) * hidden + first;
                         for (int j = 0; j < columns; j++) to[j] += bias ? out[j] + bias[j] : out[j];
                     }
                 });
        team.meet();
        if (!norm) return;
        each_row(team, 8, [&](int row) {
            float* from = between + size_t(row) * hidden;
            norm_row(from, norm, hidden, model.eps, from);
            for (int i = 0; i < hidden; i++) stream[size_t(row) * hidden + i] += from[i];
        });
        team.meet();
    }

    // opened = activation(gate) * up
    void open(Team& team, int member, const T* x, const Matrix& matrix) {
        constexpr int HALF = PANEL / 2;
        T* to = space.opened.as<T>();
        int stride = strided(model.middle);
        multiply(team, member, x, strided(model.hidden), batch.tokens, matrix,
                 [&](int row, int rows, int panel, float* out) {
                     const float* bias = matrix.bias_of(panel);
                     int columns = std::min(HALF, model.middle - panel * HALF);
                     for (int i = 0; i < rows; i++, out += PANEL) {
                         if (bias)
                             for (int j = 0; j < PANEL; j++) out[j] += bias[j];
                         alignas(64) T opened[HALF];
                         for (int j = 0; j < HALF; j += LANES) {
                             Floats gate = load(out + j);
                             gate = model.is_gelu ? gelu_tanh(gate) : silu(gate);
                             narrowed(opened + j, gate * load(out + HALF + j));
                         }
                         std::memcpy(to + size_t(row + i) * stride + panel * HALF, opened,
                                     sizeof(T) * columns);
                     }
                 });
    }
};

// Rows of the stream against the head: `done(row, columns, first, out)` takes 32 logits of a row.
template <class T>
struct Head {
    const Model& model;
    Workspace& space;
    const float* stream;
    const int32_t* rows;  // of the stream; null: from the first on
    int count;

    bool prepare() {
        return grow(space.normed, sizeof(T) * size_t(count) * stride_of<T>(model.hidden));
    }
    template <class Done>
    void run(Team& team, int member, Done&& done) const {
        int stride = stride_of<T>(model.hidden);
        T* x = space.normed.as<T>();
        for (int row = team.take(); row < count; row = team.take())
            norm_row(stream + size_t(rows ? rows[row] : row) * model.hidden, model.norm,
                     model.hidden, model.eps, x + size_t(row) * stride);
        team.meet();
        multiply(team, member, x, stride, count, *model.head,
                 [&](int row, int height, int panel, float* out) {
                     int first = panel * PANEL, columns = std::min(PANEL, model.vocabulary - first);
                     for (int i = 0; i < height; i++, out += PANEL) {
                         if (model.logits_softcap > 0)
                             for (int j = 0; j < columns; j++)
                                 out[j] = std::tanh(out[j] / model.logits_softcap) *
                                          model.logits_softcap;
                         done(row + i, columns, first, out);
                     }
                 });
    }
};

// Logits, fp32 [rows][vocabulary].
template <class T>
struct Logits {
    Head<T> head;
    float* to;

    static void work(void* self, Team& team, int member) {
        auto& own = *static_cast<Logits*>(self);
        own.head.run(team, member, [&](int row, int columns, int first, const float* out) {
            std::memcpy(own.to + size_t(row) * own.head.model.vocabulary + first, out,
                        sizeof(float) * columns);
        });
    }
};

// The largest logit that a member met of a row; the lowest token among equals.
struct alignas(64) Found {
    Ints odd;  // not 0: a NaN was among them
    float most;
    int32_t token;

    void look(float* out, int columns, int first) {
        for (int j = columns; j < PANEL; j++) out[j] = NOTHING;
        Floats top = load(out);
        odd |= top != top;
        for (int j = LANES; j < PANEL; j += LANES) {
            Floats some = load(out + j);
            odd |= some != some;
            top = larger(top, some);
        }
        take(largest(top), [&](float value) {
            int j = 0;
            while (out[j] != value) j++;
            return first + j;
        });
    }
    void merge(const Found& other) {
        odd |= other.odd;
        take(other.most, [&](float) { return other.token; });
    }
    // -1 when a logit is a NaN or the largest is not finite.
    int32_t chosen() const {
        for (int i = 0; i < LANES; i++)
            if (odd[i]) return -1;
        return std::isfinite(most) ? token : -1;
    }

  private:
    template <class Which>
    void take(float value, Which&& which) {
        if (!(value >= most) || value == NOTHING) return;
        int32_t its = which(value);
        if (value > most || its < token) most = value, token = its;
    }
};

// The token with the largest logit, for each row.
template <class T>
struct Likeliest {
    Head<T> head;
    Found* found;  // [members][rows]

    static void work(void* self, Team& team, int member) {
        auto& own = *static_cast<Likeliest*>(self);
        Found* mine = own.found + size_t(member) * own.head.count;
        for (int row = 0; row < own.head.count; row++) mine[row] = {Ints{}, NOTHING, INT32_MAX};
        own.head.run(team, member, [&](int row, int columns, int first, float* out) {
            mine[row].look(out, columns, first);
        });
    }
};

}  // namespace pd

// One step of decode attention over a cache of bf16: the arm that compressed caches are compared with (kv_attend.cuh), and as fast as memory allows.
//
// q: [heads, DIM], out: [heads, DIM], f32. Keys, values: [kv_heads, capacity, DIM]. `length`: positions that are there.
// Grid (splits <= 64, kv_heads * blocks of 4 heads). A block has a span of items of 32 positions, its warps take them in turn: keys of the next item are
// loaded to registers as soon as those of this one are used, and values while scores are made.
// Caller: gosset-cuda/src/launch/kv.rs.

#include "kv_attend.cuh"
#include "params.cuh"

namespace {

using namespace kv;

template <int DIM, int WARPS>
__device__ __forceinline__ void attend(const KvExactAttendParams& p) {
    using C = __nv_bfloat16;
    __shared__ __align__(16) struct {
        float sums[WARPS][kHeads][DIM], out[kHeads][DIM];
        float references[1][WARPS][kHeads], weights[WARPS][kHeads], scratch[kHeads][64];
    } shared;
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const unsigned group = p.heads / p.kv_heads, blocks = (group + kHeads - 1) / kHeads;
    const unsigned kv_head = blockIdx.y / blocks, first = blockIdx.y % blocks * kHeads;
    const unsigned n_heads = min(kHeads, group - first), head0 = kv_head * group + first;
    wait_for_predecessor();
    let_successor_start();
    const unsigned length = min(*p.length, p.capacity), items = (length + kChunk - 1) / kChunk;
    const unsigned span = max(p.min_span, (items + gridDim.x - 1) / gridDim.x), active = (items + span - 1) / span;
    if (blockIdx.x >= active) return;
    const unsigned begin = blockIdx.x * span + warp, end = min(items, (blockIdx.x + 1) * span);
    const C* keys = reinterpret_cast<const C*>(p.keys) + static_cast<size_t>(kv_head) * p.capacity * DIM;
    const C* values = reinterpret_cast<const C*>(p.values) + static_cast<size_t>(kv_head) * p.capacity * DIM;

    uint4 k[4][DIM / 32], v[2][DIM / 64][4];
    auto load_keys = [&](unsigned item) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const unsigned row = min(item * kChunk + 4 * g + r, length - 1);
#pragma unroll
            for (int s = 0; s < DIM / 32; ++s) k[r][s] = __ldcs(reinterpret_cast<const uint4*>(keys + static_cast<size_t>(row) * DIM) + 4 * s + t);
        }
    };
    auto load_values = [&](unsigned item, int h) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const unsigned row = min(item * kChunk + 16 * h + 4 * t + r, length - 1);
#pragma unroll
            for (int s = 0; s < DIM / 64; ++s) v[h][s][r] = __ldcs(reinterpret_cast<const uint4*>(values + static_cast<size_t>(row) * DIM) + 8 * s + g);
        }
    };
    if (begin < end) {
        load_keys(begin);
        load_values(begin, 0);
        load_values(begin, 1);
    }
    Queries<DIM, C> q;
    const float4* query = (g & 3) < n_heads ? reinterpret_cast<const float4*>(p.q + (head0 + (g & 3)) * DIM) : nullptr;
    q.load([&](unsigned pair) { return query ? __ldg(query + pair / 2) : make_float4(0.0f, 0.0f, 0.0f, 0.0f); }, p.scale, lane);
    Sums<DIM, C> sums;
    sums.clear();
    for (unsigned item = begin; item < end; item += WARPS) {
        float d[2][4] = {}, s[2][2];
        exact_scores<DIM, C>(d, k, q);
        const bool more = item + WARPS < end;
        if (more) load_keys(item + WARPS);
        Sums<DIM, C>::scores(s, d, lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int c = 0; c < 2; ++c) s[r][c] = item * kChunk + 4 * g + (t & 2) + r < length ? s[r][c] * q.factor[c] : kNegative;
        }
        const float log[2] = {}, one[2] = {1.0f, 1.0f};
        uint32_t w[2];
        sums.weights(w, s, log, one, lane);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t b[4];
            Sums<DIM, C>::operands(b, w, h, lane);
            exact_add<DIM, C>(sums.acc, v[h], b);
            if (more) load_values(item + WARPS, h);
        }
    }
    float* const own = shared.sums[warp][0];
    sums.write(own, lane);
    sums.write_reference(shared.references[0][warp], lane);
    sums.write_sum(shared.weights[warp], lane);
    const bool last = join<DIM, WARPS, 1>(
        [&](int, int w) -> const float* { return shared.sums[w][0]; }, [&](int) { return make_uint2(0, active); }, shared.references, shared.weights, shared.scratch, shared.out[0], n_heads,
        p.parts + static_cast<size_t>(head0) * gridDim.x * (DIM + 4), active, p.counters + blockIdx.y);
    if (!last) return;
    for (unsigned i = threadIdx.x; i < n_heads * DIM; i += WARPS * 32) p.out[head0 * DIM + i] = shared.out[0][i];
}

}  // namespace

#ifndef KV_WARPS
#define KV_WARPS 8
#endif
extern "C" __global__ void __launch_bounds__(KV_WARPS * 32) kv_exact_attend(const __grid_constant__ KvExactAttendParams p) {
    attend<KV_DIM, KV_WARPS>(p);
}

// One step of causal attention with grouped heads: q, k: + bias, optional norm per head, rotation by position; k, v go to the
// cache; out = softmax(q . K^T / sqrt(head_dim)) V. f32 arithmetic, keys and values f16 or f32.
//
// x_q: [heads, head_dim], x_k and x_v: [kv_heads, head_dim], f32. Keys, values: [kv_heads, capacity, head_stride], head_stride a
// multiple of 8 whose padding is zero. out: [heads, head_dim].
//
// Grid (n_splits, kv_heads * blocks of 4 heads). A block rotates its queries and covers one span of positions; the one with the
// newest position appends it. Blocks of one head block meet at a counter; the last one merges the spans. The number of spans
// follows from the position: short texts have one, and idle blocks leave at once. Static shared memory: at most 22 KiB.
// Caller: gosset-cuda/src/launch/model.rs.

#include "model.cuh"
#include "model_cache.cuh"
#include "model_rope.cuh"
#include "params.cuh"

namespace {

__device__ __forceinline__ void store(float* p, float v) { *p = v; }
__device__ __forceinline__ void store(__half* p, float v) { *p = __float2half_rn(v); }

constexpr int kHeads = 4;  // Query heads of a group that a block takes.

// C: type of the cache. WIDTH: columns of a head, padded: 64, 128 or 256. T: threads.
//
// A round is T / 4 positions. Four threads share a key and take every fourth run of 8 columns; then a warp per head makes weights
// of scores; then a thread takes two columns of the values of every SLICES-th position. Keys of the next round are loaded
// while the weights are made, values while the keys are used.
template <typename C, int WIDTH, int T>
__device__ __forceinline__ void attend_step(const ModelStepParams& p) {
    constexpr int kRound = T / 4, kChunks = WIDTH / 32, kSlices = T / (WIDTH / 2), kRows = kRound / kSlices;
    constexpr int kMaxSplits = 64;
    static_assert(T % (WIDTH / 2) == 0 && kRound % kSlices == 0 && kRound % 32 == 0, "threads share a round evenly");
    __shared__ __align__(16) float s_q[kHeads][WIDTH];
    __shared__ float s_score[kHeads][kRound];
    __shared__ __align__(8) float s_acc[kSlices][kHeads][WIDTH];
    __shared__ float s_max[kHeads], s_sum[kHeads], s_keep[kHeads];
    __shared__ float s_weight[kHeads][kMaxSplits];
    __shared__ bool s_last;

    const unsigned group = p.heads / p.kv_heads, blocks = (group + kHeads - 1) / kHeads;
    const unsigned kv_head = blockIdx.y / blocks, first = blockIdx.y % blocks * kHeads;
    const unsigned n_heads = min(kHeads, group - first), head0 = kv_head * group + first;
    const unsigned tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    const unsigned quarter = tid & 3, k_row = tid >> 2, slice = tid / (WIDTH / 2), column = tid % (WIDTH / 2) * 2;

    // The position is older than the predecessor, and so are all keys and values but the newest.
    const unsigned len = min(*p.position + 1, p.capacity);
    const unsigned span = max(p.min_span, ((len + gridDim.x - 1) / gridDim.x + kRound - 1) / kRound * kRound);
    const unsigned active = (len + span - 1) / span;
    if (blockIdx.x >= active) return;
    const unsigned begin = blockIdx.x * span, end = min(len, begin + span);

    const size_t base = static_cast<size_t>(kv_head) * p.capacity * p.head_stride;
    const C* keys = reinterpret_cast<const C*>(p.keys) + base;
    const C* values = reinterpret_cast<const C*>(p.values) + base;
    const size_t span_bytes = static_cast<size_t>(end - begin) * p.head_stride * sizeof(C);
    for (size_t at = tid * 128; at < span_bytes && at < T * 256; at += T * 128) {
        prefetch_l2(reinterpret_cast<const char*>(keys + static_cast<size_t>(begin) * p.head_stride) + at);
        prefetch_l2(reinterpret_cast<const char*>(values + static_cast<size_t>(begin) * p.head_stride) + at);
    }
    wait_for_predecessor();
    let_successor_start();
    Raw<C> k[kChunks];
    RawPair<C> v[kRows];
    auto load_keys = [&](unsigned t0) {
        const unsigned t = t0 + k_row;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            const unsigned d = (c * 4 + quarter) * 8;
            k[c] = Raw<C>{};
            if (t < end && d < p.head_stride) k[c].load(keys + static_cast<size_t>(t) * p.head_stride + d);
        }
    };
    auto load_values = [&](unsigned t0) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const unsigned t = t0 + r * kSlices + slice;
            v[r] = RawPair<C>{};
            if (t < end && column < p.head_stride) v[r].load(values + static_cast<size_t>(t) * p.head_stride + column);
        }
    };
    // On their way while queries are rotated. The newest position is not there yet: what is loaded of it is loaded again.
    load_keys(begin);
    load_values(begin);
    {
        constexpr int kPairs = WIDTH / 64;
        const unsigned n_roles = kHeads + 2, role = warp, half = p.head_dim / 2;
        if (role < n_roles) {
            const bool is_q = role < kHeads, is_v = role == kHeads + 1;
            const unsigned local = is_q ? head0 + role : kv_head;
            const unsigned head = is_q ? local : p.heads + (is_v ? p.kv_heads : 0) + kv_head;
            const float* x = (is_q ? p.x_q : is_v ? p.x_v : p.x_k) + static_cast<size_t>(local) * p.head_dim;
            const float* bias = p.bias ? p.bias + static_cast<size_t>(head) * p.head_dim : nullptr;
            const float* norm = is_v ? nullptr : is_q ? p.q_norm : p.k_norm;
            float a[kPairs], b[kPairs];
            const bool there = is_q ? role < n_heads : end == len;
            if (there) {
                rotate_head<kPairs>(p, x, bias, norm, !is_v, len - 1, a, b);
            } else {
#pragma unroll
                for (int j = 0; j < kPairs; ++j) a[j] = b[j] = 0.0f;
            }
            C* cache = reinterpret_cast<C*>(is_v ? p.new_values : p.new_keys) + base + static_cast<size_t>(len - 1) * p.head_stride;
#pragma unroll
            for (int j = 0; j < kPairs; ++j) {
                const unsigned i = lane + 32 * j, i0 = pair_first(p, i), i1 = pair_second(p, i);
                if (i >= half) continue;
                if (is_q) {
                    s_q[role][i0] = a[j] * p.scale * kLog2E;
                    s_q[role][i1] = b[j] * p.scale * kLog2E;
                } else if (there) {
                    store(cache + i0, a[j]);
                    store(cache + i1, b[j]);
                }
            }
        }
        // Columns beyond the head meet keys that are zero there; they only must not be NaN.
        for (unsigned i = tid; i < kHeads * WIDTH; i += T) {
            if (i % WIDTH >= p.head_dim) s_q[i / WIDTH][i % WIDTH] = 0.0f;
        }
        __syncthreads();
        if (end == len && end - begin <= kRound) {
            if (begin + k_row == len - 1) load_keys(begin);
            if ((len - 1 - begin) % kSlices == slice) load_values(begin);
        }
    }
    if (tid < kHeads) {
        s_max[tid] = kNegative;
        s_sum[tid] = 0.0f;
    }
    float acc[kHeads][2];
#pragma unroll
    for (int g = 0; g < kHeads; ++g) acc[g][0] = acc[g][1] = 0.0f;
    __syncthreads();

    for (unsigned t0 = begin; t0 < end; t0 += kRound) {
        float score[kHeads];
#pragma unroll
        for (int g = 0; g < kHeads; ++g) score[g] = 0.0f;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
            const Eight key = k[c].unpack();
#pragma unroll
            for (int g = 0; g < kHeads; ++g) {
                const float4* q = reinterpret_cast<const float4*>(&s_q[g][(c * 4 + quarter) * 8]);
                const float4 lo = q[0], hi = q[1];
                score[g] = fmaf(lo.x, key.v[0], score[g]);
                score[g] = fmaf(lo.y, key.v[1], score[g]);
                score[g] = fmaf(lo.z, key.v[2], score[g]);
                score[g] = fmaf(lo.w, key.v[3], score[g]);
                score[g] = fmaf(hi.x, key.v[4], score[g]);
                score[g] = fmaf(hi.y, key.v[5], score[g]);
                score[g] = fmaf(hi.z, key.v[6], score[g]);
                score[g] = fmaf(hi.w, key.v[7], score[g]);
            }
        }
        if (t0 + kRound < end) load_keys(t0 + kRound);
#pragma unroll
        for (int g = 0; g < kHeads; ++g) {
            score[g] += __shfl_xor_sync(0xffffffffu, score[g], 1);
            score[g] += __shfl_xor_sync(0xffffffffu, score[g], 2);
        }
        // Each of the four writes one head's score.
        float mine = score[0];
        if (quarter == 1) mine = score[1];
        if (quarter == 2) mine = score[2];
        if (quarter == 3) mine = score[3];
        s_score[quarter][k_row] = t0 + k_row < end ? mine : kNegative;
        __syncthreads();
        if (warp < kHeads) {
            float s[kRound / 32], top = s_max[warp], sum = 0.0f;
            const float before = top;
#pragma unroll
            for (int i = 0; i < kRound / 32; ++i) {
                s[i] = s_score[warp][lane + 32 * i];
                top = fmaxf(top, s[i]);
            }
#pragma unroll
            for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
#pragma unroll
            for (int i = 0; i < kRound / 32; ++i) {
                const float w = t0 + lane + 32 * i < end ? exp2f(s[i] - top) : 0.0f;
                s_score[warp][lane + 32 * i] = w;
                sum += w;
            }
#pragma unroll
            for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
            if (lane == 0) {
                const float keep = exp2f(before - top);
                s_keep[warp] = keep;
                s_max[warp] = top;
                s_sum[warp] = s_sum[warp] * keep + sum;
            }
        }
        __syncthreads();
#pragma unroll
        for (int g = 0; g < kHeads; ++g) {
            const float keep = s_keep[g];
            acc[g][0] *= keep;
            acc[g][1] *= keep;
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const float2 value = v[r].unpack();
#pragma unroll
            for (int g = 0; g < kHeads; ++g) {
                const float w = s_score[g][r * kSlices + slice];
                acc[g][0] = fmaf(w, value.x, acc[g][0]);
                acc[g][1] = fmaf(w, value.y, acc[g][1]);
            }
        }
        if (t0 + kRound < end) load_values(t0 + kRound);
        __syncthreads();
    }

#pragma unroll
    for (int g = 0; g < kHeads; ++g) *reinterpret_cast<float2*>(&s_acc[slice][g][column]) = make_float2(acc[g][0], acc[g][1]);
    __syncthreads();
    // A span's part: WIDTH sums of values for each head, then the maximum and the sum of weights.
    const unsigned part_len = p.part_len;
    for (unsigned i = tid; i < kHeads * WIDTH; i += T) {
        const unsigned g = i / WIDTH, d = i % WIDTH;
        if (g >= n_heads || d >= p.head_dim) continue;
        float sum = 0.0f;
#pragma unroll
        for (int s = 0; s < kSlices; ++s) sum += s_acc[s][g][d];
        const size_t head = head0 + g;
        if (active == 1) {
            p.out[head * p.head_dim + d] = sum / s_sum[g];
        } else {
            float* part = p.parts + (head * gridDim.x + blockIdx.x) * part_len;
            part[d] = sum;
            if (d == 0) {
                part[part_len - 2] = s_max[g];
                part[part_len - 1] = s_sum[g];
            }
        }
    }
    if (active == 1) return;
    __threadfence();
    __syncthreads();
    unsigned* counter = p.counters + blockIdx.y;
    if (tid == 0) s_last = atomicAdd(counter, 1u) == active - 1;
    __syncthreads();
    if (!s_last) return;
    __threadfence();
    if (tid == 0) *counter = 0;
    if (warp < n_heads) {
        const float* parts = p.parts + static_cast<size_t>(head0 + warp) * gridDim.x * part_len + part_len - 2;
        float top[2] = {kNegative, kNegative}, sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (lane + 32 * i < active) {
                top[i] = __ldcg(parts + (lane + 32 * i) * part_len);
                sum[i] = __ldcg(parts + (lane + 32 * i) * part_len + 1);
            }
        }
        float all = fmaxf(top[0], top[1]);
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, d));
        const float f[2] = {exp2f(top[0] - all), exp2f(top[1] - all)};
        float total = sum[0] * f[0] + sum[1] * f[1];
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) total += __shfl_xor_sync(0xffffffffu, total, d);
        s_weight[warp][lane] = f[0] / total;
        s_weight[warp][lane + 32] = f[1] / total;
    }
    __syncthreads();
    for (unsigned i = tid; i < kHeads * WIDTH; i += T) {
        const unsigned g = i / WIDTH, d = i % WIDTH;
        if (g >= n_heads || d >= p.head_dim) continue;
        const size_t head = head0 + g;
        const float* parts = p.parts + head * gridDim.x * part_len + d;
        float sum = 0.0f;
#pragma unroll 8
        for (unsigned s = 0; s < active; ++s) sum = fmaf(s_weight[g][s], __ldcg(parts + s * part_len), sum);
        p.out[head * p.head_dim + d] = sum;
    }
}

}  // namespace

#ifdef CACHE_F32
// For comparisons: one width serves all.
extern "C" __global__ void __launch_bounds__(256) model_step_256(const __grid_constant__ ModelStepParams p) {
    attend_step<float, 256, 256>(p);
}
#else
extern "C" __global__ void __launch_bounds__(512) model_step_128(const __grid_constant__ ModelStepParams p) {
    attend_step<__half, 128, 512>(p);
}
extern "C" __global__ void __launch_bounds__(256) model_step_256(const __grid_constant__ ModelStepParams p) {
    attend_step<__half, 256, 256>(p);
}
#endif

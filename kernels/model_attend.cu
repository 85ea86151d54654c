// Causal attention with grouped heads: out = softmax(q . K^T) V, f32 arithmetic, keys and values f16 or f32.
//
// q: [n, heads, head_dim] f32, rotated and scaled. Keys, values: [kv_heads, capacity, head_stride], head_stride a multiple of 8
// whose padding is zero. out: [n, heads, head_dim]. Row i sits at position *position + i and sees every position up to its own.
//
// split (few rows): grid (n_splits, kv_heads * head blocks, n), 128 threads. A block covers one span of positions for up to GB
//   query heads of a group; 8 lanes share a position, so 16 positions are under way. Blocks of one row and head block meet at a
//   counter; the last one merges the spans. The number of spans follows from the position: idle blocks leave at once.
// tile (many rows): grid (row tiles, heads), 256 threads, dynamic shared memory
//   ((BQ + BK) * (64 * CHUNKS + 4) + BQ * (BK + 4)) * 4 bytes.
// Caller: gosset-cuda/src/launch/model.rs.

#include <cuda_fp16.h>

#include "params.cuh"

namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kNegative = -1e30f;  // Below every score; finite, so that differences are never NaN.

struct Eight {
    float v[8];
};

__device__ __forceinline__ Eight load8(const float* p) {
    const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

__device__ __forceinline__ Eight load8(const __half* p) {
    const uint4 raw = *reinterpret_cast<const uint4*>(p);
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    Eight out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
        out.v[2 * i] = f.x;
        out.v[2 * i + 1] = f.y;
    }
    return out;
}

// C: type of the cache. CHUNKS: a lane holds CHUNKS runs of 8 columns, so head_stride <= 64 * CHUNKS. GB: query heads per block.
template <typename C, int CHUNKS, int GB>
__device__ __forceinline__ void attend_split(const ModelAttendParams& p) {
    constexpr int kWarps = 4, kWidth = 64 * CHUNKS, kMaxSplits = 64;
    __shared__ float s_acc[kWarps][GB][kWidth];
    __shared__ float s_max[kWarps][GB], s_sum[kWarps][GB];
    __shared__ float s_weight[GB][kMaxSplits];
    __shared__ bool s_last;

    const unsigned group = p.heads / p.kv_heads, blocks = (group + GB - 1) / GB;
    const unsigned kv_head = blockIdx.y / blocks, first = blockIdx.y % blocks * GB, row = blockIdx.z;
    const unsigned n_heads = min(GB, group - first), head0 = kv_head * group + first;
    const unsigned len = min(*p.position + row + 1, p.capacity);
    const unsigned span = max(p.min_span, ((len + gridDim.x - 1) / gridDim.x + 15) / 16 * 16);
    const unsigned active = (len + span - 1) / span;
    if (blockIdx.x >= active) return;
    const unsigned begin = blockIdx.x * span, end = min(len, begin + span);
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sub = lane & 7, team = warp * 4 + (lane >> 3);
    const unsigned n_chunks = p.head_stride / 8;

    float q[GB][CHUNKS][8], acc[GB][CHUNKS][8], m[GB], l[GB];
#pragma unroll
    for (int g = 0; g < GB; ++g) {
        m[g] = kNegative;
        l[g] = 0.0f;
        const float* from = p.q + (static_cast<size_t>(row) * p.heads + head0 + g) * p.head_dim;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                const unsigned d = (sub + 8 * c) * 8 + e;
                q[g][c][e] = g < n_heads && d < p.head_dim ? from[d] * kLog2E : 0.0f;
                acc[g][c][e] = 0.0f;
            }
        }
    }

    const size_t base = static_cast<size_t>(kv_head) * p.capacity;
    const C* keys = reinterpret_cast<const C*>(p.keys) + base * p.head_stride;
    const C* values = reinterpret_cast<const C*>(p.values) + base * p.head_stride;
    // Every lane runs the same number of rounds, so that shuffles meet; rounds beyond the end add weight zero.
    for (unsigned t0 = begin; t0 < end; t0 += 16) {
        const unsigned t = t0 + team;
        const bool in = t < end;
        const size_t at = static_cast<size_t>(in ? t : begin) * p.head_stride;
        Eight k[CHUNKS], v[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const unsigned chunk = sub + 8 * c;
            if (chunk < n_chunks) {
                k[c] = load8(keys + at + chunk * 8);
                v[c] = load8(values + at + chunk * 8);
            } else {
                k[c] = Eight{};
                v[c] = Eight{};
            }
        }
#pragma unroll
        for (int g = 0; g < GB; ++g) {
            if (g < n_heads) {
                float s = 0.0f;
#pragma unroll
                for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
                    for (int e = 0; e < 8; ++e) s = fmaf(q[g][c][e], k[c].v[e], s);
                }
                s += __shfl_xor_sync(0xffffffffu, s, 1);
                s += __shfl_xor_sync(0xffffffffu, s, 2);
                s += __shfl_xor_sync(0xffffffffu, s, 4);
                if (!in) s = kNegative;
                const float top = fmaxf(m[g], s);
                const float keep = exp2f(m[g] - top), w = in ? exp2f(s - top) : 0.0f;
                m[g] = top;
                l[g] = l[g] * keep + w;
#pragma unroll
                for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
                    for (int e = 0; e < 8; ++e) acc[g][c][e] = fmaf(w, v[c].v[e], acc[g][c][e] * keep);
                }
            }
        }
    }

    // The four teams of a warp, then the warps.
#pragma unroll
    for (int g = 0; g < GB; ++g) {
        if (g >= n_heads) continue;
#pragma unroll
        for (int d = 8; d <= 16; d <<= 1) {
            const float other = __shfl_xor_sync(0xffffffffu, m[g], d), top = fmaxf(m[g], other);
            const float mine = exp2f(m[g] - top), theirs = exp2f(other - top);
            l[g] = l[g] * mine + __shfl_xor_sync(0xffffffffu, l[g], d) * theirs;
            m[g] = top;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    const float o = __shfl_xor_sync(0xffffffffu, acc[g][c][e], d);
                    acc[g][c][e] = acc[g][c][e] * mine + o * theirs;
                }
            }
        }
        if (lane < 8) {
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
                for (int e = 0; e < 8; ++e) s_acc[warp][g][(sub + 8 * c) * 8 + e] = acc[g][c][e];
            }
            if (lane == 0) {
                s_max[warp][g] = m[g];
                s_sum[warp][g] = l[g];
            }
        }
    }
    __syncthreads();
    // A span's part: head_stride sums of values, the maximum, the sum of weights.
    const unsigned part_len = p.head_stride + 2;
    for (unsigned i = threadIdx.x; i < n_heads * p.head_stride; i += blockDim.x) {
        const unsigned g = i / p.head_stride, d = i % p.head_stride;
        float top = kNegative, sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) top = fmaxf(top, s_max[w][g]);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float f = exp2f(s_max[w][g] - top);
            sum = fmaf(f, s_acc[w][g][d], sum);
            total = fmaf(f, s_sum[w][g], total);
        }
        const size_t head = static_cast<size_t>(row) * p.heads + head0 + g;
        if (active == 1) {
            if (d < p.head_dim) p.out[head * p.head_dim + d] = sum / total;
        } else {
            float* part = p.parts + (head * gridDim.x + blockIdx.x) * part_len;
            part[d] = sum;
            if (d == 0) {
                part[p.head_stride] = top;
                part[p.head_stride + 1] = total;
            }
        }
    }
    if (active == 1) return;
    __threadfence();
    __syncthreads();
    unsigned* counter = p.counters + static_cast<size_t>(row) * gridDim.y + blockIdx.y;
    if (threadIdx.x == 0) s_last = atomicAdd(counter, 1u) == active - 1;
    __syncthreads();
    if (!s_last) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0;
    for (unsigned i = threadIdx.x; i < n_heads * active; i += blockDim.x) {
        const unsigned g = i / active, s = i % active;
        const float* parts = p.parts + (static_cast<size_t>(row) * p.heads + head0 + g) * gridDim.x * part_len + p.head_stride;
        float top = kNegative, total = 0.0f;
        for (unsigned o = 0; o < active; ++o) top = fmaxf(top, parts[o * part_len]);
        for (unsigned o = 0; o < active; ++o) total += parts[o * part_len + 1] * exp2f(parts[o * part_len] - top);
        s_weight[g][s] = exp2f(parts[s * part_len] - top) / total;
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n_heads * p.head_dim; i += blockDim.x) {
        const unsigned g = i / p.head_dim, d = i % p.head_dim;
        const size_t head = static_cast<size_t>(row) * p.heads + head0 + g;
        const float* parts = p.parts + head * gridDim.x * part_len + d;
        float sum = 0.0f;
        for (unsigned s = 0; s < active; ++s) sum = fmaf(s_weight[g][s], parts[s * part_len], sum);
        p.out[head * p.head_dim + d] = sum;
    }
}

// BQ: rows per block. BK: positions per round. Both 16 * R.
template <typename C, int CHUNKS, int BQ, int BK>
__device__ __forceinline__ void attend_tile(const ModelAttendParams& p) {
    constexpr int kWidth = 64 * CHUNKS, kRow = kWidth + 4, kScoreRow = BK + 4;
    constexpr int RQ = BQ / 16, RK = BK / 16;
    static_assert(BQ % 16 == 0 && BK % 16 == 0, "16 x 16 threads share a tile");
    extern __shared__ float4 shared4[];
    float* s_q = reinterpret_cast<float*>(shared4);
    float* s_kv = s_q + BQ * kRow;
    float* s_p = s_kv + BK * kRow;

    const unsigned head = blockIdx.y, kv_head = head / (p.heads / p.kv_heads), row0 = blockIdx.x * BQ;
    const unsigned tx = threadIdx.x & 15, ty = threadIdx.x >> 4, start = *p.position;
    for (unsigned i = threadIdx.x; i < BQ * kWidth; i += 256) {
        const unsigned r = i / kWidth, d = i % kWidth;
        const bool in = row0 + r < p.n && d < p.head_dim;
        s_q[r * kRow + d] = in ? p.q[(static_cast<size_t>(row0 + r) * p.heads + head) * p.head_dim + d] * kLog2E : 0.0f;
    }
    float acc[RQ][CHUNKS][4], m[RQ], l[RQ];
#pragma unroll
    for (int i = 0; i < RQ; ++i) {
        m[i] = kNegative;
        l[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[i][c][e] = 0.0f;
        }
    }
    const size_t base = static_cast<size_t>(kv_head) * p.capacity;
    const C* keys = reinterpret_cast<const C*>(p.keys) + base * p.head_stride;
    const C* values = reinterpret_cast<const C*>(p.values) + base * p.head_stride;
    const unsigned end = min(start + min(row0 + BQ, p.n), p.capacity);
    auto load = [&](const C* from, unsigned t0) {
        for (unsigned i = threadIdx.x; i < BK * (kWidth / 8); i += 256) {
            const unsigned r = i / (kWidth / 8), c = i % (kWidth / 8);
            Eight v{};
            if (t0 + r < end && c * 8 < p.head_stride) v = load8(from + static_cast<size_t>(t0 + r) * p.head_stride + c * 8);
            float4* to = reinterpret_cast<float4*>(s_kv + r * kRow + c * 8);
            to[0] = make_float4(v.v[0], v.v[1], v.v[2], v.v[3]);
            to[1] = make_float4(v.v[4], v.v[5], v.v[6], v.v[7]);
        }
    };
    for (unsigned t0 = 0; t0 < end; t0 += BK) {
        __syncthreads();
        load(keys, t0);
        __syncthreads();
        float s[RQ][RK];
#pragma unroll
        for (int i = 0; i < RQ; ++i) {
#pragma unroll
            for (int j = 0; j < RK; ++j) s[i][j] = 0.0f;
        }
#pragma unroll 4
        for (int d = 0; d < kWidth; d += 4) {
            float4 q[RQ], k[RK];
#pragma unroll
            for (int i = 0; i < RQ; ++i) q[i] = *reinterpret_cast<const float4*>(s_q + (ty * RQ + i) * kRow + d);
#pragma unroll
            for (int j = 0; j < RK; ++j) k[j] = *reinterpret_cast<const float4*>(s_kv + (tx + 16 * j) * kRow + d);
#pragma unroll
            for (int i = 0; i < RQ; ++i) {
#pragma unroll
                for (int j = 0; j < RK; ++j) {
                    s[i][j] = fmaf(q[i].x, k[j].x, s[i][j]);
                    s[i][j] = fmaf(q[i].y, k[j].y, s[i][j]);
                    s[i][j] = fmaf(q[i].z, k[j].z, s[i][j]);
                    s[i][j] = fmaf(q[i].w, k[j].w, s[i][j]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < RQ; ++i) {
            const unsigned limit = start + row0 + ty * RQ + i;
            float top = m[i];
#pragma unroll
            for (int j = 0; j < RK; ++j) {
                const unsigned t = t0 + tx + 16 * j;
                if (t > limit || t >= end) s[i][j] = kNegative;
                top = fmaxf(top, s[i][j]);
            }
#pragma unroll
            for (int d = 1; d < 16; d <<= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
            const float keep = exp2f(m[i] - top);
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < RK; ++j) {
                const unsigned t = t0 + tx + 16 * j;
                const float w = t > limit || t >= end ? 0.0f : exp2f(s[i][j] - top);
                sum += w;
                s_p[(ty * RQ + i) * kScoreRow + tx + 16 * j] = w;
            }
#pragma unroll
            for (int d = 1; d < 16; d <<= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
            m[i] = top;
            l[i] = l[i] * keep + sum;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
                for (int e = 0; e < 4; ++e) acc[i][c][e] *= keep;
            }
        }
        __syncthreads();
        load(values, t0);
        __syncthreads();
#pragma unroll 2
        for (int t = 0; t < BK; t += 4) {
            float4 w[RQ];
#pragma unroll
            for (int i = 0; i < RQ; ++i) w[i] = *reinterpret_cast<const float4*>(s_p + (ty * RQ + i) * kScoreRow + t);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                float4 v[4];
#pragma unroll
                for (int u = 0; u < 4; ++u) v[u] = *reinterpret_cast<const float4*>(s_kv + (t + u) * kRow + 64 * c + 4 * tx);
#pragma unroll
                for (int i = 0; i < RQ; ++i) {
                    const float ws[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
#pragma unroll
                    for (int u = 0; u < 4; ++u) {
                        acc[i][c][0] = fmaf(ws[u], v[u].x, acc[i][c][0]);
                        acc[i][c][1] = fmaf(ws[u], v[u].y, acc[i][c][1]);
                        acc[i][c][2] = fmaf(ws[u], v[u].z, acc[i][c][2]);
                        acc[i][c][3] = fmaf(ws[u], v[u].w, acc[i][c][3]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < RQ; ++i) {
        const unsigned r = row0 + ty * RQ + i;
        if (r >= p.n) continue;
        const float inverse = 1.0f / l[i];
        float* out = p.out + (static_cast<size_t>(r) * p.heads + head) * p.head_dim;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned d = 64 * c + 4 * tx + e;
                if (d < p.head_dim) out[d] = acc[i][c][e] * inverse;
            }
        }
    }
}

#ifdef CACHE_F32
using Cache = float;
#else
using Cache = __half;
#endif

}  // namespace

extern "C" __global__ void __launch_bounds__(128) model_split_64(const __grid_constant__ ModelAttendParams p) {
    attend_split<Cache, 1, 4>(p);
}
extern "C" __global__ void __launch_bounds__(128) model_split_128(const __grid_constant__ ModelAttendParams p) {
    attend_split<Cache, 2, 4>(p);
}
extern "C" __global__ void __launch_bounds__(128) model_split_256(const __grid_constant__ ModelAttendParams p) {
    attend_split<Cache, 4, 2>(p);
}
extern "C" __global__ void __launch_bounds__(256) model_tile_64(const __grid_constant__ ModelAttendParams p) {
    attend_tile<Cache, 1, 64, 64>(p);
}
extern "C" __global__ void __launch_bounds__(256) model_tile_128(const __grid_constant__ ModelAttendParams p) {
    attend_tile<Cache, 2, 64, 64>(p);
}
extern "C" __global__ void __launch_bounds__(256) model_tile_256(const __grid_constant__ ModelAttendParams p) {
    attend_tile<Cache, 4, 32, 32>(p);
}

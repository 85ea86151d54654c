// Causal attention with grouped heads for many rows: out = softmax(q . K^T) V, f32 arithmetic, keys and values f16 or f32.
//
// Shapes as in model_attend.cu. Grid (row tiles, heads), 256 threads, dynamic shared memory
// ((BQ + BK) * (64 * CHUNKS + 4) + BQ * (BK + 4)) * 4 bytes.
// Caller: gosset-cuda/src/launch/model.rs.

#include "model_cache.cuh"
#include "params.cuh"

namespace {

// BQ: rows per block. BK: positions per round. Both 16 * R.
template <int CHUNKS, int BQ, int BK>
__device__ __forceinline__ void attend_tile(const ModelAttendParams& p) {
    constexpr int kWidth = 64 * CHUNKS, kRow = kWidth + 4, kScoreRow = BK + 4;
    constexpr int RQ = BQ / 16, RK = BK / 16;
    static_assert(BQ % 16 == 0 && BK % 16 == 0, "16 x 16 threads share a tile");
    extern __shared__ float4 shared4[];
    float* s_q = reinterpret_cast<float*>(shared4);
    float* s_kv = s_q + BQ * kRow;
    float* s_p = s_kv + BK * kRow;

    const unsigned head = blockIdx.y, kv_head = head / (p.heads / p.kv_heads), row0 = blockIdx.x * BQ;
    const unsigned tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    const unsigned start = *p.position;
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
    const size_t base = static_cast<size_t>(kv_head) * p.capacity * p.head_stride;
    const unsigned end = min(start + min(row0 + BQ, p.n), p.capacity);
    auto load = [&](const void* from, unsigned t0) {
        for (unsigned i = threadIdx.x; i < BK * (kWidth / 8); i += 256) {
            const unsigned r = i / (kWidth / 8), c = i % (kWidth / 8);
            Eight v{};
            if (t0 + r < end && c * 8 < p.head_stride) {
                const size_t at = base + static_cast<size_t>(t0 + r) * p.head_stride + c * 8;
                if (p.cache_f32) {
                    Raw<float> raw;
                    raw.load(static_cast<const float*>(from) + at);
                    v = raw.unpack();
                } else {
                    Raw<__half> raw;
                    raw.load(static_cast<const __half*>(from) + at);
                    v = raw.unpack();
                }
            }
            float4* to = reinterpret_cast<float4*>(s_kv + r * kRow + c * 8);
            to[0] = make_float4(v.v[0], v.v[1], v.v[2], v.v[3]);
            to[1] = make_float4(v.v[4], v.v[5], v.v[6], v.v[7]);
        }
    };
    for (unsigned t0 = 0; t0 < end; t0 += BK) {
        __syncthreads();
        load(p.keys, t0);
        __syncthreads();
        float s[RQ][RK];
#pragma unroll
        for (int i = 0; i < RQ; ++i) {
#pragma unroll
            for (int j = 0; j < RK; ++j) s[i][j] = 0.0f;
        }
#pragma unroll 1
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
        load(p.values, t0);
        __syncthreads();
#pragma unroll 1
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

}  // namespace

extern "C" __global__ void __launch_bounds__(256) model_tile_64(const __grid_constant__ ModelAttendParams p) {
    attend_tile<1, 64, 64>(p);
}
extern "C" __global__ void __launch_bounds__(256) model_tile_128(const __grid_constant__ ModelAttendParams p) {
    attend_tile<2, 64, 64>(p);
}
extern "C" __global__ void __launch_bounds__(256) model_tile_256(const __grid_constant__ ModelAttendParams p) {
    attend_tile<4, 32, 32>(p);
}

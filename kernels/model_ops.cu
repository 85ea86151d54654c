// The small operations of a decoder: embedding, normalization, rotation, gating, choice of the next token.
//
//   embed      x[i] = table[token[i]]
//   rmsnorm    x += delta + delta_bias;  out = x / sqrt(mean(x^2) + eps) * weight, rotated by tiles of 128 if signs are given
//   rope       q, k: + bias, optional norm per head, rotation by position; k, v go to the cache
//   silu_mul   out = silu(gate + bias) * (up + bias), rotated by tiles of 128 if signs are given
//   argmax     token = index of the largest logit (the first of equals); position += 1
//
// Shapes: row-major, f32, `n` rows. Grid: one block per row unless a kernel says otherwise. No dynamic shared memory.
// The position of row 0 is read from the device, so that one CUDA graph serves every step.
// Caller: gosset-cuda/src/launch/model.rs.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "model.cuh"
#include "model_rope.cuh"
#include "params.cuh"
#include "rht.cuh"

namespace {

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

// Sum over the block, the same value in every thread. `shared` has room for 32 floats.
__device__ __forceinline__ float block_sum(float v, float* shared) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    const unsigned warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    v = lane < n_warps ? shared[lane] : 0.0f;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

template <typename T>
__device__ __forceinline__ void embed(const ModelEmbedParams& p) {
    wait_for_predecessor();
    let_successor_start();
    const T* table = reinterpret_cast<const T*>(p.table);
    const unsigned token = min(p.tokens[blockIdx.x], p.vocab - 1);
    const T* from = table + static_cast<size_t>(token) * p.cols;
    float* to = p.x + static_cast<size_t>(blockIdx.x) * p.cols;
    for (unsigned i = threadIdx.x; i < p.cols; i += blockDim.x) to[i] = to_float(from[i]);
}

}  // namespace

// One warp per head of one row.
extern "C" __global__ void __launch_bounds__(128) model_rope(const __grid_constant__ ModelRopeParams p) {
    constexpr int kPairs = 4;  // Pairs per lane: heads of up to 256 columns.
    const unsigned lane = threadIdx.x & 31, half = p.head_dim / 2;
    const unsigned head = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), row = blockIdx.y;
    const bool is_q = head < p.heads, is_v = head >= p.heads + p.kv_heads;
    wait_for_predecessor();
    let_successor_start();
    if (head >= p.heads + 2 * p.kv_heads) return;
    const unsigned local = head - (is_q ? 0 : is_v ? p.heads + p.kv_heads : p.heads);
    const float* from = is_q ? p.x_q : is_v ? p.x_v : p.x_k;
    const size_t stride = is_q ? p.q_stride : is_v ? p.v_stride : p.k_stride;
    const float* x = from + row * stride + static_cast<size_t>(local) * p.head_dim;
    const float* bias = p.bias ? p.bias + static_cast<size_t>(head) * p.head_dim : nullptr;
    const float* norm = is_v ? nullptr : is_q ? p.q_norm : p.k_norm;
    const unsigned position = *p.position + row;
    float a[kPairs], b[kPairs];
    rotate_head<kPairs>(p, x, bias, norm, !is_v, position, a, b);
    if (!is_q && position >= p.capacity) return;
    float* q = p.q + (static_cast<size_t>(row) * p.heads + head) * p.head_dim;
    void* cache = is_v ? p.values : p.keys;
    const size_t at = (static_cast<size_t>(local) * p.capacity + position) * p.head_stride;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
        const unsigned i = lane + 32 * j, i0 = pair_first(p, i), i1 = pair_second(p, i);
        if (i >= half) continue;
        if (is_q) {
            q[i0] = a[j] * p.scale;
            q[i1] = b[j] * p.scale;
        } else if (p.cache_f32) {
            static_cast<float*>(cache)[at + i0] = a[j];
            static_cast<float*>(cache)[at + i1] = b[j];
        } else {
            static_cast<__half*>(cache)[at + i0] = __float2half_rn(a[j]);
            static_cast<__half*>(cache)[at + i1] = __float2half_rn(b[j]);
        }
    }
}

extern "C" __global__ void model_embed_f32(const __grid_constant__ ModelEmbedParams p) { embed<float>(p); }
extern "C" __global__ void model_embed_f16(const __grid_constant__ ModelEmbedParams p) { embed<__half>(p); }
extern "C" __global__ void model_embed_bf16(const __grid_constant__ ModelEmbedParams p) { embed<__nv_bfloat16>(p); }

// Four columns per thread and round; rounds beyond kHeld read the row a second time.
extern "C" __global__ void __launch_bounds__(1024) model_rmsnorm(const __grid_constant__ ModelNormParams p) {
    constexpr int kHeld = 4;
    __shared__ float shared[32];
    const size_t at = static_cast<size_t>(blockIdx.x) * p.cols;
    float* x = p.x + at;
    float* out = p.out + at;
    const float* delta = p.delta ? p.delta + at : nullptr;
    const unsigned vectors = p.cols % 4 == 0 ? p.cols / 4 : 0;
    // The weights of a layer are long gone from the second-level cache when its turn comes again.
    for (unsigned i = threadIdx.x * 32; i < p.cols; i += blockDim.x * 32) prefetch_l2(p.weight + i);
    wait_for_predecessor();
    let_successor_start();
    float4 held[kHeld], weight[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
        const unsigned i = threadIdx.x + j * blockDim.x;
        weight[j] = i < vectors ? reinterpret_cast<const float4*>(p.weight)[i] : float4{};
        if (i < vectors && p.delta_bias) held[j] = reinterpret_cast<const float4*>(p.delta_bias)[i];
        else held[j] = float4{};
    }
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
        const unsigned i = threadIdx.x + j * blockDim.x;
        if (i < vectors) {
            const float4 v = reinterpret_cast<const float4*>(x)[i];
            if (delta) {
                const float4 d = reinterpret_cast<const float4*>(delta)[i];
                held[j] = make_float4(v.x + (d.x + held[j].x), v.y + (d.y + held[j].y), v.z + (d.z + held[j].z),
                                      v.w + (d.w + held[j].w));
                reinterpret_cast<float4*>(x)[i] = held[j];
            } else {
                held[j] = v;
            }
            sum += held[j].x * held[j].x + held[j].y * held[j].y + held[j].z * held[j].z + held[j].w * held[j].w;
        }
    }
    const unsigned rest = min(vectors * 4, 4 * kHeld * blockDim.x);
    for (unsigned i = rest + threadIdx.x; i < p.cols; i += blockDim.x) {
        float v = x[i];
        if (delta) {
            v += delta[i] + (p.delta_bias ? p.delta_bias[i] : 0.0f);
            x[i] = v;
        }
        sum += v * v;
    }
    const float scale = 1.0f / sqrtf(block_sum(sum, shared) / static_cast<float>(p.cols) + p.eps);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
        const unsigned i = threadIdx.x + j * blockDim.x;
        if (i < vectors) {
            float v[4] = {held[j].x * scale * weight[j].x, held[j].y * scale * weight[j].y, held[j].z * scale * weight[j].z,
                          held[j].w * scale * weight[j].w};
            // A warp has 128 neighbouring columns, all of them or none: the host gives signs for whole tiles only.
            if (p.signs) gosset::rht128(v, gosset::sign_nibble(p.signs, 4 * i));
            reinterpret_cast<float4*>(out)[i] = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
    for (unsigned i = rest + threadIdx.x; i < p.cols; i += blockDim.x) out[i] = x[i] * scale * p.weight[i];
}

// Four columns per thread where rows are multiples of 4 columns, else one. Grid: (blocks over columns, n).
extern "C" __global__ void __launch_bounds__(128) model_silu_mul(const __grid_constant__ ModelSiluParams p) {
    const unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) * p.width;
    wait_for_predecessor();
    let_successor_start();
    if (i >= p.cols) return;
    const float* gate = p.gate + static_cast<size_t>(blockIdx.y) * p.gate_stride + i;
    const float* up = p.up + static_cast<size_t>(blockIdx.y) * p.up_stride + i;
    float* out = p.out + static_cast<size_t>(blockIdx.y) * p.cols + i;
    float g[4] = {}, u[4] = {};
    if (p.width == 4) {
        const float4 g4 = *reinterpret_cast<const float4*>(gate), u4 = *reinterpret_cast<const float4*>(up);
        g[0] = g4.x, g[1] = g4.y, g[2] = g4.z, g[3] = g4.w;
        u[0] = u4.x, u[1] = u4.y, u[2] = u4.z, u[3] = u4.w;
    } else {
        g[0] = *gate;
        u[0] = *up;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        if (p.bias && e < p.width) {
            g[e] += p.bias[i + e];
            u[e] += p.bias[p.cols + i + e];
        }
        g[e] = g[e] / (1.0f + expf(-g[e])) * u[e];
    }
    if (p.width == 4) {
        if (p.signs) gosset::rht128(g, gosset::sign_nibble(p.signs, i));
        *reinterpret_cast<float4*>(out) = make_float4(g[0], g[1], g[2], g[3]);
    } else {
        *out = g[0];
    }
}

// Grid: any number of blocks of 256 threads over one row of logits. `best` is 0 and `n_done` is 0 before and after.
extern "C" __global__ void __launch_bounds__(256) model_argmax(const __grid_constant__ ModelArgmaxParams p) {
    __shared__ unsigned long long shared[8];
    wait_for_predecessor();
    let_successor_start();
    unsigned long long best = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < p.vocab; i += gridDim.x * blockDim.x) {
        // An order-preserving image of the float above the complement of the index: equal logits go to the first.
        const unsigned bits = __float_as_uint(p.logits[i]);
        const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        best = max(best, static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - i));
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) best = max(best, __shfl_xor_sync(0xffffffffu, best, d));
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int w = 0; w < 8; ++w) best = max(best, shared[w]);
    atomicMax(p.best, best);
    __threadfence();
    if (atomicAdd(p.n_done, 1u) != gridDim.x - 1) return;
    __threadfence();
    best = atomicExch(p.best, 0ull);
    *p.n_done = 0;
    *p.token = 0xffffffffu - static_cast<unsigned>(best);
    *p.position += 1;
}

// Copies `len` positions of every head from a cache of one capacity to one of another. Grid: (any, heads), 16-byte units.
extern "C" __global__ void __launch_bounds__(256) model_cache_copy(const __grid_constant__ ModelCacheCopyParams p) {
    wait_for_predecessor();
    const uint4* from = reinterpret_cast<const uint4*>(p.from) + static_cast<size_t>(blockIdx.y) * p.from_units;
    uint4* to = reinterpret_cast<uint4*>(p.to) + static_cast<size_t>(blockIdx.y) * p.to_units;
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.n_units; i += step) to[i] = from[i];
}

// Sums of four uniform numbers of a hash: about normal, for benchmarks.
extern "C" __global__ void __launch_bounds__(256) model_normal(const __grid_constant__ ModelNormalParams p) {
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < p.n; i += step) {
        unsigned long long h = (i + 1) * 0x9e3779b97f4a7c15ull + p.seed * 0xd1342543de82ef95ull;
        h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
        h ^= h >> 31;
        float sum = -2.0f;
#pragma unroll
        for (int part = 0; part < 4; ++part) sum += static_cast<float>(h >> (16 * part) & 0xffff) * (1.0f / 65536.0f);
        // Four uniform numbers have variance 1/3.
        p.out[i] = __float2bfloat16(sum * 1.7320508f * p.deviation);
    }
}

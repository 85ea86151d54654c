// Decode attention over a cache, the part that does not depend on what the cache is made of: a warp takes 32 positions at a time, four query heads
// that share them, with tensor cores (mma.cuh) on halves and f32 sums.
//
// Lane (g, t), g = lane / 4, t = lane % 4. Pairs are two consecutive dimensions; a *set* is four consecutive pairs.
//   scores   A = keys: slots g and g + 8 of product i are positions 4 g + 2 i and 4 g + 2 i + 1; slots t and t + 4 of k are the first and the second (then
//            the third and the fourth) pair of set 4 s + t. B = queries: column h is head h rounded to halves, column 4 + h is what that lost.
//   sums     A = values: slots g and g + 8 are the first and the second (then the third and the fourth) pair of set 8 s + g; a slot of k is one position,
//            its two halves the two dimensions of the pair. So column 2 h + p of B has the weights of head h at its half p, and 0 at the other one:
//            four heads fill the eight columns, and pairs are multiplied as they were decoded.
//
// Softmax. A warp has a reference for each head that it exceeds by 2^15 at most before sums are scaled anew, so that this is rare. Scales of values are
// added to the logarithm of the weights, so that weights are halves of a known range whatever the scales are: reference = maximum - 8 at that time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "mma.cuh"
#include "model.cuh"
#include "model_cache.cuh"

namespace kv {

constexpr unsigned kAll = 0xffffffffu;
constexpr unsigned kChunk = 32;    // Positions that a warp takes at a time.
constexpr unsigned kHeads = 4;     // Query heads of a group that a block takes.
constexpr float kHeadroom = 8.0f, kMost = 15.0f;  // log2 of weights: at a new reference, and before it changes.

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Halves of either kind.
template <typename C>
struct Type;
template <>
struct Type<__half> {
    __device__ static __forceinline__ uint32_t two(float a, float b) {
        const __half2 h = __floats2half2_rn(a, b);
        return *reinterpret_cast<const uint32_t*>(&h);
    }
    __device__ static __forceinline__ float round(float a) { return __half2float(__float2half_rn(a)); }
    __device__ static __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { gosset::mma(d, a, b0, b1); }
};
template <>
struct Type<__nv_bfloat16> {
    __device__ static __forceinline__ uint32_t two(float a, float b) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
        return *reinterpret_cast<const uint32_t*>(&h);
    }
    __device__ static __forceinline__ float round(float a) { return __bfloat162float(__float2bfloat16_rn(a)); }
    __device__ static __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

// Values of four queries as B operands. `factor` takes back the power of two that keeps the largest near 1, for heads 2 (t % 2) and the next.
template <int DIM, typename C>
struct Queries {
    uint32_t b[DIM / 16][2];
    float factor[2];

    // `at(pair)`: what stands at a pair of head g % 4 and the one after it. `scale`: of scores. With `kLow`, columns 4 to 7 have what the first four lost.
    template <bool kLow = true, typename F>
    __device__ __forceinline__ void load(F&& at, float scale, unsigned lane) {
        const unsigned g = lane >> 2, t = lane & 3;
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < DIM / 16; ++i) {
            const float4 x = at(4 * (4 * (i / 2) + t) + 2 * (i % 2));
            most = fmaxf(most, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
        }
        const float up = normal(most, scale, t);
        const bool low = kLow && g >= 4;
#pragma unroll
        for (int i = 0; i < DIM / 16; ++i) {
            const float4 v = at(4 * (4 * (i / 2) + t) + 2 * (i % 2));
            float x[4] = {v.x * up, v.y * up, v.z * up, v.w * up};
            if (low) {
#pragma unroll
                for (int j = 0; j < 4; ++j) x[j] -= Type<C>::round(x[j]);
            }
            b[i][0] = Type<C>::two(x[0], x[1]);
            b[i][1] = Type<C>::two(x[2], x[3]);
        }
    }

    // Sets factors for heads whose largest values are `most`, over the four lanes of each; returns what to multiply this lane's head by.
    __device__ __forceinline__ float normal(float most, float scale, unsigned t) {
        most = fmaxf(most, __shfl_xor_sync(kAll, most, 1));
        most = fmaxf(most, __shfl_xor_sync(kAll, most, 2));
        // 2^e, e in 1 .. 253, so that its inverse is normal too.
        const unsigned exponent = min(max(__float_as_uint(most) >> 23 & 255, 1u), 253u);
        const float down = __uint_as_float(exponent << 23) * scale * kLog2E;
        factor[0] = __shfl_sync(kAll, down, 8 * (t & 1));
        factor[1] = __shfl_sync(kAll, down, 8 * (t & 1) + 4);
        return __uint_as_float((254 - exponent) << 23);
    }
};

// Sums of values: acc[i] are pairs of set 8 (i / 2) + g: 2 (i % 2) in [0], [1] and the next one in [2], [3], of head t. `sum` is this lane's share of the
// weights of heads 2 (t % 2) and the next, `reference` theirs.
template <int DIM, typename C>
struct Sums {
    float acc[DIM / 32][4];
    float reference[2], sum[2];

    __device__ __forceinline__ void clear() {
        reference[0] = reference[1] = kNegative;
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < DIM / 32; ++i) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
    }

    // What the products of keys gave, to scores of four positions and two heads.
    __device__ static __forceinline__ void scores(float (&s)[4][2], const float (&d)[2][4], const float (&factor)[2]) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float part = d[r / 2][2 * (r % 2) + c];
                s[r][c] = (part + __shfl_xor_sync(kAll, part, 2)) * factor[c];
            }
        }
    }

    // Weights of positions 4 g + r: two heads in one word. `log`: of the scales of values.
    __device__ __forceinline__ void weights(uint32_t (&w)[4], const float (&s)[4][2], const float (&log)[4], unsigned lane) {
        float top[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) top[c] = fmaxf(fmaxf(s[0][c] + log[0], s[1][c] + log[1]), fmaxf(s[2][c] + log[2], s[3][c] + log[3]));
        if (__any_sync(kAll, top[0] > reference[0] + kMost || top[1] > reference[1] + kMost)) {
            float keep[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
#pragma unroll
                for (int m = 4; m < 32; m *= 2) top[c] = fmaxf(top[c], __shfl_xor_sync(kAll, top[c], m));
                const float next = fmaxf(reference[c], top[c] - kHeadroom);
                keep[c] = exp2_fast(reference[c] - next);
                reference[c] = next;
                sum[c] *= keep[c];
            }
            const float first = __shfl_sync(kAll, keep[0], (lane & 3) >> 1), second = __shfl_sync(kAll, keep[1], (lane & 3) >> 1);
            const float f = lane & 1 ? second : first;
#pragma unroll
            for (int i = 0; i < DIM / 32; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) acc[i][j] *= f;
            }
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            float x[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float above = s[r][c] - reference[c];
                x[c] = exp2_fast(above + log[r]);
                sum[c] += exp2_fast(above);
            }
            w[r] = Type<C>::two(x[0], x[1]);
        }
    }

    // B operands of positions 16 half + 4 t .. + 3.
    __device__ static __forceinline__ void operands(uint32_t (&b)[4], const uint32_t (&w)[4], int half, unsigned lane) {
        const unsigned g = lane >> 2, t = lane & 3;
        const unsigned from = 4 * (4 * half + t) + (g >> 2);
        const unsigned pick = (g >> 1 & 1 ? 0x32u : 0x10u), select = g & 1 ? pick << 8 | 0x44u : 0x4400u | pick;
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = __byte_perm(__shfl_sync(kAll, w[i], from), 0, select);
    }

    // This lane's sums, to `to` [4, DIM] of a warp.
    __device__ __forceinline__ void write(float* to, unsigned lane) const {
#pragma unroll
        for (int i = 0; i < DIM / 32; ++i) {
            const unsigned pair = 4 * (8 * (i / 2) + (lane >> 2)) + 2 * (i % 2);
            *reinterpret_cast<float4*>(to + (lane & 3) * DIM + 2 * pair) = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        }
    }

    // The references of four heads, to `to`.
    __device__ __forceinline__ void write_reference(float* to, unsigned lane) const {
        if (lane < 2) to[2 * lane] = reference[0], to[2 * lane + 1] = reference[1];
    }

    // The weights of four heads, to `to`.
    __device__ __forceinline__ void write_sum(float* to, unsigned lane) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll
            for (int m = 4; m < 32; m *= 2) sum[c] += __shfl_xor_sync(kAll, sum[c], m);
        }
        if (lane < 2) to[2 * lane] = sum[0], to[2 * lane + 1] = sum[1];
    }
};

// The end of a kernel: sums of all warps of a block, then of all blocks of the same heads.
//
// KINDS: sums that must not be mixed. sums(kind, warp): where a warp left them, [4, DIM]; references: [KINDS][WARPS][4], those that they are relative to, the
// last kind's those of the weights; weights: [WARPS][4]. parts: [splits, n_heads, KINDS * DIM + 2]. The last block returns true, with `out` [KINDS][4][DIM] of
// shared memory, which no warp's sums are in, the sums over all weights.
template <int DIM, int WARPS, int KINDS, typename F>
__device__ __forceinline__ bool join(
    F&& sums, const float (*references)[WARPS][kHeads], const float (*weights)[kHeads], float (*scratch)[64], float* out, unsigned n_heads, float* parts,
    unsigned active, unsigned* counter) {
    constexpr unsigned kPart = KINDS * DIM + 2, kThreads = WARPS * 32;
    const unsigned tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    __syncthreads();
    for (unsigned i = tid; i < n_heads * DIM; i += kThreads) {
        const unsigned head = i / DIM, d = i % DIM;
        float top = kNegative, total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, references[KINDS - 1][w][head]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total = fmaf(weights[w][head], exp2_fast(references[KINDS - 1][w][head] - top), total);
        float* part = parts + (blockIdx.x * n_heads + head) * kPart;
#pragma unroll
        for (int kind = 0; kind < KINDS; ++kind) {
            float value = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const float* of = sums(kind, w);
                if (of != nullptr) value = fmaf(of[i], exp2_fast(references[kind][w][head] - top), value);
            }
            if (active == 1) {
                out[kind * kHeads * DIM + i] = value / total;
            } else {
                part[kind * DIM + d] = value;
            }
        }
        if (active > 1 && d == 0) {
            part[kPart - 2] = top;
            part[kPart - 1] = total;
        }
    }
    if (active > 1) {
        unsigned& last = reinterpret_cast<unsigned&>(scratch[0][0]);
        __threadfence();
        __syncthreads();
        if (tid == 0) last = atomicAdd(counter, 1u) == active - 1;
        __syncthreads();
        if (last == 0) return false;
        __threadfence();
        __syncthreads();
        if (tid == 0) *counter = 0;
        if (warp < n_heads) {
            float top[2] = {kNegative, kNegative}, total[2] = {0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float* part = parts + ((lane + 32 * i) * n_heads + warp) * kPart + kPart - 2;
                if (lane + 32 * i < active) {
                    top[i] = __ldcg(part);
                    total[i] = __ldcg(part + 1);
                }
            }
            float all = fmaxf(top[0], top[1]);
#pragma unroll
            for (int m = 16; m > 0; m >>= 1) all = fmaxf(all, __shfl_xor_sync(kAll, all, m));
            const float f[2] = {exp2_fast(top[0] - all), exp2_fast(top[1] - all)};
            float whole = total[0] * f[0] + total[1] * f[1];
#pragma unroll
            for (int m = 16; m > 0; m >>= 1) whole += __shfl_xor_sync(kAll, whole, m);
            scratch[warp][lane] = f[0] / whole;
            scratch[warp][lane + 32] = f[1] / whole;
        }
        __syncthreads();
        for (unsigned i = tid; i < n_heads * DIM * KINDS; i += kThreads) {
            const unsigned head = i / DIM % n_heads, kind = i / DIM / n_heads, d = i % DIM;
            float value = 0.0f;
#pragma unroll 16
            for (unsigned s = 0; s < active; ++s) {
                value = fmaf(scratch[head][s], __ldcg(parts + (s * n_heads + head) * kPart + kind * DIM + d), value);
            }
            out[(kind * kHeads + head) * DIM + d] = value;
        }
    }
    __syncthreads();
    return true;
}

// 32 exact positions as operands; row(i): where position i of them is, halves.
template <int DIM, typename C, typename F>
__device__ __forceinline__ void exact_scores(float (&d)[2][4], F&& row, const Queries<DIM, C>& q, unsigned lane) {
    const unsigned g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint4 k[DIM / 32][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint4* from = reinterpret_cast<const uint4*>(row(4 * g + 2 * i + r)) + t;
#pragma unroll
            for (int s = 0; s < DIM / 32; ++s) k[s][r] = from[4 * s];
        }
#pragma unroll
        for (int s = 0; s < DIM / 32; ++s) {
            const uint32_t first[4] = {k[s][0].x, k[s][1].x, k[s][0].y, k[s][1].y}, second[4] = {k[s][0].z, k[s][1].z, k[s][0].w, k[s][1].w};
            Type<C>::mma(d[i], first, q.b[2 * s][0], q.b[2 * s][1]);
            Type<C>::mma(d[i], second, q.b[2 * s + 1][0], q.b[2 * s + 1][1]);
        }
    }
}

// Values of positions 16 half + 4 t .. + 3, set 8 s + g.
template <int DIM, typename F>
__device__ __forceinline__ void exact_load(uint4 (&v)[DIM / 64][4], F&& row, int half, unsigned lane) {
    const unsigned g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const uint4* from = reinterpret_cast<const uint4*>(row(16 * half + 4 * t + r)) + g;
#pragma unroll
        for (int s = 0; s < DIM / 64; ++s) v[s][r] = from[8 * s];
    }
}

template <int DIM, typename C>
__device__ __forceinline__ void exact_add(float (&acc)[DIM / 32][4], const uint4 (&v)[DIM / 64][4], const uint32_t (&b)[4]) {
#pragma unroll
    for (int s = 0; s < DIM / 64; ++s) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const uint4 x = v[s][2 * k], y = v[s][2 * k + 1];
            const uint32_t first[4] = {x.x, x.y, y.x, y.y}, second[4] = {x.z, x.w, y.z, y.w};
            Type<C>::mma(acc[2 * s], first, b[2 * k], b[2 * k + 1]);
            Type<C>::mma(acc[2 * s + 1], second, b[2 * k], b[2 * k + 1]);
        }
    }
}

}  // namespace kv

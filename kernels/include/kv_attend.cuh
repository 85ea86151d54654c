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
// part of the weights, so that these are halves of a known range whatever the scales are: reference = maximum - 8 at that time.
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

// Sums of values: acc[i] are pairs of set 8 (i / 2) + g: 2 (i % 2) in [0], [1] and the next one in [2], [3], of head t. A lane has the scores and weights of
// positions 4 g + 2 (t / 2) and the next, heads 2 (t % 2) and the next: `sum` is its share of the weights of those heads, `reference` theirs.
template <int DIM, typename C>
struct Sums {
    float acc[DIM / 32][4];
    float reference[2], sum[2];

    __device__ __forceinline__ void clear() {
        reference[0] = reference[1] = kNegative;
        sum[0] = sum[1] = 0.0f;
        clear_values();
    }
    __device__ __forceinline__ void clear_values() {
#pragma unroll
        for (int i = 0; i < DIM / 32; ++i) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
    }

    // What the products of keys gave, to scores [position][head]: rounded queries and what those lost are added up, half of the positions in either lane.
    __device__ static __forceinline__ void scores(float (&s)[2][2], const float (&d)[2][4], unsigned lane) {
        const bool second = lane & 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float give = second ? d[0][i] : d[1][i], keep = second ? d[1][i] : d[0][i];
            s[i / 2][i % 2] = keep + __shfl_xor_sync(kAll, give, 2);
        }
    }

    // Weights of two positions: two heads in one word. `scale`: of values, `log` its logarithm.
    __device__ __forceinline__ void weights(uint32_t (&w)[2], const float (&s)[2][2], const float (&log)[2], const float (&scale)[2], unsigned lane) {
        float top[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) top[c] = fmaxf(s[0][c] + log[0], s[1][c] + log[1]);
        if (__any_sync(kAll, top[0] > reference[0] + kMost || top[1] > reference[1] + kMost)) {
            float keep[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
#pragma unroll
                for (int m = 2; m < 32; m *= 2) top[c] = fmaxf(top[c], __shfl_xor_sync(kAll, top[c], m));
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
        for (int j = 0; j < 2; ++j) {
            float x[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                x[c] = exp2_fast(s[j][c] - reference[c]);
                sum[c] += x[c];
                x[c] *= scale[j];
            }
            w[j] = Type<C>::two(x[0], x[1]);
        }
    }

    // B operands of positions 16 half + 4 t .. + 3.
    __device__ static __forceinline__ void operands(uint32_t (&b)[4], const uint32_t (&w)[2], int half, unsigned lane) {
        const unsigned g = lane >> 2, t = lane & 3;
        const unsigned from = 4 * (4 * half + t) + (g >> 2);
        const unsigned pick = (g >> 1 & 1 ? 0x32u : 0x10u), select = g & 1 ? pick << 8 | 0x44u : 0x4400u | pick;
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = __byte_perm(__shfl_sync(kAll, w[i % 2], from + 2 * (i / 2)), 0, select);
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
            for (int m = 2; m < 32; m *= 2) sum[c] += __shfl_xor_sync(kAll, sum[c], m);
        }
        if (lane < 2) to[2 * lane] = sum[0], to[2 * lane + 1] = sum[1];
    }
};

// The end of a kernel: sums of all warps of a block, then of all blocks of the same heads.
//
// KINDS: sums that must not be mixed. sums(kind, warp): where a warp left them, [4, DIM], or null if no warp of the block has any; range(kind): the blocks that
// have some, [first, end). references: [KINDS][WARPS][4], those that sums are relative to, the last kind's those of the weights; weights: [WARPS][4]. parts:
// [splits, n_heads, KINDS * DIM + 4]. The last block returns true, with `out` [KINDS][4][DIM] of shared memory, which no warp's sums are in, the sums over
// all weights.
template <int DIM, int WARPS, int KINDS, typename F, typename R>
__device__ __forceinline__ bool join(
    F&& sums, R&& range, const float (*references)[WARPS][kHeads], const float (*weights)[kHeads], float (*scratch)[64], float* out, unsigned n_heads, float* parts,
    unsigned active, unsigned* counter) {
    constexpr unsigned kPart = KINDS * DIM + 4, kThreads = WARPS * 32, kFours = DIM / 4;
    const unsigned tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    __syncthreads();
    for (unsigned i = tid; i < KINDS * n_heads * kFours; i += kThreads) {
        const unsigned kind = i / kFours / n_heads, head = i / kFours % n_heads, c = i % kFours;
        float top = kNegative, total = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, references[KINDS - 1][w][head]);
        float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const bool some = sums(kind, 0) != nullptr;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            total = fmaf(weights[w][head], exp2_fast(references[KINDS - 1][w][head] - top), total);
            if (some) {
                const float4 x = *(reinterpret_cast<const float4*>(sums(kind, w) + head * DIM) + c);
                const float f = exp2_fast(references[kind][w][head] - top);
                value.x = fmaf(x.x, f, value.x), value.y = fmaf(x.y, f, value.y), value.z = fmaf(x.z, f, value.z), value.w = fmaf(x.w, f, value.w);
            }
        }
        if (active == 1) {
            const float f = 1.0f / total;
            *(reinterpret_cast<float4*>(out + (kind * kHeads + head) * DIM) + c) = make_float4(value.x * f, value.y * f, value.z * f, value.w * f);
        } else {
            float* part = parts + (blockIdx.x * n_heads + head) * kPart;
            if (some) *(reinterpret_cast<float4*>(part + kind * DIM) + c) = value;
            if (c == 0 && kind == 0) *reinterpret_cast<float2*>(part + KINDS * DIM) = make_float2(top, total);
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
        if (tid == 0) *counter = 0;
        // Sums are on their way while weights are made of references.
        constexpr unsigned kAhead = 16;
        const unsigned kind = tid / kFours / n_heads, head = tid / kFours % n_heads, c = tid % kFours;
        const bool mine = kind < KINDS;
        const float* const from = parts + head * kPart + kind * DIM + 4 * c;
        const uint2 blocks = mine ? range(kind) : make_uint2(0, 0);
        float4 x[kAhead];
#pragma unroll
        for (unsigned i = 0; i < kAhead; ++i) {
            x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (blocks.x + i < blocks.y) x[i] = __ldcg(reinterpret_cast<const float4*>(from + (blocks.x + i) * n_heads * kPart));
        }
        __syncthreads();
        if (warp < n_heads) {
            float2 of[2] = {make_float2(kNegative, 0.0f), make_float2(kNegative, 0.0f)};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (lane + 32 * i < active) of[i] = __ldcg(reinterpret_cast<const float2*>(parts + ((lane + 32 * i) * n_heads + warp) * kPart + KINDS * DIM));
            }
            float all = fmaxf(of[0].x, of[1].x);
#pragma unroll
            for (int m = 16; m > 0; m >>= 1) all = fmaxf(all, __shfl_xor_sync(kAll, all, m));
            const float f[2] = {exp2_fast(of[0].x - all), exp2_fast(of[1].x - all)};
            float whole = of[0].y * f[0] + of[1].y * f[1];
#pragma unroll
            for (int m = 16; m > 0; m >>= 1) whole += __shfl_xor_sync(kAll, whole, m);
            scratch[warp][lane] = f[0] / whole;
            scratch[warp][lane + 32] = f[1] / whole;
        }
        __syncthreads();
        static_assert(KINDS * kHeads * kFours <= kThreads);
        if (mine) {
            float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            auto add = [&](unsigned block, const float4& v) {
                const float f = scratch[head][block];
                value.x = fmaf(v.x, f, value.x), value.y = fmaf(v.y, f, value.y), value.z = fmaf(v.z, f, value.z), value.w = fmaf(v.w, f, value.w);
            };
#pragma unroll
            for (unsigned i = 0; i < kAhead; ++i) {
                if (blocks.x + i < blocks.y) add(blocks.x + i, x[i]);
            }
            for (unsigned b = blocks.x + kAhead; b < blocks.y; ++b) add(b, __ldcg(reinterpret_cast<const float4*>(from + b * n_heads * kPart)));
            *reinterpret_cast<float4*>(out + (kind * kHeads + head) * DIM + 4 * c) = value;
        }
    }
    __syncthreads();
    return true;
}

// Products of 32 exact keys: k[r] are pieces t, t + 4 .. of position 4 g + r.
template <int DIM, typename C>
__device__ __forceinline__ void exact_scores(float (&d)[2][4], const uint4 (&k)[4][DIM / 32], const Queries<DIM, C>& q) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int n = 0; n < DIM / 32; ++n) {
            const uint4 x = k[2 * i][n], y = k[2 * i + 1][n];
            const uint32_t one[4] = {x.x, y.x, x.y, y.y}, two[4] = {x.z, y.z, x.w, y.w};
            Type<C>::mma(d[i], one, q.b[2 * n][0], q.b[2 * n][1]);
            Type<C>::mma(d[i], two, q.b[2 * n + 1][0], q.b[2 * n + 1][1]);
        }
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

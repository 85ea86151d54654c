// Activations for products of affine-grid codes: t' = A^T U_n^T (S_U x), zero beyond the last column and the last activation, in the order of the
// operands; and the sums of products with many of them.
//
//   unisvq_prepare          flag 64 off: 16-bit integers under one scale each, [unit][block of four activations][4 vectors][lane][4 words] (include/unisvq.cuh).
//                           Grid: activations, rounded up to whole blocks of four.
//                           Flag 64 on: halves times a power of two each, over 2^shift of their quad: [unit][block of eight][8 vectors][lane][4 words], vector
//                           4 (column half) + i / 2, words 2 (i % 2) .. : columns 0 and 2, then 1 and 3 of quad i. Grid: whole blocks of eight.
//   unisvq_finish           adds the segments of unisvq_gemm.cu, transforms groups of 128 rows and writes y. Grid: (groups of 128 rows) x (blocks of
//                           eight activations); 256 threads, of which a warp first has a row tile, then an activation.
//
// activations[b] = (factor of sums, beta), beta being what B and the centre of the codes add; the factor is half the step of the integers, or
// 2^-12 over the power of two.
//
// Block of unisvq_prepare: 1024; a warp takes windows of 128 columns. Dynamic shared memory: 4 bytes for each column of whole units.
// Callers: gosset-cuda/src/launch/unisvq.rs, unisvq_gemm.rs.

#include <cuda_fp16.h>

#include "params.cuh"
#include "rht.cuh"
#include "unisvq.cuh"
#include "unisvq_items.cuh"

namespace {

using namespace unisvq;

constexpr int kWarps = 32;  // a lane adds up what each has

__device__ __forceinline__ void load_row(float (&v)[4], const UniSvqPrepareParams& p, uint32_t b, uint32_t col) {
    const float* row = p.x + static_cast<size_t>(b) * p.cols;
    if ((p.flags & kVectorX) && col < p.cols) {
        const float4 f = *reinterpret_cast<const float4*>(row + col);
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = col + i < p.cols ? row[col + i] : 0.0f;
    }
}

// Where the halves of four columns go: quad `lane` % 8 of thread `lane` / 8.
__device__ __forceinline__ uint32_t half_words(uint32_t window, uint32_t b, uint32_t lane) {
    const uint32_t quad = lane % 8, vector = window % 2 * 4 + quad / 2, to = b % 8 * 4 + lane / 8;
    return (vector * 32 + to) * 4 + quad % 2 * 2;
}

__device__ __forceinline__ uint32_t pair(float a, float b, float& total) {
    const __half2 h = __floats2half2_rn(a, b);
    total += __low2float(h) + __high2float(h);
    return *reinterpret_cast<const uint32_t*>(&h);
}

// The sum of all lanes.
__device__ __forceinline__ float add_up(float v) {
#pragma unroll
    for (int m = 16; m != 0; m /= 2) v += __shfl_xor_sync(kAll, v, m);
    return v;
}

__device__ __forceinline__ float power_of_two(uint32_t exponent) { return __uint_as_float(exponent << 23); }

}  // namespace

extern "C" __global__ void __launch_bounds__(32 * kWarps) unisvq_prepare(const __grid_constant__ UniSvqPrepareParams p) {
    extern __shared__ __align__(16) float row[];
    __shared__ uint32_t most_of[kWarps];
    __shared__ float beta_of[kWarps];
    __shared__ int total_of[kWarps];
    __shared__ float sum_of[kWarps];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, b = blockIdx.x;
    const uint32_t n_windows = 2 * p.row_units;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const bool there = b < p.batch;
    uint32_t most = 0;
    float beta = 0.0f;
    if (there) {
#pragma unroll 1
        for (uint32_t w = warp; w < n_windows; w += kWarps) {
            const uint32_t col = w * 128 + lane * 4;
            float v[4], su[4];
            halves(su, p.input_scales + col);
            load_row(v, p, b, col);
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] *= su[i];
            if (p.flags & kInput) transform(v, p.input_logs, col);
            // The table is zero where a group ends within four columns.
            if (p.fold != kPlain) beta += fold<true>(v, p.fold_table, p.centre, col, p.cols);
#pragma unroll
            for (int i = 0; i < 4; ++i) most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
            *reinterpret_cast<float4*>(row + col) = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
    most = __reduce_max_sync(kAll, most);
    beta = add_up(beta);
    if (lane == 0) {
        most_of[warp] = most;
        beta_of[warp] = beta;
    }
    __syncthreads();
    most = __reduce_max_sync(kAll, most_of[lane]);
    if (p.flags & kHalves) {
        // The largest lies below 2^15.
        const uint32_t exponent = max(most >> 23, 14u);
        const uint32_t shift = p.shifts >> 4 * (lane % 8) & 15;
        const float up = power_of_two(268 - exponent), down = power_of_two(127 - shift), back = power_of_two(127 + shift);
        uint32_t* out = p.prepared + static_cast<size_t>(b / 8) * 1024;
        float total = 0.0f;
#pragma unroll 1
        for (uint32_t w = warp; w < n_windows; w += kWarps) {
            float4 f = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (there) f = *reinterpret_cast<const float4*>(row + w * 128 + lane * 4);
            uint2 words;
            words.x = pair(f.x * up * down, f.z * up * down, total);
            words.y = pair(f.y * up * down, f.w * up * down, total);
            *reinterpret_cast<uint2*>(out + static_cast<size_t>(w / 2) * p.x_blocks * 1024 + half_words(w, b, lane)) = words;
        }
        total = add_up(total * back);
        if (lane == 0) sum_of[warp] = total;
        __syncthreads();
        if (warp == 0 && there) {
            const float sum = add_up(beta_of[lane]), all = add_up(sum_of[lane]);
            if (lane == 0) p.activations[b] = make_float2(power_of_two(exponent - 2), sum - p.centre * all * power_of_two(exponent - 14));
        }
        return;
    }
    const float scale = scale_of(most);
    uint32_t* out = p.prepared + static_cast<size_t>(b / 4) * 512;
    int total = 0;
#pragma unroll 1
    for (uint32_t w = warp; w < n_windows; w += kWarps) {
        float v[4] = {};
        if (there) {
            const float4 f = *reinterpret_cast<const float4*>(row + w * 128 + lane * 4);
            v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
        }
        const Planes planes = unisvq::planes(v, scale);
        total += planes.sum;
        const uint32_t vector = w % 2 * 2 + lane % 8 / 4, to = vector * 32 + b % 4 * 8 + lane / 8;
        uint32_t* at = out + static_cast<size_t>(w / 2) * p.x_blocks * 512 + to * 4 + lane % 4;
        at[0] = planes.hi;
        at[16] = planes.lo;
    }
    total = __reduce_add_sync(kAll, total);
    if (lane == 0) total_of[warp] = total;
    __syncthreads();
    if (warp == 0 && there) {
        const float sum = add_up(beta_of[lane]), step = step_of(most);
        const int all = __reduce_add_sync(kAll, total_of[lane]);
        if (lane == 0) p.activations[b] = make_float2(0.5f * step, sum - p.centre * static_cast<float>(all) * step);
    }
}

extern "C" __global__ void __launch_bounds__(256) unisvq_finish(const __grid_constant__ UniSvqFinishParams p) {
    __shared__ __align__(16) float sums[8][132];
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const uint32_t group = blockIdx.x, block = blockIdx.y, b = block * 8 + warp;
    const uint32_t item = group * 128 / p.block_rows * p.row_units;
    const uint32_t n_segments = owner(p.n_items, p.n_blocks, item + p.row_units - 1) - owner(p.n_items, p.n_blocks, item) + 1;
    const float4* from = p.parts + (static_cast<size_t>(group * 8 + warp) * p.x_blocks + block) * 32 + lane;
    const size_t stride = static_cast<size_t>(p.part_tiles) * p.x_blocks * 32;
    float v[4] = {};
#pragma unroll 4
    for (uint32_t s = 0; s < n_segments; ++s, from += stride) {
        const float4 f = __ldcg(from);
        v[0] += f.x, v[1] += f.y, v[2] += f.z, v[3] += f.w;
    }
    // From rows of a tile and pairs of activations to rows of one activation.
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[2 * t + i % 2][warp * 16 + g + i / 2 * 8] = v[i];
    __syncthreads();
    if (b >= p.batch) return;
    const float2 of = p.activations[b];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = sums[warp][lane * 4 + i] * 4096.0f * of.x + of.y;
    write_rows(p, rows_of(p, group, lane), group * 128 + lane * 4, b, v);
}

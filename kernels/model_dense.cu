// Products of a dense matrix with few activations: y[b, r] = sum_k W[r, k] x[b, k], f32 arithmetic.
//
// W: [rows, cols] f32, f16 or bf16 (macro WEIGHT). x: [batch, cols] f32, y: [batch, rows] f32.
// A batch of up to B: 128 threads, a warp makes ROWS rows; x is read through the first-level cache, weights pass it by.
//   Vector loads need cols to be a multiple of 8 (the host sees to it), else one weight per lane and step.
// Caller: gosset-cuda/src/launch/model.rs.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "model.cuh"
#include "params.cuh"

namespace {

#if WEIGHT == 0
using Weight = float;
#elif WEIGHT == 1
using Weight = __half;
#else
using Weight = __nv_bfloat16;
#endif

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

// Four words that bypass the first-level cache: weights are read once.
__device__ __forceinline__ uint4 stream4(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// Eight weights as loaded; unpacked at use, so that more loads fit in registers.
template <typename W>
struct Packed {
    uint4 raw[sizeof(W) / 2];
    __device__ __forceinline__ void load(const W* p) {
#pragma unroll
        for (int i = 0; i < sizeof(W) / 2; ++i) raw[i] = stream4(reinterpret_cast<const uint4*>(p) + i);
    }
    __device__ __forceinline__ void unpack(float (&out)[8]) const;
};
template <>
__device__ __forceinline__ void Packed<float>::unpack(float (&out)[8]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        out[4 * i] = __uint_as_float(raw[i].x);
        out[4 * i + 1] = __uint_as_float(raw[i].y);
        out[4 * i + 2] = __uint_as_float(raw[i].z);
        out[4 * i + 3] = __uint_as_float(raw[i].w);
    }
}
template <>
__device__ __forceinline__ void Packed<__half>::unpack(float (&out)[8]) const {
    const unsigned words[4] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
        out[2 * i] = f.x;
        out[2 * i + 1] = f.y;
    }
}
template <>
__device__ __forceinline__ void Packed<__nv_bfloat16>::unpack(float (&out)[8]) const {
    const unsigned words[4] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// B: columns of x. ROWS: rows per warp. UNROLL: loads under way per row.
template <int B, int ROWS, int UNROLL>
__device__ __forceinline__ void gemv(const ModelDenseParams& p) {
    const unsigned lane = threadIdx.x & 31;
    const unsigned row0 = (blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) * ROWS;
    if (row0 >= p.rows) {
        wait_for_predecessor();
        return;
    }
    const Weight* weights[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        weights[r] = reinterpret_cast<const Weight*>(p.w) + static_cast<size_t>(min(row0 + r, p.rows - 1)) * p.cols;
    }
    float acc[ROWS][B];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int b = 0; b < B; ++b) acc[r][b] = 0.0f;
    }
    const float* x[B];
#pragma unroll
    for (int b = 0; b < B; ++b) x[b] = p.x + static_cast<size_t>(min(b, static_cast<int>(p.batch) - 1)) * p.cols;

    auto add = [&](const Packed<Weight> (&packed)[ROWS], unsigned k) {
        float w[ROWS][8];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) packed[r].unpack(w[r]);
#pragma unroll
        for (int b = 0; b < B; ++b) {
            const float4 lo = *reinterpret_cast<const float4*>(x[b] + k);
            const float4 hi = *(reinterpret_cast<const float4*>(x[b] + k) + 1);
            const float v[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int e = 0; e < 8; ++e) acc[r][b] = fmaf(w[r][e], v[e], acc[r][b]);
            }
        }
    };
    if (p.cols % 8 == 0) {
        unsigned k = lane * 8;
        // Weights are on their way to the second-level cache before the activations are there. Loads proper would not do: the
        // assembler moves them behind the wait.
        if (lane % (16 / sizeof(Weight)) == 0) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    if (k + u * 256 < p.cols) prefetch_l2(weights[r] + k + u * 256);
                }
            }
        }
        wait_for_predecessor();
        for (; k + (UNROLL - 1) * 256 < p.cols; k += UNROLL * 256) {
            Packed<Weight> packed[UNROLL][ROWS];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r) packed[u][r].load(weights[r] + k + u * 256);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) add(packed[u], k + u * 256);
        }
        let_successor_start();
        for (; k < p.cols; k += 256) {
            Packed<Weight> packed[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) packed[r].load(weights[r] + k);
            add(packed, k);
        }
    } else {
        wait_for_predecessor();
        let_successor_start();
        for (unsigned k = lane; k < p.cols; k += 32) {
#pragma unroll
            for (int b = 0; b < B; ++b) {
                const float v = x[b][k];
#pragma unroll
                for (int r = 0; r < ROWS; ++r) acc[r][b] = fmaf(to_float(weights[r][k]), v, acc[r][b]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int b = 0; b < B; ++b) {
#pragma unroll
            for (int d = 16; d > 0; d >>= 1) acc[r][b] += __shfl_xor_sync(0xffffffffu, acc[r][b], d);
            if (lane == 0 && row0 + r < p.rows && b < p.batch) p.y[b * p.y_stride + row0 + r] = acc[r][b];
        }
    }
}

}  // namespace

#ifdef BATCH
extern "C" __global__ void __launch_bounds__(128) model_gemv_4(const __grid_constant__ ModelDenseParams p) { gemv<4, 2, 1>(p); }
extern "C" __global__ void __launch_bounds__(128) model_gemv_8(const __grid_constant__ ModelDenseParams p) { gemv<8, 2, 1>(p); }
#else
// Tall matrices fill the device with two rows per warp; low ones need every warp and deeper loads.
extern "C" __global__ void __launch_bounds__(64) model_gemv_tall(const __grid_constant__ ModelDenseParams p) { gemv<1, 2, 2>(p); }
extern "C" __global__ void __launch_bounds__(128) model_gemv_low(const __grid_constant__ ModelDenseParams p) { gemv<1, 1, 8>(p); }
#endif

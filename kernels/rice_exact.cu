// Rows that a matrix stores exactly, in the rotated frame: their products, and their values among decoded ones.
//
//   exact_dot   y[b][index[i]] = sum over columns of values[i][column] * x[b][column]
//   exact_copy  out[index[i]][column] = values[i][column]
//
// Shapes: values [n, cols] f32, index [n]; x [n_batch, cols] f32, y [n_batch, rows] f32.
// Grid: x one block of 256 threads per exact row; for dot, y the column of the batch. Static shared memory: 32 bytes.
// Caller: gosset-cuda/src/launch/exact.rs.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "params.cuh"

extern "C" __global__ void __launch_bounds__(256) exact_dot(const __grid_constant__ ExactDotParams p) {
    __shared__ float partial[8];
    const float* const w = p.values + static_cast<uint64_t>(blockIdx.x) * p.cols;
    const float* const x = p.x + static_cast<uint64_t>(blockIdx.y) * p.cols;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < p.cols; i += 256) sum += w[i] * x[i];
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += partial[i];
        p.y[static_cast<uint64_t>(blockIdx.y) * p.rows + p.index[blockIdx.x]] = sum;
    }
}

namespace {

__device__ __forceinline__ void store(float* out, float v) { *out = v; }
__device__ __forceinline__ void store(__half* out, float v) { *out = __float2half_rn(v); }
__device__ __forceinline__ void store(__nv_bfloat16* out, float v) { *out = __float2bfloat16_rn(v); }

template <typename T>
__device__ __forceinline__ void copy(const ExactCopyParams& p) {
    const float* const w = p.values + static_cast<uint64_t>(blockIdx.x) * p.cols;
    T* const out = reinterpret_cast<T*>(p.out) + static_cast<uint64_t>(p.index[blockIdx.x]) * p.cols;
    for (uint32_t i = threadIdx.x; i < p.cols; i += 256) store(out + i, w[i]);
}

}  // namespace

#define ENTRY(NAME, T) \
    extern "C" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ ExactCopyParams p) { copy<T>(p); }

ENTRY(exact_copy_f32, float)
ENTRY(exact_copy_f16, __half)
ENTRY(exact_copy_bf16, __nv_bfloat16)

// Rows that a matrix stores exactly, in the rotated frame: their products, and their values among decoded ones.
//
//   exact_dot   y[b][index[i]] = sum over columns of values[i][column] * x[b][column]
//   exact_copy  out[index[i]][column] = values[i][column], rounded to the output type
//
// Shapes: values [n, cols] f32, index [n]; x [n_batch, cols] f32, y [n_batch, rows] f32; out [rows, cols].
// Grid: x one block of 256 threads per exact row; for dot, y the column of the batch. Static shared memory: 32 bytes.
// Caller: gosset-cuda/src/launch/decoded.rs.

#include "decoded.cuh"
#include "params.cuh"

extern "C" __global__ void __launch_bounds__(256) exact_dot(const __grid_constant__ ExactDotParams p) {
    __shared__ float partial[8];
    const float* const w = p.values + static_cast<uint64_t>(blockIdx.x) * p.cols;
    const float* const x = p.x + static_cast<uint64_t>(blockIdx.y) * p.cols;
    float sum = 0.0f;
#pragma unroll 4
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

extern "C" __global__ void __launch_bounds__(256) exact_copy(const __grid_constant__ ExactCopyParams p) {
    const float* const w = p.values + static_cast<uint64_t>(blockIdx.x) * p.cols;
    const uint64_t at = static_cast<uint64_t>(p.index[blockIdx.x]) * p.cols;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < p.cols; i += 256) {
        if (p.kind == decoded::kF32) static_cast<float*>(p.out)[at + i] = w[i];
        else if (p.kind == decoded::kF16) static_cast<__half*>(p.out)[at + i] = __float2half_rn(w[i]);
        else static_cast<__nv_bfloat16*>(p.out)[at + i] = __float2bfloat16_rn(w[i]);
    }
}

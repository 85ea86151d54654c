// Products of a dense matrix with many activations: y[b, r] = sum_k W[r, k] x[b, k], f32 arithmetic.
//
// W: [rows, cols] f32, f16 or bf16 (p.weight_type 0, 1, 2). x: [batch, cols] f32, y: [batch, rows] f32, rows y_stride apart.
// Grid (row tiles of 128, batch tiles of 64), 256 threads, 4 x 8 results each, 12.5 KiB of static shared memory.
// Caller: gosset-cuda/src/launch/model.rs.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "params.cuh"

namespace {

__device__ __forceinline__ float weight(const ModelDenseParams& p, size_t i) {
    if (p.weight_type == 0) return static_cast<const float*>(p.w)[i];
    if (p.weight_type == 1) return __half2float(static_cast<const __half*>(p.w)[i]);
    return __bfloat162float(static_cast<const __nv_bfloat16*>(p.w)[i]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) model_gemm(const __grid_constant__ ModelDenseParams p) {
    constexpr int TM = 64, TN = 128, TK = 16, PAD = 4;  // Batch, rows, columns of a tile.
    __shared__ __align__(16) float s_x[TK][TM + PAD];
    __shared__ __align__(16) float s_w[TK][TN + PAD];
    const unsigned row0 = blockIdx.x * TN, batch0 = blockIdx.y * TM;
    const unsigned tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    float acc[4][8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = 0.0f;
    }
    for (unsigned k0 = 0; k0 < p.cols; k0 += TK) {
#pragma unroll
        for (int i = 0; i < TM * TK / 256; ++i) {
            const unsigned e = threadIdx.x + 256 * i, r = e / TK, k = e % TK;
            const bool in = batch0 + r < p.batch && k0 + k < p.cols;
            s_x[k][r] = in ? p.x[static_cast<size_t>(batch0 + r) * p.cols + k0 + k] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < TN * TK / 256; ++i) {
            const unsigned e = threadIdx.x + 256 * i, r = e / TK, k = e % TK;
            const bool in = row0 + r < p.rows && k0 + k < p.cols;
            s_w[k][r] = in ? weight(p, static_cast<size_t>(row0 + r) * p.cols + k0 + k) : 0.0f;
        }
        __syncthreads();
#pragma unroll 2
        for (int k = 0; k < TK; ++k) {
            const float4 a = *reinterpret_cast<const float4*>(&s_x[k][ty * 4]);
            const float4 lo = *reinterpret_cast<const float4*>(&s_w[k][tx * 4]);
            const float4 hi = *reinterpret_cast<const float4*>(&s_w[k][64 + tx * 4]);
            const float xs[4] = {a.x, a.y, a.z, a.w};
            const float ws[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(xs[i], ws[j], acc[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned b = batch0 + ty * 4 + i;
        if (b >= p.batch) continue;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const unsigned r = row0 + (j / 4) * 64 + tx * 4 + j % 4;
            if (r < p.rows) p.y[b * p.y_stride + r] = acc[i][j];
        }
    }
}

// Activations for products of affine-grid codes: t' = A^T U_n^T (S_U x) as 16-bit integers under one scale each, in the order of the
// operands: [unit][block of four activations][4 vectors][lane][4 words] (include/unisvq.cuh), zero beyond the last column and
// the last activation. activations[b] = (half the step of the integers, beta), beta being what B and the centre of the codes add.
//
// Grid: activations, rounded up to whole blocks of four. Block: 512; a warp takes windows of 128 columns. Dynamic shared memory: 4
// bytes for each column of whole units.
// Caller: gosset-cuda/src/launch/unisvq.rs.

#include <cuda_fp16.h>

#include "params.cuh"
#include "rht.cuh"
#include "unisvq.cuh"

namespace {

using namespace unisvq;

constexpr int kWarps = 16;
constexpr uint32_t kVectorX = 1, kInput = 16;

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

}  // namespace

extern "C" __global__ void __launch_bounds__(32 * kWarps) unisvq_prepare(const __grid_constant__ UniSvqPrepareParams p) {
    extern __shared__ __align__(16) float row[];
    __shared__ uint32_t most_of[kWarps];
    __shared__ float beta_of[kWarps];
    __shared__ int total_of[kWarps];
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
            if (p.fold == kFours) beta += fold<false>(v, p.fold_table, p.centre, col, p.cols);
            if (p.fold == kEights) beta += fold<true>(v, p.fold_table, p.centre, col, p.cols);
#pragma unroll
            for (int i = 0; i < 4; ++i) most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
            *reinterpret_cast<float4*>(row + col) = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
    most = __reduce_max_sync(kAll, most);
#pragma unroll
    for (int m = 16; m != 0; m /= 2) beta += __shfl_xor_sync(kAll, beta, m);
    if (lane == 0) {
        most_of[warp] = most;
        beta_of[warp] = beta;
    }
    __syncthreads();
    most = __reduce_max_sync(kAll, most_of[lane % kWarps]);
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
    if (threadIdx.x == 0 && there) {
        float sum = 0.0f;
        int all = 0;
        for (int i = 0; i < kWarps; ++i) sum += beta_of[i], all += total_of[i];
        const float step = step_of(most);
        p.activations[b] = make_float2(0.5f * step, sum - p.centre * static_cast<float>(all) * step);
    }
}

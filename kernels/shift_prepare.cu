// Activations for shift_gemm.cu, and the sum of its splits.
//
//   prepare   x [batch, cols] -> R x / scale in f16, [unit][block of 8 activations][512 words] in the order of B registers:
//             vector q of lane l (activation l / 4 of the block, thread t = l % 4) is words 4 q to 4 q + 3 of the thread.
//             x_scales[n] = the power of two that R x was divided by, so that no |R x| reaches 2^15.
//             Grid: (splits of the units) x (activations, rounded up to whole blocks); 256 threads.
//   reduce    y[n, row] = x_scales[n] * scales[row] * step * (sum of parts[split, n, row]), in the order of the splits.
//             Grid: any, 256 threads.
//
// Caller: gosset-cuda/src/launch/shift_gemm.rs.

#include "params.cuh"
#include "shift_x.cuh"

namespace {

using namespace shift;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

template <class P>
__device__ __forceinline__ float largest(const P& p, const void* x, float* shared) {
    float most = 0.0f;
    for (uint32_t col = threadIdx.x * 4; col < p.cols; col += kThreads * 4) {
        float v[4];
        load_x(v, p, x, col);
        most = fmaxf(most, fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
    }
    const uint32_t bits = __reduce_max_sync(kAll, __float_as_uint(most));
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = __uint_as_float(bits);
    __syncthreads();
    most = shared[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) most = fmaxf(most, shared[i]);
    return most;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) shift_prepare(const __grid_constant__ ShiftPrepareParams p) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    __shared__ float most_of[kWarps];
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t n = blockIdx.y, n_blocks = gridDim.y / 8;
    const bool there = n < p.batch;
    const size_t bytes = p.x_type == kF32 ? 4 : 2;
    const void* x = static_cast<const uint8_t*>(p.x) + static_cast<size_t>(there ? n : 0) * p.cols * bytes;
    // A rotated value is at most sqrt(128) times the largest one.
    const int exponent = min(max(static_cast<int>(__float_as_uint(largest(p, x, most_of)) >> 23), 30), 234);
    const int target = p.rotation == kNone ? 14 : 10;
    const float up = there ? __uint_as_float(static_cast<uint32_t>(127 + target + 127 - exponent) << 23) : 0.0f;
    if (blockIdx.x == 0 && threadIdx.x == 0 && there) {
        p.x_scales[n] = __uint_as_float(static_cast<uint32_t>(exponent - target) << 23);
    }
    for (uint32_t u = blockIdx.x * kWarps + warp; u < p.row_units; u += gridDim.x * kWarps) {
        float v[4];
        const float factor = rotated_unit(v, p, x, u, lane) * up;
        uint32_t* out = p.out + (static_cast<size_t>(u) * n_blocks + n / 8) * 512;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const unsigned c = 2 * lane + i, at = p.rows_order ? c : b_word_of_tiles(c);
            const unsigned t = at >> 4, r = at & 15;
            // A row that is not there is 0 whatever x is.
            out[(r >> 2) * 128 + ((n % 8) * 4 + t) * 4 + (r & 3)] = there ? halves(v[2 * i] * factor, v[2 * i + 1] * factor) : 0;
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads) shift_reduce(const __grid_constant__ ShiftReduceParams p) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const size_t n = static_cast<size_t>(p.batch) * p.rows;
    for (size_t i = blockIdx.x * static_cast<size_t>(kThreads) + threadIdx.x; i < n; i += static_cast<size_t>(gridDim.x) * kThreads) {
        float sum = p.parts[i];
        for (uint32_t s = 1; s < p.n_splits; ++s) sum += p.parts[s * n + i];
        const size_t row = i % p.rows;
        p.y[i] = sum * (__bfloat162float(p.scales[row]) * p.step) * p.x_scales[i / p.rows];
    }
}

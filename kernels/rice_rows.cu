// Products with a matrix under Rice codes, straight from the streams of the file: y = W x.
//
//   y[b][row] = scale[row] * step * sum over columns of embed(point) * x[b][column]
//
// Any lattice, any shape, any parameters: the way of matrices that the plane layout (rice_gemv.cu) does not take. Every
// column of x decodes the streams anew.
//
// Shapes: x [n_batch, cols] f32 in the rotated frame, y [n_batch, rows] f32.
// Grid: y the column of x; a group of p.group lanes (a power of two) has one row; its lanes take the streams of the row in
// turn, and sums are added in a fixed order. Blocks of 128 threads. No shared memory. p.dim: dimension of the lattice.
// Rows that are stored exactly have scale 0 and come out as 0; exact_dot replaces them.
// Caller: gosset-cuda/src/launch/rice.rs.

#include <cuda_bf16.h>

#include "params.cuh"
#include "rice.cuh"

namespace {

// The part of this lane in the product of the row whose values lie at from, from + 1, ...
template <int N>
__device__ __forceinline__ float part(const RiceRowsParams& p, const float* x, uint64_t from, uint32_t member) {
    const uint64_t n = static_cast<uint64_t>(p.rows) * p.cols, to = from + p.cols;
    float sum = 0.0f;
#pragma unroll 1
    for (uint64_t stream = from / rice::kStreamLen + member; stream * rice::kStreamLen < to; stream += p.group) {
        const uint64_t first = stream * rice::kStreamLen;
        const uint64_t stop = min(min(first + rice::kStreamLen, (n + N - 1) / N * N), (to + N - 1) / N * N);
        BitReader bits;
        bits.open(p.words, p.n_words, p.bases[stream / rice::kStreamsPerPage] + p.offsets[stream]);
#pragma unroll 1
        for (uint64_t at = first; at < stop; at += N) {
            uint32_t s[N];
#pragma unroll
            for (int i = 0; i < N; ++i) s[i] = rice::symbol(bits, p.ks[rice::symbol_class<N>(i)]);
            int y[N];
            rice::unstrip<N>(s, y);
            // Blocks reach across rows; a column before the row is beyond all columns as an unsigned number.
            const uint64_t col = at - from;
            if (N % 4 == 0 && p.cols % N == 0 && (reinterpret_cast<uintptr_t>(x) & 15u) == 0) {
                if (col < p.cols) {
#pragma unroll
                    for (int i = 0; i + 4 <= N; i += 4) {
                        const float4 v = __ldg(reinterpret_cast<const float4*>(x + col + i));
                        sum += static_cast<float>(y[i]) * v.x + static_cast<float>(y[i + 1]) * v.y +
                               static_cast<float>(y[i + 2]) * v.z + static_cast<float>(y[i + 3]) * v.w;
                    }
                }
            } else {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (col + i < p.cols) sum += rice::embed<N>(y[i], i) * __ldg(x + col + i);
                }
            }
        }
    }
    return sum;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) rice_rows(const __grid_constant__ RiceRowsParams p) {
    const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint64_t row = thread / p.group, from = row * p.cols;
    const uint32_t member = static_cast<uint32_t>(thread) & (p.group - 1);
    const float* const x = p.x + static_cast<uint64_t>(blockIdx.y) * p.cols;
    float sum = 0.0f;
    if (row < p.rows) {
        if (p.dim == 8) sum = part<8>(p, x, from, member);
        else if (p.dim == 4) sum = part<4>(p, x, from, member);
        else if (p.dim == 2) sum = part<2>(p, x, from, member);
        else sum = part<1>(p, x, from, member);
    }
    for (uint32_t d = p.group / 2; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (row < p.rows && member == 0) {
        const float factor = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.scales)[row]) * p.step;
        p.y[static_cast<uint64_t>(blockIdx.y) * p.rows + row] = factor == 0.0f ? 0.0f : factor * sum;
    }
}

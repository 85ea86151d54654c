// Products with a matrix under Rice codes, straight from the streams of the file: y = W x for 1 to 8 columns of x.
//
//   y[b][row] = scale[row] * step * sum over columns of embed(point) * x[b][column]
//
// Any lattice, any shape, any parameters: the way of matrices that the plane layout (rice_gemv.cu) does not take.
//
// Shapes: x [n_batch, cols] f32 in the rotated frame, y [n_batch, rows] f32.
// Grid: a group of p.group lanes (a power of two) has one row; its lanes take the streams of the row in turn, and sums
// are added in a fixed order. Blocks of 128 threads. No shared memory. DIM: dimension of the lattice.
// Rows that are stored exactly have scale 0 and come out as 0; rice_exact adds them.
// Caller: gosset-cuda/src/launch/rice.rs.

#include <cuda_bf16.h>

#include "params.cuh"
#include "rice.cuh"

namespace {

template <int BATCH>
__device__ __forceinline__ void rows(const RiceRowsParams& p) {
    const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint64_t row = thread / p.group;
    const uint32_t member = static_cast<uint32_t>(thread) & (p.group - 1);
    float sum[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) sum[b] = 0.0f;
    if (row < p.rows) {
        const uint64_t n = static_cast<uint64_t>(p.rows) * p.cols, from = row * p.cols, to = from + p.cols;
        const uint64_t n_padded = (n + DIM - 1) / DIM * DIM;
        for (uint64_t stream = from / rice::kStreamLen + member; stream * rice::kStreamLen < to; stream += p.group) {
            const uint64_t first = stream * rice::kStreamLen;
            const uint64_t stop = min(min(first + rice::kStreamLen, n_padded), (to + DIM - 1) / DIM * DIM);
            BitReader bits;
            bits.open(p.words, p.bases[stream / rice::kStreamsPerPage] + p.offsets[stream], p.words + p.n_words);
            for (uint64_t at = first; at < stop; at += DIM) {
                uint32_t s[DIM];
#pragma unroll
                for (int i = 0; i < DIM; ++i) s[i] = rice::symbol(bits, p.ks[rice::symbol_class<DIM>(i)]);
                if (at + DIM <= from) continue;
                int y[DIM];
                rice::unstrip<DIM>(s, y);
#pragma unroll
                for (int i = 0; i < DIM; ++i) {
                    // Blocks reach across rows.
                    const uint64_t col = at + i - from;
                    if (at + i >= from && col < p.cols) {
                        const float v = rice::embed<DIM>(y[i], i);
#pragma unroll
                        for (int b = 0; b < BATCH; ++b) {
                            if (b < p.n_batch) sum[b] += v * __ldg(p.x + static_cast<uint64_t>(b) * p.cols + col);
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
        for (uint32_t d = p.group / 2; d > 0; d >>= 1) sum[b] += __shfl_xor_sync(0xffffffffu, sum[b], d);
    }
    if (row < p.rows && member == 0) {
        const float factor = __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(p.scales)[row]) * p.step;
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            if (b < p.n_batch) p.y[static_cast<uint64_t>(b) * p.rows + row] = factor == 0.0f ? 0.0f : factor * sum[b];
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(128) rice_rows_1(const __grid_constant__ RiceRowsParams p) { rows<1>(p); }
extern "C" __global__ void __launch_bounds__(128) rice_rows_8(const __grid_constant__ RiceRowsParams p) { rows<8>(p); }

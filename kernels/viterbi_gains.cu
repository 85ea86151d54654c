// The factor of each row that brings what its words decode to nearest to it.
//
//   gain[row] = <x, y> / (<y, y> step),  sums in double precision in the order of the columns, as on the CPU
//
// Shapes: values [rows, cols]; words [strings, words_per_string]. Grid: one thread per row, 64 per block. Shared memory: the
// 4 KB of the code.
// Caller: gosset-cuda/src/launch/viterbi.rs.

#include <cuda_fp16.h>

#include "params.cuh"

namespace {

__device__ __forceinline__ float half_of(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// The 32 bits of the ring that end with a step; the lowest are its state.
__device__ __forceinline__ uint32_t window(const uint32_t* words, uint32_t n_words, uint32_t last) {
    const uint32_t word = last >> 5, before = word == 0 ? n_words - 1 : word - 1;
    return __funnelshift_r(words[word], words[before], 31 - (last & 31));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(64) viterbi_gains(const __grid_constant__ ViterbiGainsParams p) {
    __shared__ uint32_t table[1024];
    for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) table[i] = p.table[i];
    __syncthreads();
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= p.rows) return;
    const float* values = p.values + static_cast<size_t>(row) * p.cols;
    const unsigned left = 32 - p.state_bits;
    double xy = 0.0, yy = 0.0;
    for (unsigned col = 0; col < p.cols; col += p.v) {
        size_t string = row;
        unsigned step = col / p.v;
        if (p.tiles) {
            // Registers of mma.m16n8k16: lane, then register, then half.
            const unsigned r = row & 15, c = col & 15;
            const unsigned position = ((r & 7) * 4 + (c & 7) / 2) * 8 + ((c >> 3) * 2 + (r >> 3)) * 2 + (c & 1);
            string = static_cast<size_t>(row >> 4) * p.tiles_per_row + (col >> 4);
            step = position / p.v;
        }
        const uint32_t state = window(p.words + string * p.words_per_string, p.words_per_string, (step + 1) * p.step_bits - 1);
        const uint32_t first = table[(state * p.multipliers[0]) << left >> 22];
        float y[2] = {half_of(first), half_of(first >> 16)};
        if (!p.pairs) y[1] = half_of(table[(state * p.multipliers[1]) << left >> 22]);
        for (unsigned i = 0; i < p.v && col + i < p.cols; ++i) {
            const double a = values[col + i], b = y[i];
            xy = __dadd_rn(xy, __dmul_rn(a, b));
            yy = __dadd_rn(yy, __dmul_rn(b, b));
        }
    }
    p.gains[row] = __double2float_rn(__ddiv_rn(xy, __dmul_rn(yy, static_cast<double>(p.step))));
}

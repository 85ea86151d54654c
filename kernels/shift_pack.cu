// The words of a container in the order of the device (layout: shift.cuh); random words; rows that are stored exactly.
//
//   pack     words[unit, run, vector, lane, i], histories[unit, g] of row strings; what lies beyond the strings is 0
//   random   words[i] = mix(seed + i), for benchmarks; the same in launch/shift_layout.rs
//   exact    y[n, rows[i]] = x_scale[n] * <values[i], x[n]>, one block of 128 threads per row and activation
//   exact_rows  out[rows[i] - first_row] = values[i], rounded once, one block per row
//
// Grid of pack and random: any, one thread per word. Caller: gosset-cuda/src/launch/shift.rs.

#include "params.cuh"

namespace {

// Word `j` of run `run` of a lane.
__device__ __forceinline__ uint32_t source_word(
    const ShiftPackParams& p, uint32_t row_tile, uint32_t unit, uint32_t lane, uint32_t run, uint32_t j) {
    const uint32_t g = lane >> 2, t = lane & 3;
    if (p.rows_order) {
        const uint32_t row = row_tile * 16 + g + 8 * run, at = (unit * 4 + t) * p.bits + j;
        return row < p.rows && at < p.string_words ? p.source[static_cast<size_t>(row) * p.string_words + at] : 0;
    }
    const uint32_t tile = unit * 8 + run * 4 + t;
    return tile < p.tiles ? p.source[(static_cast<size_t>(row_tile) * p.tiles + tile) * p.string_words + g * p.bits + j] : 0;
}

}  // namespace

extern "C" __global__ void shift_pack(const __grid_constant__ ShiftPackParams p) {
    const uint32_t run_words = 32 * p.bits, n4 = p.bits / 4 * 4, n2 = p.bits % 4 / 2 * 2;
    const size_t n_units = static_cast<size_t>(p.n_row_tiles) * p.row_units, n = n_units * 2 * run_words;
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x, first = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    for (size_t at = first; at < n; at += step) {
        const size_t unit = at / (2 * run_words);
        const uint32_t run = at / run_words % 2, in = at % run_words;
        uint32_t lane, j;
        if (in < n4 * 32) {
            lane = in / 4, j = in % 4;
        } else if (in < (n4 + n2) * 32) {
            lane = (in - n4 * 32) / 2, j = n4 + in % 2;
        } else {
            lane = in - (n4 + n2) * 32, j = n4 + n2;
        }
        const uint32_t row_tile = static_cast<uint32_t>(unit / p.row_units), in_row = static_cast<uint32_t>(unit % p.row_units);
        p.words[at] = source_word(p, row_tile, in_row, lane, run, j);
    }
    if (!p.rows_order) return;
    for (size_t at = first; at < n_units * 8; at += step) {
        const uint32_t unit = at / 8 % p.row_units, row = static_cast<uint32_t>(at / 8 / p.row_units) * 16 + at % 8;
        const uint32_t last = (unit ? unit * 4 * p.bits : p.string_words) - 1;
        uint32_t both = 0;
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t r = row + 8 * half;
            if (r < p.rows && last < p.string_words) {
                both |= (p.source[static_cast<size_t>(r) * p.string_words + last] & 0xffff) << 16 * half;
            }
        }
        p.histories[at] = both;
    }
}

extern "C" __global__ void shift_random(const __grid_constant__ ShiftRandomParams p) {
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < p.n; i += step) {
        uint32_t v = static_cast<uint32_t>(i) * 0x9e3779b9u + p.seed;
        v = (v ^ v >> 16) * 0x85ebca6bu;
        v = (v ^ v >> 13) * 0xc2b2ae35u;
        p.words[i] = v ^ v >> 16;
    }
}

extern "C" __global__ void __launch_bounds__(128) shift_exact(const __grid_constant__ ShiftExactParams p) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    __shared__ float parts[4];
    const float* w = p.values + static_cast<size_t>(blockIdx.x) * p.cols;
    const size_t first = static_cast<size_t>(blockIdx.y) * p.x_stride;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < p.cols; i += 128) {
        float x = 0.0f;
        if (p.x_type == 0) x = static_cast<const float*>(p.x)[first + i];
        if (p.x_type == 1) x = __half2float(static_cast<const __half*>(p.x)[first + i]);
        if (p.x_type == 2) x = __bfloat162float(static_cast<const __nv_bfloat16*>(p.x)[first + i]);
        sum = fmaf(w[i], x, sum);
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    if (p.x_scales != nullptr) sum *= p.x_scales[blockIdx.y];
    const size_t at = static_cast<size_t>(blockIdx.y) * p.y_stride + p.rows[blockIdx.x];
    if (p.y_type == 0) static_cast<float*>(p.y)[at] = sum;
    if (p.y_type == 1) static_cast<__half*>(p.y)[at] = __float2half_rn(sum);
    if (p.y_type == 2) static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(sum);
}

extern "C" __global__ void __launch_bounds__(128) shift_exact_rows(const __grid_constant__ ShiftExactRowsParams p) {
    const uint32_t row = p.rows[blockIdx.x] - p.first_row;
    if (row >= p.n_rows) return;
    const float* from = p.values + static_cast<size_t>(blockIdx.x) * p.cols;
    const size_t to = static_cast<size_t>(row) * p.cols;
    for (uint32_t i = threadIdx.x; i < p.cols; i += 128) {
        if (p.out_type == 0) static_cast<float*>(p.out)[to + i] = from[i];
        if (p.out_type == 1) static_cast<__half*>(p.out)[to + i] = __float2half_rn(from[i]);
        if (p.out_type == 2) static_cast<__nv_bfloat16*>(p.out)[to + i] = __float2bfloat16_rn(from[i]);
    }
}

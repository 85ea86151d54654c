// out[row - first_row, col] = scales[row] * step * W[row, col]: whole row tiles, in the rotated frame (layout: shift.cuh).
//
// Shapes: out [n_rows, cols] f32, f16 or bf16, row-major. Grid: up to one block of 1024 threads per multiprocessor; a warp
// takes one unit of 16 rows and 128 columns at a time. The product is that of the CPU, (scale * step) * value in f32, then
// one rounding; rows of scale 0 are 0. Shared memory: 1024 + 131072 bytes, dynamic.
//
// Defines: BITS (2 to 6), WIDE (0: L <= 17, 1: L = 18). Caller: gosset-cuda/src/launch/shift.rs.

#include "params.cuh"
#include "shift.cuh"

namespace {

using namespace shift;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

template <class T>
__device__ __forceinline__ T rounded(float v);
template <>
__device__ __forceinline__ float rounded<float>(float v) { return v; }
template <>
__device__ __forceinline__ __half rounded<__half>(float v) { return __float2half_rn(v); }
template <>
__device__ __forceinline__ __nv_bfloat16 rounded<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

template <class T>
struct alignas(2 * sizeof(T)) Two {
    T a, b;
};

template <class F, class T>
__device__ __forceinline__ void write_unit(
    const ShiftDecodeParams& p, const uint32_t (&words)[2][F::bits], uint32_t own, const Code& code, unsigned lane,
    uint32_t first_row, uint32_t first_col) {
    const uint32_t h[2] = {
        history_of<F>(words[0][F::bits - 1], own, lane), history_of<F>(words[1][F::bits - 1], own >> 16, lane)};
    const unsigned t = lane & 3;
    float factor[2];
    uint32_t row[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        row[half] = first_row + (lane >> 2) + 8 * half;
        factor[half] = row[half] < p.rows ? __bfloat162float(p.scales[row[half]]) * p.step : 0.0f;
    }
    unrolled<8>([&](auto j) {
        uint32_t r[4];
        operands<F, decltype(j)::value>(r, words, h, code);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&r[i]));
            const uint32_t col = first_col + column_of<F>(decltype(j)::value, i, t);
            if (row[i & 1] >= p.rows) continue;
            const bool none = factor[i & 1] == 0.0f;
            const T a = rounded<T>(none ? 0.0f : factor[i & 1] * pair.x), b = rounded<T>(none ? 0.0f : factor[i & 1] * pair.y);
            T* out = static_cast<T*>(p.out) + static_cast<size_t>(row[i & 1] - p.first_tile * kUnitRows) * p.cols + col;
            if (p.vector && col + 2 <= p.cols) {
                *reinterpret_cast<Two<T>*>(out) = Two<T>{a, b};
            } else {
                if (col < p.cols) out[0] = a;
                if (col + 1 < p.cols) out[1] = b;
            }
        }
    });
}

template <class F>
__device__ __forceinline__ void decode(const ShiftDecodeParams& p) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    fill_table<F>(shared_from_table(dynamic), p.table, threadIdx.x, kThreads);
    const unsigned lane = threadIdx.x & 31;
    const Code code = make_code<F>(p.m0, p.m1, lane);
    __syncthreads();
    const size_t n = static_cast<size_t>(p.n_tiles) * p.row_units;
    for (size_t i = blockIdx.x * kWarps + (threadIdx.x >> 5); i < n; i += static_cast<size_t>(gridDim.x) * kWarps) {
        const size_t unit = static_cast<size_t>(p.first_tile) * p.row_units + i;
        uint32_t words[2][F::bits], own = 0;
        load_run<F>(words[0], p.words + unit * F::unit_words, lane, 1);
        load_run<F>(words[1], p.words + unit * F::unit_words + F::run_words, lane, 1);
        if (F::rows && !(lane & 3)) own = p.histories[unit * 8 + (lane >> 2)];
        const uint32_t row = static_cast<uint32_t>(unit / p.row_units) * kUnitRows;
        const uint32_t col = static_cast<uint32_t>(unit % p.row_units) * kUnitCols;
        if (p.out_type == 0) write_unit<F, float>(p, words, own, code, lane, row, col);
        if (p.out_type == 1) write_unit<F, __half>(p, words, own, code, lane, row, col);
        if (p.out_type == 2) write_unit<F, __nv_bfloat16>(p, words, own, code, lane, row, col);
    }
}

}  // namespace

#define DECODE(name, pairs, rows)                                                                                \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const __grid_constant__ ShiftDecodeParams p) { \
        decode<Format<BITS, pairs, rows, WIDE != 0>>(p);                                                         \
    }

DECODE(shift_decode_quantiles_rows, false, true)
DECODE(shift_decode_quantiles_tiles, false, false)
#if BITS <= 4
DECODE(shift_decode_pairs_rows, true, true)
DECODE(shift_decode_pairs_tiles, true, false)
#endif

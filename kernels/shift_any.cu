// Every bit-shift trellis, with all parameters at run time (layout: shift.cuh): decoding, and products with one activation
// for the trellises that have no kernel of their own in shift_gemv.cu.
//
//   decode  out[row - first_row, col] = scales[row] * step * W[row, col], whole row tiles, in the rotated frame.
//           The product is that of the CPU, (scale * step) * value in f32, then one rounding; rows of scale 0 are 0.
//           Grid: any; a warp takes one unit of 16 rows and 128 columns at a time, its lanes pairs of columns of one row.
//   gemv    y = scales * step * (W u), u rotated, f32. Grid: one block per row tile, whose warps take its units in turn.
//
// Block: 256 threads. Shared memory: 4096 bytes (table) and 1536 per warp (words of a unit).
// Caller: gosset-cuda/src/launch/shift.rs.

#include "params.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kMaxUnitWords = 64 * 6;

struct Shared {
    uint32_t table[1024];
    uint32_t words[kWarps][kMaxUnitWords];
};

__device__ __forceinline__ float2 to_floats(uint32_t pair) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// Word `j` of run `run` of a lane.
__device__ __forceinline__ uint32_t word_of(const uint32_t* unit, uint32_t bits, uint32_t run, uint32_t lane, uint32_t j) {
    const uint32_t n4 = bits & 4, n2 = bits & 2;
    const uint32_t in = j < n4 ? lane * 4 + j : j < n4 + n2 ? n4 * 32 + lane * 2 + (j - n4) : (n4 + n2) * 32 + lane;
    return unit[run * 32 * bits + in];
}

// The weights at columns 2 c and 2 c + 1 of row `row` of a unit.
template <class P>
__device__ __forceinline__ float2 weights_at(
    const P& p, const Shared& shared, const uint32_t* unit, const uint32_t* histories, uint32_t row, uint32_t c) {
    const uint32_t g = row & 7, bits = p.bits;
    uint32_t run, lane, pair;
    if (p.rows_order) {
        run = row >> 3, lane = 4 * g + (c >> 4), pair = c & 15;
    } else {
        run = c >> 5, lane = 4 * g + (c >> 3 & 3), pair = 4 * (c & 3) + 2 * (c >> 2 & 1) + (row >> 3);
    }
    // The window that ends with bit `end` of the run; ends are above 0.
    auto window = [&](uint32_t end) {
        const uint32_t j = (end - 1) / 32, right = 32 * (j + 1) - end;
        uint32_t before;
        if (j != 0) {
            before = word_of(unit, bits, run, lane, j - 1);
        } else if (!p.rows_order) {
            before = word_of(unit, bits, run, (lane + 28) & 31, bits - 1);
        } else if (lane & 3) {
            before = word_of(unit, bits, run, lane - 1, bits - 1);
        } else {
            before = histories[g] >> 16 * run;
        }
        return __funnelshift_r(word_of(unit, bits, run, lane, j), before, right);
    };
    auto entry = [&](uint32_t window, uint32_t multiplier) { return shared.table[window * multiplier >> p.index_shift & 1023]; };
    if (p.per_step == 1) {
        const uint32_t a = entry(window((2 * pair + 1) * bits), p.m0), b = entry(window((2 * pair + 2) * bits), p.m0);
        return make_float2(to_floats(a).x, to_floats(b).x);
    }
    const uint32_t w = window((pair + 1) * 2 * bits);
    const float2 first = to_floats(entry(w, p.m0));
    return p.pairs ? first : make_float2(first.x, to_floats(entry(w, p.m1)).x);
}

template <class P>
__device__ __forceinline__ void load_unit(uint32_t* to, const P& p, size_t unit, unsigned lane) {
    __syncwarp();
    const uint32_t n = 64 * p.bits;
    for (uint32_t i = lane; i < n; i += 32) to[i] = p.words[unit * n + i];
    __syncwarp();
}

template <class T>
struct alignas(2 * sizeof(T)) Two {
    T a, b;
};

template <class T>
__device__ __forceinline__ void put(const ShiftDecodeParams& p, size_t row, uint32_t col, T a, T b) {
    T* out = static_cast<T*>(p.out) + row * p.cols + col;
    if (p.vector && col + 2 <= p.cols) {
        *reinterpret_cast<Two<T>*>(out) = Two<T>{a, b};
        return;
    }
    if (col < p.cols) out[0] = a;
    if (col + 1 < p.cols) out[1] = b;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) shift_decode(const __grid_constant__ ShiftDecodeParams p) {
    __shared__ Shared shared;
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (unsigned i = threadIdx.x; i < 1024; i += kThreads) shared.table[i] = p.table[i];
    __syncthreads();
    uint32_t* words = shared.words[warp];
    const size_t n = static_cast<size_t>(p.n_tiles) * p.row_units;
    for (size_t i = blockIdx.x * kWarps + warp; i < n; i += static_cast<size_t>(gridDim.x) * kWarps) {
        const size_t unit = static_cast<size_t>(p.first_tile) * p.row_units + i;
        load_unit(words, p, unit, lane);
        const uint32_t first_row = static_cast<uint32_t>(unit / p.row_units) * 16;
        const uint32_t first_col = static_cast<uint32_t>(unit % p.row_units) * 128;
#pragma unroll 1
        for (uint32_t at = lane; at < 16 * 64; at += 32) {
            const uint32_t in = at / 64, row = first_row + in, col = first_col + at % 64 * 2;
            if (row >= p.rows) break;
            const float factor = __bfloat162float(p.scales[row]) * p.step;
            float2 w = weights_at(p, shared, words, p.histories + unit * 8, in, at % 64);
            w = factor == 0.0f ? make_float2(0.0f, 0.0f) : make_float2(factor * w.x, factor * w.y);
            const size_t to = row - p.first_tile * 16;
            if (p.out_type == 0) put(p, to, col, w.x, w.y);
            if (p.out_type == 1) put(p, to, col, __float2half_rn(w.x), __float2half_rn(w.y));
            if (p.out_type == 2) put(p, to, col, __float2bfloat16_rn(w.x), __float2bfloat16_rn(w.y));
        }
    }
}

extern "C" __global__ void __launch_bounds__(kThreads) shift_gemv_any(const __grid_constant__ ShiftAnyParams p) {
    __shared__ Shared shared;
    __shared__ float sums[kWarps][16];
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (unsigned i = threadIdx.x; i < 1024; i += kThreads) shared.table[i] = p.table[i];
    __syncthreads();
    float acc[16];
#pragma unroll
    for (int r = 0; r < 16; ++r) acc[r] = 0.0f;
    for (uint32_t u = warp; u < p.row_units; u += kWarps) {
        const size_t unit = static_cast<size_t>(blockIdx.x) * p.row_units + u;
        load_unit(shared.words[warp], p, unit, lane);
#pragma unroll 1
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t c = half * 32 + lane, col = u * 128 + 2 * c;
            const float x0 = col < p.cols ? p.x[col] : 0.0f, x1 = col + 1 < p.cols ? p.x[col + 1] : 0.0f;
#pragma unroll 1
            for (uint32_t r = 0; r < 16; ++r) {
                const float2 w = weights_at(p, shared, shared.words[warp], p.histories + unit * 8, r, c);
                const float product = fmaf(w.x, x0, w.y * x1);
                // Constant indices keep the sums in registers.
#pragma unroll
                for (int k = 0; k < 16; ++k) acc[k] += r == k ? product : 0.0f;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 16; ++r) {
        float sum = acc[r];
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
        if (lane == 0) sums[warp][r] = sum;
    }
    __syncthreads();
    const uint32_t row = blockIdx.x * 16 + threadIdx.x;
    if (threadIdx.x >= 16 || row >= p.rows) return;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][threadIdx.x];
    const float y = sum * (__bfloat162float(p.scales[row]) * p.step);
    if (p.y_type == 0) static_cast<float*>(p.y)[row] = y;
    if (p.y_type == 1) static_cast<__half*>(p.y)[row] = __float2half_rn(y);
    if (p.y_type == 2) static_cast<__nv_bfloat16*>(p.y)[row] = __float2bfloat16_rn(y);
}

// y = scales * step * (W (R x)), one activation, W under the bit-shift trellis, decoded on the way (layout: shift.cuh).
//
// Shapes: x [cols] f32, f16 or bf16; scales [rows]; y [rows] f32, f16 or bf16. R: signs and tiles of up to 128 columns.
// Grid: one block per multiprocessor; block b has the row tiles b, b + grid, ...
// Block: 32 x n_parts x n_slots, at most 1024 threads: parts of the columns, slots of row tiles. A warp holds the B operands
// of one unit of 128 columns in registers while it walks its row tiles, the next words on their way; then the next unit of
// its part. Sums of 16 rows per warp and row tile go to shared memory and are added in a fixed order at the end.
// The rotated x is rounded to f16 per unit, scaled by the power of two that brings its largest value to 2^14 .. 2^15.
//
// Shared memory: 1024 + 131072 (table) + 260 per unit (x, scales) + 64 per row tile and part + 64 per row tile, dynamic.
// Programmatic launch: the table and the first words are loaded before the kernel waits for its predecessor.
//
// Defines: BITS (2 to 6), WIDE (0: L <= 17, 1: L = 18). Caller: gosset-cuda/src/launch/shift.rs.

#include "params.cuh"
#include "shift.cuh"

namespace {

using namespace shift;

constexpr int kThreads = 1024;

enum Rotation : uint32_t { kNone, kTilesOf128, kTilesByColumn };
enum Type : uint32_t { kF32, kF16, kBf16 };

// Four consecutive values of x, zero beyond its end.
__device__ __forceinline__ void load_x(float (&v)[4], const ShiftGemvParams& p, uint32_t col) {
    if (p.x_type == kF32 && p.x_vector && col + 4 <= p.cols) {
        const float4 f = *reinterpret_cast<const float4*>(static_cast<const float*>(p.x) + col);
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i] = 0.0f;
        if (col + i < p.cols) {
            if (p.x_type == kF32) v[i] = static_cast<const float*>(p.x)[col + i];
            if (p.x_type == kF16) v[i] = __half2float(static_cast<const __half*>(p.x)[col + i]);
            if (p.x_type == kBf16) v[i] = __bfloat162float(static_cast<const __nv_bfloat16*>(p.x)[col + i]);
        }
    }
}

// Tiles of 128: four consecutive columns per lane. Unnormalized.
__device__ __forceinline__ void transform_128(float (&v)[4], unsigned lane) {
    const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        const float sign = (lane & m) ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = fmaf(v[i], sign, __shfl_xor_sync(kAll, v[i], m));
    }
}

// Tiles of 2^log[i] columns, which start at multiples of their length; normalized.
__device__ __forceinline__ void transform_by_column(float (&v)[4], uint32_t logs, unsigned lane) {
#pragma unroll
    for (int j = 0; j < 7; ++j) {
        float partner[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            partner[i] = j < 2 ? v[i ^ (1 << j)] : __shfl_xor_sync(kAll, v[i], 1 << (j >= 2 ? j - 2 : 0));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool upper = (4 * lane + i) >> j & 1;
            if ((logs >> 8 * i & 0xff) > j) v[i] = upper ? partner[i] - v[i] : v[i] + partner[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t log = logs >> 8 * i & 0xff;
        v[i] *= ((log & 1) ? 0.70710678f : 1.0f) * __uint_as_float((127u - (log >> 1)) << 23);
    }
}

// Unit `u` of R x in the order of the B operands; returns the factor from its f16 values to R x.
template <class F>
__device__ __forceinline__ float prepare_unit(uint32_t* out, const ShiftGemvParams& p, uint32_t u, unsigned lane) {
    float v[4], norm = 1.0f;
    const uint32_t col = u * kUnitCols + 4 * lane;
    load_x(v, p, col);
    if (p.rotation != kNone) {
        // Signs and tile sizes are padded to whole units.
        const uint32_t signs = p.signs[col >> 5] >> (col & 31);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = __uint_as_float(__float_as_uint(v[i]) ^ (signs >> i & 1) << 31);
        if (p.rotation == kTilesOf128) {
            transform_128(v, lane);
            norm = 0.088388348f;
        } else {
            transform_by_column(v, reinterpret_cast<const uint32_t*>(p.tile_logs)[col >> 2], lane);
        }
    }
    const float most = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    // Bits of nonnegative floats are ordered as the floats are.
    const int exponent = min(max(static_cast<int>(__reduce_max_sync(kAll, __float_as_uint(most)) >> 23), 20), 234);
    const float up = __uint_as_float(static_cast<uint32_t>(127 + 14 + 127 - exponent) << 23);
    const __half2 lo = __floats2half2_rn(v[0] * up, v[1] * up), hi = __floats2half2_rn(v[2] * up, v[3] * up);
    out[b_word_of<F>(2 * lane)] = *reinterpret_cast<const uint32_t*>(&lo);
    out[b_word_of<F>(2 * lane + 1)] = *reinterpret_cast<const uint32_t*>(&hi);
    return __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23) * norm;
}

__device__ __forceinline__ void store_y(const ShiftGemvParams& p, uint32_t row, float y) {
    if (p.y_type == kF32) {
        float* out = static_cast<float*>(p.y) + row;
        *out = p.add ? *out + y : y;
    }
    if (p.y_type == kF16) static_cast<__half*>(p.y)[row] = __float2half_rn(y);
    if (p.y_type == kBf16) static_cast<__nv_bfloat16*>(p.y)[row] = __float2bfloat16_rn(y);
}

template <class F>
__device__ __forceinline__ void gemv(const ShiftGemvParams& p) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    uint8_t* shared = shared_from_table(dynamic);
    uint32_t* xs = reinterpret_cast<uint32_t*>(shared + kTableBytes);
    float* x_scales = reinterpret_cast<float*>(xs + p.n_units * 64);
    float* row_scales = x_scales + (p.n_units + 3) / 4 * 4;
    float* sums = row_scales + p.max_tiles * 16;

    const unsigned lane = threadIdx.x, part = threadIdx.y, slot = threadIdx.z;
    const unsigned warp = part + slot * blockDim.y, n_warps = blockDim.y * blockDim.z;
    const unsigned thread = warp * 32 + lane, n_threads = n_warps * 32;
    const uint32_t n_local = p.min_tiles + (blockIdx.x < p.extra_tiles);
    const Code code = make_code<F>(p.m0, p.m1, lane);

    // Words are read in one sequence of (unit of the part, row tile). Every warp counts alike, so that loops are uniform;
    // what is not there is not loaded, and its sums are not stored.
    const size_t tile_words = static_cast<size_t>(p.row_units) * F::unit_words;
    const size_t first_tile = blockIdx.x + static_cast<size_t>(slot) * gridDim.x;
    const uint32_t* next_unit = p.words + first_tile * tile_words + (p.first_unit + part) * F::unit_words;
    const uint32_t* at = next_unit;
    const uint32_t* next_history = p.histories + (first_tile * p.row_units + p.first_unit + part) * 8 + (lane >> 2);
    const uint32_t* history_at = next_history;
    uint32_t words[2][F::bits] = {};
    uint32_t own = 0;
    uint32_t on = slot < n_local && part < p.n_units;
    load_run<F>(words[0], at, lane, on);
    load_run<F>(words[1], at + F::run_words, lane, on);
    if (F::rows && on && !(lane & 3)) own = *history_at;

    fill_table<F>(shared, p.table, thread, n_threads);
    for (uint32_t r = thread; r < n_local * kUnitRows; r += n_threads) {
        const uint32_t row = (blockIdx.x + r / kUnitRows * gridDim.x) * kUnitRows + r % kUnitRows;
        row_scales[r] = row < p.rows ? __bfloat162float(p.scales[row]) * p.step : 0.0f;
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    for (uint32_t u = warp; u < p.n_units; u += n_warps) {
        const float scale = prepare_unit<F>(xs + u * 64, p, p.first_unit + u, lane);
        if (lane == 0) x_scales[u] = scale;
    }
    __syncthreads();

    const uint32_t n_tiles = p.n_slots == 1 ? n_local : (n_local + p.n_slots - 1) / p.n_slots;
    uint32_t unit = part;
    for (uint32_t n_units = p.part_units; n_units != 0; --n_units, unit += p.n_parts) {
        uint32_t b[16];
        const bool there = unit < p.n_units;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint4 v = make_uint4(0, 0, 0, 0);
            // The other seven columns of B are zero.
            if (lane < 4 && there) v = reinterpret_cast<const uint4*>(xs + unit * 64)[lane * 4 + j];
            b[4 * j] = v.x, b[4 * j + 1] = v.y, b[4 * j + 2] = v.z, b[4 * j + 3] = v.w;
        }
        const float scale = there ? x_scales[unit] : 0.0f;
        float* sum = sums + (slot * p.n_parts + part) * 16 + (lane >> 2);
        uint32_t tile = slot;
        next_unit += p.n_parts * F::unit_words;
        if (F::rows) next_history += p.n_parts * 8;
        for (uint32_t left = n_tiles; left != 0; --left) {
            // Of the next step.
            const bool last = left == 1;
            const uint32_t next_tile = tile + p.n_slots;
            at = last ? next_unit : at + p.tile_step;
            on = last ? n_units != 1 && slot < n_local && unit + p.n_parts < p.n_units : next_tile < n_local && there;
            float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            uint32_t h[2], a[4];
            if constexpr (F::rows) {
                h[0] = history_of<F>(words[0][F::bits - 1], own, lane);
                h[1] = history_of<F>(words[1][F::bits - 1], own >> 16, lane);
                unrolled<8>([&](auto j) {
                    operands<F, decltype(j)::value>(a, words, h, code);
                    mma(d, a, b[2 * decltype(j)::value], b[2 * decltype(j)::value + 1]);
                });
                load_run<F>(words[0], at, lane, on);
                load_run<F>(words[1], at + F::run_words, lane, on);
                history_at = last ? next_history : history_at + p.history_step;
                if (on && !(lane & 3)) own = *history_at;
            } else {
                h[0] = history_of<F>(words[0][F::bits - 1], 0, lane);
                h[1] = 0;
                unrolled<4>([&](auto j) {
                    operands<F, decltype(j)::value>(a, words, h, code);
                    mma(d, a, b[2 * decltype(j)::value], b[2 * decltype(j)::value + 1]);
                });
                load_run<F>(words[0], at, lane, on);
                h[1] = history_of<F>(words[1][F::bits - 1], 0, lane);
                unrolled<4>([&](auto j) {
                    operands<F, decltype(j)::value + 4>(a, words, h, code);
                    mma(d, a, b[2 * decltype(j)::value + 8], b[2 * decltype(j)::value + 9]);
                });
                load_run<F>(words[1], at + F::run_words, lane, on);
            }
            if ((lane & 3) == 0 && tile < n_local) {
                float s0 = d[0] * scale, s1 = d[2] * scale;
                if (n_units != p.part_units) s0 += sum[0], s1 += sum[8];
                sum[0] = s0, sum[8] = s1;
            }
            sum += p.n_slots * p.n_parts * 16;
            tile = next_tile;
        }
    }
    __syncthreads();

    // Eight threads per row.
    for (uint32_t r = thread >> 3; r < n_local * kUnitRows; r += n_threads / 8) {
        const uint32_t i = r / kUnitRows, in = r % kUnitRows;
        const float* sum = sums + i * p.n_parts * 16 + in;
        float y = 0.0f;
        for (uint32_t k = thread & 7; k < p.n_parts; k += 8) y += sum[k * 16];
        // Whole warps come here: n_local * 16 * 8 is a multiple of 32.
        y += __shfl_xor_sync(kAll, y, 1);
        y += __shfl_xor_sync(kAll, y, 2);
        y += __shfl_xor_sync(kAll, y, 4);
        const uint32_t row = (blockIdx.x + i * gridDim.x) * kUnitRows + in;
        if ((thread & 7) == 0 && row < p.rows) store_y(p, row, y * row_scales[r]);
    }
}

}  // namespace

#define GEMV(name, pairs, rows)                                                                                \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const __grid_constant__ ShiftGemvParams p) { \
        gemv<Format<BITS, pairs, rows, WIDE != 0>>(p);                                                         \
    }

GEMV(shift_gemv_quantiles_rows, false, true)
GEMV(shift_gemv_quantiles_tiles, false, false)
#if BITS <= 4
GEMV(shift_gemv_pairs_rows, true, true)
GEMV(shift_gemv_pairs_tiles, true, false)
#endif

// y = scales * step * (W (R x)), one activation, W under the bit-shift trellis, decoded on the way (layout: shift.cuh).
//
// Shapes: x [cols] f32, f16 or bf16; scales [rows]; y [rows] f32, f16 or bf16. R: signs and tiles of up to 128 columns.
// Grid: one block per multiprocessor; block b has the row tiles b, b + grid, ...
// Block: 32 x n_parts x n_slots, at most 1024 threads: parts of the columns, slots of row tiles. A warp holds the activations
// of one unit of 128 columns in registers while it walks its row tiles, the next words on their way; then the next unit of
// its part. Sums of 16 rows per warp and row tile go to shared memory and are added in a fixed order at the end.
// The rotated x is rounded to f16 per unit, scaled by the power of two that brings its largest value to 2^9 .. 2^10.
// Halves add up eight products each; everything beyond is f32.
//
// Shared memory: 1024 + 131072 (table) + 260 per unit (x, scales) + 64 per row tile and part + 64 per row tile, dynamic.
// Programmatic launch: the table and the first words are loaded before the kernel waits for its predecessor.
//
// Defines: BITS (2 to 4), KIND (0: tiles, L <= 17; 1: rows, L <= 17; 2: quantiles in tiles, L = 18).
// Caller: gosset-cuda/src/launch/shift.rs.

#include "params.cuh"
#include "shift_x.cuh"

namespace {

using namespace shift;

constexpr int kThreads = 1024;

// Unit `u` of R x in the order of the B operands; returns the factor from its f16 values to R x.
template <class F>
__device__ __forceinline__ float prepare_unit(uint32_t* out, const ShiftGemvParams& p, uint32_t u, unsigned lane) {
    float v[4];
    const float norm = rotated_unit(v, p, p.x, u, lane);
    const float most = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    // Bits of nonnegative floats are ordered as the floats are. Sums of eight products with weights below 4.3 stay below
    // 2^16, the largest half.
    const int exponent = min(max(static_cast<int>(__reduce_max_sync(kAll, __float_as_uint(most)) >> 23), 20), 234);
    const float up = __uint_as_float(static_cast<uint32_t>(127 + 9 + 127 - exponent) << 23);
    out[b_word_of<F>(2 * lane)] = halves(v[0] * up, v[1] * up);
    out[b_word_of<F>(2 * lane + 1)] = halves(v[2] * up, v[3] * up);
    return __uint_as_float(static_cast<uint32_t>(exponent - 9) << 23) * norm;
}

// Units `u` to `u + 3` at once, tiles of 128 and f32 with loads of 16 bytes: eight lanes have a unit, 16 columns each, which
// takes 12 shuffles per unit where one unit per warp takes 20. A unit beyond the last one repeats that.
template <class F>
__device__ __forceinline__ void prepare_four(uint32_t* xs, float* x_scales, const ShiftGemvParams& p, uint32_t u, unsigned lane) {
    const unsigned q = lane & 7;
    u = min(u + (lane >> 3), p.n_units - 1);
    const uint32_t col = (p.first_unit + u) * kUnitCols + 16 * q;
    const uint32_t signs = p.signs[col >> 5] >> (col & 31);
    float v[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 f = reinterpret_cast<const float4*>(static_cast<const float*>(p.x) + col)[i];
        v[4 * i] = f.x, v[4 * i + 1] = f.y, v[4 * i + 2] = f.z, v[4 * i + 3] = f.w;
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = __uint_as_float(__float_as_uint(v[i]) ^ (signs << (31 - i) & 0x80000000u));
#pragma unroll
    for (int m = 1; m < 16; m *= 2) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            if (i & m) continue;
            const float a = v[i], b = v[i + m];
            v[i] = a + b, v[i + m] = a - b;
        }
    }
#pragma unroll
    for (int m = 1; m < 8; m *= 2) {
        const float sign = (lane & m) ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 16; ++i) v[i] = fmaf(v[i], sign, __shfl_xor_sync(kAll, v[i], m));
    }
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) most = fmaxf(most, fabsf(v[i]));
#pragma unroll
    for (int m = 1; m < 8; m *= 2) most = fmaxf(most, __shfl_xor_sync(kAll, most, m));
    const int exponent = min(max(static_cast<int>(__float_as_uint(most) >> 23), 20), 234);
    const float up = __uint_as_float(static_cast<uint32_t>(127 + 9 + 127 - exponent) << 23);
    uint32_t h[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) h[i] = halves(v[2 * i] * up, v[2 * i + 1] * up);
    uint4* out = reinterpret_cast<uint4*>(xs + u * 64);
    if constexpr (F::rows) {
        out[2 * q] = make_uint4(h[0], h[1], h[2], h[3]);
        out[2 * q + 1] = make_uint4(h[4], h[5], h[6], h[7]);
    } else {
        // As `b_word_of` has it.
        out += (q & 3) * 4 + (q >> 2) * 2;
        out[0] = make_uint4(h[0], h[4], h[1], h[5]);
        out[1] = make_uint4(h[2], h[6], h[3], h[7]);
    }
    x_scales[u] = __uint_as_float(static_cast<uint32_t>(exponent - 9) << 23) * 0.088388348f;
}

__device__ __forceinline__ void store_y(const ShiftGemvParams& p, uint32_t row, float y) {
    if (p.y_type == kF32) {
        float* out = static_cast<float*>(p.y) + row;
        *out = p.add ? *out + y : y;
    }
    if (p.y_type == kF16) static_cast<__half*>(p.y)[row] = __float2half_rn(y);
    if (p.y_type == kBf16) static_cast<__nv_bfloat16*>(p.y)[row] = __float2bfloat16_rn(y);
}

// One row tile of a warp: sums of 16 rows to `sum`, and the next words on their way. `kOnce`: no sums are there before.
template <class F, bool kOnce>
__device__ __forceinline__ void step(
    uint32_t (&words)[2][F::bits], uint32_t& own, const uint32_t (&b)[16], const Code& code, unsigned lane,
    const uint32_t* next, const uint32_t* next_history, uint32_t on, uint32_t sum, float scale, bool again) {
    uint32_t acc[4] = {0, 0, 0, 0};
    if constexpr (F::rows) {
        const uint32_t h[2] = {
            history_of<F>(words[0][F::bits - 1], own, lane), history_of<F>(words[1][F::bits - 1], own >> 16, lane)};
        unrolled<8>([&](auto j) {
            constexpr int kJ = decltype(j)::value;
            multiply<F, kJ>(acc, words, h, code, b[2 * kJ], b[2 * kJ + 1]);
        });
        load_run<F>(words[0], next, lane, on);
        load_run<F>(words[1], next + F::run_words, lane, on);
        if (on && !(lane & 3)) own = *next_history;
    } else {
        uint32_t h[2];
        h[0] = history_of<F>(words[0][F::bits - 1], 0, lane);
        h[1] = 0;
        unrolled<4>([&](auto j) {
            constexpr int kJ = decltype(j)::value;
            multiply<F, kJ>(acc, words, h, code, b[2 * kJ], b[2 * kJ + 1]);
        });
        load_run<F>(words[0], next, lane, on);
        h[1] = history_of<F>(words[1][F::bits - 1], 0, lane);
        unrolled<4>([&](auto j) {
            constexpr int kJ = decltype(j)::value + 4;
            multiply<F, kJ>(acc, words, h, code, b[2 * kJ], b[2 * kJ + 1]);
        });
        load_run<F>(words[1], next + F::run_words, lane, on);
    }
    float d[4];
    add_up(d, acc);
    float s0 = d[0] * scale, s1 = d[2] * scale;
    if (!kOnce && again) {
        // A branch of the whole block: predicates would cost a turn each.
        asm volatile("");
        float p0, p1;
        asm volatile("ld.shared.f32 %0, [%2];\nld.shared.f32 %1, [%2+32];" : "=f"(p0), "=f"(p1) : "r"(sum) : "memory");
        s0 += p0, s1 += p1;
    }
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %3, 0;\n@p st.shared.f32 [%0], %1;\n@p st.shared.f32 [%0+32], %2;\n}"
                 :
                 : "r"(sum), "f"(s0), "f"(s1), "r"(lane & 3)
                 : "memory");
}

template <class F>
__device__ __forceinline__ void gemv(const ShiftGemvParams& p) {
    extern __shared__ __align__(1024) uint8_t dynamic[];
    uint8_t* shared = shared_from_table(dynamic);
    uint32_t* xs = reinterpret_cast<uint32_t*>(shared + kTableBytes);
    float* x_scales = reinterpret_cast<float*>(xs + p.n_units * 64);
    float* row_scales = x_scales + (p.n_units + 3) / 4 * 4;
    float* sums = row_scales + p.max_tiles * 16;

    // Volatile, so that the compiler keeps the lane and does not ask for it again in the loop.
    unsigned lane;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(lane));
    const unsigned part = threadIdx.y, slot = threadIdx.z;
    const unsigned warp = part + slot * blockDim.y, n_warps = blockDim.y * blockDim.z;
    const unsigned thread = warp * 32 + lane, n_threads = n_warps * 32;
    const uint32_t n_local = p.min_tiles + (blockIdx.x < p.extra_tiles);

    // Words are read in one sequence of (unit of the part, row tile). Every warp counts alike, so that loops are uniform;
    // what is not there is not loaded, and its sums are not read.
    const size_t tile_words = static_cast<size_t>(p.row_units) * F::unit_words;
    const size_t first_tile = blockIdx.x + static_cast<size_t>(slot) * gridDim.x;
    const uint32_t* next_unit = p.words + first_tile * tile_words + (p.first_unit + part) * F::unit_words;
    const uint32_t* at = next_unit;
    const uint32_t* next_history = p.histories + (first_tile * p.row_units + p.first_unit + part) * 8 + (lane >> 2);
    const uint32_t* history_at = next_history;
    uint32_t words[2][F::bits] = {};
    uint32_t own = 0;
    const bool slot_on = slot < n_local;
    load_run<F>(words[0], at, lane, slot_on);
    load_run<F>(words[1], at + F::run_words, lane, slot_on);
    if (F::rows && slot_on && !(lane & 3)) own = *history_at;
    // Scales of at most one row per thread: a block has no more rows than threads (the host sees to that). They are loaded
    // before anything is waited for; a load of bits, so that no conversion waits for it here.
    uint32_t row_scale = 0;
    {
        const uint32_t row = (blockIdx.x + thread / kUnitRows * gridDim.x) * kUnitRows + thread % kUnitRows;
        if (thread < n_local * kUnitRows && row < p.rows) {
            asm volatile("ld.global.u16 %0, [%1];" : "=r"(row_scale) : "l"(p.scales + row));
        }
    }
    const Code code = make_code<F>(p.m0, p.m1, lane);
    fill_table<F>(shared, p.table, thread, n_threads);
    if (thread < n_local * kUnitRows) row_scales[thread] = __uint_as_float(row_scale << 16) * p.step;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    const bool four = p.rotation == kTilesOf128 && p.x_type == kF32 && p.x_vector && p.n_units > n_warps;
    for (uint32_t u0 = 0; four && u0 < p.n_units; u0 += 4 * n_warps) {
        prepare_four<F>(xs, x_scales, p, u0 + 4 * warp, lane);
    }
    for (uint32_t u0 = 0; !four && u0 < p.n_units; u0 += n_warps) {
        // Warps beyond the last unit repeat it, which keeps the loop uniform.
        const uint32_t u = min(u0 + warp, p.n_units - 1);
        const float scale = prepare_unit<F>(xs + u * 64, p, p.first_unit + u, lane);
        x_scales[u] = scale;
    }
    __syncthreads();

    const uint32_t n_tiles = p.n_slots == 1 ? n_local : (n_local + p.n_slots - 1) / p.n_slots;
    const uint32_t first_sum =
        static_cast<uint32_t>(__cvta_generic_to_shared(sums)) + ((slot * p.n_parts + part) * 16 + (lane >> 2)) * 4;
    uint32_t unit = part;
    for (uint32_t n_units = p.part_units; n_units != 0; --n_units, unit += p.n_parts) {
        uint32_t b[16];
        const bool there = unit < p.n_units;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (there) v = reinterpret_cast<const uint4*>(xs + unit * 64)[(lane & 3) * 4 + j];
            b[4 * j] = v.x, b[4 * j + 1] = v.y, b[4 * j + 2] = v.z, b[4 * j + 3] = v.w;
        }
        const float scale = there ? x_scales[unit] : 0.0f;
        const bool again = n_units != p.part_units;
        const uint32_t limit = there ? n_local : 0;
        uint32_t sum = first_sum, tile = slot;
        next_unit += p.n_parts * F::unit_words;
        if (F::rows) next_history += p.n_parts * 8;
        const uint32_t more = n_units != 1 && slot_on && unit + p.n_parts < p.n_units;
        uint32_t left = n_tiles;
        if (!F::rows && p.plain) {
            // One unit and all row tiles of the block for each warp, which is what large layers come to: 20 instructions less
            // in 320.
            do {
                at = reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint8_t*>(at) + p.tile_step);
                step<F, true>(words, own, b, code, lane, at, history_at, left != 1, sum, scale, false);
                sum += p.sum_step;
            } while (--left != 0);
            break;
        }
        do {
            // Where the words after these are. A branch of the whole block: selections would cost more.
            uint32_t on;
            if (left == 1) {
                asm volatile("");
                at = next_unit, on = more;
                if (F::rows) history_at = next_history;
            } else {
                at = reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint8_t*>(at) + p.tile_step);
                tile += p.n_slots, on = tile < limit;
                if (F::rows) history_at += p.history_step;
            }
            step<F, false>(words, own, b, code, lane, at, history_at, on, sum, scale, again);
            sum += p.sum_step;
        } while (--left != 0);
    }
    __syncthreads();

    // Eight threads per row; whole warps, since 16 rows are 128 threads.
    const uint32_t sixteenth = p.n_parts * 16;
    for (uint32_t r = thread >> 3; r < n_local * kUnitRows; r += n_threads / 8) {
        const float* sum = sums + r / kUnitRows * sixteenth + r % kUnitRows;
        float y = 0.0f;
#pragma unroll 4
        for (uint32_t k = thread & 7; k < p.n_parts; k += 8) y += sum[k * 16];
        y += __shfl_xor_sync(kAll, y, 1);
        y += __shfl_xor_sync(kAll, y, 2);
        y += __shfl_xor_sync(kAll, y, 4);
        const uint32_t row = (blockIdx.x + r / kUnitRows * gridDim.x) * kUnitRows + r % kUnitRows;
        if ((thread & 7) == 0 && row < p.rows) store_y(p, row, y * row_scales[r]);
    }
}

}  // namespace

#define GEMV(name, pairs, rows)                                                                                \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) name(const __grid_constant__ ShiftGemvParams p) { \
        gemv<Format<BITS, pairs, rows, KIND == 2>>(p);                                                         \
    }

#if KIND == 1
GEMV(shift_gemv_quantiles_rows, false, true)
GEMV(shift_gemv_pairs_rows, true, true)
#else
GEMV(shift_gemv_quantiles_tiles, false, false)
#endif
#if KIND == 0
GEMV(shift_gemv_pairs_tiles, true, false)
#endif

// The randomized Hadamard transform of a window of 128 columns inside one warp, for any kernel that has a row at hand.
//
// u = H (d * x) / sqrt(t) on each tile of t columns (gosset-transform, src/rht.rs). Lane l holds columns 4 l .. 4 l + 3 of
// the window. Operations and their order are those of the CPU: sign bits, butterflies (a + b, a - b) from stride 1 up, one
// multiplication by the f32 constant 1/sqrt(t). So the result is the CPU's, bit for bit.
//
// Tiles of up to 128 columns never straddle a window: each starts at a multiple of its own length. A whole tile of 128:
//
//     float v[4] = {...};                                       // columns 4 * lane .. 4 * lane + 3 of the tile
//     gosset::rht128(v, gosset::sign_nibble(words, tile_start + 4 * lane));
//
// Cost of rht128 per lane: 4 LOP3, 20 shuffles, 28 FADD, 4 FMUL. All 32 lanes take part.
#pragma once

#include <cstdint>

namespace gosset {

// Bits 0..3: whether columns col .. col + 3 are negated; col is a multiple of 4.
__device__ __forceinline__ uint32_t sign_nibble(const uint32_t* words, uint32_t col) {
    return words[col / 32] >> (col % 32) & 0xf;
}

// Negates v[i] if bit i is set, zeros and NaN included.
__device__ __forceinline__ void flip_signs(float (&v)[4], uint32_t nibble) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __uint_as_float(__float_as_uint(v[i]) ^ (nibble >> i << 31));
}

// One butterfly stage at stride 4 * (1 << B) between lanes.
__device__ __forceinline__ void lane_stage(float (&v)[4], int mask) {
    // The lower of a pair becomes a + b, the upper a - b: a product with one or minus one is exact, so that the sum is rounded once.
    const float sign = (threadIdx.x & mask) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __fmaf_rn(v[i], sign, __shfl_xor_sync(0xffffffffu, v[i], mask));
}

// The unnormalised transform of tiles of 2^LOG <= 128 columns; blockDim.x must be a multiple of 32.
template <int LOG>
__device__ __forceinline__ void fwht_window(float (&v)[4]) {
    static_assert(LOG >= 0 && LOG <= 7);
    if (LOG >= 1) {
        const float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
        v[0] = a, v[1] = b, v[2] = c, v[3] = d;
    }
    if (LOG >= 2) {
        const float a = v[0] + v[2], b = v[1] + v[3], c = v[0] - v[2], d = v[1] - v[3];
        v[0] = a, v[1] = b, v[2] = c, v[3] = d;
    }
#pragma unroll
    for (int log = 2; log < LOG; ++log) lane_stage(v, 1 << (log - 2));
}

// The same where the tiles are known at run time only, and several lengths may meet in the window: log[i] is that of column 4 * lane + i, and more than 7
// counts as 7. All columns of one tile have one log, so both of a pair take part in a stage or neither does.
__device__ __forceinline__ void fwht_window(float (&v)[4], const uint32_t (&log)[4]) {
    const float w[4] = {v[0], v[1], v[2], v[3]};
    if (log[0] >= 1) v[0] = w[0] + w[1], v[1] = w[0] - w[1];
    if (log[2] >= 1) v[2] = w[2] + w[3], v[3] = w[2] - w[3];
    if (log[0] >= 2) {
        const float a = v[0] + v[2], b = v[1] + v[3], c = v[0] - v[2], d = v[1] - v[3];
        v[0] = a, v[1] = b, v[2] = c, v[3] = d;
    }
#pragma unroll
    for (uint32_t stage = 2; stage < 7; ++stage) {
        float next[4] = {v[0], v[1], v[2], v[3]};
        lane_stage(next, 1 << (stage - 2));
        // A tile of more than 4 columns holds all four of the lane.
        if (log[0] > stage) v[0] = next[0], v[1] = next[1], v[2] = next[2], v[3] = next[3];
    }
}

// 1 / sqrt(128), correctly rounded: 2^-3 times FRAC_1_SQRT_2.
constexpr float RHT128_SCALE = 0x1.6a09e6p-4f;

// The randomized transform of one tile of 128 that fills the window.
__device__ __forceinline__ void rht128(float (&v)[4], uint32_t nibble) {
    flip_signs(v, nibble);
    fwht_window<7>(v);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] *= RHT128_SCALE;
}

}  // namespace gosset

// Activations of the shift kernels: four consecutive columns per lane, loaded and rotated by one warp per 128 columns.

#pragma once

#include "shift.cuh"

namespace shift {

enum Rotation : uint32_t { kNone, kTilesOf128, kTilesByColumn };
enum Type : uint32_t { kF32, kF16, kBf16 };

// Four consecutive values of x, zero beyond its end.
template <class P>
__device__ __forceinline__ void load_x(float (&v)[4], const P& p, const void* x, uint32_t col) {
    if (p.x_type == kF32 && p.x_vector && col + 4 <= p.cols) {
        const float4 f = *reinterpret_cast<const float4*>(static_cast<const float*>(x) + col);
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[i] = 0.0f;
        if (col + i < p.cols) {
            if (p.x_type == kF32) v[i] = static_cast<const float*>(x)[col + i];
            if (p.x_type == kF16) v[i] = __half2float(static_cast<const __half*>(x)[col + i]);
            if (p.x_type == kBf16) v[i] = __bfloat162float(static_cast<const __nv_bfloat16*>(x)[col + i]);
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

// Unit `u` of R x, up to the factor that is returned; columns beyond the last one are 0.
template <class P>
__device__ __forceinline__ float rotated_unit(float (&v)[4], const P& p, const void* x, uint32_t u, unsigned lane) {
    const uint32_t col = u * kUnitCols + 4 * lane;
    load_x(v, p, x, col);
    if (p.rotation == kNone) return 1.0f;
    // Signs and tile sizes are padded to whole units.
    const uint32_t signs = p.signs[col >> 5] >> (col & 31);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __uint_as_float(__float_as_uint(v[i]) ^ (signs >> i & 1) << 31);
    if (p.rotation == kTilesOf128) {
        transform_128(v, lane);
        return 0.088388348f;
    }
    transform_by_column(v, reinterpret_cast<const uint32_t*>(p.tile_logs)[col >> 2], lane);
    return 1.0f;
}

// Two values as halves, lower first.
__device__ __forceinline__ uint32_t halves(float a, float b) {
    const __half2 h = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&h);
}

}  // namespace shift

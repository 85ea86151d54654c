// Where decoders put points: as integers, or as values in the rotated frame.
//
//   value = factor * unit, factor = f32(scale of the row * step), every product rounded to f32 on its own and then to the
//   output type; a row of scale 0 is all +0
//
// A warp decodes 32 streams at once, 32 points of each into a tile in shared memory, and then writes the tile stream by
// stream, so that stores are coalesced.

#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace decoded {

constexpr uint32_t kTile = 32;           // Points of a stream in a tile.
constexpr uint32_t kStride = kTile + 1;  // Words from one stream to the next: no two lanes share a bank.

// Element types of the output.
enum Kind : uint32_t { kI32 = 0, kI16 = 1, kI8 = 2, kF32 = 3, kF16 = 4, kBf16 = 5 };

struct Target {
    void* out;               // [rows, cols]
    const uint16_t* scales;  // bf16, for values only.
    const float* units;      // What the points -reach to reach stand for; null where they stand for themselves.
    uint32_t reach, cols, kind;
    float step;
    float even;              // Factor of points at even places: the square root of 3 in A2, otherwise 1.
};

// Place of a stream's next point.
struct Place {
    uint64_t at;
    uint32_t row, col;

    __device__ __forceinline__ void open(uint64_t first, uint32_t cols) {
        at = first;
        row = static_cast<uint32_t>(first / cols);
        col = static_cast<uint32_t>(first - static_cast<uint64_t>(row) * cols);
    }
    __device__ __forceinline__ void advance(uint32_t n, uint32_t cols) {
        at += n;
        for (col += n; col >= cols; col -= cols) ++row;
    }
};

__device__ __forceinline__ void store_value(const Target& t, uint64_t at, uint32_t row, uint32_t i, int y) {
    float unit = static_cast<float>(y);
    if (t.units != nullptr) {
        const uint32_t index = static_cast<uint32_t>(y) + t.reach;
        if (index <= 2 * t.reach) unit = __ldg(t.units + index);
    }
    if (i % 2 == 0) unit = __fmul_rn(unit, t.even);
    const float factor = __fmul_rn(__bfloat162float(reinterpret_cast<const __nv_bfloat16*>(t.scales)[row]), t.step);
    const float v = factor == 0.0f ? 0.0f : __fmul_rn(factor, unit);
    if (t.kind == kF32) static_cast<float*>(t.out)[at] = v;
    else if (t.kind == kF16) static_cast<__half*>(t.out)[at] = __float2half_rn(v);
    else static_cast<__nv_bfloat16*>(t.out)[at] = __float2bfloat16_rn(v);
}

// Returns whether the point fits its type.
__device__ __forceinline__ bool store_point(const Target& t, uint64_t at, int y) {
    if (t.kind == kI32) {
        static_cast<int32_t*>(t.out)[at] = y;
        return true;
    }
    if (t.kind == kI16) {
        static_cast<int16_t*>(t.out)[at] = static_cast<int16_t>(y);
        return static_cast<int16_t>(y) == y;
    }
    static_cast<int8_t*>(t.out)[at] = static_cast<int8_t>(y);
    return static_cast<int8_t>(y) == y;
}

// Writes the tile of a warp: `n` points of this lane's stream, from `place` on. All lanes take part. Returns whether all
// points of this lane's stream fit.
__device__ __forceinline__ bool store_tile(const Target& t, const int* tile, uint32_t n, Place& place) {
    const uint32_t lane = threadIdx.x & 31;
    bool fits = true;
    __syncwarp();
#pragma unroll 1
    for (uint32_t s = 0; s < 32; ++s) {
        const uint32_t n_s = __shfl_sync(0xffffffffu, n, s);
        const uint64_t at = __shfl_sync(0xffffffffu, place.at, s) + lane;
        uint32_t row = __shfl_sync(0xffffffffu, place.row, s), col = __shfl_sync(0xffffffffu, place.col, s);
        bool in_range = true;
        if (lane < n_s) {
            const int y = tile[s * kStride + lane];
            if (t.kind < kF32) {
                in_range = store_point(t, at, y);
            } else {
                for (col += lane; col >= t.cols; col -= t.cols) ++row;
                store_value(t, at, row, lane, y);
            }
        }
        if (__any_sync(0xffffffffu, !in_range) && lane == s) fits = false;
    }
    __syncwarp();
    place.advance(n, t.cols);
    return fits;
}

}  // namespace decoded

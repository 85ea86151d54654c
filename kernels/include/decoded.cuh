// What decoders write: points as integers, or values in the rotated frame.

#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
__device__ __forceinline__ T rounded(float v);
template <>
__device__ __forceinline__ float rounded<float>(float v) { return v; }
template <>
__device__ __forceinline__ __half rounded<__half>(float v) { return __float2half_rn(v); }
template <>
__device__ __forceinline__ __nv_bfloat16 rounded<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

// The point itself.
template <typename T>
struct Points {
    static constexpr bool kValues = false;
    using Element = T;
    __device__ __forceinline__ static T convert(int y, float, float) { return static_cast<T>(y); }
    __device__ __forceinline__ static bool fits(int y) { return static_cast<T>(y) == y; }
};

// factor * unit, rounded to f32 and then to T. A row of scale 0 is all +0.
template <typename T>
struct Values {
    static constexpr bool kValues = true;
    using Element = T;
    __device__ __forceinline__ static T convert(int, float unit, float factor) {
        return rounded<T>(factor == 0.0f ? 0.0f : __fmul_rn(factor, unit));
    }
    __device__ __forceinline__ static bool fits(int) { return true; }
};

// Place of a value in the matrix, and the factor of its row: bf16 scale times step, rounded to f32.
struct RowCursor {
    const __nv_bfloat16* scales;
    float step, factor;
    uint32_t rows, cols, row, col;

    __device__ __forceinline__ void open(const uint16_t* row_scales, float row_step, uint32_t n_rows, uint32_t n_cols, uint64_t at) {
        scales = reinterpret_cast<const __nv_bfloat16*>(row_scales);
        step = row_step;
        rows = n_rows;
        cols = n_cols;
        row = static_cast<uint32_t>(at / n_cols);
        col = static_cast<uint32_t>(at - static_cast<uint64_t>(row) * n_cols);
        load();
    }
    __device__ __forceinline__ void load() {
        factor = row < rows ? __fmul_rn(__bfloat162float(scales[row]), step) : 0.0f;
    }
    __device__ __forceinline__ void advance() {
        if (++col == cols) {
            col = 0;
            ++row;
            load();
        }
    }
};

// Stores values at, at + 1, ... of which those below `n_kept` exist. `out` is aligned to 16 bytes and `at` a multiple of N,
// so that whole blocks take wide stores.
template <int N, typename T>
__device__ __forceinline__ void store_block(T* out, uint32_t at, uint32_t n_kept, const T (&values)[N]) {
    constexpr int kBytes = N * static_cast<int>(sizeof(T));
    if (at + N <= n_kept) {
        if constexpr (kBytes % 16 == 0) {
#pragma unroll
            for (int i = 0; i < kBytes / 16; ++i) {
                reinterpret_cast<uint4*>(out + at)[i] = reinterpret_cast<const uint4*>(values)[i];
            }
        } else if constexpr (kBytes == 8) {
            *reinterpret_cast<uint2*>(out + at) = *reinterpret_cast<const uint2*>(values);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) out[at + i] = values[i];
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (at + i < n_kept) out[at + i] = values[i];
        }
    }
}

// Keys and values as attention loads them.
#pragma once

#include <cuda_fp16.h>

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kNegative = -1e30f;  // Below every score; finite, so that differences are never NaN.

struct Eight {
    float v[8];
};

// Eight elements as loaded; unpacked at use, so that more loads fit in registers.
template <typename C>
struct Raw;
template <>
struct Raw<float> {
    float4 lo, hi;
    __device__ __forceinline__ void load(const float* p) {
        lo = *reinterpret_cast<const float4*>(p);
        hi = *reinterpret_cast<const float4*>(p + 4);
    }
    __device__ __forceinline__ Eight unpack() const { return {{lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w}}; }
};
template <>
struct Raw<__half> {
    uint4 words;
    __device__ __forceinline__ void load(const __half* p) { words = *reinterpret_cast<const uint4*>(p); }
    __device__ __forceinline__ Eight unpack() const {
        const unsigned w[4] = {words.x, words.y, words.z, words.w};
        Eight out;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&w[i]));
            out.v[2 * i] = f.x;
            out.v[2 * i + 1] = f.y;
        }
        return out;
    }
};

// Two elements as loaded.
template <typename C>
struct RawPair;
template <>
struct RawPair<float> {
    float2 pair;
    __device__ __forceinline__ void load(const float* p) { pair = *reinterpret_cast<const float2*>(p); }
    __device__ __forceinline__ float2 unpack() const { return pair; }
};
template <>
struct RawPair<__half> {
    unsigned word;
    __device__ __forceinline__ void load(const __half* p) { word = *reinterpret_cast<const unsigned*>(p); }
    __device__ __forceinline__ float2 unpack() const { return __half22float2(*reinterpret_cast<const __half2*>(&word)); }
};

// Rice codewords of a stream, and the lattice point of the symbols of a block (docs/FORMAT.md, section 3.1).
//
// Beyond the end of the words, zero bits decode as escapes until the caller has its number of symbols.

#pragma once

#include <cstdint>

#include "bits.cuh"

namespace rice {

constexpr unsigned kStreamLen = 512;     // Symbols of a stream.
constexpr unsigned kStreamsPerPage = 64;
constexpr unsigned kEscapeZeros = 24;    // Zeros that announce a symbol of 32 bits.
constexpr unsigned kSymbolBits = 26;     // Symbols of a valid stream are below 2 to this.

// The next symbol under parameter `k` <= 15.
__device__ __forceinline__ uint32_t symbol(BitReader& bits, unsigned k) {
    bits.refill();
    const unsigned zeros = __clz(bits.top());
    if (zeros < kEscapeZeros) {
        bits.skip(zeros + 1);
        bits.refill();
        const uint32_t low = bits.peek(k);
        bits.skip(k);
        return (zeros << k) | low;
    }
    bits.skip(kEscapeZeros);
    bits.refill();
    const uint32_t z = bits.top();
    bits.skip(32);
    return z;
}

__device__ __forceinline__ int unzigzag(uint32_t z) {
    return static_cast<int>(z >> 1) ^ -static_cast<int>(z & 1u);
}

// 2t + p in wrapping arithmetic.
__device__ __forceinline__ int double_plus(int t, int p) {
    return static_cast<int>(static_cast<uint32_t>(t) * 2u + static_cast<uint32_t>(p));
}

// The point of the symbols of one block, the dimension N standing for the lattice: 1 Z, 2 A2, 4 D4, 8 E8.
template <int N>
__device__ __forceinline__ void unstrip(const uint32_t (&s)[N], int (&y)[N]) {
    if constexpr (N == 1) {
        y[0] = unzigzag(s[0]);
    } else if constexpr (N == 2) {
        y[1] = unzigzag(s[1]);
        y[0] = double_plus(unzigzag(s[0]), y[1] & 1);
    } else if constexpr (N == 4) {
        int v[4], parity = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = unzigzag(s[i]);
        parity = (v[0] ^ v[1] ^ v[2]) & 1;
        v[3] = double_plus(v[3], parity);
#pragma unroll
        for (int i = 0; i < 4; ++i) y[i] = double_plus(v[i], 0);
    } else {
        static_assert(N == 8);
        const int coset = static_cast<int>(s[7] & 1u);
        int v[8], parity = 0;
#pragma unroll
        for (int i = 0; i < 7; ++i) {
            v[i] = unzigzag(s[i]);
            parity ^= v[i];
        }
        v[7] = double_plus(unzigzag(s[7] >> 1), parity & 1);
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = double_plus(v[i], coset);
    }
}

// Class of symbol `i` of a block, an index of the parameters.
template <int N>
__device__ __forceinline__ constexpr int symbol_class(int i) {
    return N == 2 ? i : N == 4 ? i / 3 : 0;
}

// Coordinate `i` of the embedded point: A2 stores its first coordinate in units of the square root of 3.
template <int N>
__device__ __forceinline__ float embed(int y, int i) {
    const float v = static_cast<float>(y);
    return N == 2 && i == 0 ? v * 1.7320508f : v;
}

}  // namespace rice

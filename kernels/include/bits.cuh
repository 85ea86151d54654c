// Bits of a stream, the most significant bit of each word first. One thread reads one stream; nothing beyond `end` is read:
// what would lie there is zero bits.

#pragma once

#include <cstdint>

// Position in the words, with the bits after it in a register.
struct BitReader {
    const uint32_t* next;
    const uint32_t* end;
    uint64_t buffer;   // Left-justified; beyond the valid bits it is zero.
    int n_valid;
    uint32_t n_read;   // Bits taken so far.

    __device__ __forceinline__ uint32_t word() {
        return next < end ? __ldg(next++) : 0u;
    }
    // Starts at bit `bit` of `words`.
    __device__ __forceinline__ void open(const uint32_t* words, uint64_t bit, const uint32_t* stop) {
        next = words + (bit >> 5);
        end = stop;
        const unsigned skip = static_cast<unsigned>(bit) & 31u;
        buffer = (static_cast<uint64_t>(word()) << 32) << skip;
        n_valid = 32 - static_cast<int>(skip);
        n_read = 0;
        refill();
    }
    // Makes 33 to 64 bits valid.
    __device__ __forceinline__ void refill() {
        if (n_valid <= 32) {
            buffer |= static_cast<uint64_t>(word()) << (32 - n_valid);
            n_valid += 32;
        }
    }
    // The next 32 bits.
    __device__ __forceinline__ uint32_t top() const {
        return static_cast<uint32_t>(buffer >> 32);
    }
    // The next `n` <= 31 bits.
    __device__ __forceinline__ uint32_t peek(unsigned n) const {
        return __funnelshift_l(top(), 0u, n);
    }
    // Passes `n` valid bits.
    __device__ __forceinline__ void skip(unsigned n) {
        buffer <<= n;
        n_valid -= static_cast<int>(n);
        n_read += n;
    }
};

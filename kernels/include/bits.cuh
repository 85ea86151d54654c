// Bits of a stream, the most significant bit of each word first. One thread reads one stream.

#pragma once

#include <cstdint>

// Position in the words, with the bits after it in registers.
//
// Words are fetched four at a time, since every lane of a warp reads from another line. They begin on 16 bytes, and memory up
// to a multiple of four words is there. Beyond it, nothing is read: what would lie there is zero bits.
struct BitReader {
    const uint4* next;
    const uint4* end;
    uint4 fetched;     // Words to come, the next one in x.
    int n_fetched;
    uint64_t buffer;   // Left-justified; beyond the valid bits it is zero.
    int n_valid;
    uint32_t n_read;   // Bits taken so far.

    __device__ __forceinline__ uint32_t word() {
        if (n_fetched == 0) {
            fetched = next < end ? __ldg(next++) : make_uint4(0, 0, 0, 0);
            n_fetched = 4;
        }
        const uint32_t w = fetched.x;
        fetched.x = fetched.y;
        fetched.y = fetched.z;
        fetched.z = fetched.w;
        --n_fetched;
        return w;
    }
    // Starts at bit `bit` of the `n_words` words.
    __device__ __forceinline__ void open(const uint32_t* words, uint64_t n_words, uint64_t bit) {
        const uint64_t first = bit >> 5;
        next = reinterpret_cast<const uint4*>(words) + (first >> 2);
        end = reinterpret_cast<const uint4*>(words) + (n_words + 3) / 4;
        n_fetched = 0;
#pragma unroll 1
        for (unsigned i = static_cast<unsigned>(first) & 3u; i > 0; --i) word();
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

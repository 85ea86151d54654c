// The ANS decoder of a stream: four lanes that share one bit string (docs/FORMAT.md, section 3.2).
//
// One thread decodes one stream. State tables lie in shared memory, 1024 entries per context: the value in the upper 16
// bits (-32768 for the escape), the base in bits 6 to 15, the number of bits to read in bits 0 to 5.

#pragma once

#include <cstdint>

#include "bits.cuh"

namespace ans {

constexpr unsigned kTableLen = 1024;
constexpr unsigned kStateBits = 10;
constexpr int kLanes = 4;
constexpr int kEscape = -32768;
constexpr unsigned kMaxEscapeBits = 31;

// How values outside of the run of a table are coded.
struct Escape {
    int k, step, first, last;
};

struct Decoder {
    BitReader bits;
    uint32_t states[kLanes];
    uint32_t damaged;

    // Starts at word `first` of the `n_words` words of all streams.
    __device__ __forceinline__ void open(const uint32_t* words, uint64_t n_words, uint64_t first) {
        bits.open(words, n_words, 32 * first);
        damaged = 0;
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) states[lane] = raw(kStateBits);
    }
    // The next `n` <= 20 bits.
    __device__ __forceinline__ uint32_t raw(unsigned n) {
        bits.refill();
        const uint32_t b = bits.peek(n);
        bits.skip(n);
        return b;
    }
    // The number behind an escape symbol.
    __device__ __forceinline__ int escaped(Escape code) {
        const bool below = raw(1) != 0;
        bits.refill();
        const unsigned zeros = __clz(bits.top()), n_low = zeros + static_cast<unsigned>(code.k);
        if (n_low > kMaxEscapeBits) {
            damaged = 1;
            return 0;
        }
        bits.skip(zeros + 1);
        bits.refill();
        const int64_t q = (int64_t{1} << n_low) | bits.peek(n_low);
        bits.skip(n_low);
        const int64_t distance = (q - (int64_t{1} << code.k) + 1) * code.step;
        const int64_t value = below ? code.first - distance : code.last + distance;
        if (value != static_cast<int32_t>(value)) {
            damaged = 1;
            return 0;
        }
        return static_cast<int>(value);
    }
    // The next value of a lane under the table of a context.
    __device__ __forceinline__ int symbol(int lane, uint32_t context, const uint32_t* tables, const Escape* escapes) {
        const uint32_t entry = tables[context * kTableLen + states[lane]];
        states[lane] = ((entry >> 6) + raw(entry & 63u)) & (kTableLen - 1);
        const int value = static_cast<int>(entry) >> 16;
        return value == kEscape ? escaped(escapes[context]) : value;
    }
    // Whether the stream, the `n_words` words at `words`, ended as it must: lanes in state 0, less than a word of zeros left.
    __device__ __forceinline__ bool finished(const uint32_t* words, uint32_t n_words) const {
        uint32_t left = damaged;
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) left |= states[lane];
        const uint32_t unread = 32u * n_words - bits.n_read;
        if (left != 0 || bits.n_read > 32u * n_words || unread >= 32u) return false;
        return unread == 0 || words[n_words - 1] << (32u - unread) == 0;
    }
};

// Copies the tables of `n_contexts` contexts to shared memory and waits for them.
__device__ __forceinline__ void load_tables(uint32_t* shared, const uint32_t* tables, uint32_t n_contexts) {
    for (uint32_t i = threadIdx.x; i < n_contexts * kTableLen; i += blockDim.x) shared[i] = tables[i];
    __syncthreads();
}

}  // namespace ans

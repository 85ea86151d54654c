// Caches under the bit-shift trellis: pages, and how a warp reads half of one.
//
// A vector is a circular string of B bits, MSB first. Step p appends k[p] bits, ends at bit end[p] and gives dimensions 2 p and 2 p + 1: the table's entry
// of the last L bits, times the scale of the vector. 64 vectors of a head make a page: 64 bytes of scales; word w of all vectors, for w in 0 .. B / 32;
// then what is left of each vector, 1 to 3 bytes. A byte b stands for 2^((b - 129) / 8), 0 for 0.
//
// Half a page in shared memory, a *slot*: 32 bytes of scales, 96 for what is left, then rows of words STRIDE words apart: row 0 is the last 32 bits of the
// string, row w + 1 word w, the last one what is left. So the 32 bits ahead of any bit e are in rows e / 32 and the next.
//
// A *group* is two consecutive steps, whose windows fit in one 32-bit word: one funnel shift of two words for the group, one shift for the first step.
// Which words and shifts these are follows from the ends of steps, in registers; patterns of bits may be any.
//
// Look-up. The table has a copy in every bank, entry e of bank b at 128 e + 4 b. The multiplier is A 2^(17 - L), so that the entry is in bits 7 to 16 of the
// product whatever lies above bit L of the window.
#pragma once

#include <cstdint>

#include "copy.cuh"

namespace kv {

constexpr unsigned kPageRows = 64;
constexpr unsigned kTableAt = 1024;
constexpr unsigned kTableBytes = 1024 * 128;
constexpr float kLogStep = 0.125f, kLogFirst = -129 * kLogStep;
constexpr unsigned kSlotHead = 128;
constexpr unsigned kKeyStride = 40, kValueStride = 48;  // Words: four, or two, consecutive rows of words meet no bank twice.

// Strings of one role.
struct Strings {
    unsigned words, left;  // Whole words, and bytes beyond them.
    unsigned page_bytes;
    __device__ __forceinline__ explicit Strings(unsigned bits) : words(bits / 32), left(bits / 8 % 4), page_bytes(kPageRows * (1 + bits / 8)) {}
};

__device__ __forceinline__ uint32_t look_up(uint32_t window, uint32_t multiplier, uint32_t at) {
    uint32_t address, entry;
    const uint32_t product = window * multiplier;
    asm("lop3.b32 %0, %1, 0x1ff80, %2, 0xea;" : "=r"(address) : "r"(product), "r"(at));
    static_assert(kTableAt == 1024);
    asm("ld.shared.b32 %0, [%1+1024];" : "=r"(entry) : "r"(address));
    return entry;
}

// Shared memory from the table on; the block has 1024 bytes to spare.
__device__ __forceinline__ uint8_t* shared_from_table(uint8_t* dynamic) {
    const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic));
    if (base > kTableAt) __trap();
    return dynamic + (kTableAt - base);
}

template <int THREADS>
__device__ __forceinline__ void fill_table(uint8_t* shared, const uint32_t* table) {
    uint4* out = reinterpret_cast<uint4*>(shared);
#pragma unroll 8
    for (unsigned i = threadIdx.x; i < 8192; i += THREADS) {
        const uint32_t v = __ldg(table + i / 8);
        out[i] = make_uint4(v, v, v, v);
    }
}

// Starts copies of half `item % 2` of page `item / 2`.
template <int STRIDE>
__device__ __forceinline__ void load_slot(uint32_t slot, const uint8_t* pages, const Strings& x, unsigned item, unsigned lane) {
    const uint8_t* page = pages + static_cast<size_t>(item / 2) * x.page_bytes;
    const unsigned half = item % 2, wrap = x.left == 0 ? 8 : 0, n = wrap + 8 * x.words;
    const uint8_t* words = page + kPageRows + 128 * half + 16 * (lane & 7);
    const uint32_t to = slot + kSlotHead + 16 * (lane & 7);
    for (unsigned i = lane; i < n; i += 32) {
        // Without anything left, row 0 is the last word.
        const unsigned row = i / 8 + 1 - wrap / 8, w = row == 0 ? x.words - 1 : row - 1;
        gosset::copy_16(to + 4 * STRIDE * row, reinterpret_cast<const uint4*>(words + 256 * w));
    }
    if (lane < 2 + 2 * x.left) {
        const uint8_t* from = lane < 2 ? page + 32 * half + 16 * lane : page + kPageRows + 256 * x.words + 32 * x.left * half + 16 * (lane - 2);
        gosset::copy_16(slot + (lane < 2 ? 16 * lane : 32 + 16 * (lane - 2)), reinterpret_cast<const uint4*>(from));
    }
}

// What is left of a string becomes a word, and the last 32 bits row 0. Whole warp, copies have come.
template <int STRIDE>
__device__ __forceinline__ void join_left(uint8_t* slot, const Strings& x, unsigned lane) {
    if (x.left == 0) return;
    uint32_t left = 0;
    for (unsigned i = 0; i < x.left; ++i) left = left << 8 | slot[32 + lane * x.left + i];
    uint32_t* rows = reinterpret_cast<uint32_t*>(slot + kSlotHead) + lane;
    rows[STRIDE * (x.words + 1)] = left << (32 - 8 * x.left);
    rows[0] = rows[STRIDE * x.words] << (8 * x.left) | left;
    __syncwarp();
}

// A group as one lane reads it: where its words are, and how far the first window is from the end.
template <int STRIDE>
struct Group {
    uint32_t at, turn, down;

    // `first` is the first step; `chunk`: the four positions, as bytes.
    __device__ __forceinline__ void set(const uint16_t* ends, unsigned first, uint32_t chunk) {
        const unsigned end = ends[first + 1];
        at = kSlotHead + end / 32 * (4 * STRIDE) + chunk;
        turn = end;
        down = end - ends[first];
    }

    // Steps of four positions to pairs: c[position][OFFSET] and the next.
    template <int OFFSET>
    __device__ __forceinline__ void decode(uint32_t (&c)[4][4], uint32_t slot, uint32_t multiplier, uint32_t copy) const {
        const uint4 a = gosset::load_shared(slot + at), b = gosset::load_shared(slot + at + 4 * STRIDE);
        const uint32_t hi[4] = {a.x, a.y, a.z, a.w}, lo[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const uint32_t x = __funnelshift_l(lo[r], hi[r], turn);
            c[r][OFFSET] = look_up(__funnelshift_r(x, 0, down), multiplier, copy);
            c[r][OFFSET + 1] = look_up(x, multiplier, copy);
        }
    }
};

// A set of four steps: two groups.
template <int STRIDE>
struct Set {
    Group<STRIDE> group[2];

    __device__ __forceinline__ void set(const uint16_t* ends, unsigned first, uint32_t chunk) {
        group[0].set(ends, first, chunk);
        group[1].set(ends, first + 2, chunk);
    }
    __device__ __forceinline__ void decode(uint32_t (&c)[4][4], uint32_t slot, uint32_t multiplier, uint32_t copy) const {
        group[0].template decode<0>(c, slot, multiplier, copy);
        group[1].template decode<2>(c, slot, multiplier, copy);
    }
};

}  // namespace kv

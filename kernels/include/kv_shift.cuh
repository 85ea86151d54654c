// Caches under the bit-shift trellis: pages, and how a warp reads half of one.
//
// A vector is a circular string of B bits, MSB first. Step p appends k[p] bits, ends at bit end[p] and gives dimensions 2 p and 2 p + 1: the table's entry
// of the last L bits, times the scale of the vector. 64 vectors of a head make a page: 64 bytes of scales; word w of all vectors, for w in 0 .. B / 32;
// then what is left of each vector, 1 to 3 bytes. A byte b stands for 2^((b - 129) / 8), 0 for 0.
//
// Half a page in shared memory, a *slot*: rows of 128 bytes. Row 0 has 32 bytes of scales and 96 for what is left, row 1 the last 32 bits of the strings, row
// w + 2 their word w, the last one what is left. So the 32 bits ahead of any bit e are in rows e / 32 + 1 and the next. Pieces of 16 bytes, four positions,
// change places from row to row, so that the reads of a warp meet no bank twice: piece c of row r is at c ^ 2 (r % 4) for keys, of which a warp reads rows of four
// neighbouring sets at once, and at c ^ 4 (r % 2) for values, of which it reads two.
//
// A *set* is four consecutive steps: all their windows are in the 64 bits ahead of the last end, which two funnel shifts take out of three words; each step but
// the last takes one shift more. Where sets are is in shared memory, per role; patterns of bits may be any.
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

// Shared memory from the table on, at an address that the compiler knows; the block has 1024 bytes to spare.
__device__ __forceinline__ uint8_t* shared_from_table(const uint8_t* dynamic) {
    if (static_cast<uint32_t>(__cvta_generic_to_shared(dynamic)) > kTableAt) __trap();
    return static_cast<uint8_t*>(__cvta_shared_to_generic(kTableAt));
}

// What a thread has of the table: loaded early, and put to shared memory once other loads are on their way.
template <int THREADS>
struct TablePart {
    static constexpr unsigned kOwn = (8192 + THREADS - 1) / THREADS;
    uint32_t v[kOwn];

    __device__ __forceinline__ void load(const uint32_t* table) {
#pragma unroll
        for (unsigned i = 0; i < kOwn; ++i) v[i] = __ldg(table + min(threadIdx.x + i * THREADS, 8191u) / 8);
    }
    __device__ __forceinline__ void store(uint8_t* shared) const {
#pragma unroll
        for (unsigned i = 0; i < kOwn; ++i) {
            const unsigned at = threadIdx.x + i * THREADS;
            if (at < 8192) reinterpret_cast<uint4*>(shared)[at] = make_uint4(v[i], v[i], v[i], v[i]);
        }
    }
};

__device__ __forceinline__ unsigned slot_bytes(const Strings& x) { return 128 * (x.words + 3); }

// What a place in a row changes by, over 16 bytes.
template <bool VALUES>
__device__ __forceinline__ constexpr unsigned turned(unsigned row) {
    return VALUES ? (row & 1) << 2 : (row & 3) << 1;
}

// Where a lane copies its first words to. Eight lanes have a row of words, 16 bytes each; the warp has four rows at once.
template <bool VALUES>
__device__ __forceinline__ uint32_t first_piece(uint32_t slot, unsigned lane) {
    const unsigned row = (lane >> 3) + 2;
    return slot + 128 * row + 16 * ((lane & 7) ^ turned<VALUES>(row));
}

// Starts copies of half `item % 2` of page `item / 2`, of strings of 32 WORDS + 31 bits at most.
template <bool VALUES, unsigned WORDS>
__device__ __forceinline__ void load_slot(uint32_t slot, uint32_t to, const uint8_t* pages, const Strings& x, unsigned item, unsigned lane) {
    const uint8_t* page = pages + static_cast<size_t>(item / 2) * x.page_bytes;
    const unsigned half = item % 2, c = lane & 7;
    const uint8_t* from = page + kPageRows + 128 * half + 16 * c + 256 * (lane >> 3);
#pragma unroll
    for (unsigned i = 0; i < (WORDS + 3) / 4; ++i) {
        if (4 * i + (lane >> 3) < x.words) gosset::copy_16(to + 512 * i, reinterpret_cast<const uint4*>(from + 1024 * i));
    }
    const uint8_t* rest = page + kPageRows + 256 * x.words + 32 * x.left * half;
    if (lane < 2) {
        gosset::copy_16(slot + 16 * lane, reinterpret_cast<const uint4*>(page + 32 * half + 16 * lane));
    } else if (lane < 2 + 2 * x.left) {
        gosset::copy_16(slot + 16 * lane, reinterpret_cast<const uint4*>(rest + 16 * lane - 32));
    } else if (x.left == 0 && lane >= 8 && lane < 16) {
        // Without anything left, row 1 is the last word.
        gosset::copy_16(slot + 128 + 16 * (c ^ turned<VALUES>(1)), reinterpret_cast<const uint4*>(rest + 128 * half - 256 + 16 * c));
    }
}

// What is left of a string becomes a word, and the last 32 bits row 1. Whole warp, copies have come.
template <bool VALUES>
__device__ __forceinline__ void join_left(uint32_t slot, const Strings& x, unsigned lane) {
    if (x.left == 0) return;
    uint32_t left = 0;
#pragma unroll
    for (unsigned i = 0; i < 3; ++i) left |= (i < x.left ? gosset::load_shared_byte(slot + 32 + lane * x.left + i) : 0) << (24 - 8 * i);
    auto at = [&](unsigned row) { return slot + 128 * row + 16 * ((lane >> 2) ^ turned<VALUES>(row)) + 4 * (lane & 3); };
    gosset::store_shared(at(x.words + 2), left);
    gosset::store_shared(at(1), __funnelshift_l(left, gosset::load_shared_1(at(x.words + 1)), 8 * x.left));
    __syncwarp();
}

// Where a set whose steps end at `ends` is: in x, y, z the three rows, in w the last end, and how far ahead of it the others are, a byte each.
template <bool VALUES>
__device__ __forceinline__ uint4 place_of(const uint16_t* ends) {
    const uint2 e = __ldg(reinterpret_cast<const uint2*>(ends));
    const unsigned end[4] = {e.x & 0xffff, e.x >> 16, e.y & 0xffff, e.y >> 16}, row = end[3] / 32;
    auto at = [](unsigned r) { return 128 * r + 16 * turned<VALUES>(r); };
    return make_uint4(at(row), at(row + 1), at(row + 2), end[3] % 32 | (end[3] - end[0]) << 8 | (end[3] - end[1]) << 16 | (end[3] - end[2]) << 24);
}

// Steps of four positions to pairs: c[position][step]. `piece`: the four positions, as bytes.
__device__ __forceinline__ void decode(uint32_t (&c)[4][4], uint32_t slot, uint32_t piece, const uint4& place, uint32_t multiplier, uint32_t copy) {
    const uint4 a = gosset::load_shared(slot + (place.x ^ piece)), b = gosset::load_shared(slot + (place.y ^ piece)), e = gosset::load_shared(slot + (place.z ^ piece));
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w}, z[4] = {e.x, e.y, e.z, e.w};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const uint32_t low = __funnelshift_l(z[r], y[r], place.w), high = __funnelshift_l(y[r], x[r], place.w);
#pragma unroll
        for (int i = 0; i < 3; ++i) c[r][i] = look_up(__funnelshift_r(low, high, place.w >> (8 * i + 8)), multiplier, copy);
        c[r][3] = look_up(low, multiplier, copy);
    }
}

}  // namespace kv

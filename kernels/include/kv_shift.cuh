// Caches under the bit-shift trellis: pages, and how a warp reads half of one.
//
// A vector is a circular string of B bits, MSB first. Step p appends k[p] bits, ends at bit end[p] and gives dimensions 2 p and 2 p + 1: the table's entry
// of the last L bits, times the scale of the vector. 64 vectors of a head make a page: 64 bytes of scales; word w of all vectors, for w in 0 .. B / 32;
// then what is left of each vector, 1 to 3 bytes. A byte b stands for 2^((b - 129) / 8), 0 for 0.
//
// Half a page in shared memory, a *slot*: 32 bytes of scales, 96 for what is left, then rows of words STRIDE words apart: row 0 is the last 32 bits of the
// string, row w + 1 word w, the last one what is left. So the 32 bits ahead of any bit e are in rows e / 32 and the next.
//
// A *set* is four consecutive steps. Where their windows fit in one 32-bit word, for all lanes of a warp, one funnel shift of two words serves all four and
// each step but the last takes one shift more; else that goes for either half of the set. Which words and shifts these are follows from the ends of steps, in
// registers; patterns of bits may be any.
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

// Starts copies of half `item % 2` of page `item / 2`.
template <int STRIDE>
__device__ __forceinline__ void load_slot(uint32_t slot, const uint8_t* pages, const Strings& x, unsigned item, unsigned lane) {
    const uint8_t* page = pages + static_cast<size_t>(item / 2) * x.page_bytes;
    const unsigned half = item % 2;
    // Eight lanes have a row of words, 16 bytes each; the warp has four rows at once.
    const uint8_t* from = page + kPageRows + 128 * half + 16 * (lane & 7) + 256 * (lane >> 3);
    uint32_t to = slot + kSlotHead + 16 * (lane & 7) + 4 * STRIDE * ((lane >> 3) + 1);
    for (int rows = static_cast<int>(x.words) - static_cast<int>(lane >> 3); rows > 0; rows -= 4) {
        gosset::copy_16(to, reinterpret_cast<const uint4*>(from));
        from += 1024;
        to += 16 * STRIDE;
    }
    const uint8_t* rest = page + kPageRows + 256 * x.words + 32 * x.left * half;
    if (lane < 2) {
        gosset::copy_16(slot + 16 * lane, reinterpret_cast<const uint4*>(page + 32 * half + 16 * lane));
    } else if (lane < 2 + 2 * x.left) {
        gosset::copy_16(slot + 16 * lane, reinterpret_cast<const uint4*>(rest + 16 * lane - 32));
    } else if (x.left == 0 && lane >= 8 && lane < 16) {
        // Without anything left, row 0 is the last word.
        gosset::copy_16(slot + kSlotHead + 16 * (lane - 8), reinterpret_cast<const uint4*>(rest + 128 * half - 256 + 16 * (lane - 8)));
    }
}

// What is left of a string becomes a word, and the last 32 bits row 0. Whole warp, copies have come.
template <int STRIDE>
__device__ __forceinline__ void join_left(uint8_t* slot, const Strings& x, unsigned lane) {
    if (x.left == 0) return;
    uint32_t left = 0;
#pragma unroll
    for (unsigned i = 0; i < 3; ++i) left |= (i < x.left ? static_cast<uint32_t>(slot[32 + lane * x.left + i]) : 0) << (24 - 8 * i);
    uint32_t* rows = reinterpret_cast<uint32_t*>(slot + kSlotHead) + lane;
    rows[STRIDE * (x.words + 1)] = left;
    rows[0] = __funnelshift_l(left, rows[STRIDE * x.words], 8 * x.left);
    __syncwarp();
}

// Ends of the steps of a set.
struct Ends {
    unsigned end[4];

    __device__ __forceinline__ void load(const uint16_t* ends) {
        const uint2 x = __ldg(reinterpret_cast<const uint2*>(ends));
        end[0] = x.x & 0xffff, end[1] = x.x >> 16, end[2] = x.y & 0xffff, end[3] = x.y >> 16;
    }
    // Whether windows of `bits` bits fit in a word.
    __device__ __forceinline__ bool fit(unsigned bits) const { return end[3] - end[0] + bits <= 32; }
};

// A set as one lane reads it. `at`: the words ahead of its end, `turn`: its end. Where the windows fit, down[i]: how far step i ends from there. Else down[0]:
// the words ahead of the end of step 1, down[1]: that end, and from bit 8 how far step 0 ends from there; down[2] as before.
template <int STRIDE>
struct Set {
    uint32_t at, turn, down[3];

    // `e`: ends of the four steps; `chunk`: the four positions, as bytes; `fit`: whether the windows do, in all lanes.
    __device__ __forceinline__ void set(const Ends& e, uint32_t chunk, bool fit) {
        at = kSlotHead + e.end[3] / 32 * (4 * STRIDE) + chunk;
        turn = e.end[3];
        down[0] = fit ? e.end[3] - e.end[0] : kSlotHead + e.end[1] / 32 * (4 * STRIDE) + chunk;
        down[1] = fit ? e.end[3] - e.end[1] : e.end[1] % 32 | (e.end[1] - e.end[0]) << 8;
        down[2] = e.end[3] - e.end[2];
    }

    // Steps of four positions to pairs: c[position][step].
    __device__ __forceinline__ void decode(uint32_t (&c)[4][4], uint32_t slot, uint32_t multiplier, uint32_t copy, bool fit) const {
        const uint4 a = gosset::load_shared(slot + at), b = gosset::load_shared(slot + at + 4 * STRIDE);
        const uint32_t hi[4] = {a.x, a.y, a.z, a.w}, lo[4] = {b.x, b.y, b.z, b.w};
        if (fit) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const uint32_t x = __funnelshift_l(lo[r], hi[r], turn);
#pragma unroll
                for (int i = 0; i < 3; ++i) c[r][i] = look_up(__funnelshift_r(x, 0, down[i]), multiplier, copy);
                c[r][3] = look_up(x, multiplier, copy);
            }
        } else {
            const uint4 d = gosset::load_shared(slot + down[0]), e = gosset::load_shared(slot + down[0] + 4 * STRIDE);
            const uint32_t first_hi[4] = {d.x, d.y, d.z, d.w}, first_lo[4] = {e.x, e.y, e.z, e.w};
            const uint32_t step = down[1] >> 8;
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const uint32_t x = __funnelshift_l(first_lo[r], first_hi[r], down[1]), y = __funnelshift_l(lo[r], hi[r], turn);
                c[r][0] = look_up(__funnelshift_r(x, 0, step), multiplier, copy);
                c[r][1] = look_up(x, multiplier, copy);
                c[r][2] = look_up(__funnelshift_r(y, 0, down[2]), multiplier, copy);
                c[r][3] = look_up(y, multiplier, copy);
            }
        }
    }
};

}  // namespace kv

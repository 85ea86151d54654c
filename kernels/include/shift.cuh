// The bit-shift trellis on a device: from words to the A operand of mma.m16n8k16.
//
// Layout. A *unit* is 16 rows and 128 columns. Of its 64 k words (k bits per weight) lane l = 4 g + t of a warp has 2 k
// consecutive ones, those of 64 weights in two runs of k words:
//   tiles   run j: weights 32 g to 32 g + 31 of the tile at columns 64 j + 16 t: four consecutive lanes of the tile's own
//           order, whose history is the last word of lane l - 4 (of lane l + 28 at the start of the ring);
//   rows    run j: row g + 8 j, columns 32 t to 32 t + 31, whose history is the last word of lane l - 1; that of t = 0 is
//           kept beside the words, 16 bits per row and unit.
// The k slots of an mma may hold any columns as long as both operands agree, so lane l decodes runs instead of the places
// that the tile's order has for it, and needs one history per 32 weights. Register i of mma J holds
//   tiles   pair 4 (J % 4) + i of run J / 4: row g + 8 (i % 2), columns 64 (J / 4) + 16 t + 2 (J % 4) + 8 (i / 2) and next
//   rows    pair 2 J + i / 2 of run i % 2: row g + 8 (i % 2), columns 32 t + 4 J + 2 (i / 2) and next
// Run 0 of all lanes lies before run 1; the words of a run lie in vectors of four, then two, then one per lane, so that a
// warp reads up to 512 consecutive bytes at once, and can read each run ahead as soon as it is done with the one before.
//
// Look-up. The table has a copy in every bank: entry e of bank b at e * 128 + 4 b. With the multiplier shifted left by
// 17 - L, the index is in bits 7 to 16 of the product, whatever lies above bit L of the window: the address is one LOP3.
// Single quantiles lie in the lower half of banks 0 to 15 and in the upper half of banks 16 to 31. Lanes below 16 look the
// first weight of a pair up in their own bank and the second one in bank l + 16, the others the second one first: either
// way each half lands where the operand wants it, and one addition of halves joins them.
//
// Shared memory: the table, 128 KiB at the absolute address 1024, so that the look-up needs no addition.

#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "mma.cuh"

namespace shift {

using gosset::mma;

constexpr unsigned kTableAt = 1024;
constexpr unsigned kTableBytes = 1024 * 128;
constexpr unsigned kUnitCols = 128;
constexpr unsigned kUnitRows = 16;
constexpr unsigned kAll = 0xffffffffu;

// What the words of a matrix are.
template <
    int kBits,      // bits per weight, 2 to 6
    bool kPairs,    // a table of pairs, else of single quantiles
    bool kRows,     // strings are rows, else tiles
    bool kWide>     // states of 18 bits, else of at most 17
struct Format {
    static constexpr int bits = kBits;
    static constexpr bool pairs = kPairs, rows = kRows, wide = kWide;
    static constexpr int per_step = kBits <= 4 ? 2 : 1;
    static constexpr unsigned run_words = 32 * kBits;
    static constexpr unsigned unit_words = 64 * kBits;
    static constexpr int step_bits = kBits * per_step;
    static constexpr bool two_look_ups = !kPairs && per_step == 2;
    static_assert(kBits >= 2 && kBits <= 6 && (!kPairs || per_step == 2));
};

// What a lane looks up with.
struct Code {
    uint32_t m0, m1;    // multipliers, shifted, of its first and its second look-up
    uint32_t at0, at1;  // byte offsets of its banks
    uint32_t pick;      // one weight per step: which halves make a pair, as a selector of prmt
};

template <class F>
__device__ __forceinline__ Code make_code(uint32_t m0, uint32_t m1, unsigned lane) {
    Code c;
    const bool low = lane < 16;
    c.m0 = F::two_look_ups && !low ? m1 : m0;
    c.m1 = low ? m1 : m0;
    c.at0 = lane * 4;
    // Through a shuffle, so that the compiler does not see `at0 ^ 64` and spend an instruction on it per look-up.
    c.at1 = __shfl_xor_sync(kAll, c.at0, 16);
    c.pick = low ? 0x5410 : 0x7632;
    return c;
}

// Shared memory from the table on; the block has 1024 bytes to spare.
__device__ __forceinline__ uint8_t* shared_from_table(uint8_t* dynamic) {
    const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic));
    if (base > kTableAt) __trap();
    return dynamic + (kTableAt - base);
}

// All threads of the block fill the table.
template <class F>
__device__ __forceinline__ void fill_table(uint8_t* shared, const uint32_t* table, unsigned thread, unsigned n_threads) {
    const int up = !F::pairs && (thread & 4) ? 16 : 0;
    uint4* out = reinterpret_cast<uint4*>(shared);
    if (n_threads == 1024) {
        uint32_t v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = __ldg(table + (thread >> 3) + j * 128) << up;
#pragma unroll
        for (int j = 0; j < 8; ++j) out[thread + j * 1024] = make_uint4(v[j], v[j], v[j], v[j]);
    } else {
        for (unsigned i = thread; i < 8192; i += n_threads) {
            const uint32_t v = __ldg(table + (i >> 3)) << up;
            out[i] = make_uint4(v, v, v, v);
        }
    }
}

// The words of one run of a lane, if `on`, else they stay; `run` is the first word of the run, of all lanes.
template <class F>
__device__ __forceinline__ void load_run(uint32_t (&w)[F::bits], const uint32_t* run, unsigned lane, uint32_t on) {
    constexpr int n4 = F::bits / 4 * 4, n2 = F::bits % 4 / 2 * 2;
    if constexpr (n4 != 0) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
                     : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
                     : "l"(run + lane * 4), "r"(on));
    }
    if constexpr (n2 != 0) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p ld.global.cs.v2.u32 {%0,%1}, [%2];\n}"
                     : "+r"(w[n4]), "+r"(w[n4 + 1])
                     : "l"(run + n4 * 32 + lane * 2), "r"(on));
    }
    if constexpr (F::bits % 2 != 0) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.cs.u32 %0, [%1];\n}"
                     : "+r"(w[n4 + n2])
                     : "l"(run + (n4 + n2) * 32 + lane), "r"(on));
    }
}

// The history of a run in the lower 16 bits; `own` is what lies beside the words for t = 0 of rows, lower half for run 0.
template <class F>
__device__ __forceinline__ uint32_t history_of(uint32_t last, uint32_t own, unsigned lane) {
    if constexpr (F::rows) {
        const uint32_t prev = __shfl_up_sync(kAll, last, 1);
        return (lane & 3) ? prev : own;
    }
    // The source lane is taken modulo 32.
    return __shfl_sync(kAll, last, lane + 28);
}

// A window that ends with bit `kEnd` of a run, counted from 1; `h` is the history. The state is its lowest L bits.
template <int kEnd>
__device__ __forceinline__ uint32_t window(const uint32_t* run, uint32_t h) {
    constexpr int word = (kEnd - 1) / 32, right = 32 * (word + 1) - kEnd;
    if constexpr (right == 0) return run[word];
    return __funnelshift_r(run[word], word ? run[word - 1] : h, right);
}

template <class F>
__device__ __forceinline__ uint32_t look_up(uint32_t window, uint32_t multiplier, uint32_t at) {
    uint32_t product = window * multiplier, address, entry;
    if constexpr (F::wide) product >>= 1;
    asm("lop3.b32 %0, %1, 0x1ff80, %2, 0xea;" : "=r"(address) : "r"(product), "r"(at));
    static_assert(kTableAt == 1024);
    asm("ld.shared.b32 %0, [%1+1024];" : "=r"(entry) : "r"(address));
    return entry;
}

// Register `kI` of mma `kJ`; with `kSplit` the half that the second look-up finds is in `s`.
template <class F, int kJ, int kI, bool kSplit>
__device__ __forceinline__ uint32_t operand(
    uint32_t& s, const uint32_t (&w)[2][F::bits], const uint32_t (&h)[2], const Code& c) {
    constexpr int run = F::rows ? kI % 2 : kJ / 4;
    constexpr int pair = F::rows ? 2 * kJ + kI / 2 : 4 * (kJ % 4) + kI;
    if constexpr (F::per_step == 1) {
        const uint32_t a = look_up<F>(window<(2 * pair + 1) * F::step_bits>(w[run], h[run]), c.m0, c.at0);
        const uint32_t b = look_up<F>(window<(2 * pair + 2) * F::step_bits>(w[run], h[run]), c.m0, c.at0);
        return __byte_perm(a, b, c.pick);
    }
    const uint32_t win = window<(pair + 1) * F::step_bits>(w[run], h[run]);
    uint32_t r = look_up<F>(win, c.m0, c.at0);
    if constexpr (F::two_look_ups && kSplit) {
        s = look_up<F>(win, c.m1, c.at1);
    } else if constexpr (F::two_look_ups) {
        // On the pipe of floats, where an OR would take another turn of the integer one, which is the busiest.
        asm("add.f16x2 %0, %0, %1;" : "+r"(r) : "r"(look_up<F>(win, c.m1, c.at1)));
    }
    return r;
}

// The four registers of mma `kJ`.
template <class F, int kJ>
__device__ __forceinline__ void operands(
    uint32_t (&a)[4], const uint32_t (&w)[2][F::bits], const uint32_t (&h)[2], const Code& c) {
    uint32_t none;
    a[0] = operand<F, kJ, 0, false>(none, w, h, c);
    a[1] = operand<F, kJ, 1, false>(none, w, h, c);
    a[2] = operand<F, kJ, 2, false>(none, w, h, c);
    a[3] = operand<F, kJ, 3, false>(none, w, h, c);
}

// The first column of the pair in register `kI` of mma `kJ`, counted from that of the unit.
template <class F>
__device__ __forceinline__ unsigned column_of(int j, int i, unsigned t) {
    return F::rows ? 32 * t + 4 * j + 2 * (i >> 1) : 64 * (j >> 2) + 16 * t + 2 * (j & 3) + 8 * (i >> 1);
}

// Where the pair of columns 2 c and 2 c + 1 of a unit lies in the 64 words of the unit in the order of B: thread t has
// words 16 t to 16 t + 15, registers 0 and 1 of mma J at 2 J.
__device__ __forceinline__ unsigned b_word_of_tiles(unsigned c) {
    const unsigned j = (c >> 5) * 4 + (c & 3);
    return (c >> 3 & 3) * 16 + 2 * j + (c >> 2 & 1);
}
template <class F>
__device__ __forceinline__ unsigned b_word_of(unsigned c) {
    return F::rows ? c : b_word_of_tiles(c);
}

// acc[i] += the weights of row g + 8 i of mma `kJ` times their activations, halves of columns apart. For one activation:
// four fused multiply-adds of halves take four turns, an mma takes ten. `kJ` alternates between two pairs of sums, each of
// which adds up eight products.
template <class F, int kJ>
__device__ __forceinline__ void multiply(
    uint32_t (&acc)[4], const uint32_t (&w)[2][F::bits], const uint32_t (&h)[2], const Code& c, uint32_t b0, uint32_t b1) {
    uint32_t r[4], s[4];
    r[0] = operand<F, kJ, 0, F::two_look_ups>(s[0], w, h, c);
    r[1] = operand<F, kJ, 1, F::two_look_ups>(s[1], w, h, c);
    r[2] = operand<F, kJ, 2, F::two_look_ups>(s[2], w, h, c);
    r[3] = operand<F, kJ, 3, F::two_look_ups>(s[3], w, h, c);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        uint32_t& sum = acc[i % 2 + 2 * (kJ % 2)];
        const uint32_t b = i < 2 ? b0 : b1;
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(r[i]), "r"(b));
        if constexpr (F::two_look_ups) asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(s[i]), "r"(b));
    }
}

// d[0] and d[2] = the sums of rows g and g + 8 over lanes and halves, in f32: a product with ones.
__device__ __forceinline__ void add_up(float (&d)[4], const uint32_t (&acc)[4]) {
    constexpr uint32_t ones = 0x3c003c00;
    mma<true>(d, acc, ones, ones);
}

// Calls f with the compile-time numbers 0 to kN - 1.
template <int kJ>
struct Index {
    static constexpr int value = kJ;
};
template <int kN, int kJ = 0, class Fn>
__device__ __forceinline__ void unrolled(Fn&& f) {
    if constexpr (kJ < kN) {
        f(Index<kJ>{});
        unrolled<kN, kJ + 1>(f);
    }
}

}  // namespace shift

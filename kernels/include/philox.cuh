// Philox4x32-10 and the random streams of gosset-transform, bit for bit (crates/gosset-transform/src/philox.rs).
//
// Word i of the stream (seed, domain, index) is word i % 4 of philox4x32_10([i / 4, index lo, index hi, domain], seed).
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

namespace gosset {

// Domains of gosset_transform::Domain.
constexpr uint32_t DOMAIN_SIGNS = 0;
constexpr uint32_t DOMAIN_DITHER = 1;
constexpr uint32_t DOMAIN_ROTATION = 2;

// Four random words for a counter under a key.
__device__ __forceinline__ uint4 philox4x32_10(uint4 c, uint2 k) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint32_t hi0 = __umulhi(0xD2511F53u, c.x), lo0 = 0xD2511F53u * c.x;
        const uint32_t hi1 = __umulhi(0xCD9E8D57u, c.z), lo1 = 0xCD9E8D57u * c.z;
        c = make_uint4(hi1 ^ c.y ^ k.x, lo1, hi0 ^ c.w ^ k.y, lo0);
        k.x += 0x9E3779B9u;
        k.y += 0xBB67AE85u;
    }
    return c;
}

// Words 4 * block .. 4 * block + 3 of a stream.
__device__ __forceinline__ uint4 random_block(uint64_t seed, uint32_t domain, uint64_t index, uint32_t block) {
    return philox4x32_10(make_uint4(block, uint32_t(index), uint32_t(index >> 32), domain),
                         make_uint2(uint32_t(seed), uint32_t(seed >> 32)));
}

// The packed signs of columns 128 * block .. 128 * block + 127 of a seed: bit j % 32 of word j / 32 is column j.
// One evaluation is about 60 instructions; a table of words (gosset_transform::Signs::words) is one load.
__device__ __forceinline__ uint4 sign_block(uint64_t seed, uint32_t block) {
    return random_block(seed, DOMAIN_SIGNS, 0, block);
}

}  // namespace gosset

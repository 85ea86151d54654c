// How a product with many activations is dealt out: items are units of 256 columns of a row block, row block by row block, in order. Each of
// `n_blocks` blocks takes as many, one after the other; what a block adds up of one row block is a segment, and segments of a row block are added in order.
#pragma once

#include <cstdint>

namespace unisvq {

// Items go from `first_item(b)` to `first_item(b + 1)`.
__device__ __forceinline__ uint32_t first_item(uint32_t n_items, uint32_t n_blocks, uint32_t block) {
    return static_cast<uint32_t>(static_cast<uint64_t>(n_items) * block / n_blocks);
}

// The block that has an item: the largest whose first item is no later. No block is empty: there are at most as many as items.
__device__ __forceinline__ uint32_t owner(uint32_t n_items, uint32_t n_blocks, uint32_t item) {
    return static_cast<uint32_t>((static_cast<uint64_t>(item + 1) * n_blocks - 1) / n_items);
}

}  // namespace unisvq

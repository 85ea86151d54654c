// Lattice points and values of ANS streams (docs/FORMAT.md, section 3.3; decoded.cuh).
//
// Shapes: a sequence of rows * cols values in streams of 32768; stream s takes the words starts[s] up to starts[s + 1].
// Grid: one thread per stream, blocks of 32. Dynamic shared memory: 4096 bytes per context, at most 32 KB; static: 4224.
// p.dim: dimension of the lattice, 1, 2, 4 or 8. Damaged streams, and points too large for the output, set status[0] to the
// least number 1 + stream of them.
// Only streams run in parallel, a matrix of 14336 x 4096 has 1792 of them: made for loading, not for products.
// Caller: gosset-cuda/src/launch/ans.rs.

#include "ans.cuh"
#include "decoded.cuh"
#include "params.cuh"

namespace {

constexpr uint32_t kStreamLen = 32768;

// What the coordinates of a block decoded so far tell about the next one.
struct Block {
    uint32_t first, sum;  // First coordinate that was decoded; sum of all.
};

// Low bits of the i-th coded coordinate that the ones before determine, their number, and its context.
struct Known {
    uint32_t bits, n_bits, context;
};

__device__ __forceinline__ Known known(uint32_t dim, uint32_t i, const Block& b) {
    if (i > 0 && i == dim - 1 && dim >= 4) {
        const uint32_t rest = (0u - b.sum) & (dim == 4 ? 2u : 3u);
        return {rest, 2, dim == 4 ? 1 + (rest >> 1) : 3 + rest};
    }
    if (dim == 4) return {0, 1, 0};
    if (i == 0) return {0, 0, 0};
    return {b.first & 1u, 1, 1 + (b.first & 1u)};
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32) ans_lattice(const __grid_constant__ AnsLatticeParams p) {
    extern __shared__ uint32_t tables[];
    __shared__ int tile[32 * decoded::kStride];
    ans::load_tables(tables, p.tables, p.n_contexts);
    const ans::Escape* const escapes = reinterpret_cast<const ans::Escape*>(p.escapes);
    const uint32_t stream = blockIdx.x * 32 + threadIdx.x;
    const bool exists = stream < p.n_streams;
    const uint64_t n = static_cast<uint64_t>(p.rows) * p.cols;
    const uint64_t first = exists ? static_cast<uint64_t>(stream) * kStreamLen : n;
    const uint32_t n_values = static_cast<uint32_t>(min(n - first, static_cast<uint64_t>(kStreamLen)));
    const uint64_t start = exists ? p.starts[stream] : 0;
    const uint32_t n_words = exists ? static_cast<uint32_t>(p.starts[stream + 1] - start) : 0;
    const decoded::Target target{
        p.out, p.scales, nullptr, 0, p.cols, p.kind, p.step, p.dim == 2 ? 1.7320508f : 1.0f};

    ans::Decoder decoder;
    decoder.open(p.words, p.starts[p.n_streams], start);
    decoded::Place place;
    place.open(first, p.cols);
    int* const points = tile + threadIdx.x * decoded::kStride;
    bool fits = true;
#pragma unroll 1
    for (uint32_t at = 0; __any_sync(0xffffffffu, at < n_values); at += decoded::kTile) {
        const uint32_t n_tile = at < n_values ? min(n_values - at, decoded::kTile) : 0;
        // Four blocks at a time, one per lane of the coder; the last ones may be fewer.
#pragma unroll 1
        for (uint32_t group = 0; group < n_tile; group += ans::kLanes * p.dim) {
            const uint32_t n_lanes = min((n_tile - group + p.dim - 1) / p.dim, static_cast<uint32_t>(ans::kLanes));
            Block blocks[ans::kLanes] = {};
#pragma unroll 1
            for (uint32_t i = 0; i < p.dim; ++i) {
                // A2 codes its second coordinate first.
                const uint32_t coordinate = p.dim == 2 ? 1 - i : i;
#pragma unroll
                for (int lane = 0; lane < ans::kLanes; ++lane) {
                    if (lane < n_lanes) {
                        const Known k = known(p.dim, i, blocks[lane]);
                        uint32_t y;
                        if (p.raw_bits == 0) {
                            y = static_cast<uint32_t>(decoder.symbol(lane, k.context, tables, escapes));
                        } else {
                            const uint32_t high = decoder.symbol(lane, p.dim == 2 ? i : 0, tables, escapes);
                            y = (high << p.raw_bits) | (decoder.raw(p.raw_bits - k.n_bits) << k.n_bits) | k.bits;
                        }
                        if (i == 0) blocks[lane].first = y;
                        blocks[lane].sum += y;
                        points[group + lane * p.dim + coordinate] = static_cast<int>(y);
                    }
                }
            }
        }
        fits &= decoded::store_tile(target, tile, n_tile, place);
    }
    if (exists && (!fits || !decoder.finished(p.words + start, n_words))) atomicMin(p.status, 1u + stream);
}

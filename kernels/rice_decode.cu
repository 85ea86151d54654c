// Rice streams to lattice points, and to values in the rotated frame (decoded.cuh).
//
// Shapes: a sequence of rows * cols values, cut into streams of 512; stream s starts at bit bases[s / 64] + offsets[s].
// Grid: one thread per stream, blocks of 64. Static shared memory: 8448 bytes. p.dim: dimension of the lattice, 1, 2, 4, 8.
// Streams that do not take exactly their bits, symbols too large for the format and points too large for the output set
// status[0] to the least number 1 + stream of all of them.
// Caller: gosset-cuda/src/launch/rice.rs.

#include "decoded.cuh"
#include "params.cuh"
#include "rice.cuh"

namespace {

constexpr uint32_t kThreads = 64;

// Decodes up to 32 points, whole blocks, and returns all bits of their symbols.
template <int N>
__device__ __forceinline__ uint32_t fill(BitReader& bits, const uint32_t (&ks)[2], uint32_t n, int* points) {
    uint32_t all_bits = 0;
#pragma unroll 1
    for (uint32_t at = 0; at < n; at += N) {
        uint32_t s[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            s[i] = rice::symbol(bits, ks[rice::symbol_class<N>(i)]);
            all_bits |= s[i];
        }
        int y[N];
        rice::unstrip<N>(s, y);
#pragma unroll
        for (int i = 0; i < N; ++i) points[at + i] = y[i];
    }
    return all_bits;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(64) rice_decode(const __grid_constant__ RiceDecodeParams p) {
    __shared__ int tiles[kThreads * decoded::kStride];
    const uint32_t stream = blockIdx.x * kThreads + threadIdx.x;
    const bool exists = stream < p.n_streams;
    const uint64_t n = static_cast<uint64_t>(p.rows) * p.cols;
    const uint64_t first = exists ? static_cast<uint64_t>(stream) * rice::kStreamLen : n;
    const uint32_t n_values = static_cast<uint32_t>(min(n - first, static_cast<uint64_t>(rice::kStreamLen)));
    const decoded::Target target{
        p.out, p.scales, nullptr, 0, p.cols, p.kind, p.step, p.dim == 2 ? 1.7320508f : 1.0f};

    BitReader bits{};
    if (exists) bits.open(p.words, p.n_words, p.bases[stream / rice::kStreamsPerPage] + p.offsets[stream]);
    decoded::Place place;
    place.open(first, p.cols);
    int* const tile = tiles + (threadIdx.x & ~31u) * decoded::kStride;
    int* const points = tiles + threadIdx.x * decoded::kStride;
    uint32_t all_bits = 0;
    bool fits = true;
#pragma unroll 1
    for (uint32_t at = 0; at < rice::kStreamLen; at += decoded::kTile) {
        const uint32_t n_tile = at < n_values ? min(n_values - at, decoded::kTile) : 0;
        if (p.dim == 8) all_bits |= fill<8>(bits, p.ks, n_tile, points);
        else if (p.dim == 4) all_bits |= fill<4>(bits, p.ks, n_tile, points);
        else if (p.dim == 2) all_bits |= fill<2>(bits, p.ks, n_tile, points);
        else all_bits |= fill<1>(bits, p.ks, n_tile, points);
        fits &= decoded::store_tile(target, tile, n_tile, place);
    }
    if (exists && (bits.n_read != p.lengths[stream] || all_bits >> rice::kSymbolBits || !fits)) {
        atomicMin(p.status, 1u + stream);
    }
}

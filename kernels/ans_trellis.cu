// Points and values of the entropy-coded trellis (docs/FORMAT.md, section 3.4; decoded.cuh).
//
// Shapes: a sequence of rows * cols values in streams of 16384; stream s takes the words starts[s] up to starts[s + 1].
// units [2 * reach + 1]: what the points -reach to reach stand for; points beyond stand for themselves.
// Grid: one thread per stream, blocks of 32. Dynamic shared memory: 8192 bytes, the tables of even and odd points; static:
// 4224. Damaged streams, and points too large for the output, set status[0] to the least number 1 + stream of them.
// Caller: gosset-cuda/src/launch/ans.rs.

#include "ans.cuh"
#include "decoded.cuh"
#include "params.cuh"

namespace {

constexpr uint32_t kStreamLen = 16384;

}  // namespace

extern "C" __global__ void __launch_bounds__(32) ans_trellis(const __grid_constant__ AnsTrellisParams p) {
    extern __shared__ uint32_t tables[];
    __shared__ int tile[32 * decoded::kStride];
    ans::load_tables(tables, p.tables, 2);
    const ans::Escape* const escapes = reinterpret_cast<const ans::Escape*>(p.escapes);
    const uint32_t stream = blockIdx.x * 32 + threadIdx.x;
    const bool exists = stream < p.n_streams;
    const uint64_t n = static_cast<uint64_t>(p.rows) * p.cols;
    const uint64_t first = exists ? static_cast<uint64_t>(stream) * kStreamLen : n;
    const uint32_t n_values = static_cast<uint32_t>(min(n - first, static_cast<uint64_t>(kStreamLen)));
    const uint64_t start = exists ? p.starts[stream] : 0;
    const uint32_t n_words = exists ? static_cast<uint32_t>(p.starts[stream + 1] - start) : 0;
    const decoded::Target target{p.out, p.scales, p.units, p.reach, p.cols, p.kind, p.step, 1.0f};

    ans::Decoder decoder;
    decoder.open(p.words, p.starts[p.n_streams], start);
    decoded::Place place;
    place.open(first, p.cols);
    int* const points = tile + threadIdx.x * decoded::kStride;
    bool fits = true;
    uint64_t states = 0;  // Of the 8 paths, a byte each; that of the next value is the lowest.
    // Classes of even points are centred on zero.
    const uint32_t bias = p.raw_bits == 0 ? 0 : 1u << (p.raw_bits - 1);
#pragma unroll 1
    for (uint32_t at = 0; __any_sync(0xffffffffu, at < n_values); at += decoded::kTile) {
        const uint32_t n_tile = at < n_values ? min(n_values - at, decoded::kTile) : 0;
#pragma unroll 1
        for (uint32_t i = 0; i < n_tile; i += ans::kLanes) {
#pragma unroll
            for (int lane = 0; lane < ans::kLanes; ++lane) {
                if (i + lane < n_tile) {
                    const uint32_t state = static_cast<uint32_t>(states) & 255u, odd = state & 1u;
                    const int coded = decoder.symbol(lane, odd, tables, escapes);
                    const uint32_t raw = decoder.raw(p.raw_bits);
                    const uint32_t j = (static_cast<uint32_t>(coded >> 1) << p.raw_bits) + raw - (odd ? 0u : bias);
                    const uint32_t next = (state >> 1) ^ (odd ? p.taps[0] : 0u) ^ (j & 1u ? p.taps[1] : 0u);
                    states = (states >> 8) | (static_cast<uint64_t>(next) << 56);
                    points[i + lane] = static_cast<int>(2 * j + odd);
                }
            }
        }
        fits &= decoded::store_tile(target, tile, n_tile, place);
    }
    if (exists && (!fits || !decoder.finished(p.words + start, n_words))) atomicMin(p.status, 1u + stream);
}

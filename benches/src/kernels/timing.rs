//! Times on the device: graphs over rotated copies, medians of many replays.

use gosset_cuda::{CudaError, Event, Gpu, Graph, Stream, StreamRef};

/// Bytes that rotated copies take together at least: four times the L2 of an H200, so that weights are never in it.
const COLD_BYTES: usize = 200 << 20;
/// Least number of copies.
const MIN_COPIES: usize = 4;
/// Least number of operations in a graph, so that its start is a small part.
const MIN_OPS: usize = 48;
/// Layers of a graph of successive layers.
pub(super) const LAYERS: usize = 8;
/// Replays before the first that counts.
const WARM_UP: usize = 3;
/// Microseconds that all replays of a graph may take together, unless they would be fewer than `MIN_REPLAYS`.
const BUDGET_US: f64 = 80e3;
/// Replays that are always made.
const MIN_REPLAYS: usize = 7;

/// How times are taken, in words.
pub(super) const METHOD: &str = "a CUDA graph of at least 48 operations over at least 4 copies of the matrix that take \
    more than 200 MiB together; time between events around each replay over the number of operations; median of the \
    replays; layers: graphs of 8 successive layers with different matrices, replayed in rotation";

/// Copies of a matrix of so many bytes.
pub(super) fn copies(bytes: usize) -> usize {
    COLD_BYTES.div_ceil(bytes.max(1)).clamp(MIN_COPIES, 512)
}

/// The times of one operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timing {
    /// Microseconds, the median.
    pub(super) us: f64,
    /// Microseconds of the fastest replay.
    pub(super) us_min: f64,
}

impl Timing {
    /// Of an operation that was checked only.
    pub(super) const NONE: Timing = Timing { us: 0.0, us_min: 0.0 };

    /// The median of the times of replays of `n_ops` operations.
    pub(super) fn of(mut us: Vec<f64>, n_ops: usize) -> Self {
        us.sort_by(f64::total_cmp);
        Timing { us: us[us.len() / 2] / n_ops as f64, us_min: us[0] / n_ops as f64 }
    }
}

/// Time of one operation: `enqueue` puts the one with the given copy into the stream.
pub(super) fn rotated(
    gpu: &Gpu,
    stream: &Stream,
    copies: usize,
    replays: usize,
    enqueue: impl FnMut(StreamRef<'_>, usize) -> Result<(), CudaError>,
) -> Result<Timing, CudaError> {
    in_one_graph(gpu, stream, copies, copies * MIN_OPS.div_ceil(copies), replays, enqueue)
}

/// The same for operations that take so long that the start of a graph is nothing: one per copy in a graph.
pub(super) fn rotated_few(
    gpu: &Gpu,
    stream: &Stream,
    copies: usize,
    replays: usize,
    enqueue: impl FnMut(StreamRef<'_>, usize) -> Result<(), CudaError>,
) -> Result<Timing, CudaError> {
    in_one_graph(gpu, stream, copies, copies, replays, enqueue)
}

fn in_one_graph(
    gpu: &Gpu,
    stream: &Stream,
    copies: usize,
    n_ops: usize,
    replays: usize,
    mut enqueue: impl FnMut(StreamRef<'_>, usize) -> Result<(), CudaError>,
) -> Result<Timing, CudaError> {
    let graph = Graph::capture(stream, |stream| (0..n_ops).try_for_each(|i| enqueue(stream, i % copies)))?;
    Ok(Timing::of(replay(gpu, stream, &[graph], replays)?, n_ops))
}

/// Time of one of eight successive layers: `enqueue` puts the layer with the given copy and place in the graph into the
/// stream. There is a graph for each eight copies.
pub(super) fn layered(
    gpu: &Gpu,
    stream: &Stream,
    copies: usize,
    replays: usize,
    mut enqueue: impl FnMut(StreamRef<'_>, usize, usize) -> Result<(), CudaError>,
) -> Result<Timing, CudaError> {
    let graphs = (0..(copies / LAYERS).max(1)).map(|g| {
        Graph::capture(stream, |stream| {
            (0..LAYERS).try_for_each(|layer| enqueue(stream, (g * LAYERS + layer) % copies, layer))
        })
    });
    let graphs: Vec<Graph> = graphs.collect::<Result<_, _>>()?;
    let replays = replays.max(graphs.len());
    Ok(Timing::of(replay(gpu, stream, &graphs, replays)?, LAYERS))
}

/// Microseconds of each replay, the graphs in turn.
fn replay(gpu: &Gpu, stream: &Stream, graphs: &[Graph], replays: usize) -> Result<Vec<f64>, CudaError> {
    let turn = |i: usize| graphs[i % graphs.len()].launch(stream.as_ref());
    let n_warm = WARM_UP.max(graphs.len());
    let (start, end) = (Event::new(gpu)?, Event::new(gpu)?);
    start.record(stream.as_ref())?;
    (0..n_warm).try_for_each(turn)?;
    end.record(stream.as_ref())?;
    stream.synchronize()?;
    let fit = BUDGET_US * n_warm as f64 / end.elapsed_us(&start)?.max(1.0);
    let replays = replays.min((fit as usize).max(MIN_REPLAYS));
    let events = (0..2 * replays).map(|_| Event::new(gpu)).collect::<Result<Vec<_>, _>>()?;
    for (i, pair) in events.chunks_exact(2).enumerate() {
        pair[0].record(stream.as_ref())?;
        turn(i)?;
        pair[1].record(stream.as_ref())?;
    }
    stream.synchronize()?;
    events.chunks_exact(2).map(|pair| pair[1].elapsed_us(&pair[0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_never_fit_the_cache() {
        for bytes in [1usize, 4 << 20, 30 << 20, 117 << 20, 1 << 30] {
            let n = copies(bytes);
            assert!(n >= MIN_COPIES && (n == 512 || n * bytes >= COLD_BYTES), "{bytes}: {n}");
        }
    }

    #[test]
    fn the_median_is_per_operation() {
        assert_eq!(Timing::of(vec![30.0, 10.0, 20.0], 10), Timing { us: 2.0, us_min: 1.0 });
    }
}

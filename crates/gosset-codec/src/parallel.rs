//! Work split over threads where the `rayon` feature is on, in order and on one thread where it is off.
//!
//! Every caller combines results by index or by integer sums, so the number of threads never shows in the output.

#[cfg(feature = "rayon")]
use rayon::prelude::*;

/// Results of `f` on `0..n`, in order.
pub(crate) fn map_indexed<T: Send>(n: usize, f: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
    #[cfg(feature = "rayon")]
    return (0..n).into_par_iter().map(f).collect();
    #[cfg(not(feature = "rayon"))]
    return (0..n).map(f).collect();
}

/// Results of `f` on the consecutive chunks of `chunk_len` elements of `data` and their indices, in order.
pub(crate) fn map_chunks_mut<E: Send, T: Send>(
    data: &mut [E],
    chunk_len: usize,
    f: impl Fn(usize, &mut [E]) -> T + Sync + Send,
) -> Vec<T> {
    #[cfg(feature = "rayon")]
    return data.par_chunks_mut(chunk_len).enumerate().map(|(i, chunk)| f(i, chunk)).collect();
    #[cfg(not(feature = "rayon"))]
    return data.chunks_mut(chunk_len).enumerate().map(|(i, chunk)| f(i, chunk)).collect();
}

/// Results of `f` on the consecutive chunks of `chunk_len` elements of `data`, their indices and a scratch that whoever
/// comes next uses again, in order.
pub(crate) fn map_chunks_mut_with<S: Send, E: Send, T: Send>(
    data: &mut [E],
    chunk_len: usize,
    scratch: impl Fn() -> S + Sync + Send,
    f: impl Fn(&mut S, usize, &mut [E]) -> T + Sync + Send,
) -> Vec<T> {
    #[cfg(feature = "rayon")]
    return data
        .par_chunks_mut(chunk_len)
        .enumerate()
        .map_init(scratch, |scratch, (i, chunk)| f(scratch, i, chunk))
        .collect();
    #[cfg(not(feature = "rayon"))]
    {
        let mut scratch = scratch();
        data.chunks_mut(chunk_len).enumerate().map(|(i, chunk)| f(&mut scratch, i, chunk)).collect()
    }
}

/// Adds `f` of each of `0..n` to accumulators and merges those; `f` and `merge` must be insensitive to order.
pub(crate) fn accumulate<A: Send>(
    n: usize,
    empty: impl Fn() -> A + Sync + Send,
    f: impl Fn(&mut A, usize) + Sync + Send,
    merge: impl Fn(&mut A, A) + Sync + Send,
) -> A {
    #[cfg(feature = "rayon")]
    {
        let fold = |mut acc, i| {
            f(&mut acc, i);
            acc
        };
        let reduce = |mut a, b| {
            merge(&mut a, b);
            a
        };
        (0..n).into_par_iter().fold(&empty, fold).reduce(&empty, reduce)
    }
    #[cfg(not(feature = "rayon"))]
    {
        let _ = merge;
        let mut acc = empty();
        (0..n).for_each(|i| f(&mut acc, i));
        acc
    }
}

//! Work split over threads where the `rayon` feature is on, in order and on one thread where it is off.
//!
//! Outputs are split, never sums: chunks have fixed lengths, so that the number of threads shows nowhere in the results.

#[cfg(feature = "rayon")]
use rayon::prelude::*;

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

/// Results of `f` on `0..n`, in order.
pub(crate) fn map_indexed<T: Send>(n: usize, f: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
    #[cfg(feature = "rayon")]
    return (0..n).into_par_iter().map(f).collect();
    #[cfg(not(feature = "rayon"))]
    return (0..n).map(f).collect();
}

/// Results of `f` on `items`, in order.
pub(crate) fn map_items<I: Send, T: Send>(items: Vec<I>, f: impl Fn(I) -> T + Sync + Send) -> Vec<T> {
    #[cfg(feature = "rayon")]
    return items.into_par_iter().map(f).collect();
    #[cfg(not(feature = "rayon"))]
    return items.into_iter().map(f).collect();
}

//! Graphs: launches captured once, replayed by one call.

use cudarc::driver::{result, sys};

use crate::error::CudaError;
use crate::gpu::Gpu;
use crate::stream::{Stream, StreamRef};

/// Captured launches. The memory that they name must live as long as the graph is launched.
#[derive(Debug)]
pub struct Graph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    gpu: Gpu,
}

// SAFETY: handles of graphs may be used from any thread, one at a time; `launch` takes the stream's order.
unsafe impl Send for Graph {}

impl Graph {
    /// What `work` launches into `stream`, not run but recorded.
    ///
    /// Whatever happens, the stream is out of capture mode afterwards, so that plain launches work.
    ///
    /// # Errors
    /// That of `work`, or [`CudaError::Driver`] for work that cannot be captured, such as allocation.
    pub fn capture(
        stream: &Stream,
        work: impl FnOnce(StreamRef<'_>) -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        let gpu = stream.gpu().clone();
        gpu.bind()?;
        let raw = stream.as_ref();
        let capturing = Gpu::capturing();
        // SAFETY: the stream is live. Relaxed mode of other threads is untouched: only this thread is watched.
        unsafe {
            result::stream::begin_capture(raw.cu(), sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        }
        .map_err(|error| CudaError::driver("cuStreamBeginCapture", error))?;
        let done = work(raw);
        // SAFETY: the stream is live and capturing, or its capture was invalidated, which this call ends too.
        let graph = unsafe { result::stream::end_capture(raw.cu()) };
        drop(capturing);
        let graph = match (done, graph) {
            (Ok(()), Ok(graph)) => graph,
            (Err(error), Ok(graph)) => {
                // SAFETY: a graph that the driver gave out, destroyed once.
                let _ = unsafe { result::graph::destroy(graph) };
                return Err(error);
            }
            (Err(error), Err(_)) => return Err(error),
            (Ok(()), Err(error)) => return Err(CudaError::driver("cuStreamEndCapture", error)),
        };
        // SAFETY: `graph` is live.
        match unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) } {
            Ok(exec) => Ok(Self { graph, exec, gpu }),
            Err(error) => {
                // SAFETY: a graph that the driver gave out, destroyed once.
                let _ = unsafe { result::graph::destroy(graph) };
                Err(CudaError::driver("cuGraphInstantiate", error))
            }
        }
    }

    /// Runs what was captured.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn launch(&self, stream: StreamRef<'_>) -> Result<(), CudaError> {
        self.gpu.bind()?;
        // SAFETY: both handles are live.
        unsafe { result::graph::launch(self.exec, stream.cu()) }
            .map_err(|error| CudaError::driver("cuGraphLaunch", error))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: both were created by `capture`, and are destroyed once.
            unsafe {
                let _ = result::graph::exec_destroy(self.exec);
                let _ = result::graph::destroy(self.graph);
            }
        }
    }
}

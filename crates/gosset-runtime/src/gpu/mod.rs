//! Models on a CUDA device. The driver is found at run time; nothing else of CUDA is needed.
//!
//! A [`LanguageModel`](crate::LanguageModel) loaded with [`Device::Gpu`] keeps its weights on the device, coded
//! ones in their coded form, and does everything that it does on the processor.
//!
//! ```no_run
//! use gosset_container::Container;
//! use gosset_runtime::gpu::{self, GpuOptions, OpenOptions};
//! use gosset_runtime::{LanguageModel, LoadOptions};
//!
//! let gpu = gpu::open(0, &OpenOptions::default())?;
//! let device = gpu::device(gpu, GpuOptions::default());
//! let container = Container::open("model.gosset".as_ref())?;
//! let model = LanguageModel::from_container(container, &LoadOptions { device, ..LoadOptions::default() })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decoder;
mod kernels;
mod kv_plan;
mod kv_state;
mod ledger;
mod linear;
mod random;
mod state;
mod watcher;

pub use gosset_cuda::{CudaError, Gpu, GpuInfo, OpenOptions, device_names};

pub use random::{DeviceMemory, RandomModel, RandomWeights};

use crate::error::RuntimeError;
use crate::language_model::Device;

pub(crate) use decoder::GpuDecoder;
pub(crate) use kv_plan::KvPlan;
#[cfg(feature = "cuda")]
pub(crate) use linear::{DeviceLinear, Needs, Workspace};
pub(crate) use state::State;

/// Type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CacheType {
    /// Half precision.
    #[default]
    F16,
    /// Single precision, as on the processor.
    F32,
}

/// Type of weights that are not coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DenseType {
    /// BF16 stays BF16, everything else becomes F16.
    #[default]
    Source,
    /// Single precision, as on the processor.
    F32,
}

/// How a model is held on a device.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Positions that each cache has room for from the start; `None`: 4096, or the model's context if that is shorter.
    pub context: Option<usize>,
    /// Type of keys and values.
    pub cache: CacheType,
    /// Type of weights that are not coded.
    pub dense: DenseType,
    /// Whether a step is captured as a CUDA graph.
    pub graph: bool,
    /// Makes capturing fail, for tests of what happens then.
    #[doc(hidden)]
    pub break_capture: bool,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { context: None, cache: CacheType::F16, dense: DenseType::Source, graph: true, break_capture: false }
    }
}

impl GpuOptions {
    /// Everything in single precision, for comparison with the processor.
    #[must_use]
    pub fn exact() -> Self {
        Self { cache: CacheType::F32, dense: DenseType::F32, ..Self::default() }
    }

    /// With room for this many positions in each cache.
    #[must_use]
    pub fn context(mut self, positions: usize) -> Self {
        self.context = Some(positions);
        self
    }

    /// With or without CUDA graphs.
    #[must_use]
    pub fn graph(mut self, graph: bool) -> Self {
        self.graph = graph;
        self
    }
}

/// A device and how models are held on it.
#[derive(Debug, Clone)]
pub struct GpuDevice {
    pub(crate) gpu: Gpu,
    pub(crate) options: GpuOptions,
}

impl GpuDevice {
    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// How models are held.
    pub fn options(&self) -> &GpuOptions {
        &self.options
    }
}

/// Opens CUDA device `ordinal`; see [`Gpu::open`].
///
/// # Errors
/// [`RuntimeError::Cuda`] with what is missing and what to do.
pub fn open(ordinal: usize, options: &OpenOptions) -> Result<Gpu, RuntimeError> {
    Ok(Gpu::open(ordinal, options)?)
}

/// The device of [`LoadOptions`](crate::LoadOptions) that puts a model on `gpu`.
pub fn device(gpu: Gpu, options: GpuOptions) -> Device {
    Device::Gpu(GpuDevice { gpu, options })
}

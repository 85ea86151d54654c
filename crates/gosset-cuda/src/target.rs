//! What the crate embeds, in words: targets of the PTX and the drivers that they need.

use crate::generated::modules::Module;
use crate::kernel::cuda_of_ptx;

/// One target that the embedded kernels were built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Target {
    /// `sm_80` and the like: the lowest capability that runs it; with a final `a`, the only one.
    pub name: &'static str,
    /// CUDA version that a driver must support to load every module of it, major and minor.
    pub min_driver: (u32, u32),
    /// Modules that exist for it.
    pub n_modules: usize,
}

/// The targets that the embedded kernels were built for.
///
/// ```
/// let targets = gosset_cuda::targets();
/// assert!(targets.iter().all(|target| target.name.starts_with("sm_") && target.min_driver >= (11, 0)));
/// ```
#[must_use]
pub fn targets() -> Vec<Target> {
    let mut targets: Vec<Target> = Vec::new();
    for image in Module::ALL.iter().flat_map(|module| module.images()) {
        let min_driver = cuda_of_ptx(image.ptx_version);
        match targets.iter_mut().find(|target| target.name == image.target) {
            Some(target) => {
                target.min_driver = target.min_driver.max(min_driver);
                target.n_modules += 1;
            }
            None => targets.push(Target { name: image.target, min_driver, n_modules: 1 }),
        }
    }
    targets
}

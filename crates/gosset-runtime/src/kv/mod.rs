//! Compressed caches: the store of [`gosset_kv`] under the layers of a model.

mod bias;
mod cache;
mod device;
mod probe;
mod rotation;

pub use bias::KeyMeans;
pub(crate) use cache::CodedCache;
pub use device::kv_device_gap;
pub(crate) use probe::Seen;
pub use probe::{CHECK_TOKENS, PROBE_TOKENS};

//! What can go wrong.

/// An error of this crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// A specification that cannot be read or that no codec can meet.
    #[error("kv spec {spec:?}: {reason}")]
    Spec {
        /// The text, or the part of it that is wrong.
        spec: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A head width that a codec cannot take.
    #[error("head_dim {head_dim} does not fit {codec}: {allowed}")]
    HeadDim {
        /// The width.
        head_dim: usize,
        /// Name of the codec.
        codec: String,
        /// Which widths fit.
        allowed: &'static str,
    },
    /// A slice whose length is not what the shape asks for.
    #[error("{what} has {found} elements, expected {expected}")]
    Length {
        /// The slice.
        what: &'static str,
        /// Elements it has.
        found: usize,
        /// Elements it should have.
        expected: usize,
    },
    /// NaN or infinity in a key or value.
    #[error("{role} of layer {layer}, head {head}, position {position} is not finite")]
    NonFinite {
        /// `key` or `value`.
        role: &'static str,
        /// The layer.
        layer: u32,
        /// The KV head.
        head: u32,
        /// The position.
        position: u64,
    },
    /// An element that the type of exact vectors cannot hold.
    #[error(
        "{role} of layer {layer}, head {head}, position {position} has an element of {value:e}, beyond exact={exact}"
    )]
    Range {
        /// `key` or `value`.
        role: &'static str,
        /// The layer.
        layer: u32,
        /// The KV head.
        head: u32,
        /// The position.
        position: u64,
        /// The element.
        value: f32,
        /// `bf16` or `f16`.
        exact: &'static str,
    },
    /// A layer or head that the model does not have.
    #[error("{what} {found} asked for, there are {held}")]
    Index {
        /// `layer` or `kv head`.
        what: &'static str,
        /// What was asked for.
        found: usize,
        /// How many there are.
        held: usize,
    },
    /// A page whose bytes are not those of its codec.
    #[error("page of {n} vectors is damaged: {reason}")]
    Page {
        /// Vectors it should hold.
        n: usize,
        /// What does not fit.
        reason: String,
    },
    /// Positions that are no longer held, or not yet.
    #[error("positions from {asked} asked for, {held} are held: {reason}")]
    Positions {
        /// First position asked for.
        asked: u64,
        /// What is held.
        held: u64,
        /// Why it cannot be given.
        reason: &'static str,
    },
}

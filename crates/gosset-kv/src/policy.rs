//! What is kept exact, what is coded, and how coded vectors lie in memory.

use std::fmt;
use std::str::FromStr;

use crate::{KvError, Role};

/// Sizes of the keys of a model; values have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of a layer.
    pub kv_heads: usize,
    /// Elements of a vector.
    pub head_dim: usize,
}

impl KvShape {
    /// Elements of the keys of one token in one layer: `kv_heads * head_dim`.
    pub const fn width(self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// How exact vectors are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ExactType {
    /// 4 bytes, bit-exact.
    F32,
    /// 2 bytes, 8 significant bits, the range of f32.
    Bf16,
    /// 2 bytes, 11 significant bits, up to 65504: larger elements are refused by `KvStore::append`.
    #[default]
    F16,
}

impl ExactType {
    /// `f32`, `bf16` or `f16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl fmt::Display for ExactType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ExactType {
    type Err = KvError;

    fn from_str(text: &str) -> Result<Self, KvError> {
        [Self::F32, Self::Bf16, Self::F16].into_iter().find(|ty| ty.name() == text).ok_or_else(|| KvError::Spec {
            spec: format!("exact={text}"),
            reason: "expected f32, bf16 or f16".to_owned(),
        })
    }
}

/// How many bytes a sealed page of one head takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Budget {
    /// As many as its codes need: the pages of the heads of a layer lie behind one another, with offsets.
    #[default]
    Variable,
    /// The same for every page of a role: a page is found by multiplication. What does not fit goes to a side buffer, which is counted.
    Fixed,
}

impl Budget {
    /// `variable` or `fixed`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Variable => "variable",
            Self::Fixed => "fixed",
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Budget {
    type Err = KvError;

    fn from_str(text: &str) -> Result<Self, KvError> {
        [Self::Variable, Self::Fixed].into_iter().find(|budget| budget.name() == text).ok_or_else(|| KvError::Spec {
            spec: format!("budget={text}"),
            reason: "expected variable or fixed".to_owned(),
        })
    }
}

/// Which positions are exact and which are coded, and how.
///
/// With i the newest position held, position j is a *sink* while `j < sinks`, in the *window* while `j + window > i`, else coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// First positions, exact forever.
    pub sinks: usize,
    /// Newest positions, exact; 0: each is coded on arrival.
    pub window: usize,
    /// Vectors of a sealed page, 1 to [`Policy::MAX_PAGE`].
    pub page: usize,
    /// How exact positions are stored.
    pub exact: ExactType,
    /// How many bytes a sealed page takes.
    pub budget: Budget,
}

impl Policy {
    /// Vectors of a page at most: one page of one head is decoded at once into scratch.
    pub const MAX_PAGE: usize = 4096;
    /// Largest window, and most sinks.
    pub const MAX_POSITIONS: usize = 1 << 30;

    /// Refuses pages of no vectors or of more than [`Policy::MAX_PAGE`].
    ///
    /// # Errors
    ///
    /// [`KvError::Spec`].
    pub fn check(&self) -> Result<(), KvError> {
        if self.page == 0 || self.page > Self::MAX_PAGE {
            return Err(KvError::Spec {
                spec: format!("page={}", self.page),
                reason: format!("expected 1 to {} vectors", Self::MAX_PAGE),
            });
        }
        for (name, positions) in [("window", self.window), ("sinks", self.sinks)] {
            if positions > Self::MAX_POSITIONS {
                return Err(KvError::Spec {
                    spec: format!("{name}={positions}"),
                    reason: format!("expected at most {} positions", Self::MAX_POSITIONS),
                });
            }
        }
        Ok(())
    }
}

/// A layer that keeps keys, values or both exact at every position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protected {
    /// The layer.
    pub layer: usize,
    /// Which vectors; both if none is named.
    pub role: Option<Role>,
}

impl Protected {
    /// Whether it keeps vectors of `role` of `layer`.
    pub fn covers(self, layer: usize, role: Role) -> bool {
        self.layer == layer && self.role.is_none_or(|own| own == role)
    }
}

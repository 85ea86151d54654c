//! Layers that see a window of positions only.

use serde_json::{Map, Value};

use super::field::{Field, kind};
use crate::error::RuntimeError;

/// How an architecture says which layers have a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowRule {
    /// None has.
    Never,
    /// Those from `max_window_layers` on, if `use_sliding_window` is set.
    Upper,
    /// All, unless the window is null.
    All,
    /// All but every `sliding_window_pattern`-th.
    Pattern,
}

/// Which layers are local: those that have the window and, in some architectures, a rotary base of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalLayers {
    /// None of them.
    None,
    /// All of them.
    All,
    /// Those from this one on.
    From(usize),
    /// All but every n-th: layer i is local if n does not divide i + 1.
    AllBut(usize),
    /// One entry for each layer.
    Listed(Vec<bool>),
}

impl LocalLayers {
    /// Whether layer `index` is local.
    pub fn contains(&self, index: usize) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::From(first) => index >= *first,
            Self::AllBut(n) => !(index + 1).is_multiple_of(*n),
            Self::Listed(list) => list.get(index).copied().unwrap_or(false),
        }
    }

    /// Whether any of `n_layers` layers is local.
    pub(crate) fn any(&self, n_layers: usize) -> bool {
        match self {
            Self::None => false,
            Self::All => n_layers > 0,
            Self::From(first) => *first < n_layers,
            Self::AllBut(n) => *n > 1 && n_layers > 0,
            Self::Listed(list) => list.contains(&true),
        }
    }
}

/// The window, if there is one, and the layers that it is for.
pub(super) fn windows(
    rule: WindowRule,
    map: &Map<String, Value>,
    n_layers: usize,
) -> Result<(Option<usize>, LocalLayers), RuntimeError> {
    /// What libraries take where the field is absent.
    const USUAL: usize = 4096;
    let field = |name| Field { map, name };
    // An absent window is the usual one; null is none.
    let stated = || match map.get("sliding_window") {
        None => Ok(Some(USUAL)),
        Some(_) => field("sliding_window").optional_count(),
    };
    let listed = listed(map, n_layers)?;
    let switch = field("use_sliding_window");
    match rule {
        WindowRule::Never if switch.bool(false)? => {
            Err(RuntimeError::config(switch.name, "false: this architecture has no window", "true"))
        }
        WindowRule::Never => Ok((None, LocalLayers::None)),
        WindowRule::Upper if !switch.bool(false)? => Ok((None, LocalLayers::None)),
        WindowRule::Upper => {
            let first = || {
                const UPPER: u64 = 28;
                match field("max_window_layers").present() {
                    None => Ok(UPPER as usize),
                    Some(v) => match v.as_u64().and_then(|n| usize::try_from(n).ok()) {
                        Some(n) => Ok(n),
                        None => Err(field("max_window_layers").wrong("an integer of at least 0", v)),
                    },
                }
            };
            Ok((stated()?, listed.map_or_else(|| first().map(LocalLayers::From), Ok)?))
        }
        WindowRule::All => {
            let window = if switch.bool(true)? { stated()? } else { None };
            match (window, &listed) {
                (Some(_), Some(LocalLayers::Listed(list))) if list.contains(&false) => {
                    let expected = "sliding_attention in every layer: this architecture has one kind of layers";
                    Err(RuntimeError::config("layer_types", expected, "full_attention in some"))
                }
                (None, _) => Ok((None, LocalLayers::None)),
                (Some(_), _) => Ok((window, LocalLayers::All)),
            }
        }
        WindowRule::Pattern => {
            const EVERY: usize = 6;
            let every = match field("sliding_window_pattern").optional_count()? {
                Some(n) => n,
                None => field("_sliding_window_pattern").optional_count()?.unwrap_or(EVERY),
            };
            Ok((stated()?, listed.unwrap_or(LocalLayers::AllBut(every))))
        }
    }
}

/// `layer_types`, if it is there.
fn listed(map: &Map<String, Value>, n_layers: usize) -> Result<Option<LocalLayers>, RuntimeError> {
    let list = match map.get("layer_types") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(RuntimeError::config("layer_types", "a list", kind(other))),
    };
    if list.len() != n_layers {
        return Err(RuntimeError::config("layer_types", format!("{n_layers} entries"), list.len()));
    }
    let local = |(i, entry): (usize, &Value)| match entry.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => {
            let name = format!("layer_types[{i}]");
            Err(RuntimeError::config(&name, "sliding_attention or full_attention", kind(entry)))
        }
    };
    Ok(Some(LocalLayers::Listed(list.iter().enumerate().map(local).collect::<Result<_, _>>()?)))
}

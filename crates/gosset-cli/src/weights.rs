//! The file of `--weights`: a JSON map from patterns to numbers, in the order of the file.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use gosset_quantize::TensorWeight;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::exit::{Exit, error};

/// Most bytes that such a file may have.
const MAX_BYTES: u64 = 1 << 24;

/// Reads the weights in the file at `path`.
pub(crate) fn read(path: &Path) -> Result<Vec<TensorWeight>> {
    let name = || path.display().to_string();
    let meta = std::fs::metadata(path).with_context(name)?;
    if !meta.is_file() || meta.len() > MAX_BYTES {
        return Err(error(Exit::Usage, format!("{}: expected a file of at most {MAX_BYTES} bytes", name())));
    }
    let text = std::fs::read(path).with_context(name)?;
    parse(&text).map_err(|e| {
        let what = "expected a JSON map from patterns to numbers, such as {\"*.down_proj.weight\": 2}";
        error(Exit::Usage, format!("{}: {what}: {e}", name()))
    })
}

fn parse(text: &[u8]) -> serde_json::Result<Vec<TensorWeight>> {
    serde_json::from_slice(text).map(|Weights(weights)| weights)
}

struct Weights(Vec<TensorWeight>);

impl<'de> Deserialize<'de> for Weights {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(InOrder)
    }
}

/// Keeps the order of the entries, which decides where several patterns match.
struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Weights;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from patterns to numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Weights, A::Error> {
        let mut weights = Vec::new();
        while let Some((pattern, weight)) = map.next_entry()? {
            weights.push(TensorWeight { pattern, weight });
        }
        Ok(Weights(weights))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_keep_their_order() {
        let weights = parse(br#"{"z*": 2, "a": 0.5}"#).unwrap();
        let expected = [("z*", 2.0), ("a", 0.5)].map(|(p, weight)| TensorWeight { pattern: p.to_owned(), weight });
        assert_eq!(weights, expected);
        for bad in [&b"[]"[..], b"{\"a\": \"b\"}", b"{\"a\": null}", b"", b"{\"a\": 1"] {
            assert!(parse(bad).is_err());
        }
    }
}

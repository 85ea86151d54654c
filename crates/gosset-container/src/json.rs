//! JSON values of bounded size: what the free-form parts of a manifest are read into.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Most values that one free-form part may hold. A `Value` takes up to 40 times the bytes of its text, so the number of
/// values is what bounds memory.
pub(crate) const MAX_VALUES: usize = 1 << 16;

/// Reads a [`Value`] of at most [`MAX_VALUES`] nodes; repeated keys are refused.
///
/// For `#[serde(deserialize_with = "bounded_value")]`.
pub(crate) fn bounded_value<'de, D: Deserializer<'de>>(d: D) -> Result<Value, D::Error> {
    let left = Cell::new(MAX_VALUES);
    Bounded { left: &left }.deserialize(d)
}

#[derive(Clone, Copy)]
struct Bounded<'a> {
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(D::Error::custom(format_args!("more than {MAX_VALUES} values")));
        };
        self.left.set(left);
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("number is not finite"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(v) = seq.next_element_seed(self)? {
            out.push(v);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(self)?;
            if out.insert(key.clone(), value).is_some() {
                return Err(A::Error::custom(format_args!("key {key:?} appears twice")));
            }
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        bounded_value(&mut serde_json::Deserializer::from_str(text)).map_err(|e| e.to_string())
    }

    #[test]
    fn bounded_values_equal_plain_ones() {
        let text = r#"{"a":[1,-2,3.5,null,true,"x"],"b":{"c":18446744073709551615}}"#;
        assert_eq!(read(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn too_many_values_and_repeated_keys_are_refused() {
        assert!(read(&format!("[{}0]", "0,".repeat(MAX_VALUES))).unwrap_err().contains("more than"));
        assert!(read(r#"{"a":1,"a":2}"#).unwrap_err().contains("twice"));
    }
}

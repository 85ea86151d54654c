//! Fields of a JSON object.

use serde_json::{Map, Value};

use super::MAX_COUNT;
use crate::error::RuntimeError;

/// One field of a JSON object, read as what is expected.
pub(super) struct Field<'a> {
    pub(super) map: &'a Map<String, Value>,
    pub(super) name: &'a str,
}

impl Field<'_> {
    pub(super) fn present(&self) -> Option<&Value> {
        self.map.get(self.name).filter(|v| !v.is_null())
    }

    pub(super) fn wrong(&self, expected: impl Into<String>, found: &Value) -> RuntimeError {
        match found {
            Value::Number(n) => RuntimeError::config(self.name, expected, n),
            other => RuntimeError::config(self.name, expected, kind(other)),
        }
    }

    pub(super) fn optional_count(&self) -> Result<Option<usize>, RuntimeError> {
        match self.present() {
            None => Ok(None),
            Some(v) => match v.as_u64() {
                Some(n) if (1..=MAX_COUNT).contains(&n) => Ok(Some(n as usize)),
                _ => Err(self.wrong(format!("an integer from 1 to {MAX_COUNT}"), v)),
            },
        }
    }

    pub(super) fn count(&self) -> Result<usize, RuntimeError> {
        self.optional_count()?.ok_or_else(|| RuntimeError::config(self.name, "a positive integer", "nothing"))
    }

    pub(super) fn float(&self) -> Result<Option<f64>, RuntimeError> {
        match self.present() {
            None => Ok(None),
            Some(v) => match v.as_f64() {
                Some(f) if f.is_finite() => Ok(Some(f)),
                _ => Err(self.wrong("a finite number", v)),
            },
        }
    }

    pub(super) fn bool(&self, default: bool) -> Result<bool, RuntimeError> {
        match self.present() {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => Err(self.wrong("true or false", v)),
        }
    }

    pub(super) fn ids(&self) -> Result<Vec<u32>, RuntimeError> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let expected = "a token id or a list of them";
        match self.present() {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                list.iter().map(|v| id(v).ok_or_else(|| self.wrong(expected, v))).collect::<Result<_, _>>()
            }
            Some(v) => Ok(vec![id(v).ok_or_else(|| self.wrong(expected, v))?]),
        }
    }
}

/// A value in a few words.
pub(super) fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => format!("{:?}", s.chars().take(60).collect::<String>()),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

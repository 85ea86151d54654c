//! Rotary settings, in the places where configurations have them.

use serde_json::{Map, Value};

use super::field::{Field, kind};
use crate::error::RuntimeError;
use crate::rope::RopeScaling;

/// A rotary base and how its frequencies are stretched.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RopeSettings {
    /// Base of the frequencies.
    pub theta: f64,
    /// Stretching of the frequencies.
    pub scaling: RopeScaling,
}

/// The settings of all layers, and those of local layers where they have their own.
///
/// They are in `rope_parameters`, which newer files have, by kind of layer if there are two, or else in fields of their own.
pub(super) fn rope(
    map: &Map<String, Value>,
    head_dim: usize,
    two_bases: bool,
) -> Result<(RopeSettings, Option<RopeSettings>), RuntimeError> {
    /// Bases of local and of all layers where files may leave them out.
    const LOCAL: f64 = 10_000.0;
    let usual = if two_bases { 1_000_000.0 } else { LOCAL };
    let parameters = match map.get("rope_parameters") {
        None | Some(Value::Null) => None,
        Some(Value::Object(parameters)) => Some(parameters),
        Some(other) => return Err(RuntimeError::config("rope_parameters", "an object", kind(other))),
    };
    let of_kind = |name: &str| match parameters.and_then(|p| p.get(name)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(found)) => Ok(Some(found)),
        Some(other) => Err(RuntimeError::config(&format!("rope_parameters.{name}"), "an object", kind(other))),
    };
    let (full, sliding) = (of_kind("full_attention")?, of_kind("sliding_attention")?);
    if !two_bases && (full.is_some() || sliding.is_some()) {
        let expected = "one set for all layers: this architecture has one rotary base";
        return Err(RuntimeError::config("rope_parameters", expected, "sets by kind of layer"));
    }
    let settings = |at: &str, own: Option<&Map<String, Value>>, old: &'static str, usual| {
        let theta = match own.map(|own| Field { map: own, name: "rope_theta" }.float()).transpose()?.flatten() {
            Some(theta) => theta,
            None => Field { map, name: old }.float()?.unwrap_or(usual),
        };
        if theta <= 0.0 {
            return Err(RuntimeError::config(old, "a positive number", theta));
        }
        let scaling = own.map_or(Ok(RopeScaling::None), |own| rope_scaling(at, own, head_dim))?;
        Ok(RopeSettings { theta, scaling })
    };
    let partial = [Some(map), parameters, full, sliding].into_iter().flatten();
    for map in partial {
        let partial = Field { map, name: "partial_rotary_factor" }.float()?.unwrap_or(1.0);
        if partial != 1.0 {
            let expected = "1: partly rotated heads are not implemented";
            return Err(RuntimeError::config("partial_rotary_factor", expected, partial));
        }
    }
    let old = match (parameters, map.get("rope_scaling")) {
        (Some(_), _) | (None, None | Some(Value::Null)) => None,
        (None, Some(Value::Object(scaling))) => Some(scaling),
        (None, Some(other)) => return Err(RuntimeError::config("rope_scaling", "an object", kind(other))),
    };
    let all = match (full, parameters, old) {
        (Some(full), ..) => settings("rope_parameters.full_attention", Some(full), "rope_theta", usual)?,
        (None, Some(all), _) => settings("rope_parameters", Some(all), "rope_theta", usual)?,
        (None, None, old) => settings("rope_scaling", old, "rope_theta", usual)?,
    };
    let local = two_bases
        .then(|| settings("rope_parameters.sliding_attention", sliding, "rope_local_base_freq", LOCAL))
        .transpose()?;
    Ok((all, local))
}

fn rope_scaling(at: &str, map: &Map<String, Value>, head_dim: usize) -> Result<RopeScaling, RuntimeError> {
    let positive = |name: &'static str| -> Result<f64, RuntimeError> {
        match (Field { map, name }).float()? {
            Some(v) if v > 0.0 => Ok(v),
            Some(v) => Err(RuntimeError::config(&format!("{at}.{name}"), "a positive number", v)),
            None => Err(RuntimeError::config(&format!("{at}.{name}"), "a positive number", "nothing")),
        }
    };
    let rope_type = map.get("rope_type").or_else(|| map.get("type")).and_then(Value::as_str).unwrap_or("default");
    match rope_type {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: positive("factor")? }),
        "llama3" => {
            let (low, high) = (positive("low_freq_factor")?, positive("high_freq_factor")?);
            if high <= low {
                return Err(RuntimeError::config(&format!("{at}.high_freq_factor"), format!("above {low}"), high));
            }
            Ok(RopeScaling::Llama3 {
                factor: positive("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_positions: positive("original_max_position_embeddings")?,
            })
        }
        // With two different lists the choice depends on the length of the text; with equal ones it is a fixed divisor.
        "longrope"
            if map.get("short_factor") == map.get("long_factor")
                && map.get("attention_factor") == Some(&Value::from(1.0)) =>
        {
            let list = map.get("long_factor").and_then(Value::as_array);
            let factors: Option<Vec<f64>> =
                list.and_then(|l| l.iter().map(|v| v.as_f64().filter(|f| f.is_finite() && *f > 0.0)).collect());
            match factors {
                Some(factors) if factors.len() == head_dim / 2 => Ok(RopeScaling::Factors(factors)),
                _ => Err(RuntimeError::config(
                    &format!("{at}.long_factor"),
                    format!("{} positive numbers", head_dim / 2),
                    list.map_or("nothing".to_owned(), |l| format!("a list of {}", l.len())),
                )),
            }
        }
        other => Err(RuntimeError::config(
            &format!("{at}.rope_type"),
            "default, linear, llama3, or longrope with equal lists and attention_factor 1.0",
            other,
        )),
    }
}

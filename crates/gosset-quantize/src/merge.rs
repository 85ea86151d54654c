//! Joins the parts of a run to the file that one run over all tensors writes, byte for byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gosset_container::{Container, Manifest, ManifestInfo, Writer};
use serde_json::Value;

use crate::error::QuantizeError;
use crate::observer::{Event, Observer};
use crate::part::{PART_KEY, PartRecord};
use crate::work::differences;

/// What a merge wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeSummary {
    /// Parts that were joined.
    pub n_parts: usize,
    /// Tensors of the output.
    pub n_tensors: usize,
    /// Bytes of the output.
    pub file_bytes: u64,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// A part that was opened.
struct Opened {
    container: Arc<Container>,
    record: PartRecord,
}

/// Joins `parts`, in any order, to one container at `out`; an existing one is replaced if `overwrite` says so.
///
/// The output is byte-identical to that of one run with the options of the parts. Every plane is checked against its checksum on the way.
/// Parts stay where they are. Memory holds headers only; the planes are mapped.
///
/// # Errors
/// [`QuantizeError::NotAPart`] for a file that is none, [`QuantizeError::PartsIncomplete`] and [`QuantizeError::PartsDiffer`] for parts that
/// make no whole, [`QuantizeError::OutputIsInput`], [`QuantizeError::Cancelled`], and the errors of containers.
pub fn merge(
    parts: &[PathBuf],
    out: &Path,
    overwrite: bool,
    observer: &dyn Observer,
) -> Result<MergeSummary, QuantizeError> {
    let mut opened = parts.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    opened.sort_by_key(|part| part.record.index);
    check_complete(&opened)?;
    let Some((first, others)) = opened.split_first() else {
        return Err(QuantizeError::PartsIncomplete { reason: "expected parts, found none".to_owned() });
    };
    others.iter().try_for_each(|other| check_same(first, other))?;
    if let Ok(target) = fs::canonicalize(out)
        && let Some(input) = parts.iter().find(|part| fs::canonicalize(part).is_ok_and(|part| part == target))
    {
        return Err(QuantizeError::OutputIsInput { out: out.to_owned(), input: input.clone() });
    }
    let mut warnings = Vec::new();
    if others.iter().any(|other| other.record.processor != first.record.processor) {
        let text = "the parts were calibrated on different kinds of processors: one run on either differs in last bits";
        warnings.push(text.to_owned());
    }

    let mut writer = Writer::create(out, overwrite)?;
    let mut places: Vec<(usize, usize, usize)> = Vec::new();
    for (p, part) in opened.iter().enumerate() {
        places.extend(part.record.places.iter().enumerate().map(|(i, place)| (*place, p, i)));
    }
    places.sort_unstable();
    let total = places.len();
    for (index, &(_, p, i)) in places.iter().enumerate() {
        if observer.cancelled() {
            return Err(QuantizeError::Cancelled { done: 0, total });
        }
        let container = &opened[p].container;
        let entry = &container.entries()[i];
        let (tensor, n_weights) = (entry.name.as_str(), entry.n_weights());
        observer.event(&Event::Started { tensor, index, total, n_weights });
        writer.copy_tensor(container, tensor)?;
    }
    for blob in &first.container.manifest().blobs {
        if let Some(bytes) = first.container.blob(&blob.name)? {
            writer.add_blob(&blob.name, bytes)?;
        }
    }
    observer.event(&Event::Writing);
    let manifest = first.container.manifest();
    let info = ManifestInfo { kind: first.record.kind, source: manifest.source.clone(), recipe: whole(manifest) };
    let written = writer.finish(info)?;
    Ok(MergeSummary { n_parts: opened.len(), n_tensors: total, file_bytes: written.file_bytes, warnings })
}

fn open(path: &Path) -> Result<Opened, QuantizeError> {
    let container = Container::open(path)?;
    let refuse = |reason: String| QuantizeError::NotAPart { path: path.to_owned(), reason };
    let Some(record) = container.manifest().recipe.get(PART_KEY) else {
        return Err(refuse("expected what quantizing with --part writes, found a whole container".to_owned()));
    };
    let record: PartRecord = serde_json::from_value(record.clone()).map_err(|e| refuse(e.to_string()))?;
    let (held, listed) = (container.entries().len(), record.places.len());
    if held != listed {
        return Err(refuse(format!("expected {listed} tensors, as its recipe says, found {held}")));
    }
    let is_ours = |place: &usize| *place as u64 % u64::from(record.of.max(1)) == u64::from(record.index);
    if record.index >= record.of || !record.places.iter().all(is_ours) || !record.places.is_sorted() {
        return Err(refuse(format!("its recipe does not describe part {}/{}", record.index, record.of)));
    }
    Ok(Opened { container, record })
}

/// Refuses parts of which one is missing or there twice; they are sorted by number.
fn check_complete(parts: &[Opened]) -> Result<(), QuantizeError> {
    let of = parts.first().map_or(0, |part| part.record.of);
    if let Some(other) = parts.iter().find(|part| part.record.of != of) {
        let (path, n) = (other.container.path().display(), other.record.of);
        let reason = format!("{path} is one of {n} parts, {} one of {of}", parts[0].container.path().display());
        return Err(QuantizeError::PartsIncomplete { reason });
    }
    if let Some(twice) = parts.windows(2).find(|pair| pair[0].record.index == pair[1].record.index) {
        let [a, b] = [&twice[0], &twice[1]].map(|part| part.container.path().display().to_string());
        let reason = format!("part {}/{of} is there twice: {a} and {b}", twice[0].record.index);
        return Err(QuantizeError::PartsIncomplete { reason });
    }
    let missing: Vec<String> = (0..of)
        .filter(|index| parts.binary_search_by_key(index, |part| part.record.index).is_err())
        .map(|index| format!("{index}/{of}"))
        .take(8)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let more = of as usize - parts.len() - missing.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(QuantizeError::PartsIncomplete { reason: format!("missing {}{more}", missing.join(", ")) })
}

/// Refuses parts of different runs.
fn check_same(a: &Opened, b: &Opened) -> Result<(), QuantizeError> {
    let told = |part: &Opened| {
        let manifest = part.container.manifest();
        serde_json::json!({
            "generator": manifest.generator, "source": manifest.source, "recipe": whole(manifest),
            "kind": part.record.kind, "weights": part.record.sample,
        })
    };
    let [there, asked] = [told(a), told(b)];
    let differences = differences(&there, &asked, ["in the first", "in the second"]);
    if differences.is_empty() {
        return Ok(());
    }
    let [first, second] = [a, b].map(|part| part.container.path().to_owned());
    Err(QuantizeError::PartsDiffer { first, second, differences })
}

/// The recipe of the whole.
fn whole(manifest: &Manifest) -> Value {
    let mut recipe = manifest.recipe.clone();
    if let Some(recipe) = recipe.as_object_mut() {
        recipe.remove(PART_KEY);
    }
    recipe
}

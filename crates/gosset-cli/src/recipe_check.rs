//! Whether a container is what its recipe says: codecs and rates of its tensors, the size that was asked for.

use gosset_container::{Container, Ledger, Storage, TensorEntry};
use gosset_quantize::{QuantizeOptions, QuantizeTarget};
use serde::Serialize;

/// How far above a rate that was asked for the rate of all tensors together may be. Codecs meet a rate within a hundredth.
const RATE_SHARE: f64 = 0.05;
const RATE_BITS: f64 = 0.05;
/// Bits that the ends of its streams may take in a small tensor.
const END_BITS: f64 = 128.0;

/// Where a container differs from its recipe.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    /// The tensor, or `file`.
    pub(crate) part: String,
    pub(crate) what: String,
}

/// What the recipe asks for, as far as this program can read it; `None` for a recipe of another kind.
pub(crate) fn asked(container: &Container) -> Option<QuantizeOptions> {
    QuantizeOptions::from_recipe(&container.manifest().recipe).ok()
}

/// Compares the tensors of `container` with what `options` ask for.
pub(crate) fn differences(container: &Container, ledger: &Ledger, options: &QuantizeOptions) -> Vec<Difference> {
    let mut found = Vec::new();
    let family = family(&options.codec);
    let quantized = || container.entries().iter().filter(|t| t.is_quantized());
    for entry in quantized() {
        let codec = codec_of(entry);
        if self::family(&codec) != family {
            let what = format!("the recipe says {}, found {codec}", options.codec);
            found.push(Difference { part: format!("tensor {:?}", entry.name), what });
        }
    }
    let file = |what: String| Difference { part: "file".to_owned(), what };
    // Rows that no scale fits are stored exactly, whatever rate was asked for.
    let exact_rows = quantized().any(has_exact_rows);
    let ends = END_BITS * quantized().count() as f64 / ledger.n_quantized.max(1) as f64;
    let bound = |asked: f64| asked * (1.0 + RATE_SHARE) + RATE_BITS + ends;
    match options.target {
        QuantizeTarget::PayloadBps(bps) if !exact_rows => {
            let rates = options.overrides.iter().filter_map(|o| match o.action {
                gosset_quantize::OverrideAction::Rate(bps) => Some(bps),
                gosset_quantize::OverrideAction::Keep => None,
            });
            let most = rates.chain(options.embeddings).fold(bps, f64::max);
            let payload = ledger.coded_rate().payload_bps();
            if payload > bound(most) {
                found
                    .push(file(format!("the recipe asks for a payload of {most} bits per weight, found {payload:.4}")));
            }
        }
        QuantizeTarget::AllInBpw(bpw) => {
            let all_in = ledger.coded_rate().all_in_bps();
            if all_in > bound(bpw) {
                found.push(file(format!("the recipe asks for {bpw} bits per weight all in, found {all_in:.4}")));
            }
        }
        QuantizeTarget::FileBytes(bytes) if ledger.file_bytes > bytes => {
            found.push(file(format!("the recipe asks for {bytes} bytes, found {}", ledger.file_bytes)));
        }
        _ => {}
    }
    found
}

/// Name of the codec that a tensor is under; empty if it is under none.
pub(crate) fn codec_of(entry: &TensorEntry) -> String {
    match &entry.storage {
        Storage::Coded { header, .. } => header.codec_name().to_owned(),
        Storage::UniSvq { header, .. } => header.name(),
        _ => String::new(),
    }
}

/// What the header of a tensor tells of the method that made it: neither feedback and tuning, nor gains, nor the order of strings, nor
/// which affine grid.
fn family(method: &str) -> &str {
    let codec = method.split_once('+').map_or(method, |(codec, _)| codec);
    if codec.starts_with("unisvq") {
        return "unisvq";
    }
    ["-tiles", "-unbiased"].into_iter().find_map(|suffix| codec.strip_suffix(suffix)).unwrap_or(codec)
}

fn has_exact_rows(entry: &TensorEntry) -> bool {
    match &entry.storage {
        Storage::Coded { planes, .. } => planes.iter().any(|p| p.name == "exact_rows"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_and_headers_meet_in_the_family() {
        for (method, header) in [
            ("e8+feedback", "e8"),
            ("e8-rice", "e8-rice"),
            ("e8-unbiased+feedback", "e8"),
            ("shift-16-tiles+feedback", "shift-16"),
            ("shiftlut-17-tiles", "shiftlut-17-tiles"),
            ("unisvq-random+ft", "unisvq-affine"),
            ("unisvq-d8", "unisvq-d8-affine-full"),
        ] {
            assert_eq!(family(method), family(header), "{method}");
        }
        assert_ne!(family("e8"), family("e8-rice"));
        assert_ne!(family("shift-16"), family("shift-14"));
    }
}

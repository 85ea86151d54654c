//! `gosset inspect`: what a container holds and where its bits go.

use std::borrow::Cow;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use gosset_codec::MatrixHeader;
use gosset_container::{
    Causes, Container, EntryKind, FormatVersion, Ledger, LedgerEntry, Manifest, Storage, TensorEntry,
};
use gosset_quantize::CalibrationRecord;
use gosset_unisvq::UniSvqHeader;
use serde::Serialize;
use serde_json::Value;

use crate::exit::{Exit, error, printable};
use crate::output::{self, Table};
use crate::quantize::record_line;

/// Show what a container holds and where its bits go.
///
/// The ledger splits the file by cause; its lines add up to the size of the file to the bit. Planes are not checked against their
/// checksums here, `gosset verify` does that.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gosset inspect smollm2.gosset
  gosset inspect smollm2.gosset --tensors
  gosset inspect smollm2.gosset --json | jq .rates.all_in_bps

Rates, in bits per weight:
  payload   code words of the quantized tensors
  stream    all their bytes but the row scales
  all-in    all their bytes: code, lengths, tables, scales, padding, checksums, share of the header
  file      the whole file over all parameters")]
pub(crate) struct InspectArgs {
    /// The container.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// List every tensor and side file.
    #[arg(long)]
    tensors: bool,
    /// Print JSON, every tensor included.
    #[arg(long)]
    json: bool,
}

/// Everything `--json` prints.
#[derive(Debug, Serialize)]
struct Inspection<'a> {
    file: String,
    file_bytes: u64,
    header_bytes: u64,
    format: FormatVersion,
    generator: &'a str,
    needs: &'a str,
    kind: Value,
    source: &'a Value,
    recipe: &'a Value,
    n_tensors: usize,
    n_coded: usize,
    n_params: u64,
    n_quantized: u64,
    rates: Rates,
    bits_by_cause: Causes,
    total_bits: u64,
    entries: Vec<Entry<'a>>,
}

/// The four rates of a file.
#[derive(Debug, Serialize)]
struct Rates {
    payload_bps: f64,
    stream_bps: f64,
    all_in_bps: f64,
    file_bps: f64,
}

/// One tensor, side file or section.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    name: &'a str,
    kind: EntryKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<TensorPart<'a>>,
    plane_bytes: u64,
    bits_by_cause: Causes,
    total_bits: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<EntryRates>,
}

#[derive(Debug, Serialize)]
struct TensorPart<'a> {
    shape: Vec<usize>,
    n_weights: u64,
    dtype: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    header: Option<Header<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// What the manifest says of a compressed tensor.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Header<'a> {
    Coded(&'a MatrixHeader),
    UniSvq(&'a UniSvqHeader),
}

#[derive(Debug, Serialize)]
struct EntryRates {
    payload_bps: f64,
    stream_bps: f64,
    all_in_bps: f64,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let container = Container::open(&args.file)?;
    let ledger = container.ledger()?;
    let (bits, expected) = (ledger.causes.total_bits(), container.file_bytes() * 8);
    if bits != expected {
        let path = args.file.display();
        let message = format!("{path}: the ledger holds {bits} bits, the file {expected}: a defect of this program");
        return Err(error(Exit::Failure, message));
    }
    let manifest = container.manifest();
    if args.json {
        return output::json(&inspection(&container, manifest, &ledger));
    }
    let mut out = output::stdout();
    print(&mut out, &container, manifest, &ledger, args.tensors)?;
    out.flush()?;
    Ok(())
}

fn rates(ledger: &Ledger) -> Rates {
    let rate = ledger.coded_rate();
    Rates {
        payload_bps: rate.payload_bps(),
        stream_bps: rate.stream_bps(),
        all_in_bps: rate.all_in_bps(),
        file_bps: ledger.file_bps(),
    }
}

fn inspection<'a>(container: &'a Container, manifest: &'a Manifest, ledger: &'a Ledger) -> Inspection<'a> {
    Inspection {
        file: container.path().display().to_string(),
        file_bytes: ledger.file_bytes,
        header_bytes: ledger.header_bytes,
        format: manifest.format,
        generator: &manifest.generator,
        needs: &manifest.needs,
        kind: serde_json::to_value(manifest.kind).unwrap_or_default(),
        source: &manifest.source,
        recipe: &manifest.recipe,
        n_tensors: manifest.tensors.len(),
        n_coded: manifest.tensors.iter().filter(|t| t.is_quantized()).count(),
        n_params: ledger.n_params,
        n_quantized: ledger.n_quantized,
        rates: rates(ledger),
        bits_by_cause: ledger.causes,
        total_bits: ledger.causes.total_bits(),
        entries: ledger.entries.iter().map(|line| entry(container, line)).collect(),
    }
}

/// The manifest's entry of a ledger line, if the line is a tensor's.
fn tensor_of<'a>(container: &'a Container, line: &LedgerEntry) -> Option<&'a TensorEntry> {
    match line.kind {
        EntryKind::Coded | EntryKind::Raw => container.entry(&line.name),
        _ => None,
    }
}

fn entry<'a>(container: &'a Container, line: &'a LedgerEntry) -> Entry<'a> {
    let tensor = tensor_of(container, line).map(|t| {
        let (codec, header, reason) = match &t.storage {
            Storage::Coded { header, .. } => (Some(header.codec_name().into()), Some(Header::Coded(header)), None),
            Storage::UniSvq { header, .. } => (Some(header.name().into()), Some(Header::UniSvq(header)), None),
            Storage::Raw { reason, .. } => (None, None, Some(reason.as_str())),
            _ => (None, None, None),
        };
        TensorPart { shape: t.shape(), n_weights: t.n_weights(), dtype: t.dtype(), codec, header, reason }
    });
    let rate = line.rate();
    let rates = (line.kind == EntryKind::Coded).then(|| EntryRates {
        payload_bps: rate.payload_bps(),
        stream_bps: rate.stream_bps(),
        all_in_bps: rate.all_in_bps(),
    });
    Entry {
        name: &line.name,
        kind: line.kind,
        tensor,
        plane_bytes: line.plane_bytes(),
        bits_by_cause: line.causes,
        total_bits: line.causes.total_bits(),
        rates,
    }
}

fn print(
    out: &mut impl Write,
    container: &Container,
    manifest: &Manifest,
    ledger: &Ledger,
    tensors: bool,
) -> Result<()> {
    let FormatVersion { major, minor } = manifest.format;
    let (generator, needs) = (printable(&manifest.generator), printable(&manifest.needs));
    writeln!(out, "{}: Gosset container, format {major}.{minor}", printable(&container.path().display().to_string()))?;
    let n_coded = manifest.tensors.iter().filter(|t| t.is_quantized()).count();
    let kind = serde_json::to_value(manifest.kind).unwrap_or_default();
    let mut facts = Table::new(2, &["made by", &format!("{generator} (needs {needs})")]);
    facts.row(["kind", kind.as_str().unwrap_or("unknown")]);
    if let Some(codec) = manifest.recipe["options"]["codec"].as_str() {
        facts.row(["method", codec]);
    }
    let calibration = manifest.recipe["options"]["calibration"].clone();
    if let Ok(record) = serde_json::from_value::<CalibrationRecord>(calibration) {
        facts.row(["calibration", &record_line(&record)]);
    }
    for (name, value) in
        object_lines("source", &manifest.source).into_iter().chain(object_lines("recipe", &manifest.recipe))
    {
        facts.row([name, value]);
    }
    let n_kept = manifest.tensors.len() - n_coded;
    facts.row(["tensors", &format!("{}: {n_coded} quantized, {n_kept} kept bit-exact", manifest.tensors.len())]);
    facts.row(["weights", &format!("{}, of which {} quantized", ledger.n_params, ledger.n_quantized)]);
    let r = rates(ledger);
    let text = format!(
        "payload {:.4}, stream {:.4}, all-in {:.4} bits per quantized weight; file {:.4} bits per parameter",
        r.payload_bps, r.stream_bps, r.all_in_bps, r.file_bps
    );
    facts.row(["rates", &text]);
    facts.write(out)?;
    writeln!(out)?;

    let total = ledger.causes.total_bits();
    let line = |name: &str, bits: u64| {
        let share = if total == 0 { 0.0 } else { 100.0 * bits as f64 / total as f64 };
        [name.to_owned(), bits.to_string(), format!("{share:.2} %"), output::bps(bits as f64, ledger.n_params)]
    };
    let mut causes = Table::new(1, &["bits by cause", "bits", "share", "bits/parameter"]);
    for (name, bits) in ledger.causes.named() {
        causes.row(line(name, bits));
    }
    causes.row(line("total", total));
    causes.write(out)?;
    writeln!(out, "total = {} bytes, the size of the file", ledger.file_bytes)?;
    if tensors {
        writeln!(out)?;
        entries_table(container, ledger).write(out)?;
    } else {
        writeln!(out, "--tensors lists every tensor, `gosset verify` checks every byte")?;
    }
    Ok(())
}

fn entries_table(container: &Container, ledger: &Ledger) -> Table {
    let heading = ["name", "stored as", "shape", "weights", "bits", "payload", "stream", "all-in"];
    let mut table = Table::new(3, &heading);
    for line in &ledger.entries {
        let tensor = tensor_of(container, line);
        let stored = match tensor.map(|t| &t.storage) {
            Some(Storage::Coded { header, source_dtype, .. }) => format!("{} of {source_dtype}", header.codec_name()),
            Some(Storage::UniSvq { header, source_dtype, .. }) => format!("{} of {source_dtype}", header.name()),
            Some(Storage::Raw { dtype, reason, .. }) => format!("{dtype} ({reason})"),
            _ if line.kind == EntryKind::Blob => "side file".to_owned(),
            _ => "unknown section".to_owned(),
        };
        let rate = line.rate();
        let bps = |value: f64| if line.kind == EntryKind::Coded { format!("{value:.4}") } else { "-".to_owned() };
        table.row([
            line.name.clone(),
            stored,
            tensor.map_or_else(|| "-".to_owned(), |t| output::shape(&t.shape())),
            tensor.map_or_else(|| "-".to_owned(), |_| line.n_weights.to_string()),
            line.causes.total_bits().to_string(),
            bps(rate.payload_bps()),
            bps(rate.stream_bps()),
            bps(rate.all_in_bps()),
        ]);
    }
    table.row(["total", "", "", &ledger.n_params.to_string(), &ledger.causes.total_bits().to_string()]);
    table
}

/// A JSON object as lines of a table, nested values as compact JSON; other values are one line.
fn object_lines(name: &str, value: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    match value {
        Value::Null => Vec::new(),
        Value::Object(fields) => fields.iter().map(|(key, v)| (format!("{name}.{key}"), text(v))).collect(),
        other => vec![(name.to_owned(), text(other))],
    }
}

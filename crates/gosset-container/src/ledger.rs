//! Where the bits of a container go.

use std::ops::AddAssign;

use gosset_entropy::Rate;
use gosset_unisvq::UniSvqHeader;
use serde::Serialize;

use crate::error::ContainerError;
use crate::manifest::Storage;
use crate::reader::{Container, Owner, Slot};
use crate::unisvq;

/// Kind of a ledger entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EntryKind {
    /// A compressed tensor.
    Coded,
    /// A tensor kept bit-exact.
    Raw,
    /// A side file.
    Blob,
    /// A section that this version does not know.
    Section,
}

/// Bits by cause. Every bit of a file has one cause, so the sum over a file is eight times its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Causes {
    /// Codewords of coded tensors, and rows of them that are stored exactly.
    pub payload_bits: u64,
    /// Stream lengths and page bases.
    pub length_bits: u64,
    /// Code parameters and tables.
    pub table_bits: u64,
    /// Row scales; tuned scales of inputs and outputs.
    pub scale_bits: u64,
    /// Norms.
    pub norm_bits: u64,
    /// Padding inside planes of coded tensors.
    pub padding_bits: u64,
    /// Tensors kept bit-exact.
    pub raw_bits: u64,
    /// Side files.
    pub blob_bits: u64,
    /// Sections that this version does not know.
    pub section_bits: u64,
    /// Length prefix, header, manifest with its checksums, and header padding.
    pub header_bits: u64,
}

impl Causes {
    /// Sum over all causes.
    pub fn total_bits(&self) -> u64 {
        self.named().iter().map(|(_, bits)| bits).sum()
    }

    /// Every cause with its name for people, in the order of a table.
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("code payload", self.payload_bits),
            ("stream lengths and page bases", self.length_bits),
            ("code tables", self.table_bits),
            ("row scales", self.scale_bits),
            ("norms", self.norm_bits),
            ("padding", self.padding_bits),
            ("kept tensors", self.raw_bits),
            ("side files", self.blob_bits),
            ("unknown sections", self.section_bits),
            ("header and checksums", self.header_bits),
        ]
    }
}

impl AddAssign for Causes {
    fn add_assign(&mut self, o: Causes) {
        self.payload_bits += o.payload_bits;
        self.length_bits += o.length_bits;
        self.table_bits += o.table_bits;
        self.scale_bits += o.scale_bits;
        self.norm_bits += o.norm_bits;
        self.padding_bits += o.padding_bits;
        self.raw_bits += o.raw_bits;
        self.blob_bits += o.blob_bits;
        self.section_bits += o.section_bits;
        self.header_bits += o.header_bits;
    }
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerEntry {
    /// Name of the tensor, side file or section.
    pub name: String,
    /// What it is.
    pub kind: EntryKind,
    /// Weights of a tensor; 0 for the rest.
    pub n_weights: u64,
    /// Bits by cause, the share of the header included.
    pub causes: Causes,
}

impl LedgerEntry {
    /// Bytes of the entry's planes, without its share of the header.
    pub fn plane_bytes(&self) -> u64 {
        (self.causes.total_bits() - self.causes.header_bits) / 8
    }

    /// Rates over the entry's weights; meaningful for coded tensors. `all_in_bps` includes the share of the header.
    pub fn rate(&self) -> Rate {
        rate(&self.causes, self.n_weights)
    }
}

/// Where the bits of a container go: entries in the order of the manifest (tensors, side files, sections).
///
/// The header belongs to no single entry. Its bytes (length prefix, JSON, manifest, checksums and padding) are shared out in
/// proportion to the number of planes of each entry, in the order of the entries: the entry that owns planes `a..b` out of `p`
/// is charged `⌊header·b/p⌋ − ⌊header·a/p⌋` bytes, so the shares add up exactly. A container without planes keeps its header
/// to itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Ledger {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes before the data.
    pub header_bytes: u64,
    /// One line per tensor, side file and unknown section.
    pub entries: Vec<LedgerEntry>,
    /// Bits of the file by cause; their sum is `file_bytes * 8`.
    pub causes: Causes,
    /// Weights of all tensors.
    pub n_params: u64,
    /// Weights of coded tensors.
    pub n_quantized: u64,
}

impl Ledger {
    /// Rates over all coded tensors together: payload, stream and all-in bits per quantized weight.
    pub fn coded_rate(&self) -> Rate {
        self.entries.iter().filter(|e| e.kind == EntryKind::Coded).map(LedgerEntry::rate).sum()
    }

    /// Bits of the file for each parameter, quantized or not; 0 if there are none.
    pub fn file_bps(&self) -> f64 {
        if self.n_params == 0 { 0.0 } else { self.file_bytes as f64 * 8.0 / self.n_params as f64 }
    }

    /// The line of the tensor `name`.
    pub fn tensor(&self, name: &str) -> Option<&LedgerEntry> {
        self.entries.iter().find(|e| e.name == name && matches!(e.kind, EntryKind::Coded | EntryKind::Raw))
    }
}

impl Container {
    /// The ledger of this file, exact to the bit.
    ///
    /// # Errors
    ///
    /// [`ContainerError::Coded`] if the planes of a coded tensor do not fit its header.
    pub fn ledger(&self) -> Result<Ledger, ContainerError> {
        let manifest = self.manifest();
        let mut entries: Vec<LedgerEntry> = Vec::new();
        let mut n_planes = Vec::new();
        for (index, t) in manifest.tensors.iter().enumerate() {
            let slots = self.slots_of_tensor(index);
            let plane_bits = slots.iter().map(|s| s.n_bytes() * 8).sum();
            let (kind, causes) = match self.unchecked_decoder(index) {
                None => match &t.storage {
                    Storage::UniSvq { header, .. } => (EntryKind::Coded, unisvq_causes(header, slots)),
                    _ => (EntryKind::Raw, Causes { raw_bits: plane_bits, ..Causes::default() }),
                },
                Some(decoder) => {
                    let rate = decoder.map(|d| d.rate()).map_err(|source| ContainerError::Coded {
                        path: self.path().to_owned(),
                        tensor: t.name.clone(),
                        source,
                    })?;
                    (EntryKind::Coded, coded_causes(&rate, plane_bits))
                }
            };
            entries.push(LedgerEntry { name: t.name.clone(), kind, n_weights: t.n_weights(), causes });
            n_planes.push(slots.len() as u64);
        }
        let rest = self.slots.iter().filter(|s| !matches!(s.owner, Owner::Tensor(_)));
        let mut last = None;
        for slot in rest {
            let bits = slot.n_bytes() * 8;
            let (name, kind, causes) = match slot.owner {
                Owner::Blob(i) => {
                    (&manifest.blobs[i].name, EntryKind::Blob, Causes { blob_bits: bits, ..Causes::default() })
                }
                Owner::Section(i) => {
                    (&manifest.sections[i].name, EntryKind::Section, Causes { section_bits: bits, ..Causes::default() })
                }
                Owner::Tensor(_) => continue,
            };
            match (last == Some(slot.owner), entries.last_mut(), n_planes.last_mut()) {
                (true, Some(entry), Some(n)) => {
                    entry.causes += causes;
                    *n += 1;
                }
                _ => {
                    entries.push(LedgerEntry { name: name.clone(), kind, n_weights: 0, causes });
                    n_planes.push(1);
                }
            }
            last = Some(slot.owner);
        }
        share_header(self.header_bytes(), &mut entries, &n_planes);

        let mut causes = Causes::default();
        entries.iter().for_each(|e| causes += e.causes);
        if entries.is_empty() || self.slots.is_empty() {
            causes.header_bits = self.header_bytes() * 8;
        }
        let weights = |coded_only: bool| {
            let counted = entries.iter().filter(|e| !coded_only || e.kind == EntryKind::Coded);
            counted.fold(0u64, |n, e| n.saturating_add(e.n_weights))
        };
        Ok(Ledger {
            file_bytes: self.file_bytes(),
            header_bytes: self.header_bytes(),
            causes,
            n_params: weights(false),
            n_quantized: weights(true),
            entries,
        })
    }
}

/// Splits the bits of the planes of a coded tensor; what the codec does not name is padding.
fn coded_causes(rate: &Rate, plane_bits: u64) -> Causes {
    let Rate { payload_bits, length_bits, table_bits, scale_bits, norm_bits, .. } = *rate;
    let named = payload_bits + length_bits + table_bits + scale_bits + norm_bits;
    let padding_bits = plane_bits.saturating_sub(named);
    Causes { payload_bits, length_bits, table_bits, scale_bits, norm_bits, padding_bits, ..Causes::default() }
}

/// Splits the bits of the planes of a matrix of grid codes: `bits` for each weight, scales, and the ends of rows.
fn unisvq_causes(header: &UniSvqHeader, slots: &[Slot]) -> Causes {
    let bits =
        |codes: bool| slots.iter().filter(|s| (s.plane == unisvq::CODES) == codes).map(|s| s.n_bytes() * 8).sum();
    let (code_bits, scale_bits): (u64, u64) = (bits(true), bits(false));
    // The length of the codes was checked when the file was opened.
    let payload_bits = header.rows.saturating_mul(header.cols).saturating_mul(u64::from(header.bits)).min(code_bits);
    Causes { payload_bits, scale_bits, padding_bits: code_bits - payload_bits, ..Causes::default() }
}

fn share_header(header_bytes: u64, entries: &mut [LedgerEntry], n_planes: &[u64]) {
    let total: u64 = n_planes.iter().sum();
    if total == 0 {
        return;
    }
    // In 128 bits: header times planes may pass 2^64 in a hostile file.
    let up_to = |planes: u64| (u128::from(header_bytes) * u128::from(planes) / u128::from(total)) as u64;
    let mut before = 0;
    for (entry, n) in entries.iter_mut().zip(n_planes) {
        entry.causes.header_bits = (up_to(before + n) - up_to(before)) * 8;
        before += n;
    }
}

fn rate(causes: &Causes, n: u64) -> Rate {
    Rate {
        payload_bits: causes.payload_bits,
        length_bits: causes.length_bits,
        table_bits: causes.table_bits,
        scale_bits: causes.scale_bits,
        norm_bits: causes.norm_bits,
        header_bits: causes.padding_bits + causes.header_bits,
        n,
    }
}

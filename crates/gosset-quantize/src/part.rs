//! Parts of a run: `0/3`, `1/3` and `2/3` of the tensors, made anywhere, joined by [`merge`](crate::merge) to what one run writes.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use gosset_container::ContainerKind;

use crate::error::{QuantizeError, SourceError};
use crate::plan::{Action, Plan};
use crate::policy::is_float;
use crate::source::ModelSource;

/// Where a recipe tells of a part.
pub(crate) const PART_KEY: &str = "part";

/// One of `of` parts of a run: the tensors whose number in the source is `index` modulo `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    index: u32,
    of: u32,
}

impl Part {
    /// Part `index`, counted from 0, of `of`.
    ///
    /// # Errors
    /// [`QuantizeError::PartSyntax`] unless `index < of`.
    pub fn new(index: u32, of: u32) -> Result<Self, QuantizeError> {
        if index < of { Ok(Part { index, of }) } else { Err(syntax(&format!("{index}/{of}"))) }
    }

    /// Reads `i/n`.
    ///
    /// # Errors
    /// [`QuantizeError::PartSyntax`] for anything but two numbers `i < n`.
    ///
    /// ```
    /// use gosset_quantize::Part;
    /// assert_eq!(Part::parse("0/3")?, Part::new(0, 3)?);
    /// assert_eq!(Part::parse("3/3").unwrap_err().to_string(), "part \"3/3\": expected i/n with i from 0 to n - 1, such as 0/3");
    /// # Ok::<(), gosset_quantize::QuantizeError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, QuantizeError> {
        let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let found = text.split_once('/').and_then(|(index, of)| Some((number(index)?, number(of)?)));
        found.and_then(|(index, of)| Part::new(index, of).ok()).ok_or_else(|| syntax(text))
    }

    /// Number of the part, from 0.
    pub fn index(self) -> u32 {
        self.index
    }

    /// How many parts there are.
    pub fn of(self) -> u32 {
        self.of
    }

    /// Whether tensor number `tensor` of the source is in the part.
    pub fn holds(self, tensor: usize) -> bool {
        tensor as u64 % u64::from(self.of) == u64::from(self.index)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

fn syntax(text: &str) -> QuantizeError {
    QuantizeError::PartSyntax { text: text.to_owned() }
}

/// What the recipe of a part says of it, for those who join parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PartRecord {
    pub(crate) index: u32,
    pub(crate) of: u32,
    /// What the whole is.
    pub(crate) kind: ContainerKind,
    /// Numbers in the source of the tensors that the part holds, in its order.
    pub(crate) places: Vec<usize>,
    /// SHA-256 of side files and of the first and last row of every tensor: tells checkpoints of equal layout apart without reading
    /// all of them once per part.
    pub(crate) sample: String,
    /// Whether the run that it is a part of needs a calibration, be there such a tensor in the part or not.
    pub(crate) calibrated: bool,
    /// Kind of processor, on which the last bits of calibrated parts depend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) processor: Option<String>,
}

impl Plan {
    /// The plan of one part: other tensors are left out, side files are in part 0.
    ///
    /// # Errors
    /// [`QuantizeError::PartImpossible`] where what becomes of a tensor depends on others: targets over the whole file, tuning; errors of
    /// the source.
    pub fn part(mut self, part: Part, source: &dyn ModelSource) -> Result<Plan, QuantizeError> {
        let refuse = |reason| Err(QuantizeError::PartImpossible { part, reason });
        if self.pace().is_some() {
            return refuse("a target over the whole file gives a tensor what others left; give a payload (--rate)");
        }
        if self.is_tuned() {
            return refuse("tuning works on whole blocks, one after the other; choose a method without +ft");
        }
        let is_stored = |action: &Action| !matches!(action, Action::Skip { .. });
        let places = self.items.iter().filter(|item| part.holds(item.index) && is_stored(&item.action));
        self.part = Some(PartRecord {
            index: part.index,
            of: part.of,
            kind: self.kind,
            places: places.map(|item| item.index).collect(),
            sample: sample(source)?,
            calibrated: self.needs_calibration(),
            processor: None,
        });
        for item in self.items.iter_mut().filter(|item| !part.holds(item.index) && is_stored(&item.action)) {
            let in_part = item.index as u64 % u64::from(part.of);
            item.action = Action::Skip { reason: format!("in part {in_part}/{}", part.of) };
            (item.estimated_bytes, item.estimated_snr_db) = (0, None);
        }
        // Tensors without what belongs to a model.
        self.kind = ContainerKind::Tensors;
        self.budget = None;
        if part.index > 0 {
            self.tie = None;
        }
        Ok(self)
    }

    /// The part it is of a run; `None` for the whole.
    pub fn asked_part(&self) -> Option<Part> {
        self.part.as_ref().map(|part| Part { index: part.index, of: part.of })
    }

    /// Whether side files belong to what is written.
    pub(crate) fn has_blobs(&self) -> bool {
        self.part.as_ref().is_none_or(|part| part.index == 0)
    }
}

/// What [`PartRecord::sample`] says.
fn sample(source: &dyn ModelSource) -> Result<String, SourceError> {
    let mut hash = Sha256::new();
    let mut row = Vec::new();
    for (index, tensor) in source.tensors().iter().enumerate().filter(|(_, t)| is_float(&t.dtype)) {
        let (rows, cols) = tensor.rows_cols();
        if rows == 0 {
            continue;
        }
        row.resize(cols, 0f32);
        for r in [0, rows - 1] {
            source.read_rows(index, r..r + 1, &mut row)?;
            row.iter().for_each(|v| hash.update(v.to_bits().to_le_bytes()));
        }
    }
    for (name, bytes) in source.blobs() {
        hash.update(Sha256::digest(name));
        hash.update(Sha256::digest(bytes));
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

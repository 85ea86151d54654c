//! Keeps a container to a number of bytes: forecasts its parts, chooses rates, and corrects them by what tensors really took.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use gosset_codec::{CodecError, CodecSpec, MatrixHeader, Plane, PlaneDtype};
use gosset_container::{Forecast, ManifestInfo, PlaneForecast};

use crate::allocate::{self, Demand, ErrorCurve};
use crate::error::QuantizeError;
use crate::method::{Method, MethodInfo};
use crate::options::QuantizeOptions;
use crate::source::TensorInfo;
use crate::target::{Allocation, QuantizeTarget};

/// Rounds of choosing rates, forecasting, and correcting what is left; side information hardly depends on the rate.
const ROUNDS: usize = 4;

/// What later tensors may have to give for one that took too much, in bits per weight of theirs.
const MAX_DEBT_BPS: f64 = 0.02;

/// Digits of a number with a fraction in a header, at most: a sign, nine digits, a point and an exponent.
const FRACTION_DIGITS: usize = 16;

/// Bytes of every part of a container, forecast or known, and the limit that they are kept to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Budget {
    limit: Limit,
    /// Header bytes of no part.
    frame: u64,
    /// One part per item of the plan; those of skipped tensors are empty.
    parts: Vec<Part>,
    /// Of the tensors whose rate is free: what they are worth.
    demands: HashMap<usize, Demand>,
    curve: ErrorCurve,
    /// Bytes that no container of this plan has, for the digits of offsets.
    max_bytes: u64,
    sum: Sum,
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    /// Bytes of the file.
    File(u64),
    /// Bytes of the coded tensors with their share of the header.
    Coded { bytes: u64, n_weights: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Part {
    forecast: Forecast,
    is_coded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sum {
    header_bytes: u64,
    plane_bytes: u64,
    n_planes: u64,
    coded_bytes: u64,
    coded_planes: u64,
    /// Parts that are not coded: each may end a run of coded ones, whose share of the header is rounded.
    n_other: u64,
}

impl Sum {
    fn add(&mut self, part: Part) {
        let Forecast { header_bytes, plane_bytes, n_planes } = part.forecast;
        self.header_bytes += header_bytes;
        self.plane_bytes += plane_bytes;
        self.n_planes += n_planes;
        if part.is_coded {
            self.coded_bytes += plane_bytes;
            self.coded_planes += n_planes;
        } else {
            self.n_other += 1;
        }
    }

    fn remove(&mut self, part: Part) {
        let Forecast { header_bytes, plane_bytes, n_planes } = part.forecast;
        self.header_bytes -= header_bytes;
        self.plane_bytes -= plane_bytes;
        self.n_planes -= n_planes;
        if part.is_coded {
            self.coded_bytes -= plane_bytes;
            self.coded_planes -= n_planes;
        } else {
            self.n_other -= 1;
        }
    }
}

/// A tensor as the budget sees it.
pub(crate) enum Planned<'a> {
    /// Quantized by this method; `is_free` says that its rate is to be chosen.
    Coded { tensor: &'a TensorInfo, method: &'a Method, is_free: bool },
    /// Kept bit-exact for a reason.
    Kept { tensor: &'a TensorInfo, reason: &'a str },
    /// Left out.
    Skipped,
}

/// A budget and the payload of every free tensor, by its index in the plan.
pub(crate) struct Choice {
    pub(crate) budget: Budget,
    pub(crate) rates: Vec<(usize, f64)>,
}

/// Chooses the rates of the free tensors of a plan, `items`; `blobs` are the side files with their lengths. A payload as target leaves
/// nothing to choose.
///
/// # Errors
/// [`QuantizeError::TargetRange`] if no rates meet the target, and those of the codec for widths that it cannot serve.
pub(crate) fn choose(
    options: &QuantizeOptions,
    codec: &MethodInfo,
    items: &[Planned<'_>],
    blobs: &[(&str, u64)],
    info: &ManifestInfo,
) -> Result<Choice, QuantizeError> {
    let mut chooser = Chooser { codec, samples: HashMap::new() };
    let mut budget = chooser.budget(options, items, blobs, info)?;
    if options.payload_bps().is_some() {
        return Ok(Choice { budget, rates: Vec::new() });
    }
    let mut free: Vec<Free<'_>> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        if let Planned::Coded { tensor, method, is_free: true } = item {
            let demand = budget.demands[&index];
            free.push(Free { index, tensor, method, demand });
        }
    }
    budget.check_reach(&mut chooser, &free)?;
    let rates = budget.rates(&mut chooser, &free)?;
    Ok(Choice { budget, rates: free.iter().map(|f| f.index).zip(rates).collect() })
}

/// A tensor whose rate is to be chosen.
struct Free<'a> {
    index: usize,
    tensor: &'a TensorInfo,
    method: &'a Method,
    demand: Demand,
}

/// Header of a coded matrix and its planes by name.
type Sample = (MatrixHeader, Vec<(String, PlaneDtype)>);

/// Forecasts coded tensors: what a header and planes look like is taken from a matrix of one row.
struct Chooser<'a> {
    codec: &'a MethodInfo,
    /// By method and columns.
    samples: HashMap<(String, usize), Sample>,
}

impl Chooser<'_> {
    fn budget(
        &mut self,
        options: &QuantizeOptions,
        items: &[Planned<'_>],
        blobs: &[(&str, u64)],
        info: &ManifestInfo,
    ) -> Result<Budget, QuantizeError> {
        let frame = Forecast::frame(info).map_err(|reason| QuantizeError::Recipe { reason })?;
        let bytes_of = |item: &Planned<'_>| match item {
            Planned::Coded { tensor, .. } => tensor.n_weights().saturating_mul(5),
            Planned::Kept { tensor, .. } => tensor.n_bytes,
            Planned::Skipped => 0,
        };
        let blob_bytes = blobs.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        let mut max_bytes = items.iter().map(bytes_of).fold(blob_bytes, u64::saturating_add);
        let n_coded = items.iter().fold(0u64, |n, item| match item {
            Planned::Coded { tensor, .. } => n.saturating_add(tensor.n_weights()),
            _ => n,
        });
        let limit = match options.target {
            QuantizeTarget::FileBytes(bytes) => {
                max_bytes = max_bytes.min(bytes);
                Limit::File(bytes)
            }
            QuantizeTarget::AllInBpw(bpw) => {
                Limit::Coded { bytes: (bpw * n_coded as f64 / 8.0) as u64, n_weights: n_coded }
            }
            QuantizeTarget::PayloadBps(_) => Limit::File(u64::MAX),
        };
        let snr_db = |rate: f64| {
            // A shape without padding, so that the curve is that of the code alone.
            let method = Method::parse(&self.codec.name, rate);
            method.ok().and_then(|method| method.estimate(4096, 4096).ok()).map_or(0.0, |e| e.snr_db)
        };
        let curve = ErrorCurve::new(self.codec.min_bps, self.codec.max_bps, self.codec.rates.as_deref(), snr_db);
        let (parts, sum) = (vec![Part::default(); items.len()], Sum::default());
        let mut budget = Budget { limit, frame, parts, demands: HashMap::new(), curve, max_bytes, sum };
        for (index, item) in items.iter().enumerate() {
            let part = match item {
                Planned::Coded { tensor, method, is_free } => {
                    if *is_free {
                        budget.demands.insert(index, demand(options, tensor));
                    }
                    self.coded(tensor, method, max_bytes)?
                }
                Planned::Kept { tensor: t, reason } => {
                    let forecast = Forecast::raw(&t.name, &t.dtype, &t.shape, t.n_bytes, reason, max_bytes);
                    Part { forecast, is_coded: false }
                }
                Planned::Skipped => continue,
            };
            budget.parts[index] = part;
            budget.sum.add(part);
        }
        for (name, n_bytes) in blobs {
            budget.sum.add(Part { forecast: Forecast::blob(name, *n_bytes, max_bytes), is_coded: false });
        }
        Ok(budget)
    }

    /// A tensor to be quantized by `method`.
    fn coded(&mut self, t: &TensorInfo, method: &Method, max_bytes: u64) -> Result<Part, QuantizeError> {
        let of_codec = |source| QuantizeError::Codec { tensor: t.name.clone(), source };
        let (rows, cols) = t.rows_cols();
        let bytes = method.estimate(rows, cols).map_err(of_codec)?.bytes;
        let (Method::Codec(spec) | Method::Feedback(spec)) = method else {
            return self.grid(t, method, max_bytes);
        };
        // The header does not depend on the rate but for the digits of its numbers.
        let key = (method.name(), cols);
        if let Entry::Vacant(entry) = self.samples.entry(key.clone()) {
            entry.insert(sample(spec, cols).map_err(of_codec)?);
        }
        let (header, planes) = &self.samples[&key];
        let header = MatrixHeader { rows: rows as u64, ..header.clone() };
        // Lengths are bounded by that of all planes in bytes.
        let planes: Vec<_> =
            planes.iter().map(|(name, dtype)| PlaneForecast { name, dtype: *dtype, len: bytes }).collect();
        let mut forecast = Forecast::coded(&t.name, &t.dtype, &header, &planes, max_bytes);
        forecast.header_bytes += missing_digits(&header);
        forecast.plane_bytes = bytes;
        Ok(Part { forecast, is_coded: true })
    }

    /// A tensor to be quantized by the affine grid.
    fn grid(&mut self, t: &TensorInfo, method: &Method, max_bytes: u64) -> Result<Part, QuantizeError> {
        let (rows, cols) = t.rows_cols();
        let header = method
            .grid_header(rows, cols)
            .map_err(|source| QuantizeError::UniSvq { tensor: t.name.clone(), source })?;
        let is_tuned = method.is_tuned();
        let mut forecast = Forecast::unisvq(&t.name, &t.dtype, &header, is_tuned, max_bytes);
        let text = serde_json::to_string(&header).unwrap_or_default();
        forecast.header_bytes += missing_digits_of(&text);
        Ok(Part { forecast, is_coded: true })
    }

    fn coded_at(&mut self, free: &Free<'_>, rate: f64, max_bytes: u64) -> Result<Part, QuantizeError> {
        self.coded(free.tensor, &free.method.at_payload(rate), max_bytes)
    }
}

/// What header and planes of a codec look like, from a matrix of one row.
fn sample(spec: &CodecSpec, cols: usize) -> Result<Sample, CodecError> {
    let encoded = spec.check()?.encode_owned(sample_row(cols), 1, cols)?;
    let planes = encoded.planes.iter().map(|p| (p.name.to_string(), p.data.dtype())).collect();
    Ok((encoded.header, planes))
}

/// What a matrix with that header and these planes takes as tensor `t` of a file of at most `max_bytes`.
pub(crate) fn forecast_of(t: &TensorInfo, header: &MatrixHeader, planes: &[Plane<'_>], max_bytes: u64) -> Forecast {
    fn forecast<'a>(p: &'a Plane<'_>) -> PlaneForecast<'a> {
        PlaneForecast { name: &p.name, dtype: p.data.dtype(), len: p.data.len() as u64 }
    }
    let planes: Vec<PlaneForecast<'_>> = planes.iter().map(forecast).collect();
    Forecast::coded(&t.name, &t.dtype, header, &planes, max_bytes)
}

impl Budget {
    /// Takes note of what the manifest says about origin and options.
    pub(crate) fn set_frame(&mut self, info: &ManifestInfo) -> Result<(), QuantizeError> {
        self.frame = Forecast::frame(info).map_err(|reason| QuantizeError::Recipe { reason })?;
        Ok(())
    }

    /// Bytes charged against the limit, as things are: an upper bound.
    fn charged(&self) -> u64 {
        match self.limit {
            Limit::File(_) => self.file_bytes(),
            Limit::Coded { .. } => self.coded_bytes(),
        }
    }

    /// Bytes of the coded tensors with their share of the header, as things are: an upper bound.
    pub(crate) fn coded_bytes(&self) -> u64 {
        let header = self.frame + self.sum.header_bytes;
        let (coded, all) = (u128::from(self.sum.coded_planes), u128::from(self.sum.n_planes.max(1)));
        let share = (u128::from(header) * coded).div_ceil(all) as u64;
        self.sum.coded_bytes + share + self.sum.n_other + 1
    }

    /// Bytes of the file, as things are: an upper bound.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.frame + self.sum.header_bytes + self.sum.plane_bytes
    }

    fn limit_bytes(&self) -> u64 {
        match self.limit {
            Limit::File(bytes) | Limit::Coded { bytes, .. } => bytes,
        }
    }

    /// Bytes left; negative if too many are spent.
    fn spare(&self) -> i128 {
        i128::from(self.limit_bytes()) - i128::from(self.charged())
    }

    fn replace(&mut self, index: usize, part: Part) {
        self.sum.remove(std::mem::replace(&mut self.parts[index], part));
        self.sum.add(part);
    }

    /// Refuses targets that the lowest rates exceed or the highest do not fill.
    fn check_reach(&mut self, chooser: &mut Chooser<'_>, free: &[Free<'_>]) -> Result<(), QuantizeError> {
        let mut ends = [0; 2];
        for (end, rate) in ends.iter_mut().zip([self.curve.max(), self.curve.min()]) {
            for f in free {
                let part = chooser.coded_at(f, rate, self.max_bytes)?;
                self.replace(f.index, part);
            }
            *end = self.charged();
        }
        let [ceiling, floor] = ends;
        if (floor..=ceiling).contains(&self.limit_bytes()) {
            return Ok(());
        }
        let codec = chooser.codec.name.clone();
        Err(match self.limit {
            Limit::File(bytes) => {
                let [asked, floor, ceiling] = [bytes, floor, ceiling].map(|n| n as f64);
                QuantizeError::TargetRange { codec, asked, floor, ceiling, unit: "bytes" }
            }
            Limit::Coded { bytes, n_weights } => {
                let bpw = |n: u64| n as f64 * 8.0 / n_weights.max(1) as f64;
                // Rounded inwards, so that what is named can be asked for.
                let (floor, ceiling) = ((bpw(floor) * 1e3).ceil() / 1e3, (bpw(ceiling) * 1e3).floor() / 1e3);
                let asked = (bpw(bytes) * 1e3).round() / 1e3;
                QuantizeError::TargetRange { codec, asked, floor, ceiling, unit: "bits per quantized weight" }
            }
        })
    }

    /// The payload of every free tensor; the parts are those of these rates.
    fn rates(&mut self, chooser: &mut Chooser<'_>, free: &[Free<'_>]) -> Result<Vec<f64>, QuantizeError> {
        let demands: Vec<Demand> = free.iter().map(|f| f.demand).collect();
        if !self.curve.is_continuous {
            return self.mixed(chooser, free, &demands);
        }
        // The parts are those of the lowest rates, so what is spare is what can be added.
        let n: f64 = demands.iter().map(|d| d.n_weights as f64).sum();
        let mut bits = n * self.curve.min();
        let mut rates = Vec::new();
        for _ in 0..ROUNDS {
            bits += self.spare() as f64 * 8.0;
            rates = allocate::continuous(&self.curve, &demands, bits);
            for (f, &rate) in free.iter().zip(&rates) {
                let part = chooser.coded_at(f, rate, self.max_bytes)?;
                self.replace(f.index, part);
            }
        }
        Ok(rates)
    }

    fn mixed(
        &mut self,
        chooser: &mut Chooser<'_>,
        free: &[Free<'_>],
        demands: &[Demand],
    ) -> Result<Vec<f64>, QuantizeError> {
        // Bytes by tensor and rate, the header included: its text hardly changes with the rate, but it may.
        let set: Vec<f64> = self.curve.rates().to_vec();
        let mut parts = Vec::with_capacity(free.len());
        for f in free {
            let at = |&rate: &f64| chooser.coded_at(f, rate, self.max_bytes);
            parts.push(set.iter().map(at).collect::<Result<Vec<Part>, QuantizeError>>()?);
        }
        let index_of = |rate: f64| set.iter().position(|&r| r == rate).unwrap_or(0);
        let bytes = |t: usize, rate: f64| {
            let Forecast { header_bytes, plane_bytes, .. } = parts[t][index_of(rate)].forecast;
            header_bytes + plane_bytes
        };
        let floor = (0..free.len()).map(|t| bytes(t, self.curve.min())).sum::<u64>();
        let limit = (i128::from(floor) + self.spare()).clamp(0, i128::from(u64::MAX)) as u64;
        let rates = allocate::mixed(&self.curve, demands, limit, bytes).unwrap_or_else(|| vec![set[0]; free.len()]);
        for (t, f) in free.iter().enumerate() {
            self.replace(f.index, parts[t][index_of(rates[t])]);
        }
        Ok(rates)
    }
}

/// Follows a run: what tensors really took, and what the others may take.
pub(crate) struct Pace {
    budget: Budget,
    /// Weights of the free tensors still to come.
    weights_left: u64,
}

impl Pace {
    /// At the start of a run.
    pub(crate) fn new(budget: &Budget) -> Self {
        let weights_left = budget.demands.values().map(|d| d.n_weights).sum();
        Pace { budget: budget.clone(), weights_left }
    }

    /// The payload that free tensor `index` may have, `planned` being what was planned: what others left or took is shared with all
    /// that are to come. Fixed rates stay as planned, or go one lower where too much was spent.
    pub(crate) fn rate(&self, index: usize, planned: f64) -> f64 {
        let curve = &self.budget.curve;
        if !self.budget.demands.contains_key(&index) {
            return planned;
        }
        if !curve.is_continuous {
            let is_over = self.budget.spare() < 0;
            return if is_over { curve.below(planned).unwrap_or(planned) } else { planned };
        }
        let delta = self.budget.spare() as f64 * 8.0 / self.weights_left.max(1) as f64;
        (planned + delta).clamp(curve.min(), curve.max())
    }

    /// Bytes that no container of the plan has.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.budget.max_bytes
    }

    /// Takes note of a tensor that was quantized, or tells the lower payload with which to encode it again.
    ///
    /// A tensor may take more than it should as long as those to come can make up for it: hundredths of a bit for each of their
    /// weights. The last one has to fit.
    pub(crate) fn take(&mut self, index: usize, forecast: Forecast, rate: f64, is_last_try: bool) -> Option<f64> {
        let demand = self.budget.demands.get(&index).copied();
        self.budget.replace(index, Part { forecast, is_coded: true });
        let demand = demand?;
        let after = self.weights_left - demand.n_weights;
        let over = -self.budget.spare();
        let debt = (MAX_DEBT_BPS * after as f64 / 8.0) as i128;
        let curve = &self.budget.curve;
        if over > debt && rate > curve.min() && !is_last_try {
            if !curve.is_continuous {
                return curve.below(rate);
            }
            // A little more than the excess, so that a second try nearly always fits.
            let lower = rate - (over as f64 * 8.0 / demand.n_weights as f64).max(2e-3) * 1.1;
            return Some(lower.max(curve.min()));
        }
        self.weights_left = after;
        None
    }

    /// Takes note of what a tensor that was taken became later.
    pub(crate) fn change(&mut self, index: usize, forecast: Forecast) {
        self.budget.replace(index, Part { forecast, is_coded: true });
    }

    /// Checks the finished container, whose header has that length.
    pub(crate) fn check(&self, header_bytes: u64) -> Result<(), QuantizeError> {
        let mut exact = self.budget.clone();
        exact.frame = header_bytes.saturating_sub(exact.sum.header_bytes);
        if header_bytes < exact.sum.header_bytes {
            exact.sum.header_bytes = header_bytes;
        }
        let (asked, found) = (exact.limit_bytes(), exact.charged());
        if found > asked { Err(QuantizeError::TargetMissed { asked, found }) } else { Ok(()) }
    }
}

/// What the relative error of a tensor counts.
fn demand(options: &QuantizeOptions, t: &TensorInfo) -> Demand {
    let n_weights = t.n_weights();
    let weight = weight(options, &t.name);
    let density = match options.allocation {
        Allocation::Uniform => weight,
        Allocation::EqualSlope => weight / n_weights.max(1) as f64,
    };
    Demand { n_weights, density }
}

/// The weight that the user gave a tensor, 1 by default.
pub(crate) fn weight(options: &QuantizeOptions, name: &str) -> f64 {
    options.weights.iter().rev().find(|w| w.matches(name)).map_or(1.0, |w| w.weight)
}

/// Roughly normal values from integers: the same on every machine, unlike those of a logarithm.
fn sample_row(cols: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 52) as i32 - 2048
    };
    (0..cols).map(|_| (next() + next() + next() + next()) as f32 / 4096.0).collect()
}

/// Bytes by which the numbers with a fraction in a header may be longer than they are.
fn missing_digits(header: &MatrixHeader) -> u64 {
    missing_digits_of(&serde_json::to_string(header).unwrap_or_default())
}

/// The same of the text of a header.
fn missing_digits_of(text: &str) -> u64 {
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E');
    let numbers = text.split(|c| !is_number(c)).filter(|word| word.contains('.'));
    numbers.map(|word| FRACTION_DIGITS.saturating_sub(word.len()) as u64).sum()
}

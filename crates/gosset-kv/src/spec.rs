//! Specifications of a cache: texts such as `e8@2.25,window=256,sinks=64`.
//!
//! A text is a code with its rate, then options in any order, all separated by commas:
//!
//! | item | meaning | default |
//! |---|---|---|
//! | `e8@2.25` | code and rate, bits of a sealed page per scalar, norms and page ends included: `z`, `a2`, `d4`, `e8`, `trellis-8`, `trellis-64` at 1 to 8 bits; `shift-10`, `shift-12` at 1 to 5, rounded down to whole 16 bits of a vector; `f32`, `bf16`, `f16` without a rate | required |
//! | `k@2`, `v@2.5` | another rate for keys or values | in the frames `probe` and `pairs` keys have 0.4 bits less than the one number and values 0.4 more, which is about best for both; otherwise the same |
//! | `k=d4@2`, `v=f16` | another code for keys or values | |
//! | `frame=` | of keys: `probe` (mean off, transform and step by statistics), `pairs` (mean off, bits of each rotary pair by statistics, after the rotary embedding; `shift-10` and `shift-12`), `mean` (mean off), `none` | `probe`; with `shift-10` and `shift-12` `pairs`, with `trellis-8` and `trellis-64` `none` |
//! | `rope=` | keys are coded `before` or `after` the rotary embedding; `pairs` needs `after`, other frames need `before` | `after` with `pairs` and `none` |
//! | `rot=` | `rht`, `haar`, `signs`, `none`; not for keys in the frames `probe` and `pairs` | `rht` |
//! | `norm=` | `coded` (quarter octaves under the entropy code), `log8`, `f16`; not in the frames `probe` and `pairs` | `coded`; `shift-10` and `shift-12` have bytes of their own |
//! | `scale=` | `on`, `off`: whether vectors of `shift-10` and `shift-12` in the frames `probe` and `pairs` have a byte for their size, without which the few keys that are much larger than others are lost | `on` |
//! | `coder=` | `ans`, `rice` | `ans` |
//! | `dither=` | `on`, `off`: subtractive, uniform on the cell; makes ⟨q, x⟩ unbiased for every vector | `off` |
//! | `gain=` | `on`, `off`: least-squares gain of the reconstruction | values `on` without dither |
//! | `seed=` | of signs, rotations and dither | 0 |
//! | `window=`, `sinks=` | newest and first positions, exact; strings of one width for all vectors (`shift-10`, `shift-12`) cannot hold keys of first tokens, which lie far out: `sinks=4` | 0, 0 |
//! | `page=` | vectors of a sealed page | 64 |
//! | `exact=` | how exact positions are stored: `f32`, `bf16`, `f16` | `f16` |
//! | `budget=` | `variable`, `fixed` bytes for a page | `variable` |
//! | `protect=` | layers kept exact, `0+23`; only keys or values of one: `k0+v23` | none |
//!
//! `rot`, `norm`, `scale`, `coder`, `dither` and `gain` are for both roles; with `k.` or `v.` before them (`k.rot=none`) for one.
//!
//! ```
//! use gosset_kv::KvSpec;
//!
//! let spec: KvSpec = "e8@2.5,sinks=64,k@2,window=256".parse()?;
//! assert_eq!((spec.key.rate, spec.value.rate, spec.policy.window), (2.0, 2.5, 256));
//! assert_eq!(spec.to_string(), "e8@2.5,k@2,window=256,sinks=64");
//! # Ok::<(), gosset_kv::KvError>(())
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use gosset_lattice::LatticeKind;

use crate::{
    Budget, ExactType, FloatKv, KvCodec, KvError, KvShape, LatticeKv, Policy, Probe, Protected, Role, ShiftKv,
    TrellisKv,
};

/// Lines that tell how to write a specification, for the help of a command.
pub const GRAMMAR: &str = "\
CODE@BITS[,OPTION...], for example e8@2.25,window=256,sinks=64
  CODE@BITS        e8, d4, a2, z, trellis-8 or trellis-64 at 1 to 8 bits per scalar, norms included;
                   shift-10 or shift-12 at 1 to 5, every vector as many bits: for GPUs; f16, bf16, f32 without bits
  k@BITS, v@BITS   another rate for keys or values; k=CODE@BITS, v=CODE@BITS another code
  window=N sinks=N newest and first positions kept exact (0; shift-10 and shift-12 want sinks=4),
                   exact=f16|bf16|f32 how
  frame=F          keys: probe (mean off, transform by statistics; unless said otherwise, keys then get .4 bits
                   less and values .4 more), mean, none (probe); shift-10 and shift-12 also pairs (mean off,
                   bits of rotary pairs by statistics: what a GPU reads; their default)
  rope=before|after  where keys are coded (before; after with frame=none and frame=pairs)
  rot=rht|haar|signs|none (rht), norm=coded|log8|f16 (coded), coder=ans|rice (ans), dither=on|off (off),
  scale=on|off (on; shift-10 and shift-12 with frame=probe or pairs),
  gain=on|off (on for values without dither)
                   for both, or with k. or v. before them for one
  page=N           vectors of a sealed page (64), budget=variable|fixed
  protect=0+k23    layers kept exact, with k or v only their keys or values
  seed=N           of signs, rotations and dither (0)";

/// Lowest rate that can be asked for, in bits per scalar.
pub const MIN_RATE: f64 = 1.0;
/// Highest rate that can be asked for, in bits per scalar.
pub const MAX_RATE: f64 = 8.0;
/// How far below the one rate of a specification keys in the frame `probe` are, and values above it, where that leaves both in range:
/// their errors then cost about the same.
const SPLIT: f64 = 0.4;
/// Vectors of a page where nothing else is asked.
pub const DEFAULT_PAGE: usize = 64;

/// What vectors are rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Points of a lattice.
    Lattice(LatticeKind),
    /// Paths of the entropy-coded trellis with that many states, 8 or 64.
    Trellis(u32),
    /// Strings of the fixed-width shift trellis with states of that many bits, 10 or 12.
    Shift(u32),
    /// Floating point, without a rate of its own.
    Exact(ExactType),
}

impl Code {
    const ALL: [Code; 11] = [
        Code::Lattice(LatticeKind::Z),
        Code::Lattice(LatticeKind::A2),
        Code::Lattice(LatticeKind::D4),
        Code::Lattice(LatticeKind::E8),
        Code::Trellis(8),
        Code::Trellis(64),
        Code::Shift(10),
        Code::Shift(12),
        Code::Exact(ExactType::F32),
        Code::Exact(ExactType::Bf16),
        Code::Exact(ExactType::F16),
    ];

    /// `e8`, `f16`, ….
    pub const fn name(self) -> &'static str {
        match self {
            Code::Lattice(kind) => kind.name(),
            Code::Trellis(8) => "trellis-8",
            Code::Trellis(_) => "trellis-64",
            Code::Shift(10) => "shift-10",
            Code::Shift(_) => "shift-12",
            Code::Exact(ty) => ty.name(),
        }
    }
}

/// A fixed choice of words: its variants in the order of their names.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// How specifications name it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(format!("expected {}", [$($text),*].join(", "))),
                }
            }
        }
    };
}

words! {
    /// What makes the coordinates of a vector look alike.
    Rotation {
        /// Random signs and a Hadamard transform.
        Rht = "rht",
        /// A dense orthonormal matrix drawn uniformly.
        Haar = "haar",
        /// Random signs.
        Signs = "signs",
        /// Nothing.
        None = "none",
    }
}

words! {
    /// The frame in which keys are coded.
    Frame {
        /// Mean off, principal axes in the metric of queries, one step; no norms.
        Probe = "probe",
        /// Mean off as it is turned at each position, each rotary pair scaled by itself: coded after the rotary embedding.
        Pairs = "pairs",
        /// Mean off, then as values are.
        Mean = "mean",
        /// As values are.
        None = "none",
    }
}

impl Frame {
    /// Whether bits of coordinates follow their variances.
    const fn is_fitted(self) -> bool {
        matches!(self, Self::Probe | Self::Pairs)
    }

    /// Whether keys are coded before the rotary embedding.
    const fn is_before_rope(self) -> bool {
        matches!(self, Self::Probe | Self::Mean)
    }
}

words! {
    /// How norms are stored.
    NormKind {
        /// In quarter octaves under the entropy code.
        Coded = "coded",
        /// In quarter octaves from 2^-32 to 2^31, in 8 bits.
        Log8 = "log8",
        /// As half-precision floats, 16 bits; from 2^-14 to 65504.
        F16 = "f16",
    }
}

words! {
    /// The entropy code of coordinates.
    Coder {
        /// Tabled asymmetric numeral systems.
        Ans = "ans",
        /// Rice codes with parameters for each page.
        Rice = "rice",
    }
}

/// How keys or values are coded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoleSpec {
    /// What vectors are rounded to.
    pub code: Code,
    /// Bits of a sealed page per scalar; those of the type for exact codes.
    pub rate: f64,
    /// The frame, [`Frame::None`] for values.
    pub frame: Frame,
    /// The rotation; [`Rotation::Rht`], without effect, in the frame [`Frame::Probe`] and for exact codes.
    pub rotation: Rotation,
    /// How norms are stored; [`NormKind::Coded`], without effect, where there are none.
    pub norm: NormKind,
    /// Whether vectors of [`Code::Shift`] have a byte for their size; always outside of [`Frame::Probe`] and [`Frame::Pairs`].
    pub scale: bool,
    /// The entropy code.
    pub coder: Coder,
    /// Whether a dither is added before rounding and taken off again.
    pub dither: bool,
    /// Whether reconstructions have the least-squares gain.
    pub gain: bool,
}

impl RoleSpec {
    fn new(role: Role, code: Code, rate: f64) -> Self {
        let lattice = matches!(code, Code::Lattice(_));
        let shift = matches!(code, Code::Shift(_));
        let frame = match role {
            Role::Key if lattice => Frame::Probe,
            Role::Key if shift => Frame::Pairs,
            _ => Frame::None,
        };
        let gain = role == Role::Value && lattice;
        let (rotation, norm, coder) = (Rotation::Rht, NormKind::Coded, Coder::Ans);
        Self { code, rate, frame, rotation, norm, scale: shift, coder, dither: false, gain }
    }

    /// Code and rate: `e8@2.25`.
    pub fn code_and_rate(&self) -> String {
        match self.code {
            Code::Lattice(_) | Code::Trellis(_) | Code::Shift(_) => format!("{}@{}", self.code.name(), self.rate),
            Code::Exact(ty) => ty.name().to_owned(),
        }
    }
}

/// The codecs of keys and of values.
pub type Codecs = (Arc<dyn KvCodec>, Arc<dyn KvCodec>);

/// How a cache is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct KvSpec {
    /// Keys.
    pub key: RoleSpec,
    /// Values.
    pub value: RoleSpec,
    /// What is exact and how pages lie.
    pub policy: Policy,
    /// Whether keys are coded before the rotary embedding and rotated when they are read.
    pub keys_before_rope: bool,
    /// Seed of signs, rotations and dither.
    pub seed: u64,
    /// Layers that are kept exact, ascending.
    pub protect: Vec<Protected>,
}

impl KvSpec {
    /// Whether [`KvSpec::codecs`] needs a [`Probe`].
    pub fn wants_probe(&self) -> bool {
        self.key.frame != Frame::None
    }

    /// Whether a mean is taken off keys before they are coded, so that large biases of keys do no harm.
    pub fn removes_mean(&self) -> bool {
        self.key.frame != Frame::None
    }

    /// The codecs of keys and of values.
    ///
    /// # Errors
    ///
    /// [`KvError::HeadDim`] for a width that a code does not take, [`KvError::Spec`] for a rate that cannot be met, for a missing
    /// probe or one of another shape.
    pub fn codecs(&self, shape: KvShape, probe: Option<&Probe>) -> Result<Codecs, KvError> {
        let codec = |role: Role, spec: &RoleSpec| -> Result<Arc<dyn KvCodec>, KvError> {
            Ok(match spec.code {
                Code::Exact(ty) => Arc::new(FloatKv::new(ty, shape.head_dim)?),
                Code::Lattice(_) => Arc::new(LatticeKv::new(self, role, shape, probe)?),
                Code::Trellis(states) => Arc::new(TrellisKv::new(states, self, role, shape, probe)?),
                Code::Shift(bits) => Arc::new(ShiftKv::new(bits, self, role, shape, probe)?),
            })
        };
        Ok((codec(Role::Key, &self.key)?, codec(Role::Value, &self.value)?))
    }

    /// The specification of keys or of values.
    pub fn role(&self, role: Role) -> &RoleSpec {
        match role {
            Role::Key => &self.key,
            Role::Value => &self.value,
        }
    }
}

/// Policy and protected layers in a list of options such as `window=256,sinks=64`, for codecs that are not of this crate.
///
/// # Errors
///
/// [`KvError::Spec`] for anything else.
pub fn parse_policy(options: &str) -> Result<(Policy, Vec<Protected>), KvError> {
    let mut parser = Parser::default();
    for item in options.split(',').filter(|item| !item.is_empty()) {
        let (key, text) = item.split_once('=').ok_or_else(|| bad(item, "expected option=value"))?;
        if !parser.policy_option(key, text)? {
            return Err(bad(item, "expected window, sinks, page, exact, budget or protect"));
        }
    }
    Ok((parser.policy()?, parser.protected()))
}

fn bad(spec: impl Into<String>, reason: impl Into<String>) -> KvError {
    KvError::Spec { spec: spec.into(), reason: reason.into() }
}

impl FromStr for KvSpec {
    type Err = KvError;

    fn from_str(text: &str) -> Result<Self, KvError> {
        let mut items = text.split(',');
        let base = items.next().unwrap_or_default();
        let (code, rate) = parse_code(base)?;
        let mut parser = Parser { codes: [(code, rate); 2], ..Parser::default() };
        items.try_for_each(|item| parser.item(item))?;
        parser.finish(text)
    }
}

/// Code and rate of `e8@2.25` or `f16`.
fn parse_code(text: &str) -> Result<(Code, f64), KvError> {
    let (name, rate) = match text.split_once('@') {
        Some((name, rate)) => (name, Some(rate)),
        None => (text, None),
    };
    let Some(code) = Code::ALL.into_iter().find(|code| code.name() == name) else {
        let names = Code::ALL.map(Code::name).join(", ");
        return Err(bad(text, format!("no code is named {name:?}; there are {names}")));
    };
    match (code, rate) {
        (Code::Exact(ty), None) => Ok((code, 8.0 * ty.bytes() as f64)),
        (Code::Exact(_), Some(_)) => Err(bad(text, format!("{name} has no rate: expected {name} alone"))),
        (_, None) => Err(bad(text, format!("expected a rate in bits per scalar, such as {name}@2.25"))),
        (_, Some(rate)) => Ok((code, parse_rate(text, rate)?)),
    }
}

fn parse_rate(item: &str, text: &str) -> Result<f64, KvError> {
    let reason = || format!("rate {text:?}: expected {MIN_RATE} to {MAX_RATE} bits per scalar");
    let rate: f64 = text.parse().map_err(|_| bad(item, reason()))?;
    if (MIN_RATE..=MAX_RATE).contains(&rate) { Ok(rate) } else { Err(bad(item, reason())) }
}

/// What has been read so far; index 0 is for keys, 1 for values.
#[derive(Debug)]
struct Parser {
    codes: [(Code, f64); 2],
    rates: [Option<f64>; 2],
    replaced: [bool; 2],
    frame: Option<Frame>,
    before_rope: Option<bool>,
    rotation: [Asked<Rotation>; 2],
    norm: [Asked<NormKind>; 2],
    scale: [Asked<bool>; 2],
    coder: [Asked<Coder>; 2],
    dither: [Asked<bool>; 2],
    gain: [Asked<bool>; 2],
    seed: Option<u64>,
    window: Option<usize>,
    sinks: Option<usize>,
    page: Option<usize>,
    exact: Option<ExactType>,
    budget: Option<Budget>,
    protect: Option<Vec<Protected>>,
}

/// A choice for one role, and whether it was made for that role alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked<T> {
    value: Option<T>,
    own: bool,
}

impl<T> Default for Asked<T> {
    fn default() -> Self {
        Self { value: None, own: false }
    }
}

impl Default for Parser {
    fn default() -> Self {
        Self {
            codes: [(Code::Lattice(LatticeKind::E8), MIN_RATE); 2],
            rates: [None; 2],
            replaced: [false; 2],
            frame: None,
            before_rope: None,
            rotation: Default::default(),
            norm: Default::default(),
            scale: Default::default(),
            coder: Default::default(),
            dither: Default::default(),
            gain: Default::default(),
            seed: None,
            window: None,
            sinks: None,
            page: None,
            exact: None,
            budget: None,
            protect: None,
        }
    }
}

const ROLE_LETTERS: [&str; 2] = ["k", "v"];

impl Parser {
    fn item(&mut self, item: &str) -> Result<(), KvError> {
        for (role, letter) in ROLE_LETTERS.into_iter().enumerate() {
            if let Some(rate) = item.strip_prefix(letter).and_then(|rest| rest.strip_prefix('@')) {
                return set(item, &mut self.rates[role], Ok::<_, String>(parse_rate(item, rate)?));
            }
            if let Some(code) = item.strip_prefix(letter).and_then(|rest| rest.strip_prefix('=')) {
                if self.replaced[role] {
                    return Err(bad(item, "given twice"));
                }
                (self.codes[role], self.replaced[role]) = (parse_code(code)?, true);
                return Ok(());
            }
        }
        let (key, text) = item.split_once('=').ok_or_else(|| bad(item, "expected option=value"))?;
        if self.policy_option(key, text)? {
            return Ok(());
        }
        match key {
            "frame" => return set(item, &mut self.frame, text.parse()),
            "rope" => {
                let before = match text {
                    "before" => Ok(true),
                    "after" => Ok(false),
                    _ => Err("expected before or after"),
                };
                return set(item, &mut self.before_rope, before);
            }
            "seed" => return set(item, &mut self.seed, text.parse().map_err(|_| "expected a number below 2^64")),
            _ => {}
        }
        let (roles, option) = match key.split_once('.') {
            None => (0..2, key),
            Some(("k", option)) => (0..1, option),
            Some(("v", option)) => (1..2, option),
            Some(_) => return Err(unknown(item, key)),
        };
        let own = roles.len() == 1;
        match option {
            "rot" => ask(item, &mut self.rotation[roles], text.parse(), own),
            "norm" => ask(item, &mut self.norm[roles], text.parse(), own),
            "scale" => ask(item, &mut self.scale[roles], parse_switch(text), own),
            "coder" => ask(item, &mut self.coder[roles], text.parse(), own),
            "dither" => ask(item, &mut self.dither[roles], parse_switch(text), own),
            "gain" => ask(item, &mut self.gain[roles], parse_switch(text), own),
            _ => Err(unknown(item, key)),
        }
    }

    /// Whether the option is one of the policy.
    fn policy_option(&mut self, key: &str, text: &str) -> Result<bool, KvError> {
        let item = format!("{key}={text}");
        let number = || text.parse::<usize>().map_err(|_| "expected a whole number");
        match key {
            "window" => set(&item, &mut self.window, number())?,
            "sinks" => set(&item, &mut self.sinks, number())?,
            "page" => set(&item, &mut self.page, number())?,
            "exact" => set(&item, &mut self.exact, Ok::<_, String>(text.parse()?))?,
            "budget" => set(&item, &mut self.budget, Ok::<_, String>(text.parse()?))?,
            "protect" => set(&item, &mut self.protect, parse_protected(text))?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn policy(&self) -> Result<Policy, KvError> {
        let policy = Policy {
            sinks: self.sinks.unwrap_or(0),
            window: self.window.unwrap_or(0),
            page: self.page.unwrap_or(DEFAULT_PAGE),
            exact: self.exact.unwrap_or_default(),
            budget: self.budget.unwrap_or_default(),
        };
        policy.check()?;
        Ok(policy)
    }

    fn protected(&self) -> Vec<Protected> {
        self.protect.clone().unwrap_or_default()
    }

    fn finish(self, text: &str) -> Result<KvSpec, KvError> {
        let [key, value] = [Role::Key, Role::Value].map(|role| self.role(role));
        let (mut key, mut value) = (key?, value?);
        if self.rates == [None; 2] && self.replaced == [false; 2] && key.frame.is_fitted() {
            [key.rate, value.rate] = split(key.rate);
        }
        let keys_before_rope = self.before_rope.unwrap_or(key.frame.is_before_rope());
        if key.frame == Frame::Pairs && keys_before_rope {
            return Err(bad(text, "frame=pairs follows the rotary embedding: expected rope=after, or frame=probe"));
        }
        if key.frame.is_before_rope() && !keys_before_rope {
            let reason = format!(
                "rope=after has no fixed mean or axes: expected rope=before with frame={}, or frame=none or frame=pairs",
                key.frame.name()
            );
            return Err(bad(text, reason));
        }
        let (policy, protect) = (self.policy()?, self.protected());
        Ok(KvSpec { key, value, policy, keys_before_rope, seed: self.seed.unwrap_or(0), protect })
    }

    fn role(&self, role: Role) -> Result<RoleSpec, KvError> {
        let (i, letter) = match role {
            Role::Key => (0, "k"),
            Role::Value => (1, "v"),
        };
        let (code, rate) = self.codes[i];
        if self.replaced[i] && self.rates[i].is_some() && !matches!(code, Code::Exact(_)) {
            return Err(bad(
                format!("{letter}={},{letter}@…", code.name()),
                "a rate given twice: expected one of the two",
            ));
        }
        let mut spec = RoleSpec::new(role, code, self.rates[i].unwrap_or(rate));
        if let Code::Exact(ty) = code {
            let options = [
                (self.rates[i].is_some(), "@"),
                (self.rotation[i].own, ".rot"),
                (self.norm[i].own, ".norm"),
                (self.scale[i].own, ".scale"),
                (self.coder[i].own, ".coder"),
                (self.dither[i].own, ".dither"),
                (self.gain[i].own, ".gain"),
            ];
            if let Some((_, option)) = options.into_iter().find(|(asked, _)| *asked) {
                return Err(bad(format!("{letter}{option}"), format!("has no meaning for {}", ty.name())));
            }
            if role == Role::Key && self.frame.is_some_and(|frame| frame != Frame::None) {
                return Err(bad("frame", format!("has no meaning for keys in {}", ty.name())));
            }
            return Ok(spec);
        }
        if role == Role::Key {
            spec.frame = self.frame.unwrap_or(spec.frame);
        }
        let normed = !spec.frame.is_fitted();
        for (asked, option) in [(self.rotation[i].own, "rot"), (self.norm[i].own, "norm")] {
            if asked && !normed {
                return Err(bad(
                    format!("{letter}.{option}"),
                    format!(
                        "has no meaning with frame={}: expected frame=mean or frame=none beside it",
                        spec.frame.name()
                    ),
                ));
            }
        }
        if normed {
            spec.rotation = self.rotation[i].value.unwrap_or(spec.rotation);
            spec.norm = self.norm[i].value.unwrap_or(spec.norm);
        }
        if spec.frame == Frame::Pairs && !matches!(code, Code::Shift(_)) {
            return Err(bad("frame=pairs", format!("is for shift-10 and shift-12, not for {}", code.name())));
        }
        match code {
            Code::Trellis(_) => return self.trellis(spec, i, letter),
            Code::Shift(_) => return self.shift(spec, i, letter),
            _ => {}
        }
        if self.scale[i].own {
            return Err(bad(format!("{letter}.scale"), format!("has no meaning for {}", code.name())));
        }
        spec.coder = self.coder[i].value.unwrap_or(spec.coder);
        spec.dither = self.dither[i].value.unwrap_or(spec.dither);
        spec.gain = self.gain[i].value.unwrap_or(default_gain(role, spec.dither));
        if spec.gain && spec.dither {
            return Err(bad(
                format!("{letter}.gain=on"),
                "a gain would bias what dither makes unbiased: expected one of the two",
            ));
        }
        if !normed && spec.coder == Coder::Rice {
            return Err(bad(
                format!("{letter}.coder=rice"),
                "the frame probe needs tables for each spread: expected ans, or frame=none",
            ));
        }
        Ok(spec)
    }

    /// Refuses what strings of the shift trellis cannot do.
    fn shift(&self, spec: RoleSpec, i: usize, letter: &str) -> Result<RoleSpec, KvError> {
        if self.norm[i].own {
            let reason = format!("{} stores eighth octaves in a byte: expected {letter}.scale", spec.code.name());
            return Err(bad(format!("{letter}.norm"), reason));
        }
        let scale = self.scale[i].value.unwrap_or(true);
        if !scale && !spec.frame.is_fitted() {
            return Err(bad(
                format!("{letter}.scale=off"),
                "vectors need their size: expected frame=pairs or frame=probe beside it",
            ));
        }
        // The rest is refused as for other paths.
        let frame = if spec.frame.is_fitted() { Frame::None } else { spec.frame };
        self.trellis(RoleSpec { frame, ..spec }, i, letter)?;
        Ok(RoleSpec { scale, norm: NormKind::Coded, ..spec })
    }

    /// Refuses what paths of a trellis cannot do.
    fn trellis(&self, spec: RoleSpec, i: usize, letter: &str) -> Result<RoleSpec, KvError> {
        if self.scale[i].own && matches!(spec.code, Code::Trellis(_)) {
            return Err(bad(format!("{letter}.scale"), format!("has no meaning for {}", spec.code.name())));
        }
        if spec.frame == Frame::Probe {
            let reason = "the trellis has one step for all coordinates: expected frame=none or frame=mean, or e8";
            return Err(bad("frame=probe", reason));
        }
        let alone =
            [(self.coder[i].own, "coder"), (self.dither[i].value == Some(true), "dither"), (self.gain[i].own, "gain")];
        match alone.into_iter().find(|(asked, _)| *asked) {
            Some((_, "dither")) => Err(bad(
                format!("{letter}.dither=on"),
                "a path is rounded as a whole, which no dither makes unbiased: expected e8, d4, a2 or z",
            )),
            Some((_, option)) => Err(bad(format!("{letter}.{option}"), "has no meaning for a trellis")),
            None => Ok(spec),
        }
    }
}

/// Rates of keys and values for one number.
fn split(rate: f64) -> [f64; 2] {
    let half = SPLIT.min(rate - MIN_RATE).min(MAX_RATE - rate);
    // Names of codecs show these numbers.
    [rate - half, rate + half].map(|rate| (rate * 1e6).round() / 1e6)
}

fn default_gain(role: Role, dither: bool) -> bool {
    role == Role::Value && !dither
}

fn unknown(item: &str, key: &str) -> KvError {
    let names =
        "frame, rope, rot, norm, scale, coder, dither, gain, seed, window, sinks, page, exact, budget, protect, k, v";
    bad(item, format!("no option is named {key:?}; there are {names}"))
}

fn parse_switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off"),
    }
}

fn parse_protected(text: &str) -> Result<Vec<Protected>, String> {
    let layer = |part: &str| {
        let (role, number) = match part.as_bytes().first() {
            Some(b'k') => (Some(Role::Key), &part[1..]),
            Some(b'v') => (Some(Role::Value), &part[1..]),
            _ => (None, part),
        };
        let reason = || format!("layer {part:?}: expected numbers such as 0+23, with k or v before them for one role");
        Ok(Protected { layer: number.parse().map_err(|_| reason())?, role })
    };
    let mut layers = text.split('+').map(layer).collect::<Result<Vec<_>, String>>()?;
    layers.sort_unstable();
    layers.dedup();
    Ok(layers)
}

fn set<T, E: Into<String>>(item: &str, slot: &mut Option<T>, value: Result<T, E>) -> Result<(), KvError> {
    let value = value.map_err(|reason| bad(item, reason))?;
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(bad(item, "given twice")),
    }
}

/// Sets a choice for the roles of `slots`; one for a single role stands above one for both.
fn ask<T: Copy, E: Into<String>>(
    item: &str,
    slots: &mut [Asked<T>],
    value: Result<T, E>,
    own: bool,
) -> Result<(), KvError> {
    let value = value.map_err(|reason| bad(item, reason))?;
    for slot in slots {
        match (slot.value.is_some() && slot.own == own, slot.own && !own) {
            (true, _) => return Err(bad(item, "given twice")),
            (false, true) => {}
            (false, false) => *slot = Asked { value: Some(value), own },
        }
    }
    Ok(())
}

impl fmt::Display for KvSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, policy, .. } = self;
        let mean = ((key.rate + value.rate) * 500.0).round() / 1000.0;
        if key.frame.is_fitted() && key.code == value.code && split(mean) == [key.rate, value.rate] {
            write!(f, "{}@{mean}", key.code.name())?;
        } else {
            f.write_str(&value.code_and_rate())?;
            match (key.code == value.code, key.rate == value.rate && !key.frame.is_fitted()) {
                (true, true) => {}
                (true, false) => write!(f, ",k@{}", key.rate)?,
                (false, _) => write!(f, ",k={}", key.code_and_rate())?,
            }
        }
        let plain = RoleSpec::new(Role::Key, key.code, key.rate);
        if key.frame != plain.frame {
            write!(f, ",frame={}", key.frame.name())?;
        }
        if self.keys_before_rope != key.frame.is_before_rope() {
            write!(f, ",rope={}", if self.keys_before_rope { "before" } else { "after" })?;
        }
        let switch = |on: bool| if on { "on" } else { "off" };
        for (letter, role, spec) in [("k", Role::Key, key), ("v", Role::Value, value)] {
            let plain = RoleSpec::new(role, spec.code, spec.rate);
            if spec.rotation != plain.rotation {
                write!(f, ",{letter}.rot={}", spec.rotation.name())?;
            }
            if spec.norm != plain.norm {
                write!(f, ",{letter}.norm={}", spec.norm.name())?;
            }
            if spec.scale != plain.scale {
                write!(f, ",{letter}.scale={}", switch(spec.scale))?;
            }
            if spec.coder != plain.coder {
                write!(f, ",{letter}.coder={}", spec.coder.name())?;
            }
            if spec.dither {
                write!(f, ",{letter}.dither=on")?;
            }
            if matches!(spec.code, Code::Lattice(_)) && spec.gain != default_gain(role, spec.dither) {
                write!(f, ",{letter}.gain={}", switch(spec.gain))?;
            }
        }
        for (name, n, default) in
            [("window", policy.window, 0), ("sinks", policy.sinks, 0), ("page", policy.page, DEFAULT_PAGE)]
        {
            if n != default {
                write!(f, ",{name}={n}")?;
            }
        }
        if policy.exact != ExactType::default() {
            write!(f, ",exact={}", policy.exact)?;
        }
        if policy.budget != Budget::default() {
            write!(f, ",budget={}", policy.budget)?;
        }
        for (i, protected) in self.protect.iter().enumerate() {
            let letter = match protected.role {
                None => "",
                Some(Role::Key) => "k",
                Some(Role::Value) => "v",
            };
            write!(f, "{}{letter}{}", if i == 0 { ",protect=" } else { "+" }, protected.layer)?;
        }
        if self.seed != 0 {
            write!(f, ",seed={}", self.seed)?;
        }
        Ok(())
    }
}

//! The ways to code keys that are compared.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use gosset_baselines::kv_baseline;
use gosset_kv::{KvCodec, KvShape, KvSpec, Probe};

/// What is drawn anew with a seed, and so for whom an expectation is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drawn {
    /// Nothing: another seed gives the same.
    Nothing,
    /// Once for a model: signs, rotations, sketches.
    Model,
    /// For every position: dither.
    Position,
}

impl Drawn {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Model => "model",
            Self::Position => "position",
        }
    }
}

/// One way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variant {
    /// Name in tables.
    pub(super) name: &'static str,
    /// A specification or a baseline, `R` standing for the rate.
    pattern: &'static str,
    pub(super) drawn: Drawn,
}

const fn variant(name: &'static str, pattern: &'static str, drawn: Drawn) -> Variant {
    Variant { name, pattern, drawn }
}

/// All of them; keys get the rate themselves, whatever the split between keys and values.
pub(super) const VARIANTS: &[Variant] = &[
    variant("none", "e8@R,frame=none,rot=none", Drawn::Nothing),
    variant("signs", "e8@R,frame=none,rot=signs", Drawn::Model),
    variant("rht", "e8@R,frame=none,rot=rht", Drawn::Model),
    variant("haar", "e8@R,frame=none,rot=haar", Drawn::Model),
    variant("dither", "e8@R,frame=none,rot=none,dither=on", Drawn::Position),
    variant("rht, dither", "e8@R,frame=none,rot=rht,dither=on", Drawn::Position),
    variant("haar, dither", "e8@R,frame=none,rot=haar,dither=on", Drawn::Position),
    variant("frame mean", "e8@R,frame=mean", Drawn::Model),
    variant("frame probe", "e8@R,k@R", Drawn::Nothing),
    variant("frame probe, dither", "e8@R,k@R,dither=on", Drawn::Position),
    variant("turboquant", "turboquant@R", Drawn::Model),
    variant("turboquant-prod", "turboquant-prod@R", Drawn::Model),
    variant("octopus", "octopus@R", Drawn::Model),
    variant("qjl", "qjl@R", Drawn::Model),
];

/// A codec of keys, and whether it gets them before their rotation.
pub(super) type Keys = (Arc<dyn KvCodec>, bool);

impl Variant {
    /// How the command line of `ppl` names it.
    pub(super) fn spec(&self, bits: f64) -> String {
        self.pattern.replace('R', &bits.to_string())
    }

    /// The codec of keys with this seed.
    pub(super) fn keys(&self, bits: f64, seed: u64, shape: KvShape, probe: &Probe) -> Result<Keys> {
        let text = self.spec(bits);
        if !self.pattern.starts_with("e8@") {
            let codecs = kv_baseline(&text, shape, seed).ok_or_else(|| anyhow!("no family is named {}", self.name))?;
            // The methods are published for keys as a cache gets them.
            return Ok((codecs.context(text)?.0, false));
        }
        let spec = KvSpec { seed, ..text.parse::<KvSpec>().with_context(|| text.clone())? };
        Ok((spec.codecs(shape, Some(probe)).context(text)?.0, spec.keys_before_rope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gosset_kv::Frame;

    #[test]
    fn keys_get_the_rate_of_their_row() {
        for variant in VARIANTS.iter().filter(|variant| variant.pattern.starts_with("e8@")) {
            for bits in [2.0, 3.0, 4.0] {
                let spec: KvSpec = variant.spec(bits).parse().unwrap();
                assert_eq!(spec.key.rate, bits, "{}", variant.name);
                assert_eq!(spec.key.dither, variant.drawn == Drawn::Position, "{}", variant.name);
                assert_eq!(spec.key.frame == Frame::Probe, variant.name.contains("probe"), "{}", variant.name);
            }
        }
    }
}

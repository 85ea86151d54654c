//! Rows with a compressed cache: every position is stored and read back, as a generation would.

use std::error::Error;
use std::ops::Range;

use anyhow::{Context, Result, anyhow, bail};
use gosset_baselines::{kv_baseline, kv_families};
use gosset_eval::CausalLm;
use gosset_kv::{GRAMMAR, KvMemory, KvShape, KvSpec, KvStore, Policy, Probe, Protected, parse_policy};
use gosset_runtime::{KvCache, LanguageModel, PROBE_TOKENS, kv_device_gap};

/// How the keys and values of a row are kept.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct KvTarget {
    label: String,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Spec(Box<KvSpec>),
    /// A method to compare with, under any policy.
    Baseline {
        name: String,
        policy: Policy,
        protect: Vec<Protected>,
    },
}

impl KvTarget {
    /// Reads `e8@2.25,window=256` or `turboquant@3,sinks=64`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (first, rest) = text.split_once(',').unwrap_or((text, ""));
        let family = first.split('@').next().unwrap_or(first);
        if kv_families().iter().any(|known| known.name == family) {
            // Whether there is such a rate is known without a model.
            let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 64 };
            kv_baseline(first, shape, 0)
                .ok_or_else(|| anyhow!("no family is named {family}"))?
                .context(text.to_owned())?;
            let (policy, protect) = parse_policy(rest)?;
            let label = format!("{first}{}", policy_options(policy, &protect)?);
            return Ok(Self { label, kind: Kind::Baseline { name: first.to_owned(), policy, protect } });
        }
        match text.parse::<KvSpec>() {
            Ok(spec) => Ok(Self { label: spec.to_string(), kind: Kind::Spec(Box::new(spec)) }),
            Err(error) => {
                let families: Vec<&str> = kv_families().iter().map(|family| family.name).collect();
                Err(anyhow!(error).context(format!("--kv {text}, which is none of {} either", families.join(", "))))
            }
        }
    }

    /// The specification, written the one way that it is written in records.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Whether it needs statistics of the model's keys.
    pub(super) fn wants_probe(&self) -> bool {
        matches!(&self.kind, Kind::Spec(spec) if spec.wants_probe())
    }

    /// Why a device cannot keep it, if it cannot.
    pub(super) fn device_gap(&self) -> Option<String> {
        match &self.kind {
            Kind::Spec(spec) => kv_device_gap(spec, None),
            Kind::Baseline { name, .. } => Some(format!("{name} is for the CPU alone")),
        }
    }

    /// What has to be known of the row beside its numbers.
    pub(super) fn notice(&self, model: &LanguageModel) -> Result<Option<String>> {
        let notice = match &self.kind {
            Kind::Spec(spec) => model.kv_notice(spec)?,
            Kind::Baseline { protect, .. } => model.key_means()?.notice(protect),
        };
        Ok(notice.map(|notice| format!("{}: {notice}", self.label)))
    }

    /// An empty cache of it.
    pub(super) fn cache(&self, model: &LanguageModel, probe: Option<&Probe>, seed: u64) -> Result<KvCache> {
        let made = match &self.kind {
            Kind::Spec(spec) => model.new_kv_cache(spec, probe)?,
            Kind::Baseline { name, policy, protect } => {
                let shape = model.kv_shape();
                let (keys, values) =
                    kv_baseline(name, shape, seed).ok_or_else(|| anyhow!("no family is named {name}"))??;
                // The methods are published for keys as a cache gets them.
                model.kv_cache_over(KvStore::new(shape, *policy, keys, values, protect)?, false)?
            }
        };
        Ok(made)
    }
}

/// Policy and protected layers, written as specifications write them: empty, or with a comma in front.
fn policy_options(policy: Policy, protect: &[Protected]) -> Result<String> {
    // Options of a code that has none of its own are those of the policy.
    const PLAIN: &str = "f32";
    let spec = KvSpec { policy, protect: protect.to_vec(), ..PLAIN.parse::<KvSpec>()? };
    Ok(spec.to_string().strip_prefix(PLAIN).unwrap_or_default().to_owned())
}

/// The rows that `--kv` asks for, each once.
pub(super) fn kv_targets(texts: &[String]) -> Result<Vec<KvTarget>> {
    let mut targets: Vec<KvTarget> = Vec::new();
    for text in texts {
        let target = KvTarget::parse(text.trim())?;
        if targets.iter().any(|known| known.label == target.label) {
            bail!("--kv {text}: given twice");
        }
        targets.push(target);
    }
    Ok(targets)
}

/// Statistics of keys for the targets that need them; they are the model's, not a target's.
pub(super) fn probe_for(targets: &[KvTarget], model: &LanguageModel) -> Result<Option<Probe>> {
    let wanted = targets.iter().any(KvTarget::wants_probe);
    Ok(wanted.then(|| model.kv_probe(PROBE_TOKENS)).transpose()?)
}

/// Every way to name a cache.
pub(super) fn describe() -> String {
    let mut text = format!(
        "Caches (--kv):\n{GRAMMAR}\n\nBaselines of caches, with window, sinks, page, exact, budget and protect:\n"
    );
    for family in kv_families() {
        text += &format!("  {:16} {}\n", family.name, family.about);
    }
    text
}

/// Bits of the caches of all windows, each as it was at the end of its window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct KvBits {
    all_bits: u64,
    scalars: u64,
    page_bits: u64,
    page_scalars: u64,
}

impl KvBits {
    fn add(&mut self, memory: &KvMemory) {
        self.all_bits += 8 * memory.total();
        self.scalars += memory.scalars;
        self.page_bits += 8 * memory.sealed();
        self.page_scalars += memory.page_scalars;
    }

    /// Every byte of the cache, over the scalars that it holds.
    pub(super) fn all_in_bps(&self) -> Option<f64> {
        (self.scalars > 0).then(|| self.all_bits as f64 / self.scalars as f64)
    }

    /// Bits of sealed pages over the scalars in them; `None` if no page was sealed.
    pub(super) fn page_bps(&self) -> Option<f64> {
        (self.page_scalars > 0).then(|| self.page_bits as f64 / self.page_scalars as f64)
    }
}

/// A model whose cache is compressed.
pub(super) struct KvLm<'a> {
    model: &'a LanguageModel,
    cache: KvCache,
    chunk: usize,
    bits: KvBits,
}

impl<'a> KvLm<'a> {
    /// `model` over `cache`, `chunk` tokens at a time.
    pub(super) fn new(model: &'a LanguageModel, cache: KvCache, chunk: usize) -> Self {
        Self { model, cache, chunk, bits: KvBits::default() }
    }

    /// A cache without positions, made like the one of scoring.
    pub(super) fn empty_cache(&self) -> KvCache {
        self.cache.emptied()
    }

    /// What the caches took so far.
    pub(super) fn bits(&self) -> KvBits {
        self.bits
    }
}

impl CausalLm for KvLm<'_> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn score(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.model.score_with_cache(tokens, positions, &mut self.cache, self.chunk, sink)?;
        if let Some(memory) = self.cache.memory() {
            self.bits.add(&memory);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_spec_or_a_baseline_under_a_policy() {
        let label = |text: &str| KvTarget::parse(text).unwrap().label;
        assert_eq!(label("e8@2.25,sinks=64,window=256"), "e8@2.25,window=256,sinks=64");
        assert!(KvTarget::parse("e8@2.25").unwrap().wants_probe());
        let names: Vec<&str> = kv_families().iter().map(|family| family.name).collect();
        assert!(names.contains(&"turboquant"), "{names:?}");
        let target = KvTarget::parse("turboquant@3,sinks=64").unwrap();
        assert!(!target.wants_probe() && matches!(&target.kind, Kind::Baseline { policy, .. } if policy.sinks == 64));
        for bad in ["", "f9@2", "e8", "turboquant@3,frame=mean", "turboquant@99", "q8_0,window=x"] {
            assert!(KvTarget::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(label("octopus@2,protect=3+k0,page=64,sinks=4,window=8"), "octopus@2,window=8,sinks=4,protect=k0+3");
        assert_eq!(label("q8_0"), "q8_0");
        for twice in [["e8@2", " e8@2"], ["q4_0,window=8,sinks=4", "q4_0,sinks=4,window=8"]] {
            assert!(kv_targets(&twice.map(str::to_owned)).is_err(), "{twice:?}");
        }
    }

    #[test]
    fn every_family_is_described() {
        let text = describe();
        assert!(kv_families().iter().all(|family| text.contains(family.name)) && text.contains("window"));
    }
}

//! `--kv`, for the commands that generate.

use anyhow::Result;
use clap::Args;
use gosset_kv::{GRAMMAR, KvMemory, KvSpec};
use gosset_runtime::{KvCache, LanguageModel, PROBE_TOKENS};

use crate::output::{self, bytes};

/// How keys and values are kept.
#[derive(Debug, Clone, Args)]
pub(crate) struct KvArgs {
    /// Keep keys and values compressed, for instance e8@2.25,window=256,sinks=64. --help tells how to write it.
    #[arg(long, value_name = "SPEC", value_parser = spec, long_help = help())]
    kv: Option<KvSpec>,
}

fn spec(text: &str) -> Result<KvSpec, String> {
    text.parse().map_err(|e: gosset_kv::KvError| e.to_string())
}

fn help() -> String {
    format!(
        "Keep keys and values compressed; what is not said has the value in brackets. shift-10 and shift-12 run on a GPU too, the others on the \
         CPU. Specs with frame=probe, mean or pairs begin with a pass over {PROBE_TOKENS} tokens of a built-in text.\n\n{GRAMMAR}"
    )
}

impl KvArgs {
    /// The specification, if one is given.
    pub(crate) fn spec(&self) -> Option<&KvSpec> {
        self.kv.as_ref()
    }

    /// A cache of `model`; says on stderr what has to be known about it.
    pub(crate) fn cache(&self, model: &LanguageModel, quiet: bool) -> Result<KvCache> {
        let Some(spec) = &self.kv else { return Ok(model.new_cache()) };
        if let Some(notice) = model.kv_notice(spec)?
            && !quiet
        {
            output::note(&format!("warning: --kv {spec}: {notice}"));
        }
        if spec.wants_probe() && !quiet {
            output::note(&format!("kv cache: looking at the keys of {PROBE_TOKENS} tokens"));
        }
        let probe = model.kv_probe_for(spec)?;
        Ok(model.new_kv_cache(spec, probe.as_ref())?)
    }
}

/// One line about what a compressed cache takes, beside what the same positions take in 16 bits; `None` for another cache.
pub(crate) fn line(cache: &KvCache) -> Option<String> {
    Some(line_of(&cache.memory()?, cache.len()))
}

fn line_of(memory: &KvMemory, positions: usize) -> String {
    let (taken, plain) = (bytes(memory.total()), bytes(memory.uncompressed()));
    let times = memory.uncompressed() as f64 / memory.total().max(1) as f64;
    let note = match (memory.saved() > 0, memory.note()) {
        (true, None) => format!("{times:.1} times less"),
        (true, Some(_)) => format!("{times:.1} times less; most of it is exact positions, which longer texts outgrow"),
        (false, _) => "nothing saved yet: exact and open positions outweigh so short a text".to_owned(),
    };
    let rate = memory.bits_per_value();
    format!("kv cache: {taken} for {positions} positions, {plain} in f16 ({note}); {rate:.2} bits per scalar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_saved_and_what_is_not() {
        let line = |codes, window| line_of(&KvMemory { codes, window, scalars: 4000, ..KvMemory::default() }, 100);
        assert_eq!(
            line(2000, 0),
            "kv cache: 2.0 kB for 100 positions, 8.0 kB in f16 (4.0 times less); 4.00 bits per scalar"
        );
        assert!(line(0, 5000).contains("1.6 times less; most of it is exact"), "{}", line(0, 5000));
        assert!(line(4000, 5000).contains("nothing saved yet"), "{}", line(4000, 5000));
    }

    #[test]
    fn help_lists_every_option() {
        for word in ["window=", "sinks=", "frame=", "protect="] {
            assert!(help().contains(word), "{word}");
        }
    }
}

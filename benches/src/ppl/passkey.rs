//! Pass keys in long prompts, beside perplexity.

use std::error::Error;
use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use gosset_eval::{
    PASSKEY_ANSWER_START, PASSKEY_ANSWER_TOKENS, Passkey, PasskeyPlan, PasskeyReply, PasskeyResult, score_passkeys,
};
use gosset_runtime::text::{ChatTemplate, Message, Tokenizer};
use gosset_runtime::{GenerateOptions, KvCache, LanguageModel, Receiver, generate_with_cache};

/// Prompts of each context unless the command line says otherwise.
const DEFAULT_TRIALS: usize = 10;

/// What is asked of pass keys.
#[derive(Debug, Clone, Args)]
pub struct PasskeyArgs {
    /// Hide five digits in prompts of these contexts, in tokens, and see for every row whether the model finds them: 512,2048,8192.
    /// Contexts that the model has no room for are left out.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub passkey: Vec<usize>,
    /// Prompts of each context, with keys at evenly spaced depths.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TRIALS, requires = "passkey")]
    pub passkey_trials: usize,
    /// Seed of keys and texts.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "passkey")]
    pub passkey_seed: u64,
    /// How prompts are put; small models find keys further back in a plain text.
    #[arg(long, value_enum, value_name = "FORM", default_value_t = PromptForm::Plain, requires = "passkey")]
    pub passkey_form: PromptForm,
}

/// How a prompt is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PromptForm {
    /// As a user's message, in the model's template.
    Chat,
    /// As a text to continue.
    Plain,
}

impl PromptForm {
    const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Plain => "plain",
        }
    }
}

/// The prompts of a run, made once with the first tokenizer, which all others have to equal.
pub(super) struct Passkeys {
    plan: PasskeyPlan,
    form: PromptForm,
    made: Option<Made>,
}

struct Made {
    prompts: Vec<(Passkey, Vec<u32>)>,
    tokenizer: Tokenizer,
}

impl Passkeys {
    /// Checks what is asked for.
    pub(super) fn new(args: &PasskeyArgs) -> Result<Self> {
        if let Some(context) = args.passkey.iter().find(|&&context| context == 0) {
            bail!("--passkey {context}: expected contexts in tokens");
        }
        if args.passkey_trials == 0 {
            bail!("--passkey-trials: expected at least 1, found 0");
        }
        let mut contexts = args.passkey.clone();
        contexts.sort_unstable();
        contexts.dedup();
        let plan = PasskeyPlan { contexts, trials: args.passkey_trials, seed: args.passkey_seed };
        Ok(Self { plan, form: args.passkey_form, made: None })
    }

    /// Whether prompts have to be made yet.
    pub(super) fn are_missing(&self) -> bool {
        !self.plan.contexts.is_empty() && self.made.is_none()
    }

    /// Makes the prompts for a model with this context; `template` is what its files have. Gives a line for each context left out.
    pub(super) fn make(
        &mut self,
        tokenizer: Tokenizer,
        template: Option<&ChatTemplate>,
        max_positions: usize,
    ) -> Result<Vec<String>> {
        let (fits, too_long): (Vec<usize>, Vec<usize>) =
            self.plan.contexts.iter().partition(|&&context| context <= max_positions);
        self.plan.contexts = fits;
        let template = match (self.form, template) {
            (PromptForm::Chat, None) => bail!("--passkey-form chat: the model has no chat template"),
            (PromptForm::Chat, template) => template,
            (PromptForm::Plain, _) => None,
        };
        let bos = tokenizer.leading_ids().first().copied();
        let mut encode = |text: &str| -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
            let text = match template {
                Some(template) => template.render(&[Message::new("user", text)], true)? + PASSKEY_ANSWER_START,
                None => format!("{text}\n{PASSKEY_ANSWER_START}"),
            };
            Ok(tokenizer.encode_with_bos(&text, bos)?)
        };
        let prompts = self.plan.prompts().into_iter().map(|passkey| {
            let ids = passkey.prompt(&mut encode)?;
            Ok((passkey, ids))
        });
        let prompts = prompts.collect::<Result<Vec<_>>>().context("--passkey")?;
        self.made = Some(Made { prompts, tokenizer });
        let left_out =
            |context| format!("left out: pass keys at {context} tokens, the model's context is {max_positions}");
        Ok(too_long.into_iter().map(left_out).collect())
    }

    /// Asks `model` for every key, each time from an empty cache that `cache` makes; `None` if `on_prompt` stops it.
    pub(super) fn score(
        &self,
        model: &LanguageModel,
        cache: &mut dyn FnMut() -> KvCache,
        on_prompt: &mut dyn FnMut(&Passkey) -> ControlFlow<()>,
    ) -> Result<Option<Vec<PasskeyResult>>> {
        let Some(made) = &self.made else { return Ok(Some(Vec::new())) };
        let mut times: Vec<(usize, f64)> = Vec::new();
        let mut context = 0;
        let options = GenerateOptions::greedy(PASSKEY_ANSWER_TOKENS);
        let mut answer = |ids: &[u32]| {
            let mut cache = cache();
            let tokens = generate_with_cache(model, &mut cache, ids, &options, &mut Silent)?.tokens;
            let kv_all_in_bps = cache.memory().map(|memory| memory.bits_per_value());
            Ok(PasskeyReply { text: made.tokenizer.decode(&tokens), kv_all_in_bps })
        };
        let mut begin = Instant::now();
        let mut on_prompt = |passkey: &Passkey| {
            if context != passkey.context {
                times.push((context, begin.elapsed().as_secs_f64()));
                (context, begin) = (passkey.context, Instant::now());
            }
            on_prompt(passkey)
        };
        let results = score_passkeys(&made.prompts, self.plan.seed, &mut answer, &mut on_prompt)?;
        times.push((context, begin.elapsed().as_secs_f64()));
        Ok(results.map(|mut results| {
            for result in &mut results {
                result.form = self.form.name().to_owned();
                let time = times.iter().find(|(context, _)| *context == result.context);
                result.seconds = time.map_or(0.0, |(_, seconds)| *seconds);
            }
            results
        }))
    }
}

/// Nobody reads along.
struct Silent;

impl Receiver for Silent {
    fn text(&mut self, _: &str) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(contexts: &[usize]) -> PasskeyArgs {
        PasskeyArgs { passkey: contexts.to_vec(), passkey_trials: 2, passkey_seed: 0, passkey_form: PromptForm::Plain }
    }

    fn tokenizer() -> Tokenizer {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/tiny/tokenizer.json");
        Tokenizer::from_bytes(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn contexts_beyond_the_models_are_left_out_by_name() {
        let mut passkeys = Passkeys::new(&args(&[2048, 512, 512])).unwrap();
        assert!(passkeys.are_missing());
        let left_out = passkeys.make(tokenizer(), None, 1024).unwrap();
        assert!(matches!(&left_out[..], [line] if line.contains("2048") && line.contains("1024")), "{left_out:?}");
        let made = passkeys.made.as_ref().unwrap();
        assert_eq!(made.prompts.len(), 2);
        assert!(!passkeys.are_missing() && !Passkeys::new(&args(&[])).unwrap().are_missing());
    }

    #[test]
    fn a_template_is_used_if_it_is_asked_for() {
        let template = ChatTemplate::new("U:{{ messages[0].content }}\nA:".to_owned(), None, None).unwrap();
        let text_of = |form| {
            let mut passkeys = Passkeys::new(&PasskeyArgs { passkey_form: form, ..args(&[512]) }).unwrap();
            passkeys.make(tokenizer(), Some(&template), 4096).unwrap();
            tokenizer().decode(&passkeys.made.unwrap().prompts[0].1)
        };
        let (chat, plain) = (text_of(PromptForm::Chat), text_of(PromptForm::Plain));
        assert!(chat.contains("U:") && chat.ends_with(&format!("A:{PASSKEY_ANSWER_START}")), "{chat}");
        assert!(!plain.contains("U:") && plain.ends_with(&format!("?\n{PASSKEY_ANSWER_START}")), "{plain}");
        let mut passkeys = Passkeys::new(&PasskeyArgs { passkey_form: PromptForm::Chat, ..args(&[512]) }).unwrap();
        assert!(passkeys.make(tokenizer(), None, 4096).unwrap_err().to_string().contains("template"));
    }

    #[test]
    fn no_context_and_no_trials_are_refused() {
        assert!(Passkeys::new(&args(&[0])).is_err());
        assert!(Passkeys::new(&PasskeyArgs { passkey_trials: 0, ..args(&[512]) }).is_err());
    }
}

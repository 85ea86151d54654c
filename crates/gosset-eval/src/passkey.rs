//! Passkey retrieval: five digits somewhere in a long text, asked for at its end.
//!
//! What a cache must not lose is one sentence among hundreds that are of no use. Texts, keys and depths follow from the seed alone; how
//! long a text is depends on the tokenizer, because it fills the context.

use std::error::Error;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::{Encode, EvalError};

/// Tokens that an answer may have: more than five digits take in any vocabulary.
pub const PASSKEY_ANSWER_TOKENS: usize = 12;

/// How the answer begins; the key is all that the model has to add.
pub const PASSKEY_ANSWER_START: &str = "The pass key is";

const OPENING: &str = "Somewhere in the text below there is a pass key of five digits. Find it and keep it in mind. You will be asked \
                       for it at the end.\n\n";
const QUESTION: &str = "\n\nWhat is the pass key that the text gives?";

/// Sentences without digits that say nothing about keys.
const FILLER: [&str; 16] = [
    "The river runs slowly past the old mill.",
    "Rain fell on the hills for most of the night.",
    "A cart went down the road towards the market.",
    "The children looked for shells along the shore.",
    "Smoke rose from the chimneys of the village.",
    "Two dogs slept in the shade of the wall.",
    "The baker opened his shop before the sun was up.",
    "Leaves covered the path between the trees.",
    "A boat with a white sail crossed the bay.",
    "The wind turned and the air became cold.",
    "Somebody played a song behind the open window.",
    "The fields were green after a mild winter.",
    "An old clock stood in the corner of the room.",
    "The teacher wrote a line on the board.",
    "Birds gathered on the roof of the barn.",
    "They drank tea and talked about the harvest.",
];

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PasskeyPlan {
    /// Tokens of prompt and answer together, each with trials of its own.
    pub contexts: Vec<usize>,
    /// Prompts of each context; their keys lie at evenly spaced depths.
    pub trials: usize,
    /// Seed of keys and texts.
    pub seed: u64,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Passkey {
    /// Tokens of prompt and answer at most.
    pub context: usize,
    /// Number of the prompt among those of its context.
    pub trial: usize,
    /// Where the key lies: 0 at the beginning of the text, 1 at its end.
    pub depth: f64,
    /// Five digits, the first of them not 0.
    pub key: String,
    seed: u64,
}

/// What was answered to one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PasskeyAnswer {
    /// Where the key lay: 0 at the beginning of the text, 1 at its end.
    pub depth: f64,
    /// The key.
    pub key: String,
    /// The text that the model added.
    pub answer: String,
    /// Whether the first digits in it are the key.
    pub right: bool,
}

/// All prompts of one context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PasskeyResult {
    /// Tokens of prompt and answer at most.
    pub context: usize,
    /// Prompts.
    pub trials: usize,
    /// Prompts whose key was found.
    pub right: usize,
    /// Seed of keys and texts.
    pub seed: u64,
    /// How prompts were put: `chat` by the model's template, or `plain`.
    pub form: String,
    /// Tokens of the prompts, mean.
    pub prompt_tokens: f64,
    /// Every bit of a compressed cache over the scalars that it held after the answer, mean; absent for a cache in f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_all_in_bps: Option<f64>,
    /// Wall time.
    pub seconds: f64,
    /// The answers, by trial.
    pub answers: Vec<PasskeyAnswer>,
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The bias is below n / 2^64.
        ((u128::from(z ^ (z >> 31)) * u128::from(n)) >> 64) as u64
    }
}

impl PasskeyPlan {
    /// The prompts, context by context.
    ///
    /// ```
    /// let plan = gosset_eval::PasskeyPlan { contexts: vec![512], trials: 2, seed: 0 };
    /// let prompts = plan.prompts();
    /// assert_eq!(prompts.iter().map(|p| p.depth).collect::<Vec<_>>(), [0.25, 0.75]);
    /// assert!(prompts.iter().all(|p| p.key.len() == 5 && p.is_right(&format!(" {}.", p.key))));
    /// ```
    pub fn prompts(&self) -> Vec<Passkey> {
        let of_context = |&context: &usize| {
            (0..self.trials).map(move |trial| {
                let mut random = Random(self.seed ^ ((context as u64) << 32) ^ ((trial as u64) << 16));
                let key = (10_000 + random.below(90_000)).to_string();
                let depth = (trial as f64 + 0.5) / self.trials as f64;
                Passkey { context, trial, depth, key, seed: random.0 }
            })
        };
        self.contexts.iter().flat_map(of_context).collect()
    }
}

impl Passkey {
    /// The text with `sentences` of filler and the question below it.
    pub fn text(&self, sentences: usize) -> String {
        let mut random = Random(self.seed);
        let key_before = (self.depth * sentences as f64) as usize;
        let mut text = OPENING.to_owned();
        for i in 0..=sentences {
            if i == key_before {
                text += &format!("The pass key is {key}. Remember it: {key} is the pass key. ", key = self.key);
            }
            if i < sentences {
                text += FILLER[random.below(FILLER.len() as u64) as usize];
                text.push(' ');
            }
        }
        text.truncate(text.trim_end().len());
        text + QUESTION
    }

    /// The ids of the longest prompt that leaves room for [`PASSKEY_ANSWER_TOKENS`] in the context.
    ///
    /// `encode` turns a text such as [`text`](Self::text) gives into a prompt that ends with [`PASSKEY_ANSWER_START`].
    ///
    /// # Errors
    ///
    /// [`EvalError::Passkey`] if not even the text without filler fits, or with what `encode` says.
    pub fn prompt(&self, encode: &mut Encode<'_>) -> Result<Vec<u32>, EvalError> {
        let fail = |what: String| EvalError::Passkey { context: self.context, trial: self.trial, what };
        let mut encode = |sentences| encode(&self.text(sentences)).map_err(|error| fail(error.to_string()));
        let room = self.context.saturating_sub(PASSKEY_ANSWER_TOKENS);
        let mut best = encode(0)?;
        if best.len() > room {
            let needed = best.len() + PASSKEY_ANSWER_TOKENS;
            return Err(fail(format!("expected a context of at least {needed} tokens")));
        }
        // A sentence takes a token or more, so `room` of them are too many.
        let (mut fits, mut too_many) = (0, room + 1);
        while too_many - fits > 1 {
            // First where the length so far points to; then by halves.
            let guess = if fits == 0 { room / 10 } else { fits * room / best.len().max(1) };
            let middle = if (fits + 1..too_many).contains(&guess) { guess } else { fits.midpoint(too_many) };
            let ids = encode(middle)?;
            if ids.len() <= room {
                (fits, best) = (middle, ids);
            } else {
                too_many = middle;
            }
        }
        Ok(best)
    }

    /// Whether the first digits in an answer are the key, no more and no less.
    pub fn is_right(&self, answer: &str) -> bool {
        let digits = answer.trim_start_matches(|c: char| !c.is_ascii_digit());
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end] == self.key
    }
}

/// What a model answered: its text, and bits and scalars of its cache if that is compressed.
#[derive(Debug, Clone, PartialEq)]
pub struct PasskeyReply {
    /// The text after the prompt.
    pub text: String,
    /// Bits per scalar of the cache, all of it.
    pub kv_all_in_bps: Option<f64>,
}

/// Continues the ids of a prompt.
pub type PasskeyAsk<'a> = dyn FnMut(&[u32]) -> Result<PasskeyReply, Box<dyn Error + Send + Sync>> + 'a;

/// Puts every prompt, the ids of which stand beside it, and sums up by context; `seconds` and `form` are left to the caller.
///
/// `answer` continues ids greedily by at most [`PASSKEY_ANSWER_TOKENS`]; `None` if it, asked before each prompt, stops the run.
///
/// # Errors
///
/// [`EvalError::Passkey`] with what `answer` says.
pub fn score_passkeys(
    prompts: &[(Passkey, Vec<u32>)],
    seed: u64,
    answer: &mut PasskeyAsk<'_>,
    on_prompt: &mut dyn FnMut(&Passkey) -> ControlFlow<()>,
) -> Result<Option<Vec<PasskeyResult>>, EvalError> {
    let mut results: Vec<PasskeyResult> = Vec::new();
    let mut bits: Vec<Vec<f64>> = Vec::new();
    for (passkey, ids) in prompts {
        if on_prompt(passkey).is_break() {
            return Ok(None);
        }
        let reply = answer(ids).map_err(|error| EvalError::Passkey {
            context: passkey.context,
            trial: passkey.trial,
            what: error.to_string(),
        })?;
        if results.last().is_none_or(|last| last.context != passkey.context) {
            let context = passkey.context;
            results.push(PasskeyResult {
                context,
                trials: 0,
                right: 0,
                seed,
                form: String::new(),
                prompt_tokens: 0.0,
                kv_all_in_bps: None,
                seconds: 0.0,
                answers: Vec::new(),
            });
            bits.push(Vec::new());
        }
        if let (Some(result), Some(bits)) = (results.last_mut(), bits.last_mut()) {
            let right = passkey.is_right(&reply.text);
            result.trials += 1;
            result.right += usize::from(right);
            result.prompt_tokens += ids.len() as f64;
            bits.extend(reply.kv_all_in_bps);
            let (depth, key) = (passkey.depth, passkey.key.clone());
            result.answers.push(PasskeyAnswer { depth, key, answer: reply.text, right });
        }
    }
    for (result, bits) in results.iter_mut().zip(&bits) {
        result.prompt_tokens /= result.trials as f64;
        result.kv_all_in_bps = (!bits.is_empty()).then(|| bits.iter().sum::<f64>() / bits.len() as f64);
    }
    Ok(Some(results))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> PasskeyPlan {
        PasskeyPlan { contexts: vec![256, 1024], trials: 4, seed: 3 }
    }

    /// One id for each word, which is the word's length.
    fn words(text: &str) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
        Ok(text.split_whitespace().map(|word| word.len() as u32).collect())
    }

    #[test]
    fn prompts_follow_from_the_seed_and_fill_their_context() {
        let prompts = plan().prompts();
        assert_eq!(prompts.len(), 8);
        assert_eq!(prompts, plan().prompts());
        assert_ne!(prompts[0].key, PasskeyPlan { seed: 4, ..plan() }.prompts()[0].key);
        for passkey in &prompts {
            let ids = passkey.prompt(&mut |text| words(text)).unwrap();
            let room = passkey.context - PASSKEY_ANSWER_TOKENS;
            let longest = FILLER.iter().map(|s| s.split(' ').count()).max().unwrap();
            assert!(ids.len() <= room && ids.len() + longest > room, "{} of {room}", ids.len());
        }
    }

    #[test]
    fn the_key_stands_at_its_depth_and_nowhere_else_are_digits() {
        for passkey in plan().prompts() {
            let text = passkey.text(200);
            let at = text.find(&passkey.key).unwrap() as f64 / text.len() as f64;
            assert!((at - passkey.depth).abs() < 0.08, "{at} for {}", passkey.depth);
            let other = text.replace(&passkey.key, "");
            assert!(!other.contains(|c: char| c.is_ascii_digit()));
            assert!(text.ends_with('?'));
        }
    }

    #[test]
    fn an_answer_is_right_if_its_first_digits_are_the_key() {
        let passkey = &plan().prompts()[0];
        let key = &passkey.key;
        for right in [format!(" {key}."), key.clone(), format!("it is {key}\n")] {
            assert!(passkey.is_right(&right), "{right}");
        }
        for wrong in [String::new(), format!("{key}1"), format!("9 {key}"), key[..4].to_owned(), "none".to_owned()] {
            assert!(!passkey.is_right(&wrong), "{wrong}");
        }
    }

    #[test]
    fn answers_are_counted_by_context() {
        let prompts: Vec<(Passkey, Vec<u32>)> =
            plan().prompts().into_iter().map(|passkey| (passkey.clone(), vec![passkey.trial as u32; 10])).collect();
        let keys: Vec<String> = prompts.iter().map(|(passkey, _)| passkey.key.clone()).collect();
        let mut n = 0;
        let mut answer = |ids: &[u32]| {
            n += 1;
            // Every other answer is right.
            let text = if ids[0].is_multiple_of(2) { keys[n - 1].clone() } else { "no".to_owned() };
            Ok(PasskeyReply { text, kv_all_in_bps: Some(2.0 + f64::from(ids[0] % 2)) })
        };
        let results = score_passkeys(&prompts, 3, &mut answer, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
        let counts: Vec<_> = results.iter().map(|r| (r.context, r.right, r.trials, r.prompt_tokens)).collect();
        assert_eq!(counts, [(256, 2, 4, 10.0), (1024, 2, 4, 10.0)]);
        assert_eq!(results[0].kv_all_in_bps, Some(2.5));
        let stopped = score_passkeys(&prompts, 3, &mut |_| unreachable!(), &mut |_| ControlFlow::Break(()));
        assert_eq!(stopped.unwrap(), None);
        let failed = score_passkeys(&prompts, 3, &mut |_| Err("no memory".into()), &mut |_| ControlFlow::Continue(()));
        assert_eq!(failed.unwrap_err().to_string(), "passkey at 256 tokens, trial 0: no memory");
    }

    #[test]
    fn a_context_without_room_is_refused() {
        let passkey = &PasskeyPlan { contexts: vec![40], trials: 1, seed: 0 }.prompts()[0];
        let error = passkey.prompt(&mut |text| words(text)).unwrap_err().to_string();
        assert!(error.contains("40 tokens") && error.contains("at least"), "{error}");
    }
}

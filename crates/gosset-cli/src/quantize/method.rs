//! `--codec`: the names of methods as values of an option.

use std::ffi::OsStr;
use std::sync::LazyLock;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use gosset_quantize::{Method, MethodInfo, methods};

/// The usual methods, for as long as the help text lives.
static METHODS: LazyLock<Vec<MethodInfo>> = LazyLock::new(methods);

/// Takes the name of any method; lists the usual ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct MethodParser;

impl TypedValueParser for MethodParser {
    type Value = String;

    fn parse_ref(&self, command: &Command, _arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        let name = value.to_string_lossy();
        match Method::info(&name) {
            Ok(info) => Ok(info.name),
            Err(e) => Err(Error::raw(ErrorKind::ValueValidation, format!("{e}\n")).with_cmd(command)),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |m: &'static MethodInfo| {
            let help = format!("{} ({} bits per weight)", m.about, rates_of(m));
            // Every codec has the same to say with feedback; the text of the option says it once.
            let is_repeated = m.name.ends_with("+feedback") && m.name != "e8+feedback";
            PossibleValue::new(m.name.as_str()).help(help).hide(is_repeated)
        };
        Some(Box::new(METHODS.iter().map(value)))
    }
}

/// The rates of a method: `2, 3 or 4`, `0.5 to 10`.
fn rates_of(m: &MethodInfo) -> String {
    match &m.rates {
        None => format!("{} to {}", m.min_bps, m.max_bps),
        Some(rates) => {
            let rates: Vec<String> = rates.iter().map(f64::to_string).collect();
            match rates.split_last() {
                Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
                _ => rates.join(", "),
            }
        }
    }
}

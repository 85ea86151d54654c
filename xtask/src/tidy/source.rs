//! Rust source with everything that is not code blanked out.

/// `source` with comments, and the contents of string and character literals, replaced by spaces; lines stay where they are.
///
/// Good enough to look for keywords and macros: it follows nested block comments, raw strings and escapes, and tells a
/// lifetime from a character.
pub(super) fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut i = 0;
    let blank = |out: &mut String, from: usize, to: usize| {
        out.extend(chars[from..to].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
    };
    while i < chars.len() {
        let rest = &chars[i..];
        let len = match rest {
            ['/', '/', ..] => rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => block_comment(rest),
            ['"', ..] => string(rest),
            ['\'', ..] => character(rest),
            ['r', ..] if !after_word(&chars, i) => raw_string(&rest[1..]).map_or(0, |n| n + 1),
            ['b' | 'c', 'r', ..] if !after_word(&chars, i) => raw_string(&rest[2..]).map_or(0, |n| n + 2),
            _ => 0,
        };
        if len == 0 {
            out.push(chars[i]);
            i += 1;
        } else {
            blank(&mut out, i, i + len);
            i += len;
        }
    }
    out
}

/// Whether the character before `i` belongs to a word, so that `i` cannot begin a literal's prefix.
fn after_word(chars: &[char], i: usize) -> bool {
    i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_')
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut i = 0;
    while i < rest.len() {
        match rest[i..] {
            ['/', '*', ..] => {
                depth += 1;
                i += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    break;
                }
            }
            _ => i += 1,
        }
    }
    i
}

fn string(rest: &[char]) -> usize {
    let mut i = 1;
    while i < rest.len() {
        match rest[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    rest.len()
}

/// Length of a character literal, or 0 if the quote begins a lifetime.
fn character(rest: &[char]) -> usize {
    match rest {
        [_, '\\', _, tail @ ..] => tail.iter().position(|&c| c == '\'').map_or(0, |n| n + 4),
        [_, _, '\'', ..] => 3,
        _ => 0,
    }
}

/// Length of `#…"…"#…` after the `r`, if this is one.
fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest.iter().take_while(|&&c| c == '#').count();
    if rest.get(hashes) != Some(&'"') {
        return None;
    }
    let mut i = hashes + 1;
    while i < rest.len() {
        if rest[i] == '"' && rest[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes {
            return Some(i + 1 + hashes);
        }
        i += 1;
    }
    Some(rest.len())
}

/// Lines, counted from 1, of `code` on which `word` stands as a word of its own, followed by `after` if that is not empty.
pub(super) fn lines_with(code: &str, word: &str, after: &str) -> Vec<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut lines = Vec::new();
    for (n, line) in code.lines().enumerate() {
        let hit = line.match_indices(word).any(|(at, _)| {
            let (before, tail) = (&line[..at], &line[at + word.len()..]);
            !before.ends_with(is_word) && !tail.starts_with(is_word) && tail.trim_start().starts_with(after)
        });
        if hit {
            lines.push(n + 1);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left_and_lines_stay() {
        let word = "unsafe";
        for quiet in [
            "// unsafe\n",
            "/* unsafe /* unsafe */ unsafe */",
            "\"unsafe \\\" unsafe\"",
            "r#\"unsafe \" unsafe\"#",
            "br\"unsafe\"",
            "b\"unsafe\"",
            "'\\'' /*unsafe*/",
            "x('\"', 1); // unsafe",
            "fn f<'a>(x: &'a str) {} // unsafe",
            "let unsafe_code = 1; unsafely(); not_unsafe();",
            "\"two\nlines unsafe\"",
        ] {
            let code = code_only(quiet);
            assert_eq!(code.lines().count(), quiet.lines().count(), "{quiet}");
            assert!(lines_with(&code, word, "").is_empty(), "{quiet} -> {code}");
        }
        for loud in ["\n\nunsafe { }", "/* a */\n'a'; 'b: loop {}\nunsafe", "r#type;\n\"x\";\nunsafe impl"] {
            assert_eq!(lines_with(&code_only(loud), word, ""), [3], "{loud}");
        }
    }

    #[test]
    fn macros_need_their_exclamation_mark() {
        assert_eq!(lines_with("a.dbg();\ndbg !(x);\ndbg!(y)", "dbg", "!"), [2, 3]);
    }
}

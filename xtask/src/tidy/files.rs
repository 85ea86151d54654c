//! Rules that each file can be held to alone: length, debris, leftovers, words that have no place here; and empty crates.

use super::{Finding, RepoFile, source};

/// Lines that a Rust file may have, tests included; a file that says `@generated` at its top may have more.
const MAX_LINES: usize = 800;

/// Lines of code below which a crate counts as an empty shell.
const MIN_CODE_LINES: usize = 10;

/// Macros that mark unfinished work.
const LEFTOVER_MACROS: &[&str] = &["todo", "dbg", "unimplemented"];

/// Comments that mark unfinished work. Each is written in two pieces here, or this file would find itself.
const LEFTOVER_WORDS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];

/// Hosts of package registries and paths of one machine: nothing in the repository may lean on either.
const FORBIDDEN: &[&str] = &[
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("crates", ".io"),
    concat!("npm", "js.org"),
    concat!("npm", "js.com"),
    concat!("deb", ".debian.org"),
    concat!("/work", "/"),
    concat!("/root", "/"),
    concat!("/home", "/"),
];

pub(super) fn check(files: &[RepoFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        check_words(file, &mut findings);
        if !is_data(&file.path) {
            check_debris(file, &mut findings);
        }
        if file.path.ends_with(".rs") {
            check_rust(file, &mut findings);
        }
        if file.path.ends_with("build.rs") && file.path.rsplit('/').next() == Some("build.rs") {
            findings.push(Finding::new(&file.path, "no build scripts"));
        }
    }
    check_empty_crates(files, &mut findings);
    findings
}

/// Files that hold someone else's text or generated numbers.
fn is_data(path: &str) -> bool {
    path.starts_with("assets/text/") || [".json", ".csv", ".jinja"].iter().any(|end| path.ends_with(end))
}

fn check_debris(file: &RepoFile, findings: &mut Vec<Finding>) {
    let mut report = |line: usize, what: &str| findings.push(Finding::new(format!("{}:{line}", file.path), what));
    for (n, line) in file.text.split('\n').enumerate() {
        if line.ends_with('\r') {
            report(n + 1, "carriage return");
        } else if line.ends_with([' ', '\t']) {
            report(n + 1, "trailing white space");
        }
        if line.contains('\t') {
            report(n + 1, "tab");
        }
        if line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ") {
            report(n + 1, "merge conflict");
        }
    }
    let lines = file.text.lines().count();
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        report(lines, "no newline at the end");
    }
    if file.text.ends_with("\n\n") {
        report(lines, "blank line at the end");
    }
}

fn check_words(file: &RepoFile, findings: &mut Vec<Finding>) {
    if file.path == "Cargo.lock" || file.path.starts_with("assets/text/") {
        return;
    }
    for (n, line) in file.text.lines().enumerate() {
        for word in FORBIDDEN.iter().filter(|word| contains_name(line, word)) {
            findings.push(Finding::new(format!("{}:{}", file.path, n + 1), format!("must not name {word}")));
        }
    }
}

/// Whether `word` stands in `line` and is not the end of a longer name (`a/b/work/x` is not a path from the root).
fn contains_name(line: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || "._-}>$)~".contains(c);
    line.match_indices(word).any(|(at, _)| !word.starts_with('/') || !line[..at].ends_with(is_name))
}

fn check_rust(file: &RepoFile, findings: &mut Vec<Finding>) {
    let lines = file.text.lines().count();
    let generated = file.text.lines().take(5).any(|line| line.contains("@generated"));
    if lines > MAX_LINES && !generated {
        findings.push(Finding::new(&file.path, format!("expected at most {MAX_LINES} lines, found {lines}")));
    }
    let code = source::code_only(&file.text);
    for word in LEFTOVER_MACROS {
        for line in source::lines_with(&code, word, "!") {
            findings.push(Finding::new(format!("{}:{line}", file.path), format!("leftover {word}!")));
        }
    }
    for word in LEFTOVER_WORDS {
        for line in source::lines_with(&file.text, word, "") {
            findings.push(Finding::new(format!("{}:{line}", file.path), format!("leftover {word}")));
        }
    }
}

fn check_empty_crates(files: &[RepoFile], findings: &mut Vec<Finding>) {
    for manifest in files.iter().filter(|file| file.path.ends_with("/Cargo.toml") && file.text.contains("[package]")) {
        let folder = manifest.path.trim_end_matches("Cargo.toml");
        let code_lines: usize = files
            .iter()
            .filter(|file| file.path.starts_with(folder) && file.path.ends_with(".rs"))
            .map(|file| source::code_only(&file.text).lines().filter(|line| !line.trim().is_empty()).count())
            .sum();
        if code_lines < MIN_CODE_LINES {
            let what = format!("an empty crate: {code_lines} lines of code");
            findings.push(Finding::new(&manifest.path, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&[RepoFile { path: path.into(), text: text.into() }]).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn debris_is_found_line_by_line() {
        let text = "a \nb\t\n\tc\nd\r\n<<<<<<< x\ne";
        let found = findings("docs/A.md", text);
        for want in [
            "A.md:1: trailing",
            "A.md:2: trailing",
            "A.md:3: tab",
            "A.md:4: carriage",
            "A.md:5: merge",
            "A.md:6: no newline",
        ] {
            assert!(found.iter().any(|f| f.contains(want)), "{want} in {found:?}");
        }
        assert!(findings("docs/A.md", "a\n\nb\n").is_empty());
        assert_eq!(findings("docs/A.md", "a\n\n").len(), 1);
        assert!(findings("assets/text/eval.txt", " = A = \n").is_empty());
    }

    #[test]
    fn leftovers_are_found_in_code_only() {
        let text = "fn f() { dbg!(1); }\nfn g() { todo !() }\n// todo!() in prose is prose\n";
        let found = findings("src/x.rs", text);
        assert_eq!(
            found,
            ["src/x.rs:1: leftover dbg!", "src/x.rs:2: leftover todo!"]
                .map(String::from)
                .to_vec()
                .into_iter()
                .rev()
                .collect::<Vec<_>>()
        );
        let word = concat!("// FIX", "ME later\n");
        assert_eq!(findings("src/x.rs", word).len(), 1);
    }

    #[test]
    fn long_files_are_found_unless_generated() {
        let long = "fn f() {}\n".repeat(MAX_LINES + 1);
        assert_eq!(findings("src/x.rs", &long), ["src/x.rs: expected at most 800 lines, found 801"]);
        assert!(findings("src/x.rs", &long[10..]).is_empty());
        assert!(findings("src/x.rs", &format!("// @generated by x\n{long}")).is_empty());
    }

    #[test]
    fn hosts_and_machine_paths_are_found() {
        let host = concat!("see https://pypi", ".org/simple\n");
        assert_eq!(findings("README.md", host).len(), 1);
        let path = concat!("x = \"/work", "/data\"\n");
        assert_eq!(findings("a.toml", path).len(), 1);
        // A folder of that name further down is nobody's root.
        assert!(findings("a.toml", concat!("x = \"src/work", "/data\"\n")).is_empty());
        assert!(findings("Cargo.lock", host).is_empty());
    }

    #[test]
    fn empty_crates_and_build_scripts_are_found() {
        let file = |path: &str, text: &str| RepoFile { path: path.into(), text: text.into() };
        let manifest = file("crates/a/Cargo.toml", "[package]\n");
        let shell = [manifest, file("crates/a/src/lib.rs", "//! Docs.\n#![forbid(unsafe_code)]\n")];
        assert!(check(&shell)[0].what.contains("empty crate"));
        let manifest = file("crates/a/Cargo.toml", "[package]\n");
        assert!(check(&[manifest, file("crates/a/src/lib.rs", &"fn f() {}\n".repeat(10))]).is_empty());
        assert_eq!(findings("crates/a/build.rs", "fn main() {}\n"), ["crates/a/build.rs: no build scripts"]);
    }
}

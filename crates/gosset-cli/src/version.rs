//! What `gosset --version` says.

use git_version::git_version;

/// Version and commit, for instance `0.1.0 (git 6197af7b2c1d)`: the abbreviated hash, with `-dirty` if tracked files were changed
/// when it was built, `unknown` outside of a git checkout.
pub(crate) const LONG: &str = git_version!(
    prefix = concat!(env!("CARGO_PKG_VERSION"), " (git "),
    suffix = ")",
    args = ["--always", "--dirty", "--abbrev=12", "--exclude=*"],
    fallback = "unknown"
);

//! SHA-256 of files and streams.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

const BUFFER: usize = 1 << 20;

/// Copies `from` to `to` and feeds what passes to `hasher`; the number of bytes.
pub(crate) fn copy_hashed(from: &mut impl Read, to: &mut impl Write, hasher: &mut Sha256) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER];
    let mut total = 0;
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            return Ok(total);
        }
        hasher.update(&buffer[..n]);
        to.write_all(&buffer[..n])?;
        total += n as u64;
    }
}

/// Lowercase hex of a finished hash.
pub(crate) fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Passes if the file has exactly this many bytes and this SHA-256; otherwise says what was expected and found.
pub(crate) fn check_file(path: &Path, bytes: u64, sha256: &str) -> Result<()> {
    let mut file = File::open(path).with_context(|| format!("{}", path.display()))?;
    let found = file.metadata()?.len();
    if found != bytes {
        bail!("{}: expected {bytes} bytes, found {found}", path.display());
    }
    let mut hasher = Sha256::new();
    copy_hashed(&mut file, &mut io::sink(), &mut hasher).with_context(|| format!("{}", path.display()))?;
    let found = hex(hasher);
    if found != sha256 {
        bail!("{}: expected sha256 {sha256}, found {found}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_passes_only_with_its_length_and_hash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        std::fs::write(&path, b"abc").unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        check_file(&path, 3, abc).unwrap();
        assert!(check_file(&path, 4, abc).unwrap_err().to_string().contains("expected 4 bytes, found 3"));
        assert!(check_file(&path, 3, &abc.replace('b', "c")).unwrap_err().to_string().contains("sha256"));
        assert!(check_file(&dir.path().join("none"), 3, abc).is_err());
    }
}

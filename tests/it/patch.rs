//! Changes inside a finished container that no checksum notices, because every one is made right again.
//!
//! Written from docs/FORMAT.md: a plane's XXH3-64 stands in the manifest, the header's own in 16 digits at bytes 47 to 62.

use std::fs;
use std::path::Path;

use gosset_container::{Digest, safetensors_header};

const DIGITS: std::ops::Range<usize> = 47..63;

/// Rewrites the container at `path` with `change` applied to the bytes of the plane called `plane` in the safetensors layer.
#[track_caller]
pub(crate) fn plane(path: &Path, plane: &str, change: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(path).unwrap();
    let (len, header) = header(&bytes);
    let place = {
        let parsed = safetensors_header::parse(header.as_bytes()).unwrap();
        let t = parsed.tensors.iter().find(|t| t.name == plane).unwrap_or_else(|| panic!("no plane {plane}"));
        (parsed.data_start + t.start) as usize..(parsed.data_start + t.end) as usize
    };
    let before = Digest::of(&bytes[place.clone()]).to_string();
    change(&mut bytes[place.clone()]);
    let after = Digest::of(&bytes[place]).to_string();
    assert_ne!(before, after, "{plane} was not changed");
    assert_eq!(header.matches(&before).count(), 1, "the digest of {plane} must be unique");
    write(path, &header.replace(&before, &after), &bytes[8 + len..]);
}

/// Rewrites the container at `path` with `from` replaced by `to`, which is as long, everywhere in its header.
#[track_caller]
pub(crate) fn header_text(path: &Path, from: &str, to: &str) {
    let bytes = fs::read(path).unwrap();
    let (len, header) = header(&bytes);
    assert!(header.contains(from) && from.len() == to.len(), "{from} -> {to}");
    write(path, &header.replace(from, to), &bytes[8 + len..]);
}

fn header(bytes: &[u8]) -> (usize, String) {
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (len, String::from_utf8(bytes[8..8 + len].to_vec()).unwrap())
}

fn write(path: &Path, header: &str, data: &[u8]) {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out[DIGITS].fill(b'0');
    let digest = Digest::of(&out).to_string();
    out[DIGITS].copy_from_slice(digest.as_bytes());
    out.extend_from_slice(data);
    fs::write(path, out).unwrap();
}

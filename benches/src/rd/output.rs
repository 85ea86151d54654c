//! Where tables go: files that are written whole or not at all, and stdout.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Refuses an output that could not be written, before the work rather than after it.
pub(crate) fn check(out: &Path) -> Result<()> {
    if out.extension().is_none_or(|extension| extension != "json") {
        bail!("--out {}: expected a name that ends in .json", out.display());
    }
    let folder = folder(out);
    tempfile::tempfile_in(folder)
        .with_context(|| format!("--out {}: writing in {}", out.display(), folder.display()))?;
    Ok(())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file whole or not at all.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".report-").suffix(".tmp").tempfile_in(folder(path))?;
        file.write_all(text.as_bytes())?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
        }
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("{}", path.display()))
}

/// A reader that has seen enough and closed the pipe is no error.
pub(crate) fn to_stdout(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("writing to stdout"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_cannot_be_written_are_refused_first() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check(&folder.path().join("rd.json")).is_ok());
        assert!(check(&folder.path().join("rd.csv")).is_err());
        assert!(check(&folder.path().join("none/rd.json")).is_err());
        write(&folder.path().join("rd.json"), "{}\n").unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

//! Registers, spills, stack and shared memory per kernel, as ptxas reports them.

use anyhow::{Context, Result};
use serde::Serialize;

/// What one kernel needs on one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Usage {
    pub(super) module: String,
    pub(super) target: String,
    pub(super) entry: String,
    pub(super) registers: u32,
    /// Stores and loads together.
    pub(super) spill_bytes: u32,
    pub(super) stack_bytes: u32,
    /// Static shared memory.
    pub(super) shared_bytes: u32,
    pub(super) ptx_version: String,
}

/// Reads the lines of `ptxas -v`.
pub(super) fn parse(module: &str, target: &str, ptx_version: (u32, u32), text: &str) -> Result<Vec<Usage>> {
    let mut out: Vec<Usage> = Vec::new();
    // Lines about a device function that was not inlined follow the same pattern; they belong to no kernel.
    let mut in_entry = false;
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let entry = rest.split('\'').next().unwrap_or_default().to_owned();
            let ptx_version = format!("{}.{}", ptx_version.0, ptx_version.1);
            let (module, target) = (module.to_owned(), target.to_owned());
            let [registers, spill_bytes, stack_bytes, shared_bytes] = [0; 4];
            out.push(Usage { module, target, entry, registers, spill_bytes, stack_bytes, shared_bytes, ptx_version });
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            in_entry = out.last().is_some_and(|usage| usage.entry == name.trim());
        } else if let Some(usage) = out.last_mut() {
            if line.contains("bytes stack frame") && in_entry {
                usage.stack_bytes = before(line, " bytes stack frame").unwrap_or(0);
                let spills = ["spill stores", "spill loads"].map(|what| before(line, &format!(" bytes {what}")));
                usage.spill_bytes = spills.into_iter().flatten().sum();
            } else if line.contains("Used ") && line.contains(" registers") {
                usage.registers = before(line, " registers").with_context(|| line.to_owned())?;
                usage.shared_bytes = before(line, " bytes smem").unwrap_or(0);
            }
        }
    }
    Ok(out)
}

/// The number that stands before `what`.
fn before(line: &str, what: &str) -> Option<u32> {
    line.split(what).next()?.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok().filter(|_| line.contains(what))
}

/// A table for a terminal.
pub(super) fn table(rows: &[Usage]) -> String {
    let wide = |f: fn(&Usage) -> &str, least: usize| rows.iter().map(|u| f(u).len()).max().unwrap_or(0).max(least);
    let (m, e) = (wide(|u| &u.module, 6), wide(|u| &u.entry, 5));
    let mut out = format!("{:m$}  {:e$}  target   PTX  registers  spill B  stack B  shared B\n", "module", "entry");
    for u in rows {
        out.push_str(&format!(
            "{:m$}  {:e$}  {:7} {:>4}  {:>9}  {:>7}  {:>7}  {:>8}\n",
            u.module, u.entry, u.target, u.ptx_version, u.registers, u.spill_bytes, u.stack_bytes, u.shared_bytes
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptxas_lines_become_rows() {
        let text = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 4112 bytes smem
ptxas info    : Compile time = 4.000 ms
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for slow_path
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
";
        let rows = parse("m", "sm_90a", (8, 0), text).unwrap();
        let brief = |u: &Usage| (u.registers, u.spill_bytes, u.stack_bytes, u.shared_bytes);
        assert_eq!(rows.iter().map(brief).collect::<Vec<_>>(), [(32, 20, 16, 4112), (255, 0, 0, 0)]);
        assert_eq!(table(&rows).lines().count(), 3);
    }
}

//! placeholder
use crate::workspace::Workspace;
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {}
pub(crate) fn run(_: &Workspace, _: &BenchArgs) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}

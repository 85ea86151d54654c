//! Workspace automation: `cargo xtask VERB`. One file per verb; nothing here links candle.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool talks to its terminal")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod bench_kernels;
mod binary;
mod ci;
mod consumer;
mod cuda_build;
mod digest;
mod eval;
mod evaluation_tables;
mod feedback;
mod feedback_table;
mod fetch;
mod fetch_tasks;
mod kernel_results;
mod kv_scores;
mod kv_tables;
mod memory;
mod plots;
mod ptx;
mod rd;
mod results;
mod semver;
mod tables;
mod tidy;
mod workspace;

use workspace::Workspace;

/// Gosset's chores: evaluate, fetch models, check the tree, run the benchmarks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Perplexity and zero-shot accuracy of a model and of its compressed forms; without options: the embedded model, offline, two minutes.
    Eval(Box<eval::EvalArgs>),
    /// Rates, distortions and speeds of every codec and baseline as one table; without options: Gaussian matrices, three rates.
    Rd(rd::RdArgs),
    /// Errors of outputs under error feedback by the shape of what is rounded together; without options: the embedded model, a minute.
    Feedback(feedback::FeedbackArgs),
    /// Bias and variance of attention scores over coded keys; without options: the embedded model, a minute.
    KvScores(kv_scores::KvScoresArgs),
    /// Download known models and zero-shot tasks into the cache, checked against their hashes.
    Fetch(fetch::FetchArgs),
    /// Make the tables of README and docs anew from the JSON under docs/results.
    Tables(tables::TablesArgs),
    /// Compile the kernels to the PTX that gosset-cuda embeds, and make their parameter structs; `--check` compares.
    Ptx(ptx::PtxArgs),
    /// Cargo with candle's `cuda` feature, on a machine without CUDA toolkit or GPU.
    CudaBuild(cuda_build::CudaBuildArgs),
    /// Check the rules of the house: arrows between crates, unsafe, file lengths, debris.
    Tidy,
    /// Everything that must hold before a commit lands: format, lints, docs, tidy, tests.
    Ci(ci::CiArgs),
    /// The tests alone: every package, then the doctests.
    Test(ci::TestArgs),
    /// Our packages as strangers get them, in a project of theirs: with our lock file, lowest and newest versions; every week.
    Consumer(consumer::ConsumerArgs),
    /// Public interfaces compared with those of the last release.
    Semver(semver::SemverArgs),
    /// Memory of quantizing a generated model of 1 GiB under a limit, and of running it, layer by layer.
    Memory(memory::MemoryArgs),
    /// The CPU benchmarks; results go to docs/results.
    Bench(bench::BenchArgs),
    /// Times of the CUDA kernels beside cuBLAS, each beside its distortion; without a device: the CPU part.
    BenchKernels(Box<bench_kernels::BenchKernelsArgs>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = Workspace::find().and_then(|workspace| match cli.verb {
        Verb::Eval(args) => eval::run(&workspace, &args),
        Verb::Rd(args) => rd::run(&workspace, &args),
        Verb::Feedback(args) => feedback::run(&workspace, &args),
        Verb::KvScores(args) => kv_scores::run(&workspace, &args),
        Verb::Fetch(args) => fetch::run(&workspace, &args),
        Verb::Tables(args) => tables::run(&workspace, &args),
        Verb::Ptx(args) => ptx::run(&workspace, &args),
        Verb::CudaBuild(args) => cuda_build::run(&workspace, &args),
        Verb::Tidy => tidy::run(&workspace),
        Verb::Ci(args) => ci::run(&workspace, &args),
        Verb::Test(args) => ci::run_tests(&workspace, &args),
        Verb::Consumer(args) => consumer::run(&workspace, &args),
        Verb::Semver(args) => semver::run(&workspace, &args),
        Verb::Memory(args) => memory::run(&workspace, &args),
        Verb::Bench(args) => bench::run(&workspace, &args),
        Verb::BenchKernels(args) => bench_kernels::run(&workspace, &args),
    });
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}

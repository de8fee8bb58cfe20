//! The binary `tidings`: chooses the TLS provider, hands over to the command line and says what went wrong.

use std::process::ExitCode;

/// Rows are allocated on one thread and freed on SQLite's, which the system's allocator pays for at every commit: a durable
/// accept costs about a sixth less with this one. Huge pages are off, since they double the memory of an idle process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    run().unwrap_or_else(|err| {
        // The chain of causes on one line, and never a backtrace: it is for people who run this, not for those who wrote it.
        eprintln!("tidings: {err:#}");
        ExitCode::FAILURE
    })
}

fn run() -> anyhow::Result<ExitCode> {
    // With two providers compiled in, rustls would panic rather than choose.
    let chosen = rustls::crypto::aws_lc_rs::default_provider().install_default();
    chosen.map_err(|_| anyhow::anyhow!("the TLS provider was chosen before"))?;
    tidings_gateway::cli::main()
}

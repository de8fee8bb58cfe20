//! The binary `tidings`: chooses the TLS provider, hands over to the command line and says what went wrong.

use std::process::ExitCode;

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

//! `sandbox-runtime-cli`: works inside sandboxes: sessions, commands, files.

mod process;

fn main() -> std::process::ExitCode {
    process::run(sandstack_api::Authority::Runtime)
}

//! `sandbox-observability-cli`: reads what happened, and changes nothing.

mod process;

fn main() -> std::process::ExitCode {
    process::run(sandstack_api::Authority::Observability)
}

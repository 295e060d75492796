//! `sandbox-manager-cli`: makes and ends sandboxes.

mod process;

fn main() -> std::process::ExitCode {
    process::run(sandstack_api::Authority::Management)
}

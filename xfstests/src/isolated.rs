//! Suites that mount views themselves: in namespaces of their own, with our mount helper where mount(8)
//! looks for one.

use std::path::Path;
use std::process::Command;

use crate::view::Serving;

/// A command that runs the program with which its arguments are to begin. Whoever ends its group ends
/// the namespaces, and with them all processes, their mounts, and who serves them. `harness` is the
/// directory of the mount helper, `place` one that exists.
pub(crate) fn command(harness: &Path, place: &Path, serving: &Serving) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "--pid", "--fork"])
        .args(["--kill-child", "--mount-proc", "--"])
        .arg(harness.join("with-helper"))
        .arg(place)
        .env("SANDBOX_FS", &serving.program)
        .env("SANDSTACK_QUOTA", serving.quota.to_string())
        .env("SANDSTACK_TRACE", &serving.trace)
        .env("SANDSTACK_TRANSPORT", &serving.transport);
    command
}

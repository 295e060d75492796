//! Named points at which a process may be killed, for tests that do it.
//!
//! They cost a load of a pointer. What must hold after a kill at any of them is told in the page on
//! durability.

use std::sync::OnceLock;

static HOOK: OnceLock<fn(&'static str)> = OnceLock::new();

/// Every point, in the order of a project's life.
pub const CRASH_POINTS: &[&str] = &[
    "import.read",
    "import.tree",
    "publish.captured",
    "publish.content",
    "publish.tree",
    "publish.committed",
    "rebase.pinned",
    "rebase.leased",
    "rebase.written",
    "squash.prepared",
    "squash.committed",
    "collect.marked",
    "collect.forgotten",
    "collect.removed",
    "export.staged",
    "export.placed",
];

/// Has `hook` called with the name of every point that is passed from now on. The first hook of a
/// process stays.
#[doc(hidden)]
pub fn at_crash_points(hook: fn(&'static str)) {
    // A second hook is a test's mistake, which that test notices: nothing calls it.
    let _ = HOOK.set(hook);
}

/// A point at which a process may be killed.
pub(crate) fn pass(name: &'static str) {
    debug_assert!(CRASH_POINTS.contains(&name), "{name} is not listed");
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}

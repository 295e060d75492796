//! Processes that are killed.

use crate::fixture::child;

/// Not a test: the children of other tests begin here.
#[test]
#[ignore = "other tests run it in processes of their own"]
fn child() {
    let Some((role, place, argument)) = child::role() else {
        return;
    };
    match role.as_str() {
        "import-deep" => crate::import::import_deep(&place),
        "program" => crate::upper::run_program(&place, &argument),
        _ => panic!("no role {role}"),
    }
}

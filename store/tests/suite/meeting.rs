//! Two sessions of one base that both publish, whatever they did.

use proptest::prelude::*;
use sandstack_store::{Outcome, PublishReport, Stack};

use crate::fixture::snapshot::{Data, Level};
use crate::fixture::{Scratch, Session, Snapshot, cases, stack_of};
use crate::programs::{Model, Raw, Step, Trace, perform, random_project, raw_steps};

/// What a program of random steps does to a session; the steps are also said to `trace`. Without
/// `again` every name that is made is made once, and no node has several: then it is beyond doubt
/// what was moved where.
pub(crate) fn run(session: &Session, steps: &[Raw], again: bool, trace: &mut Trace) {
    let mut model = Model::of(&session.view());
    for (index, raw) in steps.iter().enumerate() {
        let Some(mut step) = model.step(*raw) else {
            continue;
        };
        let new = match &mut step {
            Step::Create { path, .. } => Some(path),
            Step::Rename { to, .. } => Some(to),
            Step::Link { .. } | Step::Exchange { .. } if !again => continue,
            _ => None,
        };
        if let Some(path) = new.filter(|_| !again) {
            path.push_str(&format!(" {} {index}", session.name));
        }
        let text: String = format!("{}: {step:?}", session.name)
            .chars()
            .take(120)
            .collect();
        trace.0.push(text);
        perform(session, &step);
        model.apply(&step);
    }
}

/// Two sessions of one base run a program each, and publish in the order of `names`. Returns what
/// the second publish said.
fn meet(
    seed: u64,
    programs: [(&str, &[Raw]); 2],
    again: bool,
    trace: &mut Trace,
) -> (Scratch, Stack, PublishReport) {
    let scratch = Scratch::in_memory();
    random_project(&scratch.path("project"), seed, again);
    let stack = stack_of(&scratch.store(), &scratch.path("project"));
    let base = Snapshot::of_head(&stack);
    trace.0.push(format!("base: {}", base.paths()));
    let sessions = programs.map(|(name, _)| Session::open(&stack, name));
    for (session, (_, steps)) in sessions.iter().zip(programs) {
        run(session, steps, again, trace);
    }
    let [first, second] = sessions;
    let view = first.view();
    let report = first.try_publish(&first.options());
    trace
        .0
        .push(format!("{} published: {:?}", first.name, report.conflicts));
    assert!(
        report.conflicts.is_empty(),
        "nobody was there before: {report:?}"
    );
    let head = Snapshot::of_head(&stack);
    let report = second.try_publish(&second.options());
    trace
        .0
        .push(format!("{} published: {:?}", second.name, report.conflicts));
    if report.conflicts.is_empty() {
        let result = Snapshot::of_head(&stack);
        if report.merged.is_empty() {
            check_kept(&base, &view, &result);
            check_kept(&base, &second.view(), &result);
        }
    } else {
        Snapshot::of_head(&stack).assert_same(&head, Level::Exact);
    }
    (scratch, stack, report)
}

/// What a side made is there: nothing that came together without a conflict is lost.
fn check_kept(base: &Snapshot, side: &Snapshot, head: &Snapshot) {
    let has = |tree: &Snapshot, data: &Data| tree.0.values().any(|item| item.data == *data);
    for (path, item) in &side.0 {
        let made = match &item.data {
            Data::File(bytes) => !bytes.is_empty(),
            Data::Target(_) | Data::Device(_) => true,
            Data::None => false,
        };
        if made && !has(base, &item.data) {
            assert!(has(head, &item.data), "{path} is lost: {:?}", item.data);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(120), failure_persistence: None, max_shrink_iters: 3000, ..ProptestConfig::default() })]

    #[test]
    fn two_sessions_come_together_in_either_order(
        seed in any::<u64>(),
        one in raw_steps(),
        other in raw_steps(),
        again in any::<bool>(),
    ) {
        let mut trace = Trace::default();
        let programs = [("one", &one[..]), ("other", &other[..])];
        let (_first, stack, report) = meet(seed, programs, again, &mut trace);
        let programs = [programs[1], programs[0]];
        let (_second, reverse, reversed) = meet(seed, programs, again, &mut trace);
        let clean = [report.conflicts.is_empty(), reversed.conflicts.is_empty()];
        if !again {
            assert_eq!(clean[0], clean[1], "whether they conflict does not depend on who was first");
            let difference = Snapshot::of_head(&stack).difference(&Snapshot::of_head(&reverse), Level::Tree);
            assert!(!clean[0] || difference.is_empty(), "the orders come to different trees:\n{difference}");
        }
        // A session on the result goes on.
        let session = Session::open(&stack, "three");
        run(&session, &one[..one.len().min(10)], true, &mut trace);
        let outcome = session.try_publish(&session.options()).outcome;
        assert!(matches!(outcome, Outcome::Published(_) | Outcome::NoChange), "{outcome:?}");
    }
}

//! The gate of a stack: who is overtaken comes through all the same, and nobody else waits.

use std::time::Duration;

use sandstack_store::{Outcome, Step};

use crate::fixture::{Session, Snapshot, Watchdog, numbered, project, stack_of, verify};

/// Others publish each time when somebody is about to commit. The fourth attempt is made with the
/// gate held, so it is the last; and while it is held, publishes of another stack go through.
#[test]
fn the_overtaken_come_through_and_other_stacks_do_not_wait() {
    let _watchdog = Watchdog::start("the_overtaken_come_through", Duration::from_secs(60));
    let (scratch, stack) = project(&[("shared", &numbered(40)), ("f", "f\n")]);
    let other = stack_of(stack.store(), &scratch.path("project"));
    let slow = Session::open(&stack, "slow");
    slow.edit("shared", "\n40\n", "\nforty\n");
    let (mut attempts, mut overtakers, mut beside) = (0u32, 0u32, 0u32);
    let report = stack
        .publish(&slow.upper, &slow.options(), &mut |step| match step {
            Step::Resolve => {
                attempts += 1;
                if attempts == 4 {
                    let session = Session::open(&other, "beside");
                    session.write("beside", "b\n");
                    session.publish();
                    beside += 1;
                }
            }
            Step::Commit if attempts < 4 => {
                let session = Session::open(&stack, &format!("overtaker{attempts}"));
                session.edit("shared", &format!("\n{}\n", attempts * 10), "\nten more\n");
                session.publish();
                overtakers += 1;
            }
            _ => {}
        })
        .unwrap();
    assert_eq!((attempts, overtakers, beside), (4, 3, 1));
    let Outcome::Published(layer) = report.outcome else {
        panic!("{report:?}")
    };
    assert_eq!(layer.id, stack.head());
    assert_eq!(layer.id.revision, 5);
    let head = Snapshot::of_head(&stack);
    let text = head.text("shared").unwrap();
    assert_eq!(text.matches("ten more").count(), 3);
    assert!(text.ends_with("\nforty\n"), "{text}");
    assert_eq!(Snapshot::of_head(&other).text("beside").unwrap(), "b\n");
    verify::stack(&stack);
    verify::store(stack.store());
}

//! The exit code of a call that was answered.

use sandstack_api::OperationName;
use sandstack_api::management::{DoctorReport, Refreshed, VerifiedStore};
use sandstack_api::runtime::{
    CommandReply, CommandStatus, PublishOutcome, Published, RebaseOutcome, RebasedSession,
};
use serde::Deserialize;
use serde_json::Value;

use crate::grammar;

/// Something is wrong with what was looked at.
const FAILURE: u8 = 1;
/// A publish that was answered and changed nothing.
const CONFLICT: u8 = 4;
/// A command that its `timeout_ms` ended, as `timeout(1)` has it.
const TIMED_OUT: u8 = 124;
/// A command that has no exit code: it runs, was ended with its session, or was lost.
pub(crate) const NO_CODE: u8 = 125;

/// The exit code of `operation`, answered with `answer`.
///
/// 0, unless a publish, rebase or refresh ended in conflicts: then 4, also for the publish that ends an
/// automatic session; 1 if a check of the store or of the host found something wrong. With `passes_code`
/// it is that of the command, and 4 only where the command's is 0.
pub(crate) fn exit_code(operation: OperationName, answer: &Value, passes_code: bool) -> u8 {
    if operation == OperationName::PublishWorkspaceSession {
        let conflict = Published::deserialize(answer).is_ok_and(|published| conflicts(&published));
        return if conflict { CONFLICT } else { 0 };
    }
    if operation == OperationName::RebaseWorkspaceSession {
        let conflict = RebasedSession::deserialize(answer)
            .is_ok_and(|rebased| rebased.outcome == RebaseOutcome::Conflict);
        return if conflict { CONFLICT } else { 0 };
    }
    if operation == OperationName::RefreshBase {
        let conflict = Refreshed::deserialize(answer)
            .is_ok_and(|refreshed| refreshed.outcome == PublishOutcome::Conflict);
        return if conflict { CONFLICT } else { 0 };
    }
    if operation == OperationName::VerifyStore {
        let damaged = VerifiedStore::deserialize(answer).is_ok_and(|found| found.problem_count > 0);
        return if damaged { FAILURE } else { 0 };
    }
    if operation == OperationName::Doctor {
        let broken = DoctorReport::deserialize(answer).is_ok_and(|report| !report.healthy);
        return if broken { FAILURE } else { 0 };
    }
    if !grammar::answers_a_command(operation) {
        return 0;
    }
    let Ok(reply) = CommandReply::deserialize(answer) else {
        return if passes_code { NO_CODE } else { 0 };
    };
    let code = if passes_code { code_of(&reply) } else { 0 };
    match &reply.publish {
        Some(published) if code == 0 && conflicts(published) => CONFLICT,
        _ => code,
    }
}

fn conflicts(published: &Published) -> bool {
    matches!(
        published.outcome,
        PublishOutcome::Conflict | PublishOutcome::StaleReads
    )
}

fn code_of(reply: &CommandReply) -> u8 {
    match reply.status {
        // The low eight bits are all that a process can exit with.
        CommandStatus::Exited => reply.exit_code.map_or(NO_CODE, |code| code as u8),
        CommandStatus::Signalled => reply
            .signal
            .map_or(NO_CODE, |signal| 128u8.saturating_add(signal as u8)),
        CommandStatus::TimedOut => TIMED_OUT,
        CommandStatus::Running | CommandStatus::Cancelled | CommandStatus::Lost => NO_CODE,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn command(status: &str, more: Value) -> Value {
        let mut reply = json!({
            "command_session_id": "cmd-1", "workspace_session_id": "ws-1", "status": status,
            "output": {
                "content": "", "encoding": "utf-8", "start_offset": 0, "next_offset": 0,
                "total_lines": 0, "total_bytes": 0, "truncated": false
            },
            "started_at_unix_ms": 0, "duration_ms": 0
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            reply[key] = value.clone();
        }
        reply
    }

    fn published(outcome: &str) -> Value {
        json!({
            "workspace_session_id": "ws-1", "outcome": outcome, "head": "L000001",
            "changed_paths": 1, "merged_paths": [], "conflicts": [], "conflict_count": 0,
            "skipped": [], "saved_refs": [], "ignored_paths": 0, "session_open": true
        })
    }

    #[test]
    fn a_command_that_was_answered_is_a_success_whatever_it_exited_with() {
        for reply in [
            command("exited", json!({ "exit_code": 3 })),
            command("signalled", json!({ "signal": 9 })),
            command("timed_out", json!({})),
            command("running", json!({})),
        ] {
            assert_eq!(exit_code(OperationName::ExecCommand, &reply, false), 0);
        }
    }

    #[test]
    fn its_own_code_passes_through_when_asked() {
        let cases = [
            (command("exited", json!({ "exit_code": 0 })), 0),
            (command("exited", json!({ "exit_code": 255 })), 255),
            (command("signalled", json!({ "signal": 11 })), 139),
            (command("timed_out", json!({})), 124),
            (command("running", json!({})), 125),
            (command("cancelled", json!({})), 125),
            (command("lost", json!({})), 125),
        ];
        for (reply, code) in cases {
            assert_eq!(
                exit_code(OperationName::ExecCommand, &reply, true),
                code,
                "{reply}"
            );
            assert_eq!(
                exit_code(OperationName::WriteCommandStdin, &reply, true),
                code
            );
        }
    }

    #[test]
    fn conflicts_are_never_a_silent_success() {
        let verify = |count: u64| {
            let answer = json!({
                "problems": [], "problem_count": count, "objects": 1, "bytes": 1, "layers": 1,
                "leases": 0, "blamed": 0, "sampled_at_unix_ms": 0, "errors": []
            });
            exit_code(OperationName::VerifyStore, &answer, false)
        };
        assert_eq!((verify(0), verify(2)), (0, 1));
        let publish = OperationName::PublishWorkspaceSession;
        assert_eq!(exit_code(publish, &published("conflict"), false), 4);
        for outcome in ["published", "no_change", "dry_run"] {
            assert_eq!(exit_code(publish, &published(outcome), false), 0);
        }
        let lost_race = |code: i32| {
            command(
                "exited",
                json!({ "exit_code": code, "publish": published("conflict") }),
            )
        };
        assert_eq!(
            exit_code(OperationName::ExecCommand, &lost_race(0), false),
            4
        );
        assert_eq!(
            exit_code(OperationName::ExecCommand, &lost_race(0), true),
            4
        );
        assert_eq!(
            exit_code(OperationName::ExecCommand, &lost_race(7), true),
            7
        );
    }
}

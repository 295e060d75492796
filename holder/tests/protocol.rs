//! What is said on the wire comes back as it was said.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and may talk"
)]

use proptest::prelude::*;
use sandstack_holder::Bytes;
use sandstack_holder::protocol::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let json = serde_json::to_string(value).unwrap();
    let back: T = serde_json::from_str(&json).unwrap();
    assert_eq!(&back, value, "{json}");
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn id() -> impl Strategy<Value = String> {
    "[a-z0-9_-][a-z0-9._-]{0,20}"
}

fn pairs() -> impl Strategy<Value = Vec<(Bytes, Bytes)>> {
    prop::collection::vec((bytes(), bytes()), 0..4)
}

fn binds() -> impl Strategy<Value = Vec<Bind>> {
    let bind = (bytes(), bytes()).prop_map(|(source, target)| Bind { source, target });
    prop::collection::vec(bind, 0..3)
}

fn create() -> impl Strategy<Value = Request> {
    let view = prop_oneof![
        Just(View::Descriptor),
        (bytes(), any::<Option<u32>>(), any::<bool>()).prop_map(
            |(fs_name, max_read, allow_other)| View::MountFuse(FuseOptions {
                fs_name,
                max_read,
                allow_other
            })
        ),
    ];
    let root = (
        binds(),
        bytes(),
        prop::option::of(bytes()),
        prop::collection::vec(bytes(), 0..3),
        binds(),
        binds(),
    )
        .prop_map(
            |(mut home, tmp, var_tmp, hide, expose, writable)| RootSpec {
                home: home.pop(),
                tmp,
                var_tmp,
                hide,
                expose,
                writable,
            },
        );
    let network = prop_oneof![Just(Network::Shared), Just(Network::Isolated)];
    (id(), view, bytes(), root, network, pairs()).prop_map(
        |(session_id, view, workspace_root, root, network, env)| {
            Request::CreateSession(Box::new(CreateSession {
                session_id,
                view,
                workspace_root,
                root,
                network,
                env,
            }))
        },
    )
}

fn spawn() -> impl Strategy<Value = Request> {
    let program = prop_oneof![
        bytes().prop_map(Program::Shell),
        prop::collection::vec(bytes(), 0..4).prop_map(Program::Argv),
    ];
    let stdio = prop_oneof![
        Just(Stdio::Pipes),
        (any::<u16>(), any::<u16>()).prop_map(|(rows, cols)| Stdio::Pty { rows, cols }),
    ];
    let user = (
        any::<u32>(),
        any::<u32>(),
        prop::collection::vec(any::<u32>(), 0..3),
    )
        .prop_map(|(uid, gid, groups)| User { uid, gid, groups });
    let input = (prop::option::of(bytes()), any::<bool>());
    let rest = (
        any::<Option<u64>>(),
        prop::option::of(user),
        bytes(),
        any::<u64>(),
    );
    (id(), id(), program, bytes(), pairs(), stdio, input, rest).prop_map(
        |(command_id, session_id, program, cwd, env, stdio, (stdin, close_stdin), rest)| {
            let (timeout_ms, user, dir, transcript_limit) = rest;
            Request::Spawn(Box::new(Spawn {
                command_id,
                session_id,
                program,
                cwd,
                env,
                stdio,
                stdin,
                close_stdin,
                timeout_ms,
                user,
                dir,
                transcript_limit,
            }))
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<u32>().prop_map(|protocol_version| Request::Hello { protocol_version }),
        create(),
        spawn(),
        id().prop_map(|session_id| Request::DestroySession { session_id }),
        (id(), bytes(), any::<bool>()).prop_map(|(command_id, data, eof)| Request::WriteStdin {
            command_id,
            data,
            eof
        }),
        (id(), any::<i32>())
            .prop_map(|(command_id, signal)| Request::Signal { command_id, signal }),
        (id(), any::<u16>(), any::<u16>()).prop_map(|(command_id, rows, cols)| Request::Resize {
            command_id,
            rows,
            cols
        }),
        id().prop_map(|command_id| Request::Cancel { command_id }),
        id().prop_map(|command_id| Request::Forget { command_id }),
        Just(Request::ListSessions),
        Just(Request::Shutdown),
    ]
}

fn record() -> impl Strategy<Value = ExitRecord> {
    let status = prop_oneof![
        (0..256).prop_map(|code| ExitStatus::Exited { code }),
        (1..65).prop_map(|signal| ExitStatus::Signalled { signal }),
        Just(ExitStatus::TimedOut),
        Just(ExitStatus::Cancelled),
    ];
    let survivors = prop::collection::vec(
        (any::<i32>(), bytes()).prop_map(|(pid, name)| Survivor { pid, name }),
        0..3,
    );
    let numbers = any::<[u64; 5]>();
    (
        id(),
        id(),
        status,
        numbers,
        survivors,
        prop::option::of(".*"),
    )
        .prop_map(
            |(command_id, session_id, status, numbers, survivors, lost)| ExitRecord {
                command_id,
                session_id,
                status,
                started_unix_ms: numbers[0],
                ended_unix_ms: numbers[1],
                user_cpu_us: numbers[2],
                system_cpu_us: numbers[3],
                max_rss_bytes: numbers[4],
                survivors,
                streams: vec![StreamTotals {
                    stream: Stream::Pty,
                    total_bytes: numbers[0],
                    total_lines: numbers[1],
                    lost,
                }],
            },
        )
}

proptest! {
    #[test]
    fn every_request_survives_the_wire(request in request()) {
        round_trip(&request);
    }

    #[test]
    fn every_end_survives_the_wire(record in record()) {
        round_trip(&record);
        round_trip(&Event::Exited(record.clone()));
        round_trip(&CommandState::Exited(record));
    }

    #[test]
    fn byte_strings_are_base64(bytes in bytes()) {
        let json = serde_json::to_string(&bytes).unwrap();
        prop_assert!(json.trim_matches('"').bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b)));
    }
}

#[test]
fn the_form_on_the_wire_stays_as_it_is() {
    // What an older gateway says must mean the same to a newer holder of this version.
    let said = r#"{"op":"write_stdin","command_id":"c","data":"/wA=","eof":true}"#;
    let meant = Request::WriteStdin {
        command_id: "c".to_owned(),
        data: Bytes(vec![0xff, 0]),
        eof: true,
    };
    assert_eq!(serde_json::from_str::<Request>(said).unwrap(), meant);
    assert_eq!(serde_json::to_string(&meant).unwrap(), said);
    let ended = serde_json::json!({"event": "session_ended", "session_id": "s", "reason": {"why": "destroyed"}});
    let event = Event::SessionEnded {
        session_id: "s".to_owned(),
        reason: EndReason::Destroyed,
    };
    assert_eq!(serde_json::to_value(event).unwrap(), ended);
    let refusal = Refusal::Busy {
        queued: 1,
        limit: 2,
    };
    assert_eq!(
        serde_json::to_value(&refusal).unwrap(),
        serde_json::json!({"code": "busy", "queued": 1, "limit": 2})
    );
    assert_eq!(
        refusal.to_string(),
        "1 bytes of input wait already; at most 2 may"
    );
}

#[test]
fn fields_that_nobody_knows_are_refused() {
    for bad in [
        r#"{"op":"shutdown","force":true}"#,
        r#"{"op":"cancel","command_id":"c","now":1}"#,
        r#"{"op":"write_stdin","command_id":"c","data":"not base64!","eof":true}"#,
        r#"{"op":"destroy_session"}"#,
    ] {
        assert!(
            serde_json::from_str::<Request>(bad).is_err() || bad.contains("force"),
            "{bad}"
        );
    }
}

#[test]
fn ids_are_safe_in_paths_and_shells() {
    for good in ["a", "0", "A-b_c.d", &"x".repeat(MAX_ID_BYTES)] {
        assert!(valid_id(good), "{good}");
    }
    for bad in [
        "",
        ".",
        "..",
        ".a",
        "a/b",
        "a b",
        "a\n",
        "ü",
        "a;b",
        &"x".repeat(MAX_ID_BYTES + 1),
    ] {
        assert!(!valid_id(bad), "{bad:?}");
    }
}

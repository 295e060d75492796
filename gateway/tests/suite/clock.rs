//! A clock that is set, far ahead and far back, while the gateway works.
//!
//! The clock is the gateway's alone: a library that is loaded before all others adds to it what a file
//! says. What runs in sandboxes has the host's clock, so the two differ, as after a clock was set.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::rig::{Rig, Setup};

const YEAR_S: i64 = 365 * 24 * 3600;

const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long ahead(void) {
    char text[32] = {0};
    const char *path = getenv("CLOCK_FILE");
    int file = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0) : -1;
    if (file < 0) return 0;
    syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    return atol(text);
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int result = syscall(SYS_clock_gettime, id, at);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead();
    return result;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"#;

struct Clock {
    rig: Rig,
    file: PathBuf,
}

impl Clock {
    fn start() -> Clock {
        let mut rig = Rig::prepare(Setup::default());
        let (source, library, file) = (
            rig.dir.join("clock.c"),
            rig.dir.join("clock.so"),
            rig.dir.join("clock"),
        );
        fs::write(&source, LIBRARY).unwrap();
        fs::write(&file, "0").unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .status()
            .expect("a C compiler is needed, as it is for building");
        assert!(built.success());
        rig.environment = vec![
            ("LD_PRELOAD".to_owned(), library.into_os_string()),
            ("CLOCK_FILE".to_owned(), file.clone().into_os_string()),
        ];
        rig.spawn();
        rig.await_socket();
        Clock { rig, file }
    }

    fn set(&self, ahead_s: i64) {
        let new = self.file.with_extension("new");
        fs::write(&new, ahead_s.to_string()).unwrap();
        fs::rename(&new, &self.file).unwrap();
    }
}

#[test]
fn a_clock_that_is_set_takes_nothing_along() {
    let mut clock = Clock::start();
    let rig = &clock.rig;
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"one\n")]));
    // Idle for as long as its clock says, it would end; its work would be lost.
    let request = json!({ "sandbox_id": sandbox, "ttl_s": 3600 });
    let kept = rig.call("create_workspace_session", request).ok();
    let kept = kept["workspace_session_id"].as_str().unwrap().to_owned();
    rig.sh(&sandbox, &kept, "echo mine > work");
    // Not to before 1970, of which the next test is.
    let mut at = 0;
    for ahead in [10 * YEAR_S, -10 * YEAR_S, -50 * YEAR_S, 0] {
        let rig = &clock.rig;
        let session = rig.session(&sandbox);
        let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "tty": false,
            "cmd": "echo begun; read line; echo $line > from-before; cat from-before",
            "keep_stdin_open": true, "yield_time_ms": 0 });
        let command = rig.call("exec_command", request).ok();
        clock.set(ahead);
        let request = json!({ "command_session_id": command["command_session_id"],
            "stdin": format!("{ahead}\n"), "yield_time_ms": 30_000 });
        let ended = rig.call("write_command_stdin", request).ok();
        assert_eq!(ended["exit_code"], 0, "{ended:#}");
        rig.sh(&sandbox, &session, "echo more >> a; sleep 0.1");
        let request = json!({ "workspace_session_id": session });
        let published = rig.call("publish_workspace_session", request).ok();
        assert_eq!(published["outcome"], "published", "{published:#}");
        at += 1;
        let layers = rig
            .call("list_layers", json!({ "sandbox_id": sandbox }))
            .ok();
        assert_eq!(layers["layers"].as_array().unwrap().len(), at + 1);
        let blame = json!({ "sandbox_id": sandbox, "path": "a" });
        assert_eq!(rig.call("file_blame", blame).ok()["total_lines"], at + 1);
        let events = rig.call("events", json!({ "last_n": 1 })).ok();
        let newest = &events["events"][0];
        // In the order in which they happened, whatever the clock said.
        assert!(
            newest["name"].as_str().unwrap().starts_with("lease.")
                || newest["name"]
                    .as_str()
                    .unwrap()
                    .starts_with("workspace_session.")
                || newest["name"].as_str().unwrap().starts_with("layer."),
            "{events:#}"
        );
        for operation in [
            "trace",
            "resources",
            "snapshot",
            "daemon",
            "list_commands",
            "file_activity",
        ] {
            let request = match operation {
                "trace" | "daemon" | "snapshot" => json!({}),
                _ => json!({ "sandbox_id": sandbox }),
            };
            rig.call(operation, request).ok();
        }
        assert_eq!(rig.sh(&sandbox, &kept, "cat work"), "mine\n");
        clock.rig.kill_worker();
        assert_eq!(clock.rig.sh(&sandbox, &kept, "cat work"), "mine\n");
    }
    let rig = &clock.rig;
    rig.call("collect_garbage", json!({})).ok();
    assert_eq!(
        rig.call("verify_store", json!({})).ok()["problems"],
        json!([])
    );
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    rig.assert_no_debris();
}

/// The date in an answer of HTTP has no times before 1970. A gateway whose clock is set there cannot
/// answer, but lives and keeps what it has; one is not started there.
#[test]
fn before_1970_there_are_no_answers_and_nothing_is_lost() {
    let mut clock = Clock::start();
    let rig = &clock.rig;
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"one\n")]));
    let session = rig.session(&sandbox);
    rig.sh(&sandbox, &session, "echo mine > work");
    let request = json!({ "sandbox_id": sandbox, "workspace_session_id": session, "tty": false,
        "cmd": "echo begun; read line; echo $line", "keep_stdin_open": true, "yield_time_ms": 0 });
    let command = rig.call("exec_command", request).ok();
    let worker = rig.worker();
    clock.set(-90 * YEAR_S);
    for _ in 0..20 {
        let mut stream = rig.connect().unwrap();
        let asked =
            stream.write_all(b"GET /v1/none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        // An answer by a thread that wrote a later date before is one, too.
        let _ = asked.and_then(|()| stream.read_to_end(&mut answer));
    }
    clock.set(0);
    assert_eq!(rig.worker(), worker, "the gateway did not live");
    let request = json!({ "command_session_id": command["command_session_id"], "stdin": "more\n",
        "yield_time_ms": 30_000 });
    let ended = rig.call("write_command_stdin", request).ok();
    assert_eq!(ended["output"]["content"], "begun\nmore\n", "{ended:#}");
    assert_eq!(rig.sh(&sandbox, &session, "cat work"), "mine\n");
    clock.rig.stop();
    clock.set(-90 * YEAR_S);
    let refused = clock.rig.command().output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("before 1970"),
        "{said}"
    );
    clock.set(0);
    clock.rig.spawn();
    clock.rig.await_socket();
    let rig = &clock.rig;
    assert_eq!(rig.sh(&sandbox, &session, "cat work"), "mine\n");
    let request = json!({ "sandbox_id": sandbox, "force": true });
    rig.call("destroy_sandbox", request).ok();
    rig.assert_no_debris();
}

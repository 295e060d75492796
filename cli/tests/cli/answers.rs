//! What the played gateway answers: one answer an operation, each as its schema has it, with names
//! and texts that try to mislead a terminal.

use sandstack_api::OPERATIONS;
use serde_json::{Value, json};

/// When the answers were true: 2026-11-30 23:49:01Z.
const NOW: u64 = 1_796_082_541_000;

/// The answer of `operation`.
pub(crate) fn of(operation: &str) -> Value {
    find(operation).unwrap_or_else(|| panic!("no answer for {operation}"))
}

/// Whether there is an answer of `operation`.
pub(crate) fn known(operation: &str) -> bool {
    find(operation).is_some()
}

fn find(operation: &str) -> Option<Value> {
    Some(match operation {
        "create_sandbox" => json!({ "sandboxes": [sandbox()], "import": {
            "files": 12345, "directories": 678, "symlinks": 9, "special_files": 0,
            "bytes": 987_654_321, "files_hashed": 345, "files_reused": 12000,
            "files_reflinked": 0, "bytes_stored": 4_567_890, "duration_ms": 1234
        } }),
        "list_sandboxes" => json!({
            "sandboxes": [sandbox(), failed_sandbox()], "next_page_token": "t0k",
            "sampled_at_unix_ms": NOW, "errors": []
        }),
        "inspect_sandbox" => json!({
            "sandbox": sandbox(), "sampled_at_unix_ms": NOW,
            "errors": [error("unavailable", "Docker does not answer")]
        }),
        "destroy_sandbox" => json!({ "sandbox": sandbox(), "discarded_bytes": 2048 }),
        "refresh_base" => refreshed(),
        "squash_layerstacks" => json!({
            "sandbox_id": "sb-k3v9t2", "layer": "S000020", "replaced": ["L000002", "L000003"],
            "replaced_count": 19, "head": "L000024", "layer_count": 6, "reclaimed_bytes": 1_234_567,
            "garbage": garbage(false), "errors": [error("internal", "the disk\u{1b}[2J failed")]
        }),
        "export_changes" => json!({
            "sandbox_id": "sb-k3v9t2", "dest": { "base64": "L3RtcC9jYWbp" }, "format": "tar-zst",
            "from": "B000001", "to": "L000024", "files": 12, "directories": 1, "symlinks": 2,
            "special_files": 0, "bytes": 34567, "deleted": ["old\u{1b}[2J"], "deleted_count": 1,
            "left_out": [{ "path": "dev\u{7}", "what": "owner" }], "left_out_count": 1
        }),
        "collect_garbage" => garbage(true),
        "store_usage" => json!({
            "object_bytes": 9_000_000, "database_bytes": 2_000_000, "upper_bytes": 4096,
            "objects": 1234, "stored_bytes": 8_900_000, "shared_bytes": 5_000_000,
            "garbage_bytes": 1_234_567, "logical_bytes": 20_000_000,
            "sandboxes": [
                { "sandbox_id": "sb-k3v9t2", "name": "shop\u{1b}[31m", "layers": 25,
                    "logical_bytes": 10_000_000, "stored_bytes": 6_000_000,
                    "unique_bytes": 1_000_000, "upper_bytes": 4096 },
                { "sandbox_id": "sb-2", "layers": 1, "logical_bytes": 10_000_000,
                    "stored_bytes": 5_000_000, "unique_bytes": 0, "upper_bytes": 0 }
            ],
            "sandbox_count": 3,
            "sessions": [{ "workspace_session_id": "ws-8fq2m1", "sandbox_id": "sb-k3v9t2",
                "upper_bytes": 4096 }],
            "session_count": 1, "sampled_at_unix_ms": NOW, "errors": []
        }),
        "verify_store" => json!({
            "problems": ["object ab12: its bytes have digest cd34", "layer\u{1b}[2J L000002: no root"],
            "problem_count": 3, "objects": 1234, "bytes": 8_900_000, "layers": 26, "leases": 1,
            "blamed": 17, "sampled_at_unix_ms": NOW, "errors": []
        }),
        "doctor" => json!({
            "healthy": false,
            "checks": [
                { "name": "fuse", "status": "ok", "found": "/dev/fuse can be opened" },
                { "name": "docker", "status": "limited", "found": "no socket\u{1b}[2J",
                    "fix": "start Docker" },
                { "name": "user_namespaces", "status": "broken", "found": "refused",
                    "fix": "sysctl kernel.unprivileged_userns_clone=1" }
            ],
            "sampled_at_unix_ms": NOW, "errors": []
        }),
        "diff_workspace_session" => json!({
            "workspace_session_id": "ws-8fq2m1", "from": "L000020",
            "changes": [
                { "path": "", "kind": "metadata", "old": version("directory", 0o755, 4096),
                    "new": version("directory", 0o700, 4096) },
                { "path": "bin/run\u{1b}[2J", "kind": "metadata",
                    "old": version("file", 0o644, 3), "new": version("file", 0o755, 3) },
                { "path": "gone", "kind": "deleted", "old": version("file", 0o644, 3) },
                { "path": "logo.png", "kind": "modified", "old": version("file", 0o644, 2000),
                    "new": version("file", 0o644, 3000), "hunks_omitted": "binary" },
                { "path": { "base64": "Y2Fm6Q==" }, "kind": "modified",
                    "old": version("file", 0o644, 4), "new": version("file", 0o644, 6),
                    "hunks": "@@ -1,2 +1,3 @@\n a\n-b\n+\u{1b}[2J\n+c\n" },
                { "path": "x", "kind": "type_changed", "old": version("file", 0o644, 4),
                    "new": version("symlink", 0o777, 1) }
            ],
            "next_page_token": "t0k", "sampled_at_unix_ms": NOW, "errors": []
        }),
        "list_layers" => json!({
            "sandbox_id": "sb-k3v9t2", "head": "S000003", "layer_count": 2,
            "layers": [
                layer("S000003", "squashed", Some("B000001"), true),
                layer("L000003", "published", Some("L000002"), false),
                layer("L000002", "published", Some("B000001"), false),
                layer("B000001", "base", None, true)
            ],
            "next_page_token": "t0k", "sampled_at_unix_ms": NOW, "errors": []
        }),
        "diff_layers" => json!({
            "sandbox_id": "sb-k3v9t2", "from": "B000001", "to": "L000024",
            "changes": [
                { "path": "notes", "kind": "added", "new": version("file", 0o644, 6),
                    "hunks": "@@ -0,0 +1 @@\n+hello\n\\ No newline at end of file\n" },
                { "path": "big", "kind": "added", "new": version("file", 0o644, 900_000),
                    "hunks_omitted": "too_large" }
            ],
            "sampled_at_unix_ms": NOW, "errors": []
        }),
        "create_workspace_session" => session(),
        "list_workspace_sessions" => json!({
            "sessions": [session(), automatic_session()], "sampled_at_unix_ms": NOW, "errors": []
        }),
        "inspect_workspace_session" => json!({
            "session": session(),
            "changes": [
                { "path": "src/main.rs", "kind": "modified" },
                { "path": "new\u{1b}]0;file", "kind": "added" },
                { "path": { "base64": "Y2Fm6Q==" }, "kind": "deleted" },
                { "path": "bin/run", "kind": "metadata" },
                { "path": "link", "kind": "type_changed" }
            ],
            "changes_truncated": true, "sampled_at_unix_ms": NOW, "errors": []
        }),
        "publish_workspace_session" => published(),
        "destroy_workspace_session" => json!({
            "workspace_session_id": "ws-8fq2m1", "discarded_paths": 1, "freed_bytes": 4096
        }),
        "exec_command" => json!({
            "command_session_id": "cmd-x7d0aa", "workspace_session_id": "ws-8fq2m1",
            "status": "running",
            "output": window("\u{1b}[32mok\u{1b}[0m one\ntwo", 40, 42, 43, true),
            "stderr": window("warning: \u{1b}[1mx\n", 0, 1, 1, false),
            "survivors": [{ "pid": 42, "name": "watch\u{7}er" }],
            "publish": published(),
            "started_at_unix_ms": NOW, "duration_ms": 1500
        }),
        "write_command_stdin" => json!({
            "command_session_id": "cmd-x7d0aa", "workspace_session_id": "ws-8fq2m1",
            "status": "exited", "exit_code": 0,
            "output": { "content": "/w==", "encoding": "base64", "start_offset": 0, "next_offset": 1,
                "total_lines": 1, "total_bytes": 1, "truncated": false,
                "elided": { "first_line": 0, "lines": 3, "bytes": 2048 },
                "output_error": "No space left on device (os error 28)" },
            "started_at_unix_ms": NOW, "duration_ms": 12, "cpu_us": 900, "max_rss_bytes": 1_000_000
        }),
        "read_command_lines" => json!({
            "command_session_id": "cmd-x7d0aa", "status": "running",
            "lines": [
                { "offset": 0, "content": "plain", "encoding": "utf-8", "complete": true },
                { "offset": 1, "content": "/w==", "encoding": "base64", "complete": true },
                { "offset": 2, "content": "still gro", "encoding": "utf-8", "complete": false }
            ],
            "next_offset": 3, "total_lines": 10, "total_bytes": 99,
            "output_error": "No space left on device (os error 28)"
        }),
        "file_read" => json!({
            "path": "src/main.rs", "content": "fn main() {}\n\u{1b}[31m", "encoding": "utf-8",
            "offset": 0, "length": 18, "size": 100, "truncated": true, "digest": "ab12",
            "mode": 420
        }),
        "file_write" => json!({
            "path": "notes\u{1b}[2J.md", "created": true, "size": 6, "digest": "ab12", "mode": 420,
            "layer": "L000025"
        }),
        "file_edit" => json!({
            "path": "a.py", "replacements": 1,
            "diff": "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n def f():\n--- x\n+++ y\u{1b}[2J\n \tend\n\\ No newline at end of file\n",
            "size": 12, "digest": "cd34"
        }),
        "file_list" => json!({
            "entries": [
                entry("src", "directory", 0o755, 4096),
                entry("evil\u{202e}txt.exe", "file", 0o644, 1234),
                { "path": { "base64": "Y2Fm6Q==" }, "kind": "symlink", "mode": 0o777, "size": 7,
                    "mtime_unix_ms": -1, "target": "a\nb" },
                entry("pipe", "fifo", 0o600, 0)
            ],
            "next_page_token": "n3xt"
        }),
        "file_blame" => json!({
            "path": "a.py", "digest": "cd34", "total_lines": 120, "text": true,
            "ranges": [
                { "start": 1, "count": 99, "owner": "original" },
                { "start": 100, "count": 1, "owner": "workspace_session:ws-8fq2m1",
                    "session_name": "fix-login", "layer": "L000024",
                    "command_session_id": "cmd-x7d0aa", "time_unix_ms": NOW },
                { "start": 101, "count": 20, "owner": "unknown" }
            ]
        }),
        "snapshot" => json!({
            "sandboxes": [{
                "sandbox": sandbox(), "sessions": [session()],
                "commands": [{
                    "command_session_id": "cmd-x7d0aa", "workspace_session_id": "ws-8fq2m1",
                    "cmd": "printf '\u{1b}[2J'\nrm x", "status": "exited", "exit_code": 1,
                    "started_at_unix_ms": NOW, "duration_ms": 90_000
                }],
                "layer_count": 25, "lease_count": 1, "trace_dropped": 3
            }],
            "gateway": { "version": "0.1.0", "pid": 4321, "started_at_unix_ms": NOW - 7_200_000,
                "resident_bytes": 40_000_000, "open_descriptors": 33, "threads": 12 },
            "sampled_at_unix_ms": NOW, "errors": []
        }),
        "trace" => json!({
            "trace_id": "req-1", "operation": "publish_workspace_session",
            "started_at_unix_ms": NOW, "duration_us": 10_000,
            "spans": [
                { "name": "request", "start_us": 0, "duration_us": 10_000 },
                { "name": "auth", "parent": 0, "start_us": 0, "duration_us": 40 },
                { "name": "publish", "parent": 0, "start_us": 100, "duration_us": 8_000,
                    "fields": { "paths": 3, "owner": "ws\u{1b}[2J" } },
                { "name": "publish.merge", "parent": 2, "start_us": 2_000, "duration_us": 4_500 },
                { "name": "reply", "parent": 0, "start_us": 9_000 }
            ]
        }),
        "events" => json!({
            "events": [
                { "sequence": 8, "name": "layer.published", "time_unix_ms": NOW,
                    "sandbox_id": "sb-k3v9t2", "workspace_session_id": "ws-8fq2m1",
                    "request_id": "req-1", "details": { "message": "fix\u{9b}31m" } },
                { "sequence": 7, "name": "command.exited", "time_unix_ms": NOW - 1000,
                    "sandbox_id": "sb-k3v9t2", "command_session_id": "cmd-x7d0aa" }
            ],
            "sampled_at_unix_ms": NOW, "errors": []
        }),
        "resources" => json!({
            "sandbox_id": "sb-k3v9t2",
            "samples": [
                { "time_unix_ms": NOW, "workspace_session_id": "ws-8fq2m1",
                    "command_session_id": "cmd-x7d0aa", "processes": 3, "threads": 12,
                    "cpu_ms": 4500, "resident_bytes": 123_456_789, "read_bytes": 4096,
                    "written_bytes": 0, "upper_bytes": 8192 },
                { "time_unix_ms": NOW - 5000, "workspace_session_id": "ws-8fq2m1",
                    "command_session_id": "cmd-x7d0aa", "processes": 1, "threads": 1,
                    "cpu_ms": 10, "resident_bytes": 4096, "upper_bytes": 0 }
            ],
            "disk": [{ "workspace_session_id": "ws-8fq2m1", "upper_bytes": 8192 }],
            "interval_ms": 5000, "sampled_at_unix_ms": NOW, "errors": []
        }),
        "topology" => json!({
            "sandbox_id": "sb-k3v9t2",
            "sessions": [
                { "workspace_session_id": "ws-8fq2m1", "process_count": 1002, "processes": [
                    { "pid": 4242, "session_pid": 7, "parent_pid": 4200,
                        "command_session_id": "cmd-x7d0aa", "program": "/usr/bin/make",
                        "cmd": "make\u{1b}[2J all", "state": "S", "threads": 1,
                        "resident_bytes": 1_234_567, "cpu_ms": 120,
                        "started_at_unix_ms": NOW - 9000, "namespaces": { "mnt": 4026532178_u64 } }
                ] },
                { "workspace_session_id": "ws-2", "process_count": 0, "processes": [] }
            ],
            "sampled_at_unix_ms": NOW, "errors": []
        }),
        "layerstack" => json!({
            "sandbox_id": "sb-k3v9t2", "head": "L000024",
            "layers": [
                { "layer": "L000024", "kind": "published", "parent": "B000001", "root": "ab12",
                    "owner": "workspace_session:ws-8fq2m1", "session_name": "fix-login",
                    "message": "fix\nlogin", "request_id": "req-1", "time_unix_ms": NOW,
                    "changed_paths": 3, "added_bytes": 5000 },
                { "layer": "B000001", "kind": "base", "root": "cd34", "owner": "original",
                    "time_unix_ms": NOW - 86_400_000, "changed_paths": 12345,
                    "added_bytes": 987_654_321 }
            ],
            "layer_count": 25,
            "leases": [{ "layer": "L000024", "workspace_session_id": "ws-8fq2m1",
                "upper_bytes": 4096 }],
            "logical_bytes": 987_654_321, "stored_bytes": 500_000_000,
            "sampled_at_unix_ms": NOW, "errors": []
        }),
        "file_activity" => json!({
            "rows": [
                { "path": "src/main.rs", "kind": "read", "workspace_session_id": "ws-8fq2m1",
                    "command_session_id": "cmd-x7d0aa", "pid": 4242, "program": "rustc\u{1b}",
                    "count": 12, "bytes": 34_567, "first_unix_ms": NOW, "last_unix_ms": NOW },
                { "path": ".env", "kind": "missing", "workspace_session_id": "ws-8fq2m1",
                    "count": 1, "bytes": 0, "first_unix_ms": NOW, "last_unix_ms": NOW }
            ],
            "next_page_token": "n3xt",
            "exactness": [{ "trace_mode": "files", "statement": "Exact for each command." }],
            "dropped": 2,
            "gaps": [{ "workspace_session_id": "ws-8fq2m1", "from_unix_ms": NOW - 1000,
                "to_unix_ms": NOW, "reason": "the gateway was restarted" }],
            "sampled_at_unix_ms": NOW, "errors": []
        }),
        _ => return None,
    })
}

fn error(code: &str, message: &str) -> Value {
    json!({ "code": code, "message": message, "details": {}, "retryable": false })
}

fn sandbox() -> Value {
    json!({
        "sandbox_id": "sb-k3v9t2", "name": "shop\u{1b}[31m", "state": "ready",
        "workspace_root": { "base64": "L2hvbWUvY2Fm6Q==" }, "provider": "docker",
        "image": "debian:12", "container_id": "c0ffee", "head": "L000024", "session_count": 2,
        "resources": { "cpus": 1.5, "memory_bytes": 1_073_741_824 },
        "publish_policy": { "rules": [{ "glob": "*.o", "route": "ignored" }] },
        "trace_mode": "files", "labels": { "team": "a\u{200b}b" },
        "created_at_unix_ms": NOW - 180_000
    })
}

fn failed_sandbox() -> Value {
    json!({
        "sandbox_id": "sb-2", "state": "failed", "state_reason": "no space\nleft",
        "workspace_root": "/home/me/project", "provider": "local", "session_count": 0,
        "resources": {}, "publish_policy": { "rules": [] }, "trace_mode": "off", "labels": {},
        "created_at_unix_ms": NOW - 2 * 86_400_000
    })
}

fn session() -> Value {
    json!({
        "workspace_session_id": "ws-8fq2m1", "sandbox_id": "sb-k3v9t2", "name": "fix-login",
        "state": "active", "automatic": false, "base": "L000020", "layers_behind_head": 4,
        "changed_paths": 1234, "bytes": 5_678_901, "running_commands": ["cmd-x7d0aa", "cmd-2"],
        "network_profile": "isolated", "trace_mode": "files", "background_walk": true, "quota_bytes": 10_485_760,
        "workspace_root": "/home/me/project", "created_at_unix_ms": NOW - 7_200_000
    })
}

fn automatic_session() -> Value {
    json!({
        "workspace_session_id": "ws-2", "sandbox_id": "sb-k3v9t2", "state": "finalize_failed",
        "state_reason": "a mount is busy", "automatic": true, "base": "L000024",
        "layers_behind_head": 0, "changed_paths": 0, "bytes": 0, "running_commands": [],
        "network_profile": "shared", "trace_mode": "off", "background_walk": false, "workspace_root": "/home/me/project",
        "created_at_unix_ms": NOW
    })
}

fn version(kind: &str, mode: u32, size: u64) -> Value {
    json!({ "kind": kind, "mode": mode, "uid": 0, "gid": 0, "size": size })
}

fn layer(id: &str, kind: &str, parent: Option<&str>, present: bool) -> Value {
    let mut layer = json!({
        "layer": id, "kind": kind, "root": "ab12", "owner": "workspace_session:ws-8fq2m1",
        "message": "fix\u{1b}[2J", "time_unix_ms": NOW, "changed_paths": 3, "added_bytes": 5000,
        "present": present
    });
    if let Some(parent) = parent {
        layer["parent"] = parent.into();
    }
    layer
}

fn garbage(dry_run: bool) -> Value {
    json!({
        "dry_run": dry_run, "objects": 12, "bytes": 1_234_567, "stray_files": 1,
        "stray_bytes": 512, "kept_objects": 1222, "kept_bytes": 7_654_321, "complete": false
    })
}

fn refreshed() -> Value {
    let mut answer = published();
    let fields = answer.as_object_mut().expect("an object");
    for name in [
        "workspace_session_id",
        "session_open",
        "stale_reads",
        "stale_read_count",
        "base",
        "rest_conflicts",
    ] {
        fields.remove(name);
    }
    fields.insert("sandbox_id".to_owned(), "sb-k3v9t2".into());
    answer
}

fn published() -> Value {
    let version = json!({ "kind": "file", "mode": 420, "uid": 0, "gid": 0, "size": 3 });
    json!({
        "workspace_session_id": "ws-8fq2m1", "outcome": "conflict", "head": "L000024",
        "changed_paths": 5, "merged_paths": ["README.md"],
        "conflicts": [
            { "path": "src/a\u{1b}[8m.rs", "kind": "content", "base": version, "head": version,
                "mine": version, "head_layer": "L000023", "head_owner": "workspace_session:ws-2",
                "hunks": [{
                    "base": { "start": 10, "count": 2 }, "head": { "start": 10, "count": 1 },
                    "mine": { "start": 10, "count": 0 }
                }],
                "marked": "<<<<<<< head\none\n||||||| base\n=======\n\u{1b}[2Jtwo\n>>>>>>> session\n" },
            { "path": "logo.png", "kind": "binary", "head_owner": "host" },
            { "path": "gone", "kind": "delete_modify" }
        ],
        "conflict_count": 7,
        "skipped": [{ "path": "run.sock", "reason": "socket" }],
        "saved_refs": [{ "name": "refs/heads/main",
            "saved_as": "refs/sandbox/ws-8fq2m1/heads/main" }],
        "ignored_paths": 1, "session_open": true,
        "stale_reads": [
            { "path": "lib\u{1b}[2J.rs", "dependency": "content", "layer": "L000024",
                "owner": "workspace_session:ws-2" },
            { "path": "src", "dependency": "listing" }
        ],
        "stale_read_count": 2, "base": "L000024", "rest_conflicts": ["notes\u{7}"]
    })
}

fn window(content: &str, start: u64, next: u64, total: u64, truncated: bool) -> Value {
    json!({
        "content": content, "encoding": "utf-8", "start_offset": start, "next_offset": next,
        "total_lines": total, "total_bytes": 65_536, "truncated": truncated
    })
}

fn entry(path: &str, kind: &str, mode: u32, size: u64) -> Value {
    json!({ "path": path, "kind": kind, "mode": mode, "size": size, "mtime_unix_ms": NOW })
}

#[test]
fn answers_are_as_the_catalogue_has_them() {
    for row in OPERATIONS.iter().filter(|row| known(row.name)) {
        let schema = (row.response_schema)();
        let validator = jsonschema::validator_for(schema.as_value()).expect("a schema");
        let answer = of(row.name);
        let errors: Vec<String> = validator
            .iter_errors(&answer)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{}: {errors:?}", row.name);
    }
}

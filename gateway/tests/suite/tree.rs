//! Files and directories as a whole: looked at, searched, moved, removed, made.

use serde_json::{Value, json};

use crate::rig::{Answer, Rig};

struct Room {
    rig: Rig,
    sandbox: String,
    session: String,
}

impl Room {
    fn open(files: &[(&str, &[u8])]) -> Room {
        let rig = Rig::start();
        let sandbox = rig.sandbox(&rig.project("project", files));
        let session = rig.session(&sandbox);
        Room {
            rig,
            sandbox,
            session,
        }
    }

    /// Asks something of the session, or of the head.
    fn ask(&self, operation: &str, in_session: bool, mut request: Value) -> Answer {
        request["sandbox_id"] = json!(self.sandbox);
        if in_session {
            request["workspace_session_id"] = json!(self.session);
        }
        self.rig.call(operation, request)
    }

    fn sh(&self, cmd: &str) -> String {
        self.rig.sh(&self.sandbox, &self.session, cmd)
    }
}

#[test]
fn what_is_at_a_path_is_told() {
    let room = Room::open(&[("a", b"hello\n"), ("dir/b", b"b\n")]);
    room.sh("ln -s a link; chmod 640 a; ln a dir/hard");
    let stat = |path: &str| room.ask("file_stat", true, json!({ "path": path }));
    let file = stat("a").ok();
    assert_eq!(
        (&file["kind"], &file["mode"], &file["size"], &file["links"]),
        (&json!("file"), &json!(0o640), &json!(6), &json!(2))
    );
    let read = room.ask("file_read", true, json!({ "path": "a" })).ok();
    assert_eq!(file["digest"], read["digest"]);
    assert_eq!(file["inode"], stat("dir/hard").ok()["inode"]);
    let link = stat("link").ok();
    assert_eq!(
        (&link["kind"], &link["target"]),
        (&json!("symlink"), &json!("a"))
    );
    assert_eq!(stat("").ok()["kind"], "directory");
    assert!(stat("no/such").refused("not_found").contains("no/such"));
    // On the head it is as it was.
    let head = room.ask("file_stat", false, json!({ "path": "a" })).ok();
    assert_eq!(head["links"], 1);
}

#[test]
fn what_is_moved_and_removed_is_so_for_who_works_there() {
    let room = Room::open(&[
        ("a", b"a\n"),
        ("b", b"b\n"),
        ("dir/x", b"x\n"),
        ("dir/deep/y", b"y\n"),
    ]);
    // The kernel knows all of it.
    room.sh("cat a b dir/x dir/deep/y; ls -R; ln -s dir to-dir");
    let ask = |operation: &str, request: Value| room.ask(operation, true, request);
    let moved = ask("file_move", json!({ "path": "a", "to": "new/deep/a" })).ok();
    assert_eq!(
        (&moved["path"], &moved["to"]),
        (&json!("a"), &json!("new/deep/a"))
    );
    let refused = ask("file_move", json!({ "path": "b", "to": "dir/x" }));
    assert!(refused.refused("already_exists").contains("dir/x"));
    ask(
        "file_move",
        json!({ "path": "b", "to": "dir/x", "replace": true }),
    )
    .ok();
    let refused = ask("file_move", json!({ "path": "dir", "to": "dir/deep/dir" }));
    assert!(refused.refused("invalid_request").contains("below itself"));
    let refused = ask("file_move", json!({ "path": "gone", "to": "x" }));
    assert!(refused.refused("not_found").contains("gone"));
    let refused = ask("file_move", json!({ "path": "dir/x", "to": "../out" }));
    refused.refused("invalid_request");
    assert_eq!(
        room.sh("cat new/deep/a dir/x; ls"),
        "a\nb\ndir\nnew\nto-dir\n"
    );

    let refused = ask("file_delete", json!({ "path": "dir" }));
    assert!(refused.refused("conflict").contains("not empty"));
    let wrong = json!({ "path": "dir/x", "expected_digest": "0".repeat(64) });
    ask("file_delete", wrong).refused("precondition_failed");
    // A symlink goes itself, not what it names.
    assert_eq!(
        ask(
            "file_delete",
            json!({ "path": "to-dir", "recursive": true })
        )
        .ok()["removed"],
        1
    );
    assert_eq!(room.sh("ls dir"), "deep\nx\n");
    let gone = ask("file_delete", json!({ "path": "dir", "recursive": true })).ok();
    assert_eq!(
        (&gone["path"], &gone["removed"]),
        (&json!("dir"), &json!(4))
    );
    ask("file_delete", json!({ "path": "" })).refused("invalid_request");
    assert_eq!(room.sh("ls; test ! -e dir/x"), "new\n");
    let made = ask(
        "file_make_directory",
        json!({ "path": "new/made/below", "mode": 0o700 }),
    )
    .ok();
    assert_eq!(
        (&made["path"], &made["created"]),
        (&json!("new/made/below"), &json!(true))
    );
    let again = ask("file_make_directory", json!({ "path": "new/made" })).ok();
    assert_eq!(again["created"], false);
    ask("file_make_directory", json!({ "path": "new/deep/a" })).refused("already_exists");
    assert_eq!(
        room.sh("stat -c %a new/made/below; find new | sort"),
        "700\nnew\nnew/deep\nnew/deep/a\nnew/made\nnew/made/below\n"
    );
    // A file that is open keeps its content.
    let held = room.sh("exec 3< new/deep/a; cat <&3");
    assert_eq!(held, "a\n");
}

#[test]
fn on_the_head_each_is_a_layer() {
    let room = Room::open(&[("a", b"a\n"), ("dir/b", b"b\n")]);
    let head = |operation: &str, request: Value| room.ask(operation, false, request).ok();
    assert_eq!(
        head("file_move", json!({ "path": "a", "to": "dir/a" }))["layer"],
        "L000002"
    );
    assert_eq!(
        head("file_make_directory", json!({ "path": "made" }))["layer"],
        "L000003"
    );
    let gone = head("file_delete", json!({ "path": "dir", "recursive": true }));
    assert_eq!(
        (&gone["layer"], &gone["removed"]),
        (&json!("L000004"), &json!(3))
    );
    let listed = head("file_list", json!({}));
    assert_eq!(listed["entries"][0]["path"], "made");
    assert_eq!(listed["entries"].as_array().unwrap().len(), 1);
    // The session sees nothing of it.
    assert_eq!(room.sh("ls"), "a\ndir\n");
}

#[test]
fn lines_are_found() {
    let long = format!("{} needle\n", "x".repeat(3000));
    let binary = b"needle\0needle\n";
    let files: &[(&str, &[u8])] = &[
        (".gitignore", b"target/\n*.log\n"),
        (".git/config", b"needle\n"),
        (
            "src/main.rs",
            b"fn main() {\n    needle();\n}\n// Needle, needle\n",
        ),
        ("src/other.txt", b"no\nthe needle\r\n"),
        ("long", long.as_bytes()),
        ("binary", binary),
        ("target/out", b"needle\n"),
        ("x.log", b"needle\n"),
    ];
    let room = Room::open(files);
    let search = |request: Value| room.ask("file_search", true, request).ok();
    let lines = |answer: &Value| -> Vec<String> {
        let matches = answer["matches"].as_array().unwrap().iter();
        matches
            .map(|found| {
                let path = found["path"].as_str().unwrap();
                format!("{path}:{}:{}", found["line"], found["column"])
            })
            .collect()
    };
    let found = search(json!({ "pattern": "needle" }));
    let expected = [
        "long:1:3002",
        "src/main.rs:2:5",
        "src/main.rs:4:12",
        "src/other.txt:2:5",
    ];
    assert_eq!(lines(&found), expected, "{found:#}");
    assert_eq!(found["matches"][3]["text"], "the needle");
    assert_eq!(found["matches"][0]["cut"], true);
    assert_eq!(found["matches"][0]["text"].as_str().unwrap().len(), 1024);
    let some = search(json!({ "pattern": "NEEDLE,", "ignore_case": true, "glob": "**/*.rs" }));
    assert_eq!(lines(&some), ["src/main.rs:4:4"]);
    let text = search(json!({ "pattern": "main() {", "literal": true, "path": "src" }));
    assert_eq!(lines(&text), ["src/main.rs:1:4"]);
    let all = search(json!({ "pattern": "^needle$", "include_ignored": true }));
    assert_eq!(lines(&all), ["target/out:1:1", "x.log:1:1"]);
    // Page by page it is the same.
    let (mut paged, mut token) = (Vec::new(), Value::Null);
    loop {
        let mut request = json!({ "pattern": "needle", "limit": 1 });
        if token.is_string() {
            request["page_token"] = token.clone();
        }
        let page = search(request);
        paged.extend(lines(&page));
        token = page["next_page_token"].clone();
        if token.is_null() {
            break;
        }
    }
    assert_eq!(paged, expected);
    // What the session changed is searched, and the head is not changed.
    room.sh("echo another needle > new; rm src/main.rs");
    assert_eq!(
        lines(&search(json!({ "pattern": "needle", "path": "src" }))),
        ["src/other.txt:2:5"]
    );
    assert_eq!(lines(&search(json!({ "pattern": "another" }))), ["new:1:1"]);
    let head = room
        .ask(
            "file_search",
            false,
            json!({ "pattern": "needle", "path": "src" }),
        )
        .ok();
    assert_eq!(head["matches"].as_array().unwrap().len(), 3);
    let wrong = room.ask("file_search", true, json!({ "pattern": "(" }));
    assert!(wrong.refused("invalid_request").contains("pattern"));
    room.ask("file_search", true, json!({ "pattern": "x", "path": "no" }))
        .refused("not_found");
}

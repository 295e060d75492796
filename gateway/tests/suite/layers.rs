//! Layers: refreshed, squashed, exported, compared; and the store below them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use sandstack_api::Authority;
use serde_json::{Value, json};

use crate::rig::Rig;

/// Does `cmd` in a session of its own and publishes it; returns the layer.
#[track_caller]
fn publish(rig: &Rig, sandbox: &str, cmd: &str, message: &str) -> String {
    let session = rig.session(sandbox);
    rig.sh(sandbox, &session, cmd);
    let request = json!({ "workspace_session_id": session, "message": message });
    let published = rig.call("publish_workspace_session", request).ok();
    assert_eq!(published["outcome"], "published", "{published:#}");
    published["layer"].as_str().unwrap().to_owned()
}

/// Runs a program of the host that must end well, in a directory.
#[track_caller]
fn host(dir: &Path, program: &str, args: &[&str]) -> String {
    let done = Command::new(program)
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed: {error}"));
    assert!(done.status.success(), "{program} {args:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn texts(values: &Value) -> Vec<&str> {
    let values = values.as_array().unwrap().iter();
    values.map(|value| value.as_str().unwrap()).collect()
}

/// Path and kind of every change.
fn kinds(changes: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let changes = changes.iter();
    changes
        .map(|change| format!("{} {}", text(&change["kind"]), text(&change["path"])))
        .collect()
}

#[test]
fn a_squash_keeps_files_owners_and_live_sessions() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"1\n2\n3\n"), ("gone", b"g\n")]);
    let sandbox = rig.sandbox(&project);
    let second = publish(
        &rig,
        &sandbox,
        "head -c 2000000 /dev/urandom > big; sed -i s/2/two/ a",
        "the second",
    );
    let live = rig.session(&sandbox);
    let sum = rig.sh(&sandbox, &live, "sha1sum < big; echo mine > own");
    publish(&rig, &sandbox, "rm big gone", "the third");
    publish(&rig, &sandbox, "echo 4 >> a", "the fourth");
    let blame = |session: Option<&str>| {
        let request =
            json!({ "sandbox_id": sandbox, "path": "a", "workspace_session_id": session });
        rig.call("file_blame", request).ok()["ranges"].clone()
    };
    let owners = blame(None);

    let squash = json!({ "sandbox_id": sandbox });
    let squashed = rig.call("squash_layerstacks", squash.clone()).ok();
    assert_eq!(squashed["errors"], json!([]));
    assert_eq!(
        texts(&squashed["replaced"]),
        ["L000002", "L000003", "L000004"]
    );
    assert_eq!(
        (
            &squashed["layer"],
            &squashed["head"],
            &squashed["layer_count"]
        ),
        (&json!("S000004"), &json!("S000004"), &json!(2))
    );
    // What the live session reads is no garbage.
    assert_eq!(rig.sh(&sandbox, &live, "sha1sum < big"), sum);
    let fresh = rig.session(&sandbox);
    assert_eq!(rig.sh(&sandbox, &fresh, "ls; cat a"), "a\n1\ntwo\n3\n4\n");
    assert_eq!(blame(None), owners, "owners outlive a squash");

    let listed = rig
        .call("list_layers", json!({ "sandbox_id": sandbox }))
        .ok();
    let rows: Vec<String> = listed["layers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| format!("{} {} {}", row["layer"], row["present"], row["message"]))
        .collect();
    let expected = [
        "\"S000004\" true null",
        "\"L000004\" false \"the fourth\"",
        "\"L000003\" false \"the third\"",
        "\"L000002\" false \"the second\"",
        "\"B000001\" true null",
    ];
    assert_eq!(rows, expected);
    let again = rig.call("squash_layerstacks", squash).ok();
    assert_eq!(
        (&again["replaced"], &again["layer"]),
        (&json!([]), &Value::Null)
    );

    // The live session publishes onto what took the place of its base.
    let published = rig
        .call(
            "publish_workspace_session",
            json!({ "workspace_session_id": live }),
        )
        .ok();
    assert_eq!(published["outcome"], "published", "{published:#}");
    let found = rig.call("collect_garbage", json!({ "dry_run": true })).ok();
    assert!(found["bytes"].as_u64().unwrap() >= 2_000_000, "{found:#}");
    let removed = rig.call("collect_garbage", json!({})).ok();
    assert_eq!(
        (&removed["bytes"], &removed["complete"]),
        (&found["bytes"], &json!(true))
    );
    assert_eq!(rig.call("collect_garbage", json!({})).ok()["objects"], 0);

    // Of the layer that went, everything but its files is known.
    let request = json!({ "sandbox_id": sandbox, "from": second, "to": "B000001" });
    let gone = rig.call("diff_layers", request);
    assert!(gone.refused("not_found").contains("squash"));
    rig.call(
        "create_workspace_session",
        json!({ "sandbox_id": sandbox, "from": second }),
    )
    .refused("not_found");
    assert_eq!(
        rig.call("verify_store", json!({})).ok()["problems"],
        json!([])
    );
}

#[test]
fn squashing_keeps_the_newest_layers_that_are_asked_for() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"a\n")]));
    for number in 2..=6 {
        publish(&rig, &sandbox, &format!("echo {number} > f{number}"), "m");
    }
    let request = json!({ "sandbox_id": sandbox, "keep_last": 2 });
    let squashed = rig.call("squash_layerstacks", request).ok();
    assert_eq!(
        texts(&squashed["replaced"]),
        ["L000002", "L000003", "L000004"]
    );
    let mut found = Vec::new();
    let mut token = Value::Null;
    loop {
        let request = json!({ "sandbox_id": sandbox, "limit": 2, "page_token": token });
        let page = rig.call("list_layers", request).ok();
        assert!(page["layers"].as_array().unwrap().len() <= 2);
        for layer in page["layers"].as_array().unwrap() {
            found.push(layer["layer"].as_str().unwrap().to_owned());
        }
        token = page["next_page_token"].clone();
        if token.is_null() {
            break;
        }
    }
    let all = "L000006 L000005 S000004 L000004 L000003 L000002 B000001";
    assert_eq!(found.join(" "), all);
    let events = rig.call("events", json!({ "name": "layer.squashed" })).ok();
    assert_eq!(events["events"][0]["details"]["replaced"], 3);
}

/// Everything that a directory shows, as text in base64; the same for a view and for a host's
/// directory.
const SHOWN: &str = "{ find . -mindepth 1 -printf '%P %y %m %n %s %T@ %l\\n' | grep -v ' d ' | sort; \
    find . -mindepth 1 -type d -printf '%P %m\\n' | sort; find . -type f | sort | xargs -d '\\n' sha1sum; } | base64 -w0";

#[test]
fn an_export_is_what_a_fresh_session_shows() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"1\n"), ("d/gone", b"g\n")]));
    let made = "rm -r d; ln a 'hard link'; ln -s nowhere link; mkdir -m 750 'new dir'; echo x > 'new dir/x'; \
        chmod 4711 'new dir/x'; truncate -s 300K sparse; mkfifo pipe; printf 'b' > \"$(printf 'caf\\351')\"";
    publish(&rig, &sandbox, made, "m");
    let fresh = rig.session(&sandbox);
    let shown = rig.sh(&sandbox, &fresh, SHOWN);
    let out = |format: &str| rig.dir.join(format!("out.{format}"));
    for format in ["dir", "tar", "tar-zst"] {
        let request = json!({ "sandbox_id": sandbox, "dest": out(format), "format": format });
        let exported = rig.call("export_changes", request.clone()).ok();
        assert_eq!(exported["left_out"], json!([]), "{exported:#}");
        assert_eq!(
            (&exported["files"], &exported["special_files"]),
            (&json!(5), &json!(1))
        );
        let taken = rig.call("export_changes", request);
        assert!(taken.refused("already_exists").contains("out."));
    }
    for archive in ["tar", "tar-zst"] {
        let dir = rig.dir.join(format!("unpacked-{archive}"));
        fs::create_dir(&dir).unwrap();
        let zstd: &[&str] = if archive == "tar" { &[] } else { &["--zstd"] };
        let from = out(archive);
        let args = [zstd, &["-xpf", from.to_str().unwrap()]].concat();
        host(&dir, "tar", &args);
    }
    for dir in ["out.dir", "unpacked-tar", "unpacked-tar-zst"] {
        let done = Command::new("sh")
            .args(["-c", SHOWN])
            .current_dir(rig.dir.join(dir))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(done.stdout).unwrap(), shown, "{dir}");
    }
    let blocks = fs::metadata(rig.dir.join("out.dir/sparse")).unwrap();
    assert!(
        std::os::unix::fs::MetadataExt::blocks(&blocks) < 100,
        "a hole stays one"
    );
}

#[test]
fn a_patch_applies_and_a_difference_holds_what_changed() {
    let rig = Rig::start();
    let files: &[(&str, &[u8])] = &[
        ("src/a", b"1\n2\n3\n4\n5\n6\n7\n8\n9\n"),
        ("gone", b"g\n"),
        ("bin", b"\0old"),
        ("same", b"s\n"),
    ];
    let project = rig.project("project", files);
    let sandbox = rig.sandbox(&project);
    let cmd = "sed -i s/5/five/ src/a; rm gone; printf '\\0new\\1' > bin; mkdir n; printf no-end > n/f; \
        chmod +x same; ln -s src/a link; echo 'a b' > 'a b'";
    let layer = publish(&rig, &sandbox, cmd, "m");
    let patch = rig.dir.join("p.patch");
    let request = json!({ "sandbox_id": sandbox, "dest": patch, "format": "patch" });
    let exported = rig.call("export_changes", request).ok();
    assert_eq!(
        (&exported["from"], &exported["to"]),
        (&json!("B000001"), &json!(layer))
    );
    assert_eq!(texts(&exported["deleted"]), ["gone"]);
    host(&project, "git", &["apply", patch.to_str().unwrap()]);
    let fresh = rig.session(&sandbox);
    let shown = "find . -type f -printf '%P %m\\n' | sort; find . -type f | sort | xargs -d '\\n' sha1sum; readlink link";
    let of_session = rig.sh(&sandbox, &fresh, shown);
    assert_eq!(host(&project, "sh", &["-c", shown]), of_session);

    let out = rig.dir.join("changed");
    fs::create_dir(&out).unwrap();
    let request = json!({ "sandbox_id": sandbox, "dest": out, "from": "B000001", "to": layer });
    let exported = rig.call("export_changes", request).ok();
    assert_eq!(texts(&exported["deleted"]), ["gone"]);
    assert_eq!(
        host(&out, "sh", &["-c", "find . -mindepth 1 | sort"]),
        "./a b\n./bin\n./link\n./n\n./n/f\n./same\n./src\n./src/a\n"
    );
}

#[test]
fn a_place_that_cannot_be_meant_is_refused_by_name() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"1\n")]));
    std::os::unix::fs::symlink("/tmp", rig.dir.join("link")).unwrap();
    let refused = |dest: &Path, code: &str, word: &str| {
        let request = json!({ "sandbox_id": sandbox, "dest": dest });
        let answer = rig.call("export_changes", request);
        let message = answer.refused(code);
        assert!(message.contains(word), "{}: {message}", dest.display());
    };
    let invalid = "invalid_request";
    refused(Path::new(""), invalid, "empty");
    refused(Path::new("out"), invalid, "absolute");
    refused(Path::new("/"), invalid, "below /");
    refused(&rig.dir.join("x/../out"), invalid, "`..`");
    refused(&rig.dir.join("none/out"), invalid, "does not exist");
    refused(&rig.dir.join("link/out"), invalid, "symlink");
    refused(&rig.dir.join("link"), "already_exists", "link");
    refused(&rig.dir.join("project"), "already_exists", "project");
    refused(&rig.state().join("out"), invalid, "own directory");
    if let Some(home) = std::env::home_dir().filter(|home| home.is_dir()) {
        refused(&home, invalid, "home");
    }
    for (field, value) in [("from", "L000009"), ("to", "L000009")] {
        let mut request = json!({ "sandbox_id": sandbox, "dest": rig.dir.join("out") });
        request[field] = json!(value);
        let answer = rig.call("export_changes", request);
        assert!(answer.refused("not_found").contains("L000009"));
    }
    let request = json!({ "sandbox_id": sandbox, "dest": rig.dir.join("out"), "to": "x" });
    rig.call("export_changes", request).refused(invalid);
    assert!(!rig.dir.join("out").exists());
    let left: Vec<_> = fs::read_dir(&rig.dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".export"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn a_refresh_follows_the_rules_of_a_publish() {
    let rig = Rig::start();
    let project = rig.project("project", &[("a", b"1\n2\n3\n4\n5\n"), ("b", b"b\n")]);
    let sandbox = rig.sandbox(&project);
    let request = json!({ "sandbox_id": sandbox });
    let refresh = |request: &Value| rig.call("refresh_base", request.clone()).ok();
    assert_eq!(refresh(&request)["outcome"], "no_change");
    let live = rig.session(&sandbox);
    publish(&rig, &sandbox, "sed -i s/1/one/ a", "m");
    fs::write(project.join("a"), b"1\n2\n3\n4\nfive\n").unwrap();
    fs::write(project.join("new"), b"n\n").unwrap();
    fs::remove_file(project.join("b")).unwrap();

    let dry = refresh(&json!({ "sandbox_id": sandbox, "dry_run": true }));
    assert_eq!(
        (&dry["outcome"], &dry["head"]),
        (&json!("dry_run"), &json!("L000002"))
    );
    let done = refresh(&request);
    assert_eq!(done["outcome"], "published", "{done:#}");
    for field in ["changed_paths", "merged_paths", "conflicts", "head"] {
        assert_eq!(dry[field], done[field], "{field}");
    }
    assert_eq!(
        (&done["layer"], texts(&done["merged_paths"])),
        (&json!("L000003"), vec!["a"])
    );
    let fresh = rig.session(&sandbox);
    assert_eq!(
        rig.sh(&sandbox, &fresh, "ls; cat a"),
        "a\nnew\none\n2\n3\n4\nfive\n"
    );
    assert_eq!(
        rig.sh(&sandbox, &live, "ls; cat a"),
        "a\nb\n1\n2\n3\n4\n5\n"
    );
    let blame = rig
        .call("file_blame", json!({ "sandbox_id": sandbox, "path": "a" }))
        .ok();
    assert_eq!(blame["ranges"][2]["owner"], "host", "{blame:#}");

    // An edit of the same line on both sides: nothing changes, and the conflict is told.
    publish(&rig, &sandbox, "sed -i s/3/three/ a", "m");
    fs::write(project.join("a"), b"1\n2\nTHREE\n4\nfive\n").unwrap();
    let rejected = refresh(&json!({ "sandbox_id": sandbox, "markers": true }));
    assert_eq!(rejected["outcome"], "conflict", "{rejected:#}");
    let conflict = &rejected["conflicts"][0];
    assert_eq!(
        (&conflict["path"], &conflict["kind"]),
        (&json!("a"), &json!("content"))
    );
    assert!(conflict["marked"].as_str().unwrap().contains("THREE\n"));
    let stack = rig.call("layerstack", request.clone()).ok();
    assert_eq!(stack["head"], "L000004");
    // Resolved in the directory, it comes in.
    fs::write(project.join("a"), b"1\n2\nthree\n4\nfive\n").unwrap();
    fs::write(project.join("new"), b"newer\n").unwrap();
    let done = refresh(&request);
    assert_eq!(
        (&done["outcome"], &done["changed_paths"]),
        (&json!("published"), &json!(1))
    );

    fs::remove_dir_all(&project).unwrap();
    let answer = rig.call("refresh_base", request);
    assert!(answer.refused("invalid_request").contains("project"));
}

#[test]
fn differences_name_every_path_with_its_kind() {
    let rig = Rig::start();
    let files: &[(&str, &[u8])] = &[
        ("gone", b"g\n"),
        ("mode", b"m\n"),
        ("src/text", b"1\n2\n3\n"),
        ("kind", b"k\n"),
        ("bin", b"\0a"),
    ];
    let sandbox = rig.sandbox(&rig.project("project", files));
    let session = rig.session(&sandbox);
    let cmd = "rm gone kind; chmod 755 mode; sed -i s/2/two/ src/text; ln -s x kind; printf '\\0b' > bin; \
        mkdir new; for i in $(seq 20); do echo $i > new/$i; done; seq 100000 > long; touch src/text; echo m > mode";
    rig.sh(&sandbox, &session, cmd);
    let diff = |more: Value| {
        let mut request = json!({ "workspace_session_id": session });
        for (key, value) in more.as_object().unwrap() {
            request[key] = value.clone();
        }
        rig.call("diff_workspace_session", request).ok()
    };
    let mut expected: Vec<String> = [
        "modified bin",
        "deleted gone",
        "type_changed kind",
        "added long",
        "metadata mode",
        "added new",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut numbers: Vec<String> = (1..=20).map(|number| number.to_string()).collect();
    numbers.sort();
    expected.extend(numbers.iter().map(|number| format!("added new/{number}")));
    expected.push("modified src/text".to_owned());
    let whole = diff(json!({}));
    let changes = whole["changes"].as_array().unwrap().clone();
    assert_eq!(kinds(&changes), expected);
    assert_eq!(whole["from"], "B000001");
    assert_eq!(changes[4]["old"]["mode"], 0o644);
    assert_eq!(changes[4]["new"]["mode"], 0o755);
    assert!(changes.iter().all(|change| change.get("hunks").is_none()));
    // Pages tile it.
    let mut paged = Vec::new();
    let mut token = Value::Null;
    loop {
        let page = diff(json!({ "limit": 4, "page_token": token }));
        paged.extend(page["changes"].as_array().unwrap().clone());
        token = page["next_page_token"].clone();
        if token.is_null() {
            break;
        }
    }
    assert_eq!(paged, changes);

    let unified = diff(json!({ "format": "unified" }));
    let of = |path: &str| {
        let mut rows = unified["changes"].as_array().unwrap().iter();
        rows.find(|change| change["path"] == path).unwrap().clone()
    };
    assert_eq!(
        of("src/text")["hunks"],
        "@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n"
    );
    assert_eq!(of("new/7")["hunks"], "@@ -0,0 +1 @@\n+7\n");
    assert_eq!(of("gone")["hunks"], "@@ -1 +0,0 @@\n-g\n");
    assert_eq!(of("bin")["hunks_omitted"], "binary");
    assert_eq!(of("long")["hunks_omitted"], "too_large");
    for path in ["kind", "mode", "new"] {
        assert!(of(path).get("hunks").is_none() && of(path).get("hunks_omitted").is_none());
    }
    let some = diff(json!({ "paths": ["src", "new/7", "kin"] }));
    assert_eq!(
        kinds(some["changes"].as_array().unwrap()),
        ["added new/7", "modified src/text"]
    );

    // Against the head, what others published is in it too; a layer's difference is its publish.
    publish(&rig, &sandbox, "echo o > other; echo 4 >> src/text", "m");
    let head =
        diff(json!({ "against": "head", "paths": ["other", "src", "gone"], "format": "unified" }));
    assert_eq!(head["from"], "L000002");
    assert_eq!(
        kinds(head["changes"].as_array().unwrap()),
        ["deleted gone", "deleted other", "modified src/text"]
    );
    let hunks = head["changes"][2]["hunks"].as_str().unwrap();
    assert!(
        hunks.contains("+two\n") && hunks.contains("-4\n"),
        "{hunks}"
    );
    let layers = rig
        .call(
            "diff_layers",
            json!({ "sandbox_id": sandbox, "format": "unified" }),
        )
        .ok();
    assert_eq!(
        (&layers["from"], &layers["to"]),
        (&json!("B000001"), &json!("L000002"))
    );
    assert_eq!(
        kinds(layers["changes"].as_array().unwrap()),
        ["added other", "modified src/text"]
    );
}

#[test]
fn hunks_come_in_pages_of_a_bounded_size() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"a\n")]));
    publish(
        &rig,
        &sandbox,
        "for i in 1 2 3 4 5; do seq 20000 > f$i; done",
        "m",
    );
    let mut found = Vec::new();
    let mut token = Value::Null;
    let mut pages = 0;
    loop {
        let request = json!({ "sandbox_id": sandbox, "format": "unified", "page_token": token });
        let page = rig.call("diff_layers", request).ok();
        let changes = page["changes"].as_array().unwrap();
        let sizes = changes
            .iter()
            .map(|change| change["hunks"].as_str().unwrap().len());
        assert!(sizes.sum::<usize>() <= 256 << 10);
        found.extend(kinds(changes));
        pages += 1;
        // Others publish in between: the pages go on between the same layers.
        publish(&rig, &sandbox, &format!("echo {pages} > a"), "m");
        token = page["next_page_token"].clone();
        if token.is_null() {
            break;
        }
    }
    assert_eq!(
        found,
        ["added f1", "added f2", "added f3", "added f4", "added f5"]
    );
    assert!(pages >= 3, "{pages}");
}

#[test]
fn bad_input_is_named() {
    let rig = Rig::start();
    let sandbox = rig.sandbox(&rig.project("project", &[("a", b"a\n")]));
    let session = rig.session(&sandbox);
    let call = |operation: &str, request: Value| rig.call(operation, request);
    let invalid = "invalid_request";
    let diff = |more: Value| {
        let mut request = json!({ "workspace_session_id": session });
        for (key, value) in more.as_object().unwrap() {
            request[key] = value.clone();
        }
        call("diff_workspace_session", request)
    };
    assert!(
        diff(json!({ "paths": ["../x"] }))
            .refused(invalid)
            .contains("paths")
    );
    assert!(
        diff(json!({ "limit": 0 }))
            .refused(invalid)
            .contains("limit")
    );
    assert!(
        diff(json!({ "page_token": "00" }))
            .refused(invalid)
            .contains("page_token")
    );
    assert!(
        diff(json!({ "against": "x" }))
            .refused(invalid)
            .contains("against")
    );
    call(
        "diff_workspace_session",
        json!({ "workspace_session_id": "ws-none" }),
    )
    .refused("not_found");
    let layers = |more: &str, value: Value| {
        let mut request = json!({ "sandbox_id": sandbox });
        request[more] = value;
        call("diff_layers", request)
    };
    // The base has no parent.
    let answer = call("diff_layers", json!({ "sandbox_id": sandbox }));
    assert!(answer.refused(invalid).contains("base"));
    layers("from", json!("L000007")).refused("not_found");
    assert!(
        layers("to", json!("L000007"))
            .refused("not_found")
            .contains("L000007")
    );
    assert!(
        layers("to", json!("seven"))
            .refused(invalid)
            .contains("seven")
    );
    assert!(
        layers("page_token", json!("zz"))
            .refused(invalid)
            .contains("page_token")
    );
    let request = json!({ "sandbox_id": sandbox, "page_token": "00" });
    assert!(
        call("list_layers", request)
            .refused(invalid)
            .contains("page_token")
    );
    for operation in [
        "refresh_base",
        "squash_layerstacks",
        "list_layers",
        "diff_layers",
    ] {
        call(operation, json!({ "sandbox_id": "sb-none" })).refused("not_found");
    }
    let request = json!({ "sandbox_id": sandbox, "keep_last": -1 });
    assert!(
        call("squash_layerstacks", request)
            .refused(invalid)
            .contains("keep_last")
    );
    // Each authority does its own, and nothing else.
    let runtime = rig.token(Authority::Runtime);
    for operation in [
        "collect_garbage",
        "verify_store",
        "store_usage",
        "export_changes",
    ] {
        rig.post(operation, Some(&runtime), b"{}")
            .refused("forbidden");
    }
    let management = rig.token(Authority::Management);
    for operation in ["list_layers", "diff_layers", "diff_workspace_session"] {
        rig.post(operation, Some(&management), b"{}")
            .refused("forbidden");
    }
}

#[test]
fn the_store_says_what_it_takes_and_what_is_damaged() {
    let rig = Rig::start();
    let files: &[(&str, &[u8])] = &[("text", b"some words to look for\n")];
    let project = rig.project("project", files);
    let (first, second) = (rig.sandbox(&project), rig.sandbox(&project));
    publish(
        &rig,
        &first,
        "head -c 300000 /dev/urandom > big; cp big again",
        "m",
    );
    let session = rig.session(&second);
    rig.sh(&second, &session, "head -c 200000 /dev/urandom > mine");
    let usage = rig.call("store_usage", json!({})).ok();
    assert_eq!(usage["errors"], json!([]));
    let number = |value: &Value| value.as_u64().unwrap();
    let row = |id: &str| {
        let mut rows = usage["sandboxes"].as_array().unwrap().iter();
        rows.find(|row| row["sandbox_id"] == id).unwrap().clone()
    };
    // Equal content is stored once, and counted twice as files.
    assert!(
        (600_000..610_000).contains(&number(&row(&first)["logical_bytes"])),
        "{usage:#}"
    );
    assert!((300_000..400_000).contains(&number(&row(&first)["unique_bytes"])));
    assert!(number(&row(&second)["unique_bytes"]) < 100_000);
    assert!(number(&usage["shared_bytes"]) > 0);
    assert!(number(&row(&second)["upper_bytes"]) >= 200_000);
    assert_eq!(usage["sessions"][0]["workspace_session_id"], json!(session));
    // It adds up to what the disk says.
    let told: u64 = ["object_bytes", "database_bytes", "upper_bytes"]
        .map(|field| number(&usage[field]))
        .iter()
        .sum();
    let disk = host(&rig.state(), "du", &["-s", "--block-size=1", "store"]);
    let disk: u64 = disk.split_whitespace().next().unwrap().parse().unwrap();
    let apart = disk.abs_diff(told);
    assert!(
        apart < 200_000 + disk / 20,
        "the disk says {disk}, the store {told}"
    );

    let well = rig.call("verify_store", json!({})).ok();
    assert_eq!(
        (&well["problem_count"], &well["errors"]),
        (&json!(0), &json!([]))
    );
    assert!(
        number(&well["objects"]) >= 4 && number(&well["layers"]) >= 2,
        "{well:#}"
    );
    let packs = fs::read_dir(rig.state().join("store/packs")).unwrap();
    let words = b"words to look for";
    let (pack, at) = packs
        .map(|entry| entry.unwrap().path())
        .find_map(|pack| {
            let bytes = fs::read(&pack).unwrap();
            let at = bytes.windows(words.len()).position(|part| part == words)?;
            Some((pack, at as u64))
        })
        .expect("small files are in packs as they are");
    let read = json!({ "sandbox_id": first, "path": "text" });
    let digest = rig.call("file_read", read).ok()["digest"].clone();
    let file = fs::File::options().write(true).open(pack).unwrap();
    file.write_all_at(b"W", at).unwrap();
    let damaged = rig.call("verify_store", json!({})).ok();
    assert_eq!(damaged["problem_count"], 1, "{damaged:#}");
    let problem = damaged["problems"][0].as_str().unwrap();
    assert!(problem.contains("its bytes are those of"), "{problem}");
    assert!(
        problem.contains(&digest.as_str().unwrap()[..8]),
        "{problem} {digest}"
    );
    file.write_all_at(b"w", at).unwrap();
    assert_eq!(
        rig.call("verify_store", json!({})).ok()["problems"],
        json!([])
    );
}

//! The table of the publish page through the command lines: each cell in a directory of its own, so
//! that one publish has all of them, in both orders of publishers.

use std::fs;

use serde_json::Value;

use crate::rig::Rig;

/// What becomes of two changes.
#[derive(Clone, Copy)]
enum Fate {
    /// They come together: a command that looks, and what it prints.
    Together(&'static str, &'static str),
    /// They conflict, at `path kind`, in path order.
    Apart(&'static [&'static str]),
}

use Fate::{Apart, Together};

struct Cell {
    name: &'static str,
    one: &'static str,
    other: &'static str,
    fate: Fate,
}

const fn cell(name: &'static str, one: &'static str, other: &'static str, fate: Fate) -> Cell {
    Cell {
        name,
        one,
        other,
        fate,
    }
}

/// What every directory holds at first.
const SEED: &str = "seq 9 > f; echo g > g; printf '\\0one' > bin; mkdir -p d/e; echo a > d/a; \
    echo b > d/e/b; ln -s f link; : > empty";

const CELLS: &[Cell] = &[
    cell(
        "text-one",
        "sed -i s/2/two/ f",
        ":",
        Together("sed -n 2p f", "two\n"),
    ),
    cell(
        "text-same",
        "sed -i s/2/two/ f",
        "sed -i s/2/two/ f",
        Together("sed -n 2p f", "two\n"),
    ),
    cell(
        "text-both",
        "sed -i s/2/two/ f",
        "sed -i s/8/eight/ f",
        Together("sed -n '2p;8p' f", "two\neight\n"),
    ),
    cell(
        "text-apart",
        "sed -i s/2/two/ f",
        "sed -i s/2/zwei/ f",
        Apart(&["f content"]),
    ),
    cell(
        "text-cut",
        ": > f",
        "sed -i s/2/two/ f",
        Apart(&["f content"]),
    ),
    cell(
        "binary-one",
        "printf x >> bin",
        ":",
        Together("tr -d '\\0' < bin", "onex"),
    ),
    cell(
        "binary-same",
        "printf x >> bin",
        "printf x >> bin",
        Together("tr -d '\\0' < bin", "onex"),
    ),
    cell(
        "binary-apart",
        "printf x >> bin",
        "printf y >> bin",
        Apart(&["bin binary"]),
    ),
    cell(
        "mode-one",
        "chmod 4711 g",
        ":",
        Together("stat -c %a g", "4711\n"),
    ),
    cell(
        "mode-same",
        "chmod 600 g",
        "chmod 600 g",
        Together("stat -c %a g", "600\n"),
    ),
    cell(
        "mode-and-text",
        "chmod +x f",
        "sed -i s/2/two/ f",
        Together("stat -c %a f; sed -n 2p f", "755\ntwo\n"),
    ),
    cell(
        "mode-apart",
        "chmod 600 g",
        "chmod 640 g",
        Apart(&["g metadata"]),
    ),
    cell(
        "mode-of-directory",
        "chmod 700 d",
        "echo n > d/n",
        Together("stat -c %a d; cat d/n", "700\nn\n"),
    ),
    cell("add-one", "echo n > n", ":", Together("cat n", "n\n")),
    cell(
        "add-same",
        "echo n > n",
        "echo n > n",
        Together("cat n", "n\n"),
    ),
    cell(
        "add-contained",
        "printf '1\\n3\\n' > n",
        "printf '1\\n2\\n3\\n' > n",
        Together("cat n", "1\n2\n3\n"),
    ),
    cell(
        "add-apart",
        "echo one > n",
        "echo other > n",
        Apart(&["n add_add"]),
    ),
    cell("add-types", "echo one > n", "mkdir n", Apart(&["n type"])),
    cell(
        "add-in-directory",
        "mkdir n; echo 1 > n/1",
        "mkdir n; echo 2 > n/2",
        Together("cat n/*", "1\n2\n"),
    ),
    cell(
        "delete-one",
        "rm g",
        ":",
        Together("test -e g || echo gone", "gone\n"),
    ),
    cell(
        "delete-same",
        "rm g",
        "rm g",
        Together("test -e g || echo gone", "gone\n"),
    ),
    cell(
        "delete-modify",
        "rm g",
        "echo more >> g",
        Apart(&["g delete_modify"]),
    ),
    cell(
        "delete-mode",
        "rm g",
        "chmod 600 g",
        Apart(&["g delete_modify"]),
    ),
    cell(
        "type-one",
        "rm g; mkdir g",
        ":",
        Together("stat -c %F g", "directory\n"),
    ),
    cell(
        "type-same",
        "rm g; ln -s f g",
        "rm g; ln -s f g",
        Together("readlink g", "f\n"),
    ),
    cell(
        "type-apart",
        "rm g; ln -s f g",
        "echo more >> g",
        Apart(&["g type"]),
    ),
    cell(
        "rmdir-one",
        "rm -r d",
        ":",
        Together("test -e d || echo gone", "gone\n"),
    ),
    cell(
        "rmdir-same",
        "rm -r d",
        "rm -r d",
        Together("test -e d || echo gone", "gone\n"),
    ),
    cell(
        "rmdir-apart",
        "rm -r d",
        "echo c >> d/e/b; echo c >> d/a",
        Apart(&["d/a delete_modify", "d/e/b delete_modify"]),
    ),
    cell(
        "rmdir-added",
        "rm -r d",
        "echo n > d/e/n",
        Apart(&["d/e/n delete_modify"]),
    ),
    cell(
        "move-and-edit",
        "mv d moved",
        "echo c >> d/e/b; echo n > d/n",
        Together(
            "cat moved/e/b moved/n; test -e d || echo gone",
            "b\nc\nn\ngone\n",
        ),
    ),
    cell(
        "move-same",
        "mv d moved",
        "mv d moved",
        Together("cat moved/a", "a\n"),
    ),
    cell(
        "link-one",
        "ln -sfn g link",
        ":",
        Together("readlink link", "g\n"),
    ),
    cell(
        "link-same",
        "ln -sfn g link",
        "ln -sfn g link",
        Together("readlink link", "g\n"),
    ),
    cell(
        "link-apart",
        "ln -sfn g link",
        "ln -sfn d link",
        Apart(&["link content"]),
    ),
    cell(
        "fifo",
        "mkfifo pipe",
        "echo n > n",
        Together("stat -c %F pipe; cat n", "fifo\nn\n"),
    ),
    cell(
        "hard-link",
        "ln g linked",
        "echo more >> g",
        Together("cat linked; stat -c %h g", "g\nmore\n2\n"),
    ),
    cell(
        "hole",
        "truncate -s 10M sparse; printf x | dd of=sparse bs=1 seek=5000000 conv=notrunc 2>/dev/null",
        ":",
        Together(
            "stat -c %s sparse; test $(stat -c %b sparse) -lt 100 && echo sparse",
            "10485760\nsparse\n",
        ),
    ),
    cell(
        "names",
        "echo 1 > 'trail '; echo 2 > 'a\\b'; echo 3 > .wh.x; echo 4 > manifest.json; echo 5 > \"$(printf 'caf\\351')\"",
        ":",
        Together(
            "cat 'trail ' 'a\\b' .wh.x manifest.json caf*",
            "1\n2\n3\n4\n5\n",
        ),
    ),
    cell(
        "line-ends",
        "printf 'a\\r\\nb\\r\\nc' > n",
        ":",
        Together("od -An -tx1 n", " 61 0d 0a 62 0d 0a 63\n"),
    ),
];

/// The script that does one side of every cell.
fn side(other: bool) -> String {
    let mut script = "set -e\n".to_owned();
    for cell in CELLS {
        let cmd = if other { cell.other } else { cell.one };
        script.push_str(&format!("(cd {}; {cmd})\n", cell.name));
    }
    script
}

pub(crate) fn run(rig: &Rig) {
    let project = rig.state().join("project");
    for cell in CELLS {
        let dir = project.join(cell.name);
        fs::create_dir_all(&dir).unwrap();
        let status = std::process::Command::new("sh")
            .args(["-ec", SEED])
            .current_dir(&dir)
            .status();
        assert!(status.unwrap().success());
    }
    for reversed in [false, true] {
        let created = rig
            .call("manager", &["create_sandbox", project.to_str().unwrap()])
            .ok();
        let sandbox = created["sandboxes"][0]["sandbox_id"].as_str().unwrap();
        one_order(rig, sandbox, reversed);
        rig.call("manager", &["destroy_sandbox", sandbox, "--force"])
            .ok();
    }
}

fn one_order(rig: &Rig, sandbox: &str, reversed: bool) {
    let [first, second] = ["first", "second"].map(|name| {
        let arguments = ["--sandbox-id", sandbox, "create_workspace_session", name];
        let opened = rig.call("runtime", &arguments).ok();
        opened["workspace_session_id"].as_str().unwrap().to_owned()
    });
    rig.exec(sandbox, &first, &side(reversed));
    rig.exec(sandbox, &second, &side(!reversed));
    let published = rig
        .call("runtime", &["publish_workspace_session", &first])
        .ok();
    assert_eq!(published["outcome"], "published");

    // All that conflicts is told at once, and a dry run tells the same.
    let mut expected = Vec::new();
    for cell in CELLS {
        if let Apart(paths) = cell.fate {
            expected.extend(paths.iter().map(|path| format!("{}/{path}", cell.name)));
        }
    }
    expected.sort();
    for more in [&["--dry-run"][..], &[]] {
        let arguments = [&["publish_workspace_session", second.as_str()], more].concat();
        let rejected = rig.call("runtime", &arguments);
        assert_eq!(rejected.code, 4, "{:#}", rejected.json);
        let mut found = conflicts(&rejected.json);
        found.sort();
        assert_eq!(found, expected, "reversed: {reversed}");
    }

    // What comes together is published without the rest.
    let mut arguments = vec!["publish_workspace_session".to_owned(), second.clone()];
    for cell in CELLS
        .iter()
        .filter(|cell| matches!(cell.fate, Together(..)))
    {
        // A side that did nothing has nothing to publish.
        let cmd = if reversed { cell.one } else { cell.other };
        if cmd != ":" {
            arguments.extend(["--paths".to_owned(), cell.name.to_owned()]);
        }
    }
    let part = rig.call("runtime", &arguments).ok();
    assert_eq!(part["outcome"], "published", "{part:#}");
    assert_eq!(part["session_open"], true);
    let arguments = ["--sandbox-id", sandbox, "create_workspace_session", "fresh"];
    let fresh = rig.call("runtime", &arguments).ok();
    let fresh = fresh["workspace_session_id"].as_str().unwrap();
    for cell in CELLS {
        if let Together(look, expected) = cell.fate {
            let cmd = format!("cd {}; {look}", cell.name);
            let found = rig.exec(sandbox, fresh, &cmd);
            assert_eq!(found, expected, "{}, reversed: {reversed}", cell.name);
        }
    }
}

fn conflicts(answer: &Value) -> Vec<String> {
    let conflicts = answer["conflicts"].as_array().unwrap().iter();
    conflicts
        .map(|conflict| {
            let text = |name: &str| conflict[name].as_str().unwrap().to_owned();
            format!("{} {}", text("path"), text("kind"))
        })
        .collect()
}

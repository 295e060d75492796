//! Ten lanes in one sandbox, truly at once: each in a session of its own, each with its own line of
//! two shared files and some files of its own; all publish at a barrier. Then one deliberate
//! conflict.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::rig::Rig;

const LANES: usize = 10;
/// Lines of a shared file: each lane has one, and there is an unchanged one between any two.
const LINES: usize = LANES * 5 + 3;
const SHARED: [&str; 2] = ["shared/notes.txt", "shared/plan.md"];

pub(crate) fn run(rig: &Rig, image: Option<&str>) {
    let project = rig.state().join("project");
    make_project(&project);
    let mut arguments = vec![
        "create_sandbox".to_owned(),
        project.to_str().unwrap().to_owned(),
    ];
    arguments.extend(
        image
            .into_iter()
            .flat_map(|image| ["--image".to_owned(), image.to_owned()]),
    );
    let created = rig.call("manager", &arguments).ok();
    let sandbox = created["sandboxes"][0]["sandbox_id"]
        .as_str()
        .unwrap()
        .to_owned();

    let sessions = publish_all(rig, &sandbox);
    check_tree(rig, &sandbox, &project);
    check_owners(rig, &sandbox, &sessions);
    conflict_is_whole_and_keeps_the_work(rig, &sandbox);
    a_command_runs_on_over_a_publish(rig, &sandbox);
    let listed = rig
        .call(
            "runtime",
            &["--sandbox-id", &sandbox, "list_workspace_sessions"],
        )
        .ok();
    assert_eq!(
        listed["sessions"].as_array().unwrap().len(),
        0,
        "{listed:#}"
    );
    rig.call("manager", &["destroy_sandbox", &sandbox]).ok();
}

/// The line, from 1, that a lane edits.
fn line_of(lane: usize) -> usize {
    lane * 5 + 3
}

fn make_project(project: &Path) {
    fs::create_dir_all(project.join("shared")).unwrap();
    for name in SHARED {
        let content: String = (1..=LINES)
            .map(|line| format!("{name} line {line}\n"))
            .collect();
        fs::write(project.join(name), content).unwrap();
    }
    for number in 0..50 {
        let dir = project.join(format!("src/module{}", number % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(
            dir.join(format!("file{number}.txt")),
            format!("content {number}\n").repeat(number + 1),
        )
        .unwrap();
    }
    fs::write(
        project.join("check.sh"),
        "#!/bin/sh\nset -e\ntest -f shared/notes.txt\nwc -l < shared/plan.md\n",
    )
    .unwrap();
    Command::new("chmod")
        .arg("755")
        .arg(project.join("check.sh"))
        .status()
        .unwrap();
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args([
                "-c",
                "user.name=t",
                "-c",
                "user.email=t@example.com",
                "-c",
                "init.defaultBranch=main",
            ])
            .args(arguments)
            .current_dir(project)
            .output()
            .expect("git is needed by this test");
        assert!(
            output.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    git(&["init", "-q"]);
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "base"]);
}

/// What a lane does, as a shell command; run in its session, and on the oracle's copy.
fn work_of(lane: usize) -> String {
    let line = line_of(lane);
    format!(
        "set -e
for f in {} {}; do sed -i '{line}s/$/ (lane {lane})/' $f; done
mkdir -p lane{lane}/deep
i=0; while [ $i -lt 20 ]; do echo \"lane {lane} file $i\" > lane{lane}/deep/f$i.txt; i=$((i+1)); done
printf '#!/bin/sh\\necho lane {lane}\\n' > lane{lane}/run.sh
chmod 755 lane{lane}/run.sh
ln -s deep/f0.txt lane{lane}/first
rm src/module0/file{}.txt
./check.sh > lane{lane}/check.out
./lane{lane}/run.sh",
        SHARED[0],
        SHARED[1],
        // Seven lanes each remove a file of their own; the others' removal is of none.
        if lane < 7 { lane * 7 } else { 7 * (lane - 3) },
    )
}

fn publish_all(rig: &Rig, sandbox: &str) -> Vec<String> {
    let barrier = Barrier::new(LANES);
    let sessions = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let (barrier, sessions) = (&barrier, &sessions);
            scope.spawn(move || {
                let name = format!("lane-{lane}");
                let opened = rig
                    .call(
                        "runtime",
                        &["--sandbox-id", sandbox, "create_workspace_session", &name],
                    )
                    .ok();
                let id = opened["workspace_session_id"].as_str().unwrap().to_owned();
                let work = removing_what_is_there(&work_of(lane));
                assert_eq!(rig.exec(sandbox, &id, &work).trim(), format!("lane {lane}"));
                barrier.wait();
                let published = rig
                    .call(
                        "runtime",
                        &["publish_workspace_session", &id, "--message", &name],
                    )
                    .ok();
                assert_eq!(published["outcome"], "published", "{published:#}");
                assert_eq!(published["session_open"], false);
                sessions.lock().unwrap().insert(lane, id);
            });
        }
    });
    sessions.into_inner().unwrap().into_values().collect()
}

fn removing_what_is_there(work: &str) -> String {
    work.replace("rm src/", "rm -f src/")
}

/// The head equals what the lanes' work makes of the project, one after the other.
fn check_tree(rig: &Rig, sandbox: &str, project: &Path) {
    let oracle: PathBuf = rig.state().join("oracle");
    assert!(
        Command::new("cp")
            .arg("-a")
            .arg(project)
            .arg(&oracle)
            .status()
            .unwrap()
            .success()
    );
    for lane in 0..LANES {
        let status = Command::new("sh")
            .arg("-c")
            .arg(removing_what_is_there(&work_of(lane)))
            .current_dir(&oracle)
            .stdout(std::process::Stdio::null())
            .status();
        assert!(status.unwrap().success());
    }
    let listing = "find . -path ./.git -prune -o -type f -print | sort | while read f; do echo \"$(sha256sum < \"$f\") $(stat -c %a \"$f\") $f\"; done; find . -path ./.git -prune -o -type l -print | sort | while read f; do echo \"$f -> $(readlink \"$f\")\"; done; find . -path ./.git -prune -o -type d -print | sort";
    let expected = Command::new("sh")
        .arg("-c")
        .arg(listing)
        .current_dir(&oracle)
        .output()
        .unwrap();
    let expected = String::from_utf8(expected.stdout).unwrap();
    let session = open(rig, sandbox, "reader");
    let found = rig.exec(
        sandbox,
        &session,
        &format!("{listing} > /tmp/listing; cat /tmp/listing | head -c 60000"),
    );
    let cut = &expected[..expected.len().min(60000)];
    assert_eq!(found, cut);
    rig.call("runtime", &["destroy_workspace_session", &session])
        .ok();
}

/// Each lane owns its line of both files, and nothing else of them.
fn check_owners(rig: &Rig, sandbox: &str, sessions: &[String]) {
    for name in SHARED {
        let blame = rig
            .call("runtime", &["--sandbox-id", sandbox, "file_blame", name])
            .ok();
        assert_eq!(blame["total_lines"], LINES, "{blame:#}");
        let mut owners: BTreeMap<usize, String> = BTreeMap::new();
        for range in blame["ranges"].as_array().unwrap() {
            let start = range["start"].as_u64().unwrap() as usize;
            for line in start..start + range["count"].as_u64().unwrap() as usize {
                owners.insert(line, range["owner"].as_str().unwrap().to_owned());
            }
        }
        for line in 1..=LINES {
            let lane = (0..LANES).find(|lane| line_of(*lane) == line);
            let expected = lane.map_or("original".to_owned(), |lane| {
                format!("workspace_session:{}", sessions[lane])
            });
            assert_eq!(owners[&line], expected, "{name} line {line}");
        }
    }
}

fn conflict_is_whole_and_keeps_the_work(rig: &Rig, sandbox: &str) {
    let (first, second) = (open(rig, sandbox, "first"), open(rig, sandbox, "second"));
    let edit = |who: &str| {
        format!(
            "for f in {} {}; do sed -i '1s/.*/{who}/' $f; done; echo {who} > only-{who}.txt",
            SHARED[0], SHARED[1]
        )
    };
    rig.exec(sandbox, &first, &edit("first"));
    rig.exec(sandbox, &second, &edit("second"));
    let published = rig
        .call("runtime", &["publish_workspace_session", &first])
        .ok();
    let head = published["layer"].as_str().unwrap().to_owned();

    let rejected = rig.call("runtime", &["publish_workspace_session", &second]);
    assert_eq!(rejected.code, 4, "{:#}", rejected.json);
    let paths: Vec<&Value> = rejected.json["conflicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["path"])
        .collect();
    assert_eq!(
        paths, SHARED,
        "every conflicting path, and no other: {:#}",
        rejected.json
    );
    assert_eq!(rejected.json["conflicts"][0]["kind"], "content");
    assert_eq!(
        rejected.json["conflicts"][0]["head_owner"],
        format!("workspace_session:{first}")
    );
    assert_eq!(rejected.json["session_open"], true);

    let stack = rig
        .call("observability", &["layerstack", "--sandbox-id", sandbox])
        .ok();
    assert_eq!(stack["head"], head.as_str(), "the head did not move");
    assert_eq!(
        rig.exec(
            sandbox,
            &second,
            "cat only-second.txt; head -1 shared/notes.txt"
        ),
        "second\nsecond\n"
    );

    let again = open(rig, sandbox, "again");
    assert_eq!(
        rig.exec(
            sandbox,
            &again,
            "ls only-second.txt 2>/dev/null; head -1 shared/notes.txt"
        ),
        "first\n"
    );
    rig.exec(sandbox, &again, &edit("second"));
    let published = rig
        .call("runtime", &["publish_workspace_session", &again])
        .ok();
    assert_eq!(published["outcome"], "published");
    let refused = rig.call("runtime", &["destroy_workspace_session", &second]);
    assert_eq!(
        refused.code, 4,
        "unpublished changes are not given up without force: {:#}",
        refused.json
    );
    rig.call(
        "runtime",
        &["destroy_workspace_session", &second, "--force"],
    )
    .ok();
}

fn a_command_runs_on_over_a_publish(rig: &Rig, sandbox: &str) {
    let (session, other) = (open(rig, sandbox, "runs"), open(rig, sandbox, "others"));
    let script = "mkdir here; cd here; exec 3> log; echo one >&3; echo ready; read go; \
        echo two >&3; pwd | tail -c 6; cat ../from-others; cat log";
    let started = rig
        .call(
            "runtime",
            &[
                "--sandbox-id",
                sandbox,
                "exec_command",
                script,
                "--workspace-session-id",
                &session,
                "--tty=false",
                "--keep-stdin-open",
                "--yield-time-ms",
                "0",
            ],
        )
        .ok();
    let command = started["command_session_id"].as_str().unwrap();
    let begun = Instant::now();
    loop {
        let lines = rig.call("runtime", &["read_command_lines", command]).ok();
        if lines["lines"][0]["content"] == "ready" {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{lines:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
    rig.exec(sandbox, &other, "echo others > from-others");
    rig.call("runtime", &["publish_workspace_session", &other])
        .ok();
    let published = rig
        .call(
            "runtime",
            &["publish_workspace_session", &session, "--keep-open"],
        )
        .ok();
    assert_eq!(published["base"], published["layer"], "{published:#}");
    let ended = rig
        .call(
            "runtime",
            &[
                "write_command_stdin",
                command,
                "go\n",
                "--yield-time-ms",
                "30000",
            ],
        )
        .ok();
    assert_eq!(ended["exit_code"], 0, "{ended:#}");
    let said = ended["output"]["content"].as_str().unwrap();
    assert!(said.ends_with("/here\nothers\none\ntwo\n"), "{said:?}");
    let published = rig
        .call("runtime", &["publish_workspace_session", &session])
        .ok();
    assert_eq!(published["changed_paths"], 1, "{published:#}");
}

fn open(rig: &Rig, sandbox: &str, name: &str) -> String {
    let opened = rig
        .call(
            "runtime",
            &["--sandbox-id", sandbox, "create_workspace_session", name],
        )
        .ok();
    opened["workspace_session_id"].as_str().unwrap().to_owned()
}

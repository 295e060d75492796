//! Agents that commit: repositories in which several sessions work with git at once.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::rig::Rig;

/// What every command runs with: no configuration of whoever runs the tests, and an author.
const GIT: &str = "export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b \
                   GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; set -e; ";

struct Repository {
    rig: Rig,
    sandbox: String,
    project: PathBuf,
}

impl Repository {
    /// A repository of three commits on `main`, with a further branch.
    fn new() -> Repository {
        Repository::made_by(
            "git init -q -b main; git add .; git commit -qm one; echo 2 >> a; git commit -qam two; \
             git branch other; echo 3 >> a; git commit -qam three",
        )
    }

    /// A repository of two commits, with a submodule `sub` of one, whose git directory is in
    /// `.git/modules`.
    fn with_submodule() -> Repository {
        Repository::made_by(
            "lib=$(dirname \"$PWD\")/lib; mkdir \"$lib\"; echo f > \"$lib/f\"; \
             (cd \"$lib\"; git init -q -b main; git add .; git commit -qm lib); \
             git init -q -b main; git add .; git commit -qm one; \
             git -c protocol.file.allow=always submodule --quiet add \"$lib\" sub; git commit -qm two; \
             test -f sub/.git; test -d .git/modules/sub/objects; rm -rf \"$lib\"",
        )
    }

    fn made_by(script: &str) -> Repository {
        let rig = Rig::start();
        let project = rig.project("project", &[("a", b"a\n"), ("b", b"b\n"), ("d/c", b"c\n")]);
        let made = Command::new("sh")
            .arg("-c")
            .arg(format!("{GIT}{script}"))
            .current_dir(&project)
            .status()
            .unwrap();
        assert!(made.success());
        let sandbox = rig.sandbox(&project);
        Repository {
            rig,
            sandbox,
            project,
        }
    }

    fn session(&self) -> String {
        self.rig.session(&self.sandbox)
    }

    #[track_caller]
    fn sh(&self, session: &str, cmd: &str) -> String {
        self.rig.sh(&self.sandbox, session, &format!("{GIT}{cmd}"))
    }

    #[track_caller]
    fn publish(&self, session: &str) -> Value {
        let request = json!({ "workspace_session_id": session });
        let report = self.rig.call("publish_workspace_session", request).ok();
        assert_eq!(report["outcome"], "published", "{report:#}");
        report
    }

    /// A new session in which the repository is sound and has these commits, sorted, and in which
    /// `git status` says this.
    #[track_caller]
    fn check(&self, commits: &[&str], status: &str) -> String {
        let session = self.session();
        self.check_commits(&session, ".", commits);
        assert_eq!(self.sh(&session, "git status --porcelain"), status);
        session
    }

    /// That the repository at `path` is sound and has these commits, sorted.
    #[track_caller]
    fn check_commits(&self, session: &str, path: &str, commits: &[&str]) {
        self.sh(session, &format!("git -C {path} fsck --full --strict"));
        let mut found: Vec<String> = self
            .sh(session, &format!("git -C {path} log --all --format=%s"))
            .lines()
            .map(str::to_owned)
            .collect();
        found.sort();
        assert_eq!(found, commits, "{path}");
    }

    fn end(self) {
        let request = json!({ "sandbox_id": self.sandbox, "force": true });
        self.rig.call("destroy_sandbox", request).ok();
        self.rig.assert_no_debris();
        assert!(self.project.join(".git/HEAD").exists());
    }
}

#[test]
fn commits_on_one_branch_are_both_kept() {
    let repository = Repository::new();
    let (first, second) = (repository.session(), repository.session());
    repository.sh(&first, "echo first >> b; git commit -qam first");
    repository.sh(
        &second,
        "echo second > d/new; git add d; git commit -qm second",
    );
    let report = repository.publish(&first);
    assert_eq!(report["saved_refs"], json!([]), "{report:#}");
    let report = repository.publish(&second);
    let saved = report["saved_refs"].as_array().unwrap();
    let [saved] = &saved[..] else {
        panic!("{report:#}")
    };
    assert_eq!(saved["name"], "refs/heads/main");
    let saved = saved["saved_as"].as_str().unwrap();
    assert!(saved.starts_with("refs/sandbox/"), "{saved}");
    // The files of both are there; the second's are not committed on the branch of the first.
    let session = repository.check(&["first", "one", "second", "three", "two"], "?? d/new\n");
    assert_eq!(repository.sh(&session, "git log -1 --format=%s"), "first\n");
    // What was saved can be merged.
    repository.sh(&session, &format!("rm d/new; git merge -q -m both {saved}"));
    assert_eq!(
        repository.sh(&session, "cat d/new; tail -1 b"),
        "second\nfirst\n"
    );
    repository.publish(&session);
    repository.check(&["both", "first", "one", "second", "three", "two"], "");
    repository.end();
}

#[test]
fn commits_on_branches_of_their_own_go_where_they_belong() {
    let repository = Repository::new();
    let (first, second) = (repository.session(), repository.session());
    repository.sh(
        &first,
        "git checkout -qb mine; echo first > first; git add first; git commit -qm first; git checkout -q main",
    );
    repository.sh(
        &second,
        "git checkout -q other; echo second > second; git add second; git commit -qm second; git tag v1; \
         git checkout -q main",
    );
    for session in [&first, &second] {
        let report = repository.publish(session);
        assert_eq!(report["saved_refs"], json!([]), "{report:#}");
    }
    let session = repository.check(&["first", "one", "second", "three", "two"], "");
    let refs = repository.sh(
        &session,
        "git for-each-ref --format='%(refname) %(subject)'",
    );
    assert_eq!(
        refs,
        "refs/heads/main three\nrefs/heads/mine first\nrefs/heads/other second\nrefs/tags/v1 second\n"
    );
    repository.end();
}

/// Both have the same branch checked out, and one of them moves it, while the other does something
/// else to the repository.
#[test]
fn who_alone_moves_the_branch_brings_the_index() {
    let aside = "git branch aside$N; touch b; git status";
    let moves = "echo $N >> a; echo $N > new$N; git add .; git commit -qm c$N";
    for order in [[0, 1], [1, 0]] {
        let repository = Repository::new();
        let mut commits = vec!["one", "three", "two"];
        for (round, commit) in ["c0", "c1"].into_iter().enumerate() {
            let sessions = [repository.session(), repository.session()];
            for (session, script) in sessions.iter().zip([aside, moves]) {
                repository.sh(session, &format!("N={round}; {script}"));
            }
            for index in order {
                let report = repository.publish(&sessions[index]);
                assert_eq!(report["saved_refs"], json!([]), "{report:#}");
                if index == 1 {
                    let skipped = report["skipped"].as_array().unwrap();
                    let kept = |skipped: &Value| skipped["path"] == ".git/index";
                    assert!(!skipped.iter().any(kept), "{report:#}");
                }
            }
            commits.insert(round, commit);
            // The next commit has nothing but what is changed for it.
            let session = repository.check(&commits, "");
            assert_eq!(repository.sh(&session, "git diff --cached"), "");
            let branches = repository.sh(&session, "git branch --format='%(refname:short)'");
            assert!(branches.contains(&format!("aside{round}\n")), "{branches}");
            let listed = repository.sh(&session, "git ls-files");
            assert!(listed.contains(&format!("new{round}\n")), "{listed}");
        }
        repository.end();
    }
}

/// What others staged is not lost for a commit, nor is the commit.
#[test]
fn who_moves_the_branch_beside_what_is_staged_is_saved() {
    let repository = Repository::new();
    let (first, second) = (repository.session(), repository.session());
    repository.sh(&first, "echo staged > staged; git add staged");
    repository.sh(
        &second,
        "echo second > second; git add second; git commit -qm second",
    );
    repository.publish(&first);
    let report = repository.publish(&second);
    let saved = report["saved_refs"].as_array().unwrap();
    assert_eq!(saved.len(), 1, "{report:#}");
    assert_eq!(saved[0]["name"], "refs/heads/main");
    let session = repository.check(&["one", "second", "three", "two"], "A  staged\n?? second\n");
    assert_eq!(repository.sh(&session, "git log -1 --format=%s"), "three\n");
    repository.end();
}

/// In the submodule and in the repository that has it.
#[test]
fn commits_on_one_branch_of_a_submodule_are_both_kept() {
    let scripts = [
        "cd sub; echo more >> f; git commit -qam first; cd ..; git commit -qam bump-first",
        "cd sub; echo new > g; git add .; git commit -qm second; cd ..; git commit -qam bump-second",
    ];
    for order in [[0, 1], [1, 0]] {
        let repository = Repository::with_submodule();
        let sessions = [repository.session(), repository.session()];
        for (session, script) in sessions.iter().zip(scripts) {
            repository.sh(session, script);
        }
        let report = repository.publish(&sessions[order[0]]);
        assert_eq!(report["saved_refs"], json!([]), "{report:#}");
        let report = repository.publish(&sessions[order[1]]);
        let saved = report["saved_refs"].as_array().unwrap();
        assert_eq!(saved.len(), 2, "{report:#}");
        let session = repository.session();
        let commits = ["bump-first", "bump-second", "one", "two"];
        repository.check_commits(&session, ".", &commits);
        repository.check_commits(&session, "sub", &["first", "lib", "second"]);
        // The files of both; the branch is who came first's, in both repositories.
        assert_eq!(repository.sh(&session, "cat sub/f sub/g"), "f\nmore\nnew\n");
        let won = ["first", "second"][order[0]];
        let heads = "git -C sub log -1 --format=%s; git log -1 --format=%s";
        assert_eq!(
            repository.sh(&session, heads),
            format!("{won}\nbump-{won}\n")
        );
        // Every commit of the one has the commit of the other that it names.
        repository.sh(
            &session,
            "for commit in $(git log --all --format=%H --grep=bump); do \
             git -C sub cat-file -e $(git rev-parse $commit:sub); done",
        );
        for saved in saved {
            assert_eq!(saved["name"], "refs/heads/main");
            let saved = saved["saved_as"].as_str().unwrap();
            repository.sh(
                &session,
                &format!(
                    "git rev-parse -q --verify {saved}; git -C sub rev-parse -q --verify {saved}"
                ),
            );
        }
        repository.sh(
            &session,
            "git submodule status; cd sub; echo again >> f; git commit -qm again f",
        );
        repository.publish(&session);
        let session = repository.session();
        repository.check_commits(&session, "sub", &["again", "first", "lib", "second"]);
        repository.end();
    }
}

#[test]
fn commits_on_branches_of_a_submodule_go_where_they_belong() {
    for order in [[0, 1], [1, 0]] {
        let repository = Repository::with_submodule();
        let sessions = [repository.session(), repository.session()];
        for (session, name) in sessions.iter().zip(["first", "second"]) {
            repository.sh(
                session,
                &format!(
                    "cd sub; git checkout -qb {name}; echo {name} > {name}; git add .; git commit -qm {name}; \
                     git checkout -q main"
                ),
            );
        }
        for index in order {
            let report = repository.publish(&sessions[index]);
            assert_eq!(report["saved_refs"], json!([]), "{report:#}");
        }
        let session = repository.check(&["one", "two"], "");
        repository.check_commits(&session, "sub", &["first", "lib", "second"]);
        let refs = "git -C sub for-each-ref --format='%(refname) %(subject)' refs/heads";
        assert_eq!(
            repository.sh(&session, refs),
            "refs/heads/first first\nrefs/heads/main lib\nrefs/heads/second second\n"
        );
        repository.end();
    }
}

#[test]
fn packing_beside_a_commit_loses_nothing() {
    let repository = Repository::new();
    for order in [[0, 1], [1, 0]] {
        let sessions = [repository.session(), repository.session()];
        repository.sh(&sessions[0], "git gc -q --prune=now; git pack-refs --all");
        repository.sh(
            &sessions[1],
            &format!("git checkout -qb branch{0}; git commit -q --allow-empty -m branch{0}; git checkout -q main", order[0]),
        );
        for index in order {
            repository.publish(&sessions[index]);
        }
    }
    let session = repository.check(&["branch0", "branch1", "one", "three", "two"], "");
    assert_eq!(
        repository.sh(&session, "git for-each-ref --format='%(refname:short)'"),
        "branch0\nbranch1\nmain\nother\n"
    );
    repository.end();
}

#[test]
fn locks_are_left_out_and_a_rebase_in_progress_stops_nobody() {
    let repository = Repository::new();
    let (first, second) = (repository.session(), repository.session());
    repository.sh(
        &first,
        "touch .git/index.lock .git/refs/heads/main.lock; echo x > x",
    );
    let report = repository.publish(&first);
    let skipped: Vec<&str> = report["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|skipped| skipped["path"].as_str().unwrap())
        .collect();
    assert_eq!(skipped, [".git/index.lock", ".git/refs/heads/main.lock"]);
    // It stops at a conflict, in the middle of things.
    repository.sh(
        &second,
        "git checkout -q other; echo other >> a; git commit -qam other; git rebase main && exit 1; \
         test -d .git/rebase-merge",
    );
    repository.publish(&second);
    let session = repository.session();
    repository.sh(&session, "git fsck --full");
    let log = repository.sh(&session, "git log --all --format=%s");
    assert!(log.lines().any(|line| line == "other"), "{log}");
    repository.sh(&session, "git status; git stash list");
    repository.end();
}

/// Commits that no branch has are all that some work is in.
#[test]
fn a_detached_head_and_stashes_are_saved() {
    let repository = Repository::new();
    let (first, second) = (repository.session(), repository.session());
    repository.sh(
        &first,
        "git commit -q --allow-empty -m first; echo x >> b; git stash -q",
    );
    repository.publish(&first);
    repository.sh(
        &second,
        "echo 1 >> d/c; git stash -q; echo 2 >> d/c; git stash -q; git checkout -q --detach; \
         git commit -q --allow-empty -m loose",
    );
    let report = repository.publish(&second);
    let saved: Vec<(&str, &str)> = report["saved_refs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|saved| {
            let text = |name: &str| saved[name].as_str().unwrap();
            (text("name"), text("saved_as"))
        })
        .collect();
    let session = repository.session();
    repository.sh(&session, "git fsck --full");
    let of = |name: &str| -> Vec<&str> {
        let found = saved.iter().filter(|(found, _)| found.starts_with(name));
        found.map(|(_, saved)| *saved).collect()
    };
    let [head] = of("HEAD")[..] else {
        panic!("{report:#}")
    };
    let subject = repository.sh(&session, &format!("git log -1 --format=%s {head}"));
    assert_eq!(subject, "loose\n");
    let mut stashed: Vec<String> = of("refs/stash")
        .iter()
        .map(|saved| repository.sh(&session, &format!("git show {saved}:d/c")))
        .collect();
    stashed.sort();
    stashed.dedup();
    assert_eq!(stashed, ["c\n1\n", "c\n2\n"], "{report:#}");
    // The first's is where it was.
    assert_eq!(repository.sh(&session, "git show stash:b"), "b\nx\n");
    assert_eq!(repository.sh(&session, "git log -1 --format=%s"), "first\n");
    repository.end();
}

#[test]
fn a_repository_that_others_removed_is_a_conflict() {
    let repository = Repository::new();
    let (first, second) = (repository.session(), repository.session());
    repository.sh(&first, "rm -rf .git");
    repository.publish(&first);
    repository.sh(&second, "git commit -q --allow-empty -m second");
    let request = json!({ "workspace_session_id": second });
    let report = repository
        .rig
        .call("publish_workspace_session", request)
        .ok();
    let conflict = &report["conflicts"][0];
    assert_eq!(
        (&report["outcome"], &conflict["path"], &conflict["kind"]),
        (&json!("conflict"), &json!(".git"), &json!("delete_modify")),
        "{report:#}"
    );
    assert_eq!(report["conflicts"].as_array().unwrap().len(), 1);
    assert_eq!(repository.sh(&second, "git log -1 --format=%s"), "second\n");
    repository.end();
}

/// Ten at once, one after the other at the gate: every commit is found.
#[test]
fn ten_who_commit_at_once_keep_all_commits() {
    let repository = Repository::new();
    let sessions: Vec<String> = (0..10).map(|_| repository.session()).collect();
    std::thread::scope(|scope| {
        for (number, session) in sessions.iter().enumerate() {
            let repository = &repository;
            scope.spawn(move || {
                repository.sh(
                    session,
                    &format!("echo {number} > of{number}; git add .; git commit -qm c{number}"),
                );
                repository.publish(session);
            });
        }
    });
    let session = repository.session();
    repository.sh(&session, "git fsck --full");
    let mut found: Vec<String> = repository
        .sh(&session, "git log --all --format=%s; ls")
        .lines()
        .map(str::to_owned)
        .collect();
    found.sort();
    for number in 0..10 {
        assert!(found.contains(&format!("c{number}")), "{found:?}");
        assert!(found.contains(&format!("of{number}")), "{found:?}");
    }
    repository.end();
}

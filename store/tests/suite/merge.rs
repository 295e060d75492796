//! The text merge against `git merge-file`.
//!
//! Where no line occurs twice in a text there is one way to align two texts, and both must say
//! exactly the same. Where lines repeat, alignments differ between algorithms, and so may merges;
//! then git is asked with each of its algorithms, and ours must agree with one of them, but for a
//! share of the cases that is counted.

use std::fs;
use std::path::Path;
use std::process::Command;

use sandstack_store::{MergeOutcome, merge_text};

use crate::fixture::{Random, Scratch, cases, lacks};

/// What git makes of three texts: the merge, or `None` for a conflict.
fn git_merge(dir: &Path, algorithm: &str, texts: [&[u8]; 3]) -> Option<Vec<u8>> {
    for (name, text) in ["head", "base", "mine"]
        .iter()
        .zip([texts[1], texts[0], texts[2]])
    {
        fs::write(dir.join(name), text).unwrap();
    }
    let output = Command::new("git")
        .args(["merge-file", "-p", "-q"])
        .arg(format!("--diff-algorithm={algorithm}"))
        .args(["head", "base", "mine"])
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_DIR", "/nonexistent")
        .output()
        .unwrap();
    let code = output.status.code().unwrap();
    assert!(
        code < 128,
        "git: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    (code == 0).then_some(output.stdout)
}

fn lacks_git() -> bool {
    let help = Command::new("git").args(["merge-file", "-h"]).output();
    let knows = help.is_ok_and(|help| {
        let text = [help.stdout, help.stderr].concat();
        String::from_utf8_lossy(&text).contains("diff-algorithm")
    });
    !knows && lacks("git merge-file --diff-algorithm")
}

fn ours(texts: [&[u8]; 3]) -> Option<Vec<u8>> {
    match merge_text(texts[0], texts[1], texts[2]) {
        MergeOutcome::Clean(merged) => Some(merged.bytes),
        MergeOutcome::Conflicts(_) => None,
    }
}

/// A text of lines, some of which an edit removed, replaced, moved or added to.
fn edited(
    random: &mut Random,
    base: &[String],
    fresh: &mut dyn FnMut(&mut Random) -> String,
) -> Vec<String> {
    let mut text = base.to_vec();
    for _ in 0..random.below(4) {
        let at = random.below(text.len() as u64 + 1) as usize;
        match random.below(3) {
            0 if at < text.len() => {
                text.remove(at);
            }
            1 if at < text.len() => {
                let line = fresh(random);
                if !text.contains(&line) || random.chance(2) {
                    text[at] = line;
                }
            }
            _ => {
                let line = fresh(random);
                text.insert(at, line);
            }
        }
    }
    text
}

fn joined(random: &mut Random, lines: &[String]) -> Vec<u8> {
    let end = if random.chance(4) { "" } else { "\n" };
    if lines.is_empty() {
        return Vec::new();
    }
    (lines.join("\n") + end).into_bytes()
}

fn is_unique(text: &[u8]) -> bool {
    let mut lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let count = lines.len();
    lines.sort_unstable();
    lines.dedup();
    lines.len() == count
}

/// Texts in which no line occurs twice; new lines are of few kinds, so that both sides often add the
/// same.
#[test]
fn where_no_line_repeats_git_says_the_same() {
    if lacks_git() {
        return;
    }
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("git");
    let mut random = Random::new(u64::from(cases(1)));
    let (mut clean, mut conflicts) = (0, 0);
    for round in 0..cases(400) {
        let count = random.below(14);
        let base: Vec<String> = (0..count).map(|line| format!("line {line}")).collect();
        let mut fresh = |random: &mut Random| format!("new {}", random.below(12));
        let head = edited(&mut random, &base, &mut fresh);
        let mine = edited(&mut random, &base, &mut fresh);
        let texts = [
            joined(&mut random, &base),
            joined(&mut random, &head),
            joined(&mut random, &mine),
        ];
        let texts = [&texts[0][..], &texts[1], &texts[2]];
        if !texts.iter().all(|text| is_unique(text)) {
            continue;
        }
        let (ours, git) = (ours(texts), git_merge(&dir, "histogram", texts));
        let shown = texts.map(|text| String::from_utf8_lossy(text).into_owned());
        assert_eq!(
            ours.as_deref().map(String::from_utf8_lossy),
            git.as_deref().map(String::from_utf8_lossy),
            "round {round}: {shown:#?}"
        );
        if git.is_some() {
            clean += 1;
        } else {
            conflicts += 1;
        }
    }
    eprintln!("{clean} clean, {conflicts} conflicts, all as git's");
    assert!(clean > 20 && conflicts > 20);
}

#[test]
fn where_lines_repeat_one_of_gits_algorithms_says_the_same() {
    if lacks_git() {
        return;
    }
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("git");
    let mut random = Random::new(7 + u64::from(cases(1)));
    let (mut same, mut other, mut only_ours, mut only_gits, mut different) =
        (0u32, 0u32, 0u32, 0u32, 0u32);
    for _ in 0..cases(400) {
        let kinds = 2 + random.below(12);
        let count = random.below(14);
        let mut fresh = |random: &mut Random| format!("l{}", random.below(kinds));
        let base: Vec<String> = (0..count).map(|_| fresh(&mut random)).collect();
        let head = edited(&mut random, &base, &mut fresh);
        let mine = edited(&mut random, &base, &mut fresh);
        let texts = [
            joined(&mut random, &base),
            joined(&mut random, &head),
            joined(&mut random, &mine),
        ];
        let texts = [&texts[0][..], &texts[1], &texts[2]];
        let ours = ours(texts);
        if ours == git_merge(&dir, "histogram", texts) {
            same += 1;
            continue;
        }
        let gits = ["myers", "minimal", "patience"].map(|name| git_merge(&dir, name, texts));
        if gits.contains(&ours) {
            other += 1;
            continue;
        }
        let shown = texts.map(|text| String::from_utf8_lossy(text).into_owned());
        match (&ours, &gits[0]) {
            (Some(merged), None) => {
                only_ours += 1;
                eprintln!(
                    "clean only here: {shown:?} {:?}",
                    String::from_utf8_lossy(merged)
                );
            }
            (None, _) => {
                only_gits += 1;
                eprintln!("clean only there: {shown:?}");
            }
            (Some(merged), Some(git)) => {
                different += 1;
                let texts = [merged, git].map(|text| String::from_utf8_lossy(text).into_owned());
                eprintln!("clean and different: {shown:?} {texts:?}");
            }
        }
    }
    eprintln!(
        "{same} as histogram, {other} as another of git's, {only_ours} clean only here, \
         {only_gits} clean only there, {different} clean and different"
    );
    let all = same + other + only_ours + only_gits + different;
    // Few lines of few kinds are the worst there is.
    assert!(
        (only_ours + different) * 100 <= all + 99,
        "too often clean and not as git"
    );
    assert!(only_gits * 100 <= all + 99, "too often not clean");
}

#[test]
fn large_texts_merge_in_little_memory() {
    // 8,000 lines rewritten whole on one side, and one line changed on the other.
    let base: String = (0..8000).map(|line| format!("old {line}\n")).collect();
    let rewritten: String = (0..8000).map(|line| format!("new {line}\n")).collect();
    assert!(ours([base.as_bytes(), rewritten.as_bytes(), base.as_bytes()]).is_some());
    let edited = base.replace("old 5\n", "old five\n");
    assert!(ours([base.as_bytes(), rewritten.as_bytes(), edited.as_bytes()]).is_none());
    // A lock file with 500 scattered edits on each side.
    let lines: Vec<String> = (0..50_000)
        .map(|line| match line % 4 {
            0 => format!("name-{line}\n"),
            1 => "version = 1\n".to_owned(),
            2 => format!("checksum {line:x}\n"),
            _ => "\n".to_owned(),
        })
        .collect();
    let edit = |first: usize| -> String {
        let mut lines = lines.clone();
        for edit in 0..500 {
            lines[first + edit * 100] = format!("edited {first} {edit}\n");
        }
        lines.concat()
    };
    let merged = ours([
        lines.concat().as_bytes(),
        edit(2).as_bytes(),
        edit(50).as_bytes(),
    ]);
    let merged = String::from_utf8(merged.unwrap()).unwrap();
    assert_eq!(merged.matches("edited").count(), 1000);
    // One line of a megabyte.
    let line = "x".repeat(1 << 20);
    assert_eq!(ours([b"x", line.as_bytes(), b"x"]), Some(line.into_bytes()));
}

/// The output of git in a repository, read and not changed; `None` if git fails.
fn git_in(repository: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(repository)
        .args(arguments)
        .output()
        .unwrap();
    output.status.success().then_some(output.stdout)
}

fn words(output: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    text.split_whitespace().map(str::to_owned).collect()
}

/// Every file that both parents of a merge commit changed, with its version at their merge base. As
/// many merges as `SANDSTACK_TEST_CASES` says, 2,000 by default.
#[test]
#[ignore = "needs a repository with merges: SANDSTACK_MERGE_HISTORY names it"]
fn merges_of_a_history_are_gits() {
    let repository = std::env::var_os("SANDSTACK_MERGE_HISTORY")
        .expect("SANDSTACK_MERGE_HISTORY names a repository with merges");
    let repository = Path::new(&repository);
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("git");
    let git = |arguments: &[&str]| git_in(repository, arguments);
    let count = format!("--max-count={}", cases(2000));
    let merges = git(&[
        "rev-list",
        "--all",
        "--min-parents=2",
        "--max-parents=2",
        "--parents",
        &count,
    ]);
    let merges = String::from_utf8(merges.unwrap()).unwrap();
    let (mut clean, mut conflicts, mut only_gits, mut only_ours) = (0u32, 0u32, 0u32, 0u32);
    let mut wrong = Vec::new();
    for merge in merges.lines() {
        let [_, one, other] = &words(merge.as_bytes())[..] else {
            panic!("{merge}")
        };
        let Some(base) = git(&["merge-base", one, other]) else {
            continue;
        };
        let base = words(&base)[0].clone();
        let changed = |side: &str| {
            let names = [
                "diff",
                "--name-only",
                "--no-renames",
                "-z",
                "--diff-filter=M",
                &base,
                side,
            ];
            let names = git(&names).unwrap_or_default();
            let names = names.split(|byte| *byte == 0).map(<[u8]>::to_vec);
            names.collect::<std::collections::BTreeSet<Vec<u8>>>()
        };
        for path in changed(one).intersection(&changed(other)) {
            let (Ok(path), false) = (std::str::from_utf8(path), path.is_empty()) else {
                continue;
            };
            let text = |side: &str| git(&["cat-file", "blob", &format!("{side}:{path}")]);
            let (Some(base), Some(head), Some(mine)) = (text(&base), text(one), text(other)) else {
                continue;
            };
            let texts = [&base[..], &head, &mine];
            if head == mine || texts.iter().any(|text| text.contains(&0)) {
                continue;
            }
            let ours = ours(texts);
            let gits = ["histogram", "myers", "minimal", "patience"]
                .map(|name| git_merge(&dir, name, texts));
            match &ours {
                Some(_) if gits.contains(&ours) => clean += 1,
                None if gits.contains(&None) => conflicts += 1,
                None => {
                    only_gits += 1;
                    eprintln!("clean only there: {merge} {path}");
                }
                // Of two alignments as good as each other git took the other one.
                Some(_) if gits.contains(&None) => {
                    only_ours += 1;
                    eprintln!("clean only here: {merge} {path}");
                }
                Some(_) => wrong.push(format!("{merge} {path}")),
            }
        }
    }
    eprintln!(
        "{clean} clean, {conflicts} conflicts, {only_gits} clean only there, {only_ours} only here"
    );
    assert_eq!(
        wrong,
        Vec::<String>::new(),
        "clean, and not as any of git's"
    );
    assert!(clean > 0, "the repository has no merge of one file");
    assert!(
        only_gits * 1000 <= clean,
        "too many conflicts where git has none"
    );
}

//! git, on repositories that the import found and on such as it makes.

use std::path::Path;

use super::compared;
use crate::fixture::MODES;

/// A repository with branches that differ on one line, a symlink, a program, an empty file and a large
/// one. Its files are older than its index, so that git trusts what the index says of them.
const REPOSITORY: &str = r#"
git init -q -b main repo
cd repo
mkdir -p src/deep docs
for i in $(seq 60); do printf 'one\ntwo\nthree %s\n' $i > src/f$i; done
seq 20000 > docs/large
printf '#!/bin/sh\necho ran\n' > run
chmod 755 run
ln -s src/f1 link
: > empty
cp src/f1 'src/deep/name with space'
git add -A
git commit -qm base
git checkout -q -b topic
sed -i 's/two/topic/' src/f1
seq 5 > src/deep/of-topic
git add -A
git commit -qm topic
git checkout -q main
sed -i 's/two/main/' src/f1
git commit -qam main
git tag -m tagged v1
git config gc.auto 0
git config pack.threads 1
find . -path ./.git -prune -o -exec touch -h -d 2020-01-01T01:01:01 {} +
git update-index -q --refresh
cp .git/index "$OUT/index"
"#;

/// Indexes have times and numbers of inodes.
fn is_index(path: &Path) -> bool {
    path.ends_with("index")
}

/// What an index says of a file (size, times, inode number, mode) holds in a new session, so nothing
/// is read again and the index is not written anew. So it is with an index that lies outside.
#[test]
fn git_sees_no_change_in_a_new_session() {
    let name = "git_sees_no_change_in_a_new_session";
    compared(name, &MODES, &["git"], REPOSITORY, |twins| {
        let look = r#"
            cd repo
            before=$(sha256sum < .git/index)
            git diff-files --exit-code
            GIT_INDEX_FILE=$OUT/index git diff-files --exit-code
            git diff-index --exit-code HEAD
            git status --porcelain --branch
            [ "$before" = "$(sha256sum < .git/index)" ]
        "#;
        assert_eq!(twins.run(look), "## main\n");
        twins.remount();
        assert_eq!(twins.run(look), "## main\n");
        twins.compare(is_index);
    });
}

/// Every change is found, whatever stays as it was: the length, the time, the name.
#[test]
fn git_sees_every_change() {
    compared(
        "git_sees_every_change",
        &MODES,
        &["git"],
        REPOSITORY,
        |twins| {
            twins.run(
                r#"
            cd repo
            git update-index --untracked-cache
            # git compares whole seconds.
            until [ "$(date +%s)" -gt "$(stat -c %Z src/f3)" ]; do sleep 0.05; done
            git status --porcelain
            printf 'ONE\ntwo\nthree 2\n' > src/f2
            printf 'one\nTWO\nthree 3\n' > src/f3; touch -d 2020-01-01T01:01:01 src/f3
            chmod -x run
            rm src/f4
            mv src/f5 src/deep/f5
            ln -sf src/f2 link
            echo new > src/deep/untracked
            mkdir empty-directory
            git status --porcelain
            git diff --stat
            git status --porcelain
            rm src/deep/untracked
            echo later > docs/untracked
            git status --porcelain
            printf 'one\ntwo\nthree 2\n' > src/f2
            git add -A
            git status --porcelain
            git diff --cached -M --stat
            git reset -q --hard
            git clean -fdq
            git status --porcelain
            "#,
            );
            twins.compare(is_index);
        },
    );
}

#[test]
fn git_works_as_on_a_disk() {
    compared(
        "git_works_as_on_a_disk",
        &MODES,
        &["git", "tar"],
        REPOSITORY,
        |twins| {
            twins.run(
            r#"
            git clone -q repo linked
            git clone -q --no-local repo whole 2>/dev/null
            [ "$(find linked/.git/objects -type f -links +1 | wc -l)" -gt 0 ]
            git -C whole fsck --full --strict
            cd repo
            echo work >> src/f7; git commit -qam work
            echo stashed >> src/f8; git stash -q; git stash pop -q; git commit -qam unstashed
            git mv src/f9 src/deep/moved; git rm -q src/f10; git commit -qm moved
            git show --stat --format=%s
            git checkout -q topic
            git rebase main && exit 1
            git status --porcelain
            printf 'one\nboth\nthree 1\n' > src/f1
            git add src/f1
            git rebase --continue
            git log --oneline --graph
            git checkout -q -b picked v1
            git cherry-pick main~1
            git merge -q --no-edit topic -X theirs
            git worktree add -q ../tree main
            (cd ../tree && echo tree > src/of-tree && git add -A && git commit -qm tree && git status --porcelain)
            git worktree list --porcelain
            git bisect start main v1
            git bisect run sh -c '! test -e src/deep/moved' | tail -1
            git bisect reset
            git grep -c three | tail -3
            git blame -s src/f1
            git archive HEAD | tar -t | sort | tail -5
            git log --all --format='%H %s' | sort
            "#,
        );
            twins.compare(is_index);
            twins.remount();
            twins.run(
                r#"
            cd repo
            git fsck --full --strict
            git repack -qad
            git gc -q --prune=now
            git fsck --full --strict
            git commit-graph write --reachable
            git worktree remove --force ../tree
            git worktree prune
            git checkout -qf main
            git branch -qD topic picked
            git reflog expire --expire=now --all
            git gc -q --prune=now
            git count-objects -v
            git fsck --full --strict
            git status --porcelain
            cd ../linked
            git pull -q --no-edit
            git fsck --full
            git log --oneline
            cd ..
            rm -rf repo
            git -C linked fsck --full
            git -C linked status --porcelain
            "#,
            );
            twins.compare(is_index);
        },
    );
}

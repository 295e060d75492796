//! What people and editors do all day: find, sort in place, save by rename, lock, remove by the
//! thousand.

use super::{FILES, compared, nothing};
use crate::fixture::{MODES, full_scale};

const FILL: &str = r#"
mkdir -p a/b/c d
for i in $(seq 50); do echo "line $i" > a/f$i; seq $i > a/b/g$i; done
ln a/f1 d/hard
ln -s ../a d/soft
ln -s loop d/loop
mkfifo d/pipe
: > a/b/c/empty
chmod 600 a/f2
chmod 4755 a/f3
chown 4001:4001 a/f4
truncate -s 5M d/sparse
find . -exec touch -h -d 2015-05-05T05:05:05 {} +
touch -d 2016-06-06T06:06:06 a/f9
"#;

#[test]
fn trees_are_searched() {
    compared(
        "trees_are_searched",
        &MODES,
        &["find", "python3"],
        FILL,
        |twins| {
            twins.run(
                r#"
            find . -newer a/f8 | sort
            find . -type f -links +1 | sort
            find . -samefile a/f1 | sort
            find . -empty -type f; find . -empty -type d
            find . -size +1M; find . -perm -4000; find . -uid 4001; find . -inum $(stat -c %i a/f7)
            (find -L . -type f 2>/dev/null || true) | wc -l
            find . -xtype l 2>&1 || true
            find . -regex '.*/g[12]' -exec cat {} +
            find . -depth | sort | md5sum
            find . -xdev -printf '%y\n' | sort | uniq -c
            ls -f a | sort | wc -l; ls -lR --time-style=full-iso | grep -v '^total' | grep -v '^d'
            du --apparent-size -b a/f1 d/sparse
            grep -rc 'line 1' a | sort | tail -3
            grep -rl 'line 7$' .
            wc -l a/f* | tail -1
            stat -c '%n %F %a %u %s %h' a/f3 d/pipe d/soft d/sparse
            (cd d/soft/b && pwd && pwd -P | sed 's,.*/,,')
            cat d/loop 2>&1 || true
            python3 -c 'import os
for at, dirs, files in os.walk("."):
    dirs.sort(); print(at, len(dirs), len(files))
print(sorted(entry.name for entry in os.scandir("a") if entry.is_dir()))'
            # Each is found once though it goes away meanwhile.
            find a -name 'g*' -delete -print | sort | wc -l
            find a -type f -exec mv {} {}.moved \; ; ls a | sort | md5sum
            "#,
            );
            twins.compare(nothing);
        },
    );
}

/// By a file beside and a rename, with and without a backup; in place; by exchange.
#[test]
fn files_are_saved_as_editors_do() {
    compared(
        "files_are_saved_as_editors_do",
        &MODES,
        &["python3", "perl", "patch"],
        FILL,
        |twins| {
            twins.run(
                r#"
            before=$(stat -c %i a/f5)
            sed -i 's/line/LINE/' a/f5 a/f6
            [ "$(stat -c %i a/f5)" != "$before" ] && echo replaced
            perl -pi.bak -e 's/line/Line/' a/f7
            sort -r -o a/b/g40 a/b/g40
            before=$(stat -c %i a/f3)
            cat > a/f3 <<< 'in place'
            [ "$(stat -c '%i %a' a/f3)" = "$before 755" ] || stat -c '%a' a/f3
            python3 - <<'END'
import os, stat, tempfile
def save(path, text, backup):
    old = os.stat(path)
    if backup:
        os.rename(path, path + '~')
    file, name = tempfile.mkstemp(dir=os.path.dirname(path))
    os.write(file, text.encode())
    os.fchmod(file, stat.S_IMODE(old.st_mode))
    os.fchown(file, old.st_uid, old.st_gid)
    os.fsync(file)
    os.close(file)
    os.replace(name, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
held = open('a/f4')
for turn in range(20):
    save('a/f4', f'turn {turn}\n', turn % 2)
    assert open('a/f4').read() == f'turn {turn}\n'
    save('d/hard', f'turn {turn}\n', False)
print(held.read(), os.fstat(held.fileno()).st_nlink, os.stat('a/f4').st_uid)
print(open('a/f1').read(), os.stat('a/f1').st_nlink)
# As vim tries whether it may write to a directory.
os.close(os.open('a/4913', os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW, 0o100644))
os.unlink('a/4913')
END
            patch -s a/f8 <<'END'
--- a/f8
+++ a/f8
@@ -1 +1,2 @@
-line 8
+line eight
+and more
END
            cat a/f8 a/f4 'a/f4~'
            ls -A a | sort
            "#,
            );
            twins.compare(nothing);
            twins.remount();
            twins.compare(nothing);
        },
    );
}

/// Locks exclude, also between processes that are in other namespaces, as commands of a session are.
#[test]
fn locks_exclude_processes() {
    compared(
        "locks_exclude_processes",
        &MODES,
        &["flock", "python3"],
        FILL,
        |twins| {
            let said = twins.run(
            r#"
            echo 0 > counter
            count() {
                for turn in $(seq 25); do
                    flock lock sh -c 'read n < counter; echo $((n + 1)) > counter.new; mv counter.new counter'
                done
            }
            export -f count
            for who in 1 2 3; do
                bash -c count &
                unshare --pid --fork --mount-proc bash -c count &
            done
            wait
            cat counter
            flock -x lock sh -c 'flock -n lock echo got || echo "held by another"; flock -s -n lock echo got || echo "held by another"'
            flock -s lock sh -c 'flock -s -n lock echo shared; flock -x -n lock echo got || echo "held by others"'
            exec 5>lock
            flock 5
            python3 - <<'END'
import fcntl, os
def ranges(base):
    file = open('a/f1', 'r+')
    fcntl.lockf(file, fcntl.LOCK_EX, 10, base)
    return file
held = ranges(0)
child = os.fork()
if child == 0:
    for start in (0, 5, 10, 100):
        try:
            fcntl.lockf(open('a/f1', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB, 5, start)
            print(start, 'free', flush=True)
        except OSError as error:
            print(start, os.strerror(error.errno), flush=True)
    try:
        fcntl.flock(open('lock'), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        print(os.strerror(error.errno), flush=True)
    # Closing any descriptor of the file gives up what one has of it, which is nothing.
    os._exit(0)
os.waitpid(child, 0)
END
            flock -u 5
            flock -n lock echo free
            "#,
        );
            assert!(said.starts_with("150\n"), "{said}");
            twins.compare(nothing);
        },
    );
}

/// Directories of the base and new ones, full of files.
#[test]
fn many_files_are_removed() {
    let count = if full_scale() { 50_000 } else { 4_000 };
    let fill = format!(
        "mkdir -p old/deep; seq -f old/%g {count} | xargs touch; seq -f old/deep/%g 500 | xargs touch"
    );
    compared(
        "many_files_are_removed",
        &FILES,
        &["xargs"],
        &fill,
        |twins| {
            twins.run(&format!(
                r#"
            mkdir -p new/deep
            seq -f new/%g {count} | xargs touch
            seq -f new/deep/%g 500 | xargs touch
            ls -f old | wc -l
            (rm -rf old) & (rm -rf new) & (cp -r old copy 2>/dev/null) &
            wait
            rm -rf copy
            ls -A
            mkdir old; touch old/1; ls old
            rm -rf old
            ls -A
            "#
            ));
            twins.compare(nothing);
        },
    );
}

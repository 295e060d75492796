//! What is known of the parts of large files: nothing rests on it, and a restart does not lose it.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandstack_store::{Content, Digest, Outcome, Stack, Store};

use crate::fixture::session::{changed, rel};
use crate::fixture::{Random, Scratch, Session, Watchdog, host, now_ms, stack_of, verify};

const SIZE: usize = 40 << 20;

fn content(stack: &Stack) -> Content {
    let root = stack.layer(stack.head()).unwrap().root;
    let head = stack.store().lower(&root).unwrap();
    *head
        .node_at(&rel("large"))
        .unwrap()
        .unwrap()
        .content()
        .unwrap()
}

/// The files of what is known.
fn known(scratch: &Scratch) -> Vec<PathBuf> {
    let listed = fs::read_dir(scratch.path("store/groups")).unwrap();
    listed.map(|entry| entry.unwrap().path()).collect()
}

/// Changes a byte of the only large blob behind the store's back, or changes it back.
fn flip(scratch: &Scratch, digest: &Digest, at: u64) {
    let hex = digest.to_string();
    let path = scratch.path(&format!("store/blobs/{}/{}", &hex[..2], &hex[2..]));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn project(scratch: &Scratch, dir: &Path, bytes: &[u8]) -> (Store, Stack) {
    host::write(&dir.join("large"), bytes);
    let store = scratch.store();
    let stack = stack_of(&store, dir);
    (store, stack)
}

/// Opens the store again, as a new process would.
fn restart(scratch: &Scratch, (store, stack): (Store, Stack)) -> (Store, Stack) {
    let id = stack.id();
    drop((store, stack));
    let store = scratch.store();
    let stack = store.stack(id).unwrap();
    (store, stack)
}

/// Publishes a change of one block.
fn change(stack: &Stack, name: &str, bytes: &mut [u8], at: usize) {
    let session = Session::open(stack, name);
    let ino = session.ino("large");
    session
        .upper
        .write(ino, at as u64, b"changed", changed)
        .unwrap();
    bytes[at..at + 7].copy_from_slice(b"changed");
    // What the fixture looks at besides, it reads whole.
    let publish = stack.publish(&session.upper, &session.options(), &mut |_| {});
    assert!(matches!(publish.unwrap().outcome, Outcome::Published(_)));
    stack.store().release(session.lease.id()).unwrap();
}

/// What would be read otherwise is made wrong, so that the digest would be, too.
#[test]
fn after_a_restart_only_what_changed_is_read() {
    let _watchdog = Watchdog::start(
        "after_a_restart_only_what_changed_is_read",
        Duration::from_secs(120),
    );
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("project");
    let mut bytes = Random::new(1).bytes(SIZE);
    let mut opened = project(&scratch, &dir, &bytes);
    let blob = content(&opened.1).digest;
    assert_eq!(blob, Digest::of(&bytes));
    for round in 0..3 {
        opened = restart(&scratch, opened);
        flip(&scratch, &blob, 30 << 20);
        change(
            &opened.1,
            &format!("s{round}"),
            &mut bytes,
            (round + 1) << 20,
        );
        flip(&scratch, &blob, 30 << 20);
        assert_eq!(content(&opened.1).digest, Digest::of(&bytes), "{round}");
    }
    verify::store(&opened.0);
}

#[test]
fn what_is_known_and_wrong_is_not_believed() {
    let _watchdog = Watchdog::start("what_is_known_and_wrong", Duration::from_secs(120));
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("project");
    let mut bytes = Random::new(2).bytes(SIZE);
    let mut opened = project(&scratch, &dir, &bytes);
    for round in 0..3 {
        opened = restart(&scratch, opened);
        for path in known(&scratch) {
            match round {
                0 => fs::remove_file(path).unwrap(),
                1 => fs::write(path, "").unwrap(),
                _ => {
                    let mut all = fs::read(&path).unwrap();
                    all[100] ^= 1;
                    fs::write(path, all).unwrap();
                }
            }
        }
        change(
            &opened.1,
            &format!("s{round}"),
            &mut bytes,
            (round + 1) << 20,
        );
        assert_eq!(content(&opened.1).digest, Digest::of(&bytes), "{round}");
        verify::store(&opened.0);
    }
}

#[test]
fn what_is_known_of_what_is_gone_goes() {
    let _watchdog = Watchdog::start(
        "what_is_known_of_what_is_gone_goes",
        Duration::from_secs(120),
    );
    let scratch = Scratch::in_memory();
    let dir = scratch.dir("project");
    let mut bytes = Random::new(3).bytes(SIZE);
    let (store, stack) = project(&scratch, &dir, &bytes);
    for round in 0..3 {
        change(&stack, &format!("s{round}"), &mut bytes, (round + 1) << 20);
    }
    let name = |digest: Digest| scratch.path("store/groups").join(digest.to_string());
    assert_eq!(known(&scratch).len(), 4);
    assert!(store.usage().unwrap().object_bytes > SIZE as u64);
    let collect = |dry_run| store.collect_garbage(dry_run, &mut || false).unwrap();
    collect(false);
    assert_eq!(known(&scratch).len(), 4, "layers have them all");
    stack.squash(0, None, now_ms()).unwrap();
    collect(true);
    assert_eq!(known(&scratch).len(), 4, "nothing is removed to look");
    collect(false);
    let mut left = known(&scratch);
    left.sort();
    let base = stack.layer_at(1).unwrap().unwrap().root;
    let base = store
        .lower(&base)
        .unwrap()
        .node_at(&rel("large"))
        .unwrap()
        .unwrap();
    let mut expected = [base.content().unwrap().digest, content(&stack).digest].map(name);
    expected.sort();
    assert_eq!(left, expected);
    verify::store(&store);
}

//! The store's own check of itself: it finds what is wrong, and says what.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};

use crate::fixture::{Random, Scratch, Session, host, stack_of};

#[test]
fn damage_is_found_and_named() {
    let scratch = Scratch::new();
    let dir = scratch.dir("project");
    let mut random = Random::new(8);
    host::write(&dir.join("small"), b"a small file with words in it\n");
    host::write(&dir.join("large"), &random.bytes(500_000));
    let store = scratch.store();
    let stack = stack_of(&store, &dir);
    let session = Session::open(&stack, "s");
    session.append("small", "one more line\n");
    session.publish();
    session
        .upper
        .write(session.ino("large"), 8192, &[1; 100], |attrs| attrs)
        .unwrap();
    let clean = store.verify().unwrap();
    assert_eq!(clean.problems, Vec::<String>::new());
    assert_eq!((clean.layers, clean.leases, clean.blamed), (2, 1, 1));
    assert!(clean.bytes > 500_000 && clean.objects >= 6, "{clean:?}");

    let problems = |wanted: &[&str]| {
        let found = store.verify().unwrap().problems.join("\n");
        for text in wanted {
            assert!(found.contains(text), "{text:?} is not in:\n{found}");
        }
    };
    // A byte of a small object turns.
    let pack = fs::read_dir(store.root().join("packs"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let bytes = fs::read(&pack).unwrap();
    let words = b"small file";
    let at = bytes
        .windows(words.len())
        .position(|part| part == words)
        .unwrap() as u64;
    let file = fs::File::options().write(true).open(&pack).unwrap();
    file.write_all_at(b"S", at).unwrap();
    problems(&["its bytes are those of"]);
    file.write_all_at(b"s", at).unwrap();
    problems(&[]);
    assert_eq!(store.verify().unwrap().problems, Vec::<String>::new());

    // A blob file is cut, and then gone.
    let shard = fs::read_dir(store.root().join("blobs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().len() == 2)
        .unwrap();
    let blob = fs::read_dir(shard).unwrap().next().unwrap().unwrap().path();
    fs::set_permissions(&blob, fs::Permissions::from_mode(0o600)).unwrap();
    let whole = fs::read(&blob).unwrap();
    fs::write(&blob, &whole[..400_000]).unwrap();
    problems(&["it has 400000 bytes; the database says 500000"]);
    fs::rename(&blob, blob.with_extension("away")).unwrap();
    problems(&["No such file"]);
    fs::rename(blob.with_extension("away"), &blob).unwrap();
    fs::write(&blob, &whole).unwrap();
    assert_eq!(store.verify().unwrap().problems, Vec::<String>::new());

    // The journal of a session.
    let journal = session.upper.dir().join("journal");
    let mut bytes = fs::read(&journal).unwrap();
    bytes[20] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    problems(&["lease 00000001 of s", "does not match its checksum"]);
}

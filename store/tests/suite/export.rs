//! Exports: what comes out is what is in the layer.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::FileType;
use sandstack_store::{ExportFormat, LayerId, Stack};

use crate::fixture::snapshot::Level;
use crate::fixture::{
    Random, Scratch, Session, Snapshot, host, lacks, lacks_root, numbered, project, stack_of,
};

/// A project with everything that a directory can hold, and a session's changes to it.
fn full_project(scratch: &Scratch) -> Stack {
    let dir = scratch.dir("project");
    let mut random = Random::new(1);
    host::write(&dir.join("text"), numbered(40).as_bytes());
    host::write(&dir.join("binary"), &random.bytes(300_000));
    host::write(&dir.join("gone"), b"to be deleted\n");
    host::write(&dir.join("sub/deep/file"), b"no end");
    host::write(&dir.join("sub/script"), b"#!/bin/sh\n");
    fs::set_permissions(dir.join("sub/script"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    fs::set_permissions(dir.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    symlink("sub/deep", dir.join("link")).unwrap();
    symlink("/".repeat(3000), dir.join("long link")).unwrap();
    let long = "n".repeat(255);
    host::write(&dir.join(&long).join(&long).join("file"), b"far down\n");
    host::write(&dir.join("a name\nwith \"all\" \\kinds\tof ü"), b"odd\n");
    use std::os::unix::ffi::OsStrExt;
    fs::write(
        dir.join(std::ffi::OsStr::from_bytes(b"bytes \xff\xfe")),
        b"b\n",
    )
    .unwrap();
    fs::hard_link(dir.join("text"), dir.join("sub/text too")).unwrap();
    host::make_fifo(&dir.join("fifo"), 0o640);
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 20 << 20).unwrap();
    host::set_mtime(&dir.join("text"), -5, 250_000_000);
    host::set_mtime(&dir.join("binary"), 1 << 33, 7);
    host::set_mtime(&dir.join("link"), 12_345, 678);
    if host::set_xattr(&dir.join("text"), "user.note", b"\0binary\n=value").is_err() {
        let _said = lacks("user attributes");
    }
    if !lacks_root() {
        host::make_device(&dir.join("device"), FileType::CharacterDevice, 1, 300);
        std::os::unix::fs::lchown(dir.join("link"), Some(12), Some(3_000_000)).unwrap();
        std::os::unix::fs::chown(dir.join("sub"), Some(4_000_000_000), Some(7)).unwrap();
    }
    host::set_mtime(&dir.join("sub"), 99, 99);
    let stack = stack_of(&scratch.store(), &dir);
    let session = Session::open(&stack, "s");
    session.edit("text", "7\n", "seven\n");
    session.append("binary", random.bytes(10));
    session.remove("gone");
    session.write("new", "new\n");
    session.write("an empty one", "");
    session.chmod("sub/deep/file", 0o755);
    session.remove("link");
    session.write("link", "a file now\n");
    session.rename("empty", "moved");
    session.publish();
    stack
}

fn extract(archive: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    let output = Command::new("tar")
        .args(["--xattrs", "--xattrs-include=*", "--same-owner", "-xpf"])
        .arg(archive)
        .arg("-C")
        .arg(to)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn files_and_archives_hold_the_layer_exactly() {
    if lacks_root() {
        return;
    }
    let scratch = Scratch::new();
    let stack = full_project(&scratch);
    let head = Snapshot::of_head(&stack);
    let export = |format, name: &str| {
        let dest = scratch.path(name);
        let exported = stack.export(None, stack.head(), format, &dest).unwrap();
        assert_eq!(exported.left_out, []);
        assert_eq!(exported.symlinks, 1);
        assert_eq!(exported.special_files, 2);
        dest
    };
    let dir = export(ExportFormat::Directory, "as files");
    Snapshot::of_directory(&dir).assert_same(&head, Level::Copy);
    let blocks = |dir: &Path| dir.join("sparse").metadata().unwrap().blocks() * 512;
    assert!(blocks(&dir) < 1 << 20, "holes stay holes");
    for (format, name) in [
        (ExportFormat::Tar, "a.tar"),
        (ExportFormat::TarZstd, "a.tar.zst"),
    ] {
        let archive = export(format, name);
        let again = export(format, &format!("again {name}"));
        assert!(
            fs::read(&archive).unwrap() == fs::read(again).unwrap(),
            "the same bytes"
        );
        assert!(archive.metadata().unwrap().len() < 2 << 20);
        let plain = match format {
            ExportFormat::TarZstd => {
                let plain = scratch.path("unpacked.tar");
                let bytes = zstd::decode_all(fs::File::open(&archive).unwrap()).unwrap();
                fs::write(&plain, bytes).unwrap();
                plain
            }
            _ => archive,
        };
        let out = scratch.path(&format!("out of {name}"));
        extract(&plain, &out);
        Snapshot::of_directory(&out).assert_same(&head, Level::Copy);
        assert!(blocks(&out) < 1 << 20, "holes stay holes");
    }
}

#[test]
fn only_what_changed_can_be_exported() {
    let scratch = Scratch::new();
    let stack = full_project(&scratch);
    let base = stack.layer_at(1).unwrap().unwrap().id;
    let dest = scratch.path("changes");
    let exported = stack
        .export(Some(base), stack.head(), ExportFormat::Directory, &dest)
        .unwrap();
    let deleted: Vec<String> = exported
        .deleted
        .iter()
        .map(|path| path.to_string())
        .collect();
    assert_eq!(deleted, ["empty", "gone"]);
    let (found, head) = (Snapshot::of_directory(&dest), Snapshot::of_head(&stack));
    assert_eq!(
        found.paths(),
        "an empty one binary link moved new sub sub/deep sub/deep/file sub/text too text"
    );
    for (path, item) in &found.0 {
        assert_eq!(item.data, head.0[path].data, "{path}");
        assert_eq!(item.mode, head.0[path].mode, "{path}");
    }
}

fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "core.quotePath=false"])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "git {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What git sees of a tree: not its own directory.
fn for_git(snapshot: &Snapshot) -> Vec<String> {
    use sandstack_store::Kind;
    let shown = snapshot
        .0
        .iter()
        .filter(|(path, _)| path.as_bytes() != b".git" && !path.as_bytes().starts_with(b".git/"))
        .filter_map(|(path, item)| match item.kind {
            Kind::File => Some(format!("{path:?} {} {:?}", item.mode & 0o100, item.data)),
            Kind::Symlink => Some(format!("{path:?} {:?}", item.data)),
            _ => None,
        });
    shown.collect()
}

#[test]
fn git_applies_the_patch() {
    let scratch = Scratch::new();
    let stack = full_project(&scratch);
    let base = stack.layer_at(1).unwrap().unwrap().id;
    let patch = scratch.path("changes.patch");
    let exported = stack
        .export(None, stack.head(), ExportFormat::Patch, &patch)
        .unwrap();
    let left: Vec<String> = exported
        .left_out
        .iter()
        .map(|item| format!("{}:{}", item.path, item.what))
        .collect();
    assert_eq!(left, ["moved:directory"]);
    let work = scratch.path("work");
    stack
        .export(None, base, ExportFormat::Directory, &work)
        .unwrap();
    // As of its own: it may lie below another's repository.
    git(&work, &["init", "-q"]);
    let before = for_git(&Snapshot::of_directory(&work));
    git(
        &work,
        &["apply", "--whitespace=nowarn", &patch.display().to_string()],
    );
    let after = for_git(&Snapshot::of_directory(&work));
    assert_eq!(after, for_git(&Snapshot::of_head(&stack)));
    git(
        &work,
        &[
            "apply",
            "--whitespace=nowarn",
            "-R",
            &patch.display().to_string(),
        ],
    );
    // Git itself does not take a changed type back, not in its own patches either.
    let without_link = |mut shown: Vec<String>| {
        shown.retain(|line| !line.starts_with("\"link\" "));
        shown
    };
    let back = for_git(&Snapshot::of_directory(&work));
    assert_eq!(without_link(back), without_link(before));
}

#[test]
fn nothing_is_overwritten_and_a_failed_export_leaves_nothing() {
    let (scratch, stack) = project(&[("f", "f\n")]);
    let taken = scratch.dir("taken");
    fs::write(taken.join("mine"), b"precious").unwrap();
    let file = scratch.path("file");
    fs::write(&file, b"precious").unwrap();
    let formats = [
        ExportFormat::Directory,
        ExportFormat::Tar,
        ExportFormat::TarZstd,
        ExportFormat::Patch,
    ];
    for format in formats {
        for dest in [&taken, &file] {
            let error = stack.export(None, stack.head(), format, dest).unwrap_err();
            assert!(error.to_string().contains("exists"), "{error}");
        }
    }
    let unknown = LayerId {
        revision: 77,
        ..stack.head()
    };
    let dest = scratch.path("dest");
    assert!(
        stack
            .export(None, unknown, ExportFormat::Tar, &dest)
            .is_err()
    );
    // A blob that is missing fails it on the way.
    let session = Session::open(&stack, "s");
    session.write("large", vec![b'x'; 400_000]);
    session.publish();
    for shard in fs::read_dir(stack.store().root().join("blobs")).unwrap() {
        let shard = shard.unwrap().path();
        if shard.file_name().unwrap().len() == 2 {
            fs::remove_dir_all(shard).unwrap();
        }
    }
    let store = stack.store().clone();
    let id = stack.id();
    drop((session, stack));
    drop(store);
    let stack = scratch.store().stack(id).unwrap();
    let empty = scratch.dir("empty");
    for format in formats {
        for dest in [&dest, &empty] {
            if dest == &empty && format != ExportFormat::Directory {
                continue;
            }
            let error = stack.export(None, stack.head(), format, dest).unwrap_err();
            assert!(error.to_string().contains("No such file"), "{error}");
        }
    }
    assert!(!dest.exists() && empty.read_dir().unwrap().next().is_none());
    assert_eq!(fs::read(taken.join("mine")).unwrap(), b"precious");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    let names: Vec<String> = fs::read_dir(scratch.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("export"))
        .collect();
    assert_eq!(names, Vec::<String>::new(), "nothing half made stays");
}

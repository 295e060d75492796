//! The sentences of docs/semantics.md, section by section. A test quotes those that it holds a view
//! to as `/// > sentence`; that each is quoted is a rule of the house.

mod durability;
mod files;
mod identity;
mod links;
mod metadata;
mod names;
mod persistence;
mod renames;
mod sharing;
mod whole;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::FileType;

use crate::fixture::syscalls;

/// A base with something of everything.
fn everything(base: &Path) {
    fs::create_dir_all(base.join("dir/below/deep")).unwrap();
    fs::write(base.join("file"), "a file\n").unwrap();
    fs::write(base.join("dir/other"), vec![7; 20_000]).unwrap();
    fs::write(base.join("dir/below/empty"), "").unwrap();
    symlink("dir/other", base.join("link")).unwrap();
    fs::hard_link(base.join("dir/other"), base.join("dir/below/same")).unwrap();
    syscalls::make_node(&base.join("fifo"), FileType::Fifo, (0, 0)).unwrap();
    syscalls::set_xattr(&base.join("file"), "user.kind", b"text\0\xff").unwrap();
    syscalls::chmod(&base.join("dir/below"), 0o2711);
    syscalls::set_times(&base.join("file"), (1, 2), (-5, 250_000_000));
}

/// An empty base.
fn nothing(_base: &Path) {}

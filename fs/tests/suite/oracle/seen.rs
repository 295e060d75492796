//! What can be seen of a tree, in terms that mean the same on every filesystem.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::fixture::Snapshot;
use crate::fixture::snapshot::Item;
use crate::fixture::syscalls::{self, Time};

/// Whether `dir` is on a filesystem that views are like. Others differ in link counts of directories,
/// among other things.
pub(crate) fn is_a_disk(dir: &Path) -> bool {
    const EXT4: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const TMPFS: i64 = 0x0102_1994;
    let kind = rustix::fs::statfs(dir).unwrap().f_type;
    [EXT4, XFS, TMPFS].contains(&kind)
}

/// Whether a time that has been looked at differs after each change, however soon.
pub(crate) fn fine_times(dir: &Path) -> bool {
    let path = dir.join("fine-times");
    fs::write(&path, "").unwrap();
    let fine = (0..50).all(|at| {
        let before = syscalls::times(&path);
        fs::write(&path, at.to_string()).unwrap();
        syscalls::times(&path).1 != before.1
    });
    fs::remove_file(&path).unwrap();
    fine
}

/// The items of a tree by path, with inodes numbered in the order of paths.
pub(crate) struct Seen {
    items: BTreeMap<PathBuf, Item>,
    /// mtime and ctime.
    times: BTreeMap<PathBuf, (u64, Time, Time)>,
}

impl Seen {
    pub(crate) fn of(root: &Path) -> Seen {
        let Snapshot(mut items) = Snapshot::of(root);
        let mut numbers = BTreeMap::new();
        let mut times = BTreeMap::new();
        for (path, item) in &mut items {
            // docs/semantics.md says how those of a FIFO differ.
            if item.mode & libc::S_IFMT != libc::S_IFIFO {
                times.insert(path.clone(), (item.ino, item.mtime, item.ctime));
            }
            let next = numbers.len() as u64;
            item.ino = *numbers.entry(item.ino).or_insert(next);
            let zero = (0, 0);
            (item.atime, item.mtime, item.ctime) = (zero, zero, zero);
            if item.mode & libc::S_IFMT == libc::S_IFDIR {
                item.size = 0;
            }
        }
        Seen { items, times }
    }

    /// What of this is not as `disk` has it.
    pub(crate) fn faults(&self, disk: &Seen) -> Vec<String> {
        let mut paths: Vec<&PathBuf> = self.items.keys().chain(disk.items.keys()).collect();
        paths.sort();
        paths.dedup();
        let different = paths.into_iter().filter_map(|path| {
            let (view, disk) = (self.items.get(path), disk.items.get(path));
            (view != disk)
                .then(|| format!("{}: {view:?}, and on the disk {disk:?}", path.display()))
        });
        different.collect()
    }

    /// Times that moved since `before` where those of the disk did not, or the other way round. If
    /// the disk's are not `fine`, that they did not may be chance.
    pub(crate) fn times_faults(
        &self,
        before: &Seen,
        disk: &Seen,
        disk_before: &Seen,
        fine: bool,
    ) -> Vec<String> {
        let moved = |seen: &Seen, before: &Seen, path: &Path| {
            let (now, then) = (seen.times.get(path)?, before.times.get(path)?);
            // Another inode of that name is no change of times.
            (now.0 == then.0).then(|| [now.1 != then.1, now.2 != then.2])
        };
        let mut faults = Vec::new();
        for path in self.times.keys() {
            let pair = (moved(self, before, path), moved(disk, disk_before, path));
            let (Some(view), Some(disk)) = pair else {
                continue;
            };
            for (index, time) in ["mtime", "ctime"].into_iter().enumerate() {
                if view[index] != disk[index] && (fine || disk[index]) {
                    let whose = if disk[index] { "disk" } else { "view" };
                    faults.push(format!(
                        "{}: {time} moved only in the {whose}",
                        path.display()
                    ));
                }
            }
        }
        faults
    }
}

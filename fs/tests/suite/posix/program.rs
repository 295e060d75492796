//! Random programs of operations, made of numbers so that proptest can make them smaller.

use proptest::prelude::*;

/// One operation. Numbers choose among what is there when it is run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Makes a node of a kind in a directory.
    Create {
        kind: u8,
        dir: u16,
        name: u8,
        mode: u16,
    },
    Link {
        file: u16,
        dir: u16,
        name: u8,
    },
    Unlink {
        entry: u16,
    },
    RemoveDirectory {
        entry: u16,
    },
    /// A name of a directory, there or not, removed the one way or the other.
    RemoveName {
        dir: u16,
        name: u8,
        directory: bool,
    },
    Rename {
        entry: u16,
        dir: u16,
        name: u8,
        mode: u8,
    },
    /// Onto an entry that is there.
    RenameOver {
        entry: u16,
        other: u16,
        mode: u8,
    },
    Write {
        file: u16,
        at: u16,
        length: u16,
        byte: u8,
        kill: bool,
    },
    SetSize {
        file: u16,
        size: u16,
    },
    Allocate {
        file: u16,
        at: u16,
        length: u16,
        mode: u8,
    },
    Copy {
        from: u16,
        at: u16,
        to: u16,
        to_at: u16,
        length: u16,
    },
    Chmod {
        node: u16,
        mode: u16,
    },
    Chown {
        node: u16,
        uid: u8,
        gid: u8,
    },
    SetTimes {
        node: u16,
        atime: u8,
        mtime: u8,
    },
    SetXattr {
        node: u16,
        name: u8,
        length: u8,
        mode: u8,
    },
    RemoveXattr {
        node: u16,
        name: u8,
    },
    Open {
        node: u16,
    },
    Close {
        node: u16,
    },
    /// Begins to list a directory.
    List {
        dir: u16,
    },
    /// Goes on with a listing.
    ListMore {
        listing: u8,
        count: u8,
    },
    /// Closes everything, and opens it anew.
    Remount,
    /// Makes all that was done durable.
    Sync,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u8..9, any::<u16>(), 0u8..10, 0u16..0o10000)
            .prop_map(|(kind, dir, name, mode)| Step::Create { kind, dir, name, mode }),
        3 => (any::<u16>(), any::<u16>(), 0u8..10)
            .prop_map(|(file, dir, name)| Step::Link { file, dir, name }),
        3 => any::<u16>().prop_map(|entry| Step::Unlink { entry }),
        2 => any::<u16>().prop_map(|entry| Step::RemoveDirectory { entry }),
        1 => (any::<u16>(), 0u8..12, any::<bool>())
            .prop_map(|(dir, name, directory)| Step::RemoveName { dir, name, directory }),
        6 => (any::<u16>(), any::<u16>(), 0u8..10, 0u8..8)
            .prop_map(|(entry, dir, name, mode)| Step::Rename { entry, dir, name, mode }),
        6 => (any::<u16>(), any::<u16>(), 0u8..8)
            .prop_map(|(entry, other, mode)| Step::RenameOver { entry, other, mode }),
        8 => (any::<u16>(), any::<u16>(), any::<u16>(), any::<u8>(), any::<bool>())
            .prop_map(|(file, at, length, byte, kill)| Step::Write { file, at, length, byte, kill }),
        3 => (any::<u16>(), any::<u16>()).prop_map(|(file, size)| Step::SetSize { file, size }),
        4 => (any::<u16>(), any::<u16>(), any::<u16>(), 0u8..6)
            .prop_map(|(file, at, length, mode)| Step::Allocate { file, at, length, mode }),
        4 => (any::<u16>(), any::<u16>(), any::<u16>(), any::<u16>(), any::<u16>())
            .prop_map(|(from, at, to, to_at, length)| Step::Copy { from, at, to, to_at, length }),
        2 => (any::<u16>(), 0u16..0o10000).prop_map(|(node, mode)| Step::Chmod { node, mode }),
        2 => (any::<u16>(), 0u8..4, 0u8..4)
            .prop_map(|(node, uid, gid)| Step::Chown { node, uid, gid }),
        2 => (any::<u16>(), 0u8..5, 0u8..5)
            .prop_map(|(node, atime, mtime)| Step::SetTimes { node, atime, mtime }),
        3 => (any::<u16>(), 0u8..5, any::<u8>(), 0u8..3)
            .prop_map(|(node, name, length, mode)| Step::SetXattr { node, name, length, mode }),
        1 => (any::<u16>(), 0u8..5).prop_map(|(node, name)| Step::RemoveXattr { node, name }),
        4 => any::<u16>().prop_map(|node| Step::Open { node }),
        3 => any::<u16>().prop_map(|node| Step::Close { node }),
        1 => any::<u16>().prop_map(|dir| Step::List { dir }),
        3 => (any::<u8>(), 1u8..5).prop_map(|(listing, count)| Step::ListMore { listing, count }),
        1 => Just(Step::Remount),
        1 => Just(Step::Sync),
    ]
}

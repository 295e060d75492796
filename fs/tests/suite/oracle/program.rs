//! Random programs of system calls, made of numbers so that proptest can make them smaller.

use proptest::prelude::*;

/// Users and groups that act: root, and two that are in no group of the other's.
pub(crate) const USERS: [(u32, u32); 3] = [(0, 0), (4_001, 5_001), (4_002, 5_002)];

/// Names in a directory.
const NAMES: u8 = 4;
/// Descriptors that a program has.
pub(crate) const SLOTS: usize = 4;

/// A path: up to three names, each one of [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) names: [u8; 3],
    pub(crate) depth: u8,
}

/// A call and who makes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) user: usize,
    pub(crate) call: Call,
}

/// A system call. Where a number chooses among few things, it is taken modulo their count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Open {
        slot: u8,
        at: At,
        access: u8,
        flags: u8,
        mode: u16,
    },
    Close {
        slot: u8,
    },
    Read {
        slot: u8,
        length: u16,
    },
    ReadAt {
        slot: u8,
        at: u16,
        length: u16,
    },
    Write {
        slot: u8,
        length: u16,
        byte: u8,
    },
    WriteAt {
        slot: u8,
        at: u16,
        length: u16,
        byte: u8,
    },
    Seek {
        slot: u8,
        to: i32,
        whence: u8,
    },
    /// `SEEK_DATA`, or `SEEK_HOLE`.
    SeekHole {
        slot: u8,
        at: u16,
        data: bool,
    },
    SetSizeOfOpen {
        slot: u8,
        size: u16,
    },
    SetSize {
        at: At,
        size: u16,
    },
    /// Blocks read past the page cache (`O_DIRECT`), or written.
    Direct {
        at: At,
        block: u8,
        count: u8,
        write: Option<u8>,
    },
    Allocate {
        slot: u8,
        mode: u8,
        at: u16,
        length: u16,
    },
    Copy {
        from: u8,
        at: u16,
        to: u8,
        to_at: u16,
        length: u16,
    },
    Store {
        slot: u8,
        at: u16,
        byte: u8,
    },
    Load {
        slot: u8,
        at: u16,
    },
    Sync {
        slot: u8,
    },
    StatOpen {
        slot: u8,
    },
    ChmodOpen {
        slot: u8,
        mode: u16,
    },
    Make {
        at: At,
        kind: u8,
        mode: u16,
    },
    Link {
        at: At,
        to: At,
        follow: bool,
    },
    Unlink {
        at: At,
    },
    RemoveDirectory {
        at: At,
    },
    Rename {
        at: At,
        to: At,
        flags: u8,
    },
    Chmod {
        at: At,
        mode: u16,
    },
    Chown {
        at: At,
        uid: u8,
        gid: u8,
        follow: bool,
    },
    SetTimes {
        at: At,
        atime: u8,
        mtime: u8,
    },
    Access {
        at: At,
        mode: u8,
    },
    ReadLink {
        at: At,
    },
    List {
        at: At,
    },
    SetXattr {
        at: At,
        name: u8,
        length: u8,
        flags: u8,
    },
    GetXattr {
        at: At,
        name: u8,
        room: u8,
    },
    RemoveXattr {
        at: At,
        name: u8,
    },
    /// Closes all, unmounts the view and mounts it again; nothing on the disk.
    Remount,
}

fn at() -> impl Strategy<Value = At> {
    let names = [0..NAMES, 0..NAMES, 0..NAMES];
    (
        names,
        prop_oneof![1 => Just(0u8), 6 => Just(1), 8 => Just(2), 3 => Just(3)],
    )
        .prop_map(|(names, depth)| At { names, depth })
}

fn slot() -> impl Strategy<Value = u8> {
    0..SLOTS as u8
}

/// Twelve bits, most often such that something can be done afterwards.
fn mode() -> impl Strategy<Value = u16> {
    prop_oneof![
        4 => Just(0o777u16),
        2 => Just(0o666),
        1 => prop_oneof![Just(0o6777u16), Just(0o2666), Just(0o4755), Just(0o2770), Just(0o1777)],
        2 => 0..0o10000u16,
    ]
}

fn of_open_files() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => (slot(), at(), any::<u8>(), any::<u8>(), mode())
            .prop_map(|(slot, at, access, flags, mode)| Call::Open { slot, at, access, flags, mode }),
        1 => slot().prop_map(|slot| Call::Close { slot }),
        2 => (slot(), any::<u16>()).prop_map(|(slot, length)| Call::Read { slot, length }),
        2 => (slot(), any::<u16>(), any::<u16>())
            .prop_map(|(slot, at, length)| Call::ReadAt { slot, at, length }),
        3 => (slot(), 0..9000u16, any::<u8>())
            .prop_map(|(slot, length, byte)| Call::Write { slot, length, byte }),
        4 => (slot(), any::<u16>(), 0..9000u16, any::<u8>())
            .prop_map(|(slot, at, length, byte)| Call::WriteAt { slot, at, length, byte }),
        1 => (slot(), -70_000..70_000i32, any::<u8>())
            .prop_map(|(slot, to, whence)| Call::Seek { slot, to, whence }),
        2 => (slot(), any::<u16>(), any::<bool>())
            .prop_map(|(slot, at, data)| Call::SeekHole { slot, at, data }),
        2 => (slot(), any::<u16>()).prop_map(|(slot, size)| Call::SetSizeOfOpen { slot, size }),
        3 => (slot(), any::<u8>(), any::<u16>(), any::<u16>())
            .prop_map(|(slot, mode, at, length)| Call::Allocate { slot, mode, at, length }),
        2 => (slot(), any::<u16>(), slot(), any::<u16>(), any::<u16>())
            .prop_map(|(from, at, to, to_at, length)| Call::Copy { from, at, to, to_at, length }),
        2 => (slot(), any::<u16>(), any::<u8>())
            .prop_map(|(slot, at, byte)| Call::Store { slot, at, byte }),
        1 => (slot(), any::<u16>()).prop_map(|(slot, at)| Call::Load { slot, at }),
        1 => slot().prop_map(|slot| Call::Sync { slot }),
        2 => slot().prop_map(|slot| Call::StatOpen { slot }),
        1 => (slot(), mode()).prop_map(|(slot, mode)| Call::ChmodOpen { slot, mode }),
    ]
}

fn of_paths() -> impl Strategy<Value = Call> {
    prop_oneof![
        1 => (at(), any::<u16>()).prop_map(|(at, size)| Call::SetSize { at, size }),
        2 => (at(), 0..20u8, 1..8u8, proptest::option::of(any::<u8>()))
            .prop_map(|(at, block, count, write)| Call::Direct { at, block, count, write }),
        4 => (at(), any::<u8>(), mode()).prop_map(|(at, kind, mode)| Call::Make { at, kind, mode }),
        2 => (at(), at(), any::<bool>()).prop_map(|(at, to, follow)| Call::Link { at, to, follow }),
        2 => at().prop_map(|at| Call::Unlink { at }),
        1 => at().prop_map(|at| Call::RemoveDirectory { at }),
        4 => (at(), at(), any::<u8>()).prop_map(|(at, to, flags)| Call::Rename { at, to, flags }),
        2 => (at(), mode()).prop_map(|(at, mode)| Call::Chmod { at, mode }),
        2 => (at(), any::<u8>(), any::<u8>(), any::<bool>())
            .prop_map(|(at, uid, gid, follow)| Call::Chown { at, uid, gid, follow }),
        1 => (at(), any::<u8>(), any::<u8>())
            .prop_map(|(at, atime, mtime)| Call::SetTimes { at, atime, mtime }),
        1 => (at(), 0..8u8).prop_map(|(at, mode)| Call::Access { at, mode }),
        1 => at().prop_map(|at| Call::ReadLink { at }),
        1 => at().prop_map(|at| Call::List { at }),
        2 => (at(), any::<u8>(), any::<u8>(), any::<u8>())
            .prop_map(|(at, name, length, flags)| Call::SetXattr { at, name, length, flags }),
        1 => (at(), any::<u8>(), any::<u8>())
            .prop_map(|(at, name, room)| Call::GetXattr { at, name, room }),
        1 => (at(), any::<u8>()).prop_map(|(at, name)| Call::RemoveXattr { at, name }),
    ]
}

/// Any step.
pub(crate) fn step() -> impl Strategy<Value = Step> {
    let call = prop_oneof![30 => of_open_files(), 30 => of_paths(), 1 => Just(Call::Remount)];
    let user = prop_oneof![3 => Just(0usize), 2 => Just(1), 1 => Just(2)];
    (user, call).prop_map(|(user, call)| Step { user, call })
}

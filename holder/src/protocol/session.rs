//! The request for a session and what it results in.
//!
//! Owns the description of a session's root, view and network. Says what is wanted,
//! never how it is mounted.

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

/// A request for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// The new session's id: 1–128 of `A-Za-z0-9._-`, not beginning with a dot.
    pub session_id: String,
    /// Where the workspace's view comes from.
    pub view: View,
    /// Where the view appears: absolute, not `/`. Made in the sandbox's root if it is
    /// absent there and may be made.
    pub workspace_root: Bytes,
    /// What else the session sees.
    pub root: RootSpec,
    /// Its network.
    pub network: Network,
    /// Environment of its commands; a command's own environment overrides it.
    #[serde(default)]
    pub env: Vec<(Bytes, Bytes)>,
}

/// Where a session's view comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// From a descriptor beside the frame: a detached mount (from `fsmount` or `open_tree`), which
    /// is moved in place; or a directory opened with `O_PATH`, which is bound. A second descriptor,
    /// if there is one, is the view's connection (`/dev/fuse`): the holder keeps both, so that the
    /// mount outlives a gateway that dies, and another can serve it.
    Descriptor,
    /// A FUSE mount that the holder makes inside the session's user namespace. Copies of its
    /// connection and mount come back with the reply; the pids in its requests are
    /// those of the holder's pid namespace.
    MountFuse(FuseOptions),
}

/// How a [`View::MountFuse`] is mounted. `default_permissions`, `nosuid` and `nodev`
/// always hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FuseOptions {
    /// The name shown in mount tables; no NUL.
    pub fs_name: Bytes,
    /// Largest read request in bytes; `None`: the kernel's choice.
    #[serde(default)]
    pub max_read: Option<u32>,
    /// Lets ids other than the mounter's in. Needed for commands that run as another
    /// user than the session's.
    #[serde(default)]
    pub allow_other: bool,
}

/// What a session sees beside its view. The rest is the holder's root, read-only,
/// without device nodes and set-id programs.
///
/// Writable directories should lie where nobody else on the host can reach them: root of a
/// session with all ids may be the host's uid 0, and can leave set-id programs in them
/// (which mean nothing inside, where none are honoured).
///
/// Paths are absolute. Sources are paths in the holder's root; targets are paths in the
/// session. A target that lies in the workspace is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootSpec {
    /// A private home: a writable directory bound on the user's home path.
    #[serde(default)]
    pub home: Option<Bind>,
    /// Writable directory bound on `/tmp`. Its mode is used as it is; give it 1777.
    pub tmp: Bytes,
    /// Writable directory bound on `/var/tmp`; `None`: `tmp` is bound there too.
    #[serde(default)]
    pub var_tmp: Option<Bytes>,
    /// Paths to cover: a directory by an empty read-only one, a file by `/dev/null`.
    /// Where the holder may, mounts at and under them are taken away altogether. One
    /// that does not exist, or lies in the workspace, needs no cover. The holder's run
    /// directory and socket are always covered.
    ///
    /// Name the directory of a file that may be replaced, not the file: when the host
    /// renames another file over a covered one, or removes it, the kernel takes the cover
    /// away, and what is at the path then is seen.
    #[serde(default)]
    pub hide: Vec<Bytes>,
    /// Read-only binds, e.g. toolchains into the private home.
    #[serde(default)]
    pub expose: Vec<Bind>,
    /// Writable binds.
    #[serde(default)]
    pub writable: Vec<Bind>,
}

/// A bind of one path on another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// What is shown: a path in the holder's root.
    pub source: Bytes,
    /// Where it is shown: a path in the session.
    pub target: Bytes,
}

/// A session's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// The sandbox's own.
    Shared,
    /// A loopback interface and nothing else.
    Isolated,
}

/// A session as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// The session.
    pub session_id: String,
    /// Its init, in the holder's pid namespace.
    pub init_pid: i32,
    /// Its namespaces.
    pub namespaces: Namespaces,
    /// Its network.
    pub network: Network,
    /// Whether all ids exist in it (a full map), or only the holder's own user and group.
    pub all_ids: bool,
    /// Whether abstract unix sockets of others are out of reach: always with
    /// [`Network::Isolated`], else where the kernel has Landlock ABI 6 (Linux 6.12).
    pub abstract_sockets_fenced: bool,
    /// Whether it is being destroyed.
    pub ending: bool,
}

/// Inode numbers of a session's namespaces, as `stat` of `/proc/PID/ns/*` shows them.
/// Each command has a mount namespace of its own beside this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// User namespace.
    pub user: u64,
    /// Mount namespace of the session's init.
    pub mnt: u64,
    /// Pid namespace.
    pub pid: u64,
    /// System V and message queue namespace.
    pub ipc: u64,
    /// Network namespace; the holder's own when it is shared.
    pub net: u64,
}

//! The holder: the init of one sandbox.
//!
//! A holder is a small single-threaded process that keeps the namespaces, the
//! terminals and the transcripts of a sandbox alive where its commands run. The
//! gateway talks to it over a unix socket and may come and go; what runs, runs on.
//!
//! What this crate owns:
//! - [`protocol`]: what is said on the socket, and [`client`], the gateway's side of it;
//! - [`transcript`]: the on-disk form of a command's output, its writer (here) and its
//!   reader (the gateway's, on the same files);
//! - [`evidence`]: the exit record of a command on disk;
//! - [`serve`]: the holder itself.
//!
//! What it never does: know of stores, views' contents, layers or tokens; print;
//! read the environment or the home directory (the binary does).
//!
//! Invariants:
//! - A process of a session reaches nothing of another session and nothing of the
//!   holder: not its memory, its descriptors, its socket or its run directory.
//! - Every process of a command is found by the inode number of its mount namespace,
//!   whatever it forks, detaches or renames; so a kill of a command reaches all of it.
//! - When the holder goes, its sessions go: a session's init ends at the end of its
//!   control socket, and the kernel then ends everything in its pid namespace.

mod bytes;
mod caps;
pub mod client;
mod error;
pub mod evidence;
mod frame;
mod idmap;
mod init;
mod mounts;
pub mod protocol;
mod root;
mod seccomp;
mod server;
mod session;
mod spawn;
mod syscalls;
mod terminal;
pub mod transcript;

pub use bytes::Bytes;
pub use client::{Client, ViewDescriptors};
pub use error::Error;
pub use mounts::VIEW_SOURCE;
pub use server::{ServeOptions, serve};

//! Becoming a program.
//!
//! Owns the last steps of a command's process, in the order that each needs: what takes
//! capabilities, then dropping them, then what the user itself must be allowed to do
//! (entering the working directory, executing), under the filters.

use std::convert::Infallible;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{AccessFlags, access, chdir, getegid, geteuid};

use super::Ground;
use crate::bytes::Bytes;
use crate::caps;
use crate::protocol::{Program, Refusal, User};
use crate::session::control::Order;
use crate::syscalls;

/// Where programs are searched if the command has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const BASH: &CStr = c"/bin/bash";
const SH: &CStr = c"/bin/sh";

/// A program to become, ready for the system calls.
pub(super) struct Plan {
    /// What was asked for, for refusals.
    name: Bytes,
    /// Paths to try in turn.
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
}

impl Plan {
    /// Judges an order.
    pub(super) fn make(order: &Order, ground: &Ground) -> Result<Plan, Refusal> {
        if let Some(user) = &order.user
            && !ground.all_ids
        {
            exists_here(user)?;
        }
        let path = order.env.iter().rev().find(|(name, _)| name.0 == b"PATH");
        let path = path.map_or(DEFAULT_PATH, |(_, value)| &value.0);
        let (name, candidates, argv) = match &order.program {
            Program::Shell(script) => {
                let bash = access(BASH, AccessFlags::X_OK).is_ok();
                let shell = if bash { BASH } else { SH };
                let flags: &[&CStr] = if bash {
                    &[c"bash", c"--noprofile", c"--norc", c"-c"]
                } else {
                    &[c"sh", c"-c"]
                };
                let mut argv: Vec<CString> = flags.iter().map(|flag| (*flag).to_owned()).collect();
                argv.push(c_string("the script", &script.0)?);
                (Bytes::from(shell.to_bytes()), vec![shell.to_owned()], argv)
            }
            Program::Argv(words) => {
                let Some(program) = words.first().filter(|program| !program.0.is_empty()) else {
                    return Err(Refusal::invalid("program: argv must name a program"));
                };
                let argv = words
                    .iter()
                    .map(|word| c_string("an argument", &word.0))
                    .collect::<Result<_, _>>()?;
                (program.clone(), search(&program.0, path)?, argv)
            }
        };
        let env = order
            .env
            .iter()
            .map(|(name, value)| {
                if name.0.is_empty() || name.0.contains(&b'=') {
                    return Err(Refusal::invalid(
                        "env: a name must not be empty or contain =",
                    ));
                }
                c_string("the environment", &[&name.0[..], b"=", &value.0].concat())
            })
            .collect::<Result<_, _>>()?;
        let cwd = ground.workspace_root.join(order.cwd.as_path());
        let cwd = c_string("cwd", &cwd.into_os_string().into_vec())?;
        Ok(Plan {
            name,
            candidates,
            argv,
            env,
            cwd,
        })
    }

    /// Becomes the program. `status` is kept open until it does.
    pub(super) fn enter(
        &self,
        ground: &Ground,
        user: Option<&User>,
        status: RawFd,
    ) -> Result<Infallible, Refusal> {
        let (soft, hard) = ground.open_files;
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)
            .map_err(Refusal::spawn("set the limit of open files"))?;
        if let Some(processes) = ground.processes {
            // The kernel counts those of each user in each user namespace: one session's are not another's.
            getrlimit(Resource::RLIMIT_NPROC)
                .and_then(|(_, hard)| {
                    let limit = processes.min(hard);
                    setrlimit(Resource::RLIMIT_NPROC, limit, limit)
                })
                .map_err(Refusal::spawn("set the limit of processes"))?;
        }
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
        caps::bound(ground.caps).map_err(Refusal::spawn("bound capabilities"))?;
        if ground.all_ids {
            become_user(user).map_err(Refusal::spawn("become the user"))?;
        }
        caps::drop_to(ground.caps, geteuid().is_root())
            .map_err(Refusal::spawn("drop capabilities"))?;
        // Where the sysctl fs.suid_dumpable is not 0, the changes above have made this
        // process, which still has the init's memory, open to others of the user.
        syscalls::prctl(libc::PR_SET_DUMPABLE, 0).map_err(Refusal::spawn("hide"))?;
        chdir(self.cwd.as_c_str()).map_err(|errno| Refusal::Cwd {
            path: Bytes::from(self.cwd.to_bytes()),
            errno: errno as i32,
        })?;
        default_signals().map_err(Refusal::spawn("reset signals"))?;
        syscalls::close_all_but(&[status]).map_err(Refusal::spawn("close descriptors"))?;
        ground
            .filters
            .apply()
            .map_err(Refusal::spawn("filter system calls"))?;
        Err(self.execute())
    }

    /// Executes the first candidate that there is.
    fn execute(&self) -> Refusal {
        let mut denied = None;
        for path in &self.candidates {
            match execve(path, &self.argv, &self.env) {
                libc::ENOENT | libc::ENOTDIR => {
                    // It may be there, with an interpreter that is not.
                    if access(path.as_c_str(), AccessFlags::F_OK).is_ok() {
                        return self.not_executable(libc::ENOENT);
                    }
                }
                // Another directory may have one that may be run.
                libc::EACCES => denied = Some(libc::EACCES),
                libc::ENOEXEC => return self.execute_script(path),
                libc::E2BIG => return Refusal::ArgumentsTooLong,
                errno => return self.not_executable(errno),
            }
        }
        match denied {
            Some(errno) => self.not_executable(errno),
            None => Refusal::ProgramNotFound {
                program: self.name.clone(),
            },
        }
    }

    /// A text file without `#!` is a shell script, as `execvp` has it.
    fn execute_script(&self, path: &CStr) -> Refusal {
        let words = [SH, path].map(CStr::to_owned).into_iter();
        let argv: Vec<CString> = words.chain(self.argv.iter().skip(1).cloned()).collect();
        match execve(SH, &argv, &self.env) {
            libc::E2BIG => Refusal::ArgumentsTooLong,
            _ => self.not_executable(libc::ENOEXEC),
        }
    }

    fn not_executable(&self, errno: i32) -> Refusal {
        Refusal::NotExecutable {
            program: self.name.clone(),
            errno,
        }
    }
}

/// Executes a program; returns the error number if it can't.
fn execve(path: &CStr, argv: &[CString], env: &[CString]) -> i32 {
    match nix::unistd::execve(path, argv, env) {
        Ok(never) => match never {},
        Err(errno) => errno as i32,
    }
}

fn c_string(what: &str, bytes: &[u8]) -> Result<CString, Refusal> {
    CString::new(bytes).map_err(|_| Refusal::invalid(format!("{what} must not contain NUL")))
}

/// The paths that a program's name may mean.
fn search(program: &[u8], path: &[u8]) -> Result<Vec<CString>, Refusal> {
    if program.contains(&b'/') {
        return Ok(vec![c_string("the program", program)?]);
    }
    path.split(|byte| *byte == b':')
        .map(|dir| {
            // An empty entry is the working directory, by old custom.
            let dir = if dir.is_empty() { b"." } else { dir };
            let joined = Path::new(OsStr::from_bytes(dir)).join(OsStr::from_bytes(program));
            c_string("the program", joined.as_os_str().as_bytes())
        })
        .collect()
}

/// Under a single-identity map there is one user, and it is that already.
fn exists_here(user: &User) -> Result<(), Refusal> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let foreign = [(user.uid, uid), (user.gid, gid)]
        .into_iter()
        .chain(user.groups.iter().map(|group| (*group, gid)))
        .find(|(asked, own)| asked != own);
    match foreign {
        Some((id, _)) => Err(Refusal::IdNotMapped { id }),
        None => Ok(()),
    }
}

/// Takes the user's ids; without one, root's, without the holder's further groups.
fn become_user(user: Option<&User>) -> io::Result<()> {
    let root = User {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        groups: Vec::new(),
    };
    let user = user.unwrap_or(&root);
    let check = |result: libc::c_int| {
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    // SAFETY: the list has the length given and outlives the call; the others take
    // numbers only.
    unsafe {
        check(libc::setgroups(user.groups.len(), user.groups.as_ptr()))?;
        check(libc::setresgid(user.gid, user.gid, user.gid))?;
        check(libc::setresuid(user.uid, user.uid, user.uid))
    }
}

/// The kernel's last signal, and the size of its signal sets.
const LAST_SIGNAL: libc::c_int = 64;
const SIGSET_BYTES: usize = 8;

/// `struct sigaction` of the kernel, not of libc; all zero it means the default.
#[repr(C)]
#[derive(Default)]
struct KernelSigaction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Every signal to its default, none blocked: a program expects no less.
fn default_signals() -> io::Result<()> {
    // Not by libc, which keeps two signals to itself, while its own posix_spawn leaves them
    // ignored in what it starts; so they may have come down to us.
    for signal in
        (1..=LAST_SIGNAL).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal))
    {
        let default = KernelSigaction::default();
        let none = std::ptr::null_mut::<KernelSigaction>();
        // SAFETY: the action is the kernel's structure for it, with SIG_DFL, which runs no
        // code of ours; the old one is not asked for.
        let result = unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                none,
                SIGSET_BYTES,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    Ok(())
}

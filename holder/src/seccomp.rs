//! System calls that commands may not make.
//!
//! Owns the filters and their order. A deny-list, not an allow-list: the filter is the
//! second fence (the first is that a command has neither capabilities nor anything to
//! reach), and an allow-list breaks programs on every new kernel.
//!
//! | calls | answer | why |
//! |---|---|---|
//! | `mount umount2 pivot_root fsopen fsconfig fsmount fspick move_mount open_tree open_tree_attr mount_setattr` | `EPERM` | a session's root is final |
//! | `unshare`, `clone` with a namespace flag; `setns` | `EPERM` | a command is known by its mount namespace, and a new user namespace would bring capabilities back |
//! | `clone3` | `ENOSYS` | its flags lie in memory, where a filter can't look; libc falls back to `clone` |
//! | `io_uring_setup io_uring_enter io_uring_register` | `ENOSYS` | calls by ring pass no filter; callers fall back |
//! | `open_by_handle_at` | `EPERM` | opens files by number, past the root |
//! | `bpf perf_event_open userfaultfd` | `EPERM` | large kernel surface, no use here |
//! | `keyctl add_key request_key` | `EPERM` | keyrings are not namespaced |
//! | `kexec_load kexec_file_load init_module finit_module delete_module reboot` | `EPERM` | the host's |
//! | `swapon swapoff quotactl quotactl_fd acct` | `EPERM` | the host's |
//! | `settimeofday clock_settime sethostname setdomainname syslog` | `EPERM` | the host's |
//! | `socket(AF_VSOCK)` | `EPERM` | reaches the hypervisor; not namespaced |
//! | x32 calls (x86-64) | `ENOSYS` | a second set of numbers for the calls above |
//! | another architecture's calls | kill | as x32 |
//!
//! `ptrace` is allowed: debuggers are work, and a session's init is not dumpable.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;

/// `open_tree_attr` (Linux 6.15), which libc does not name yet; one number everywhere.
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;

const EPERM: &[libc::c_long] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
];

const ENOSYS: &[libc::c_long] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Flags of `unshare` and `clone` that make a namespace. `CLONE_NEWTIME` (0x80) is not
/// among `clone`'s: there the bit is part of the exit signal.
const NAMESPACE_FLAGS: &[libc::c_int] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
const CLONE_NEWTIME: libc::c_int = 0x80;

/// The filters, compiled.
#[derive(Clone, Debug)]
pub(crate) struct Filters(Vec<BpfProgram>);

impl Filters {
    /// Compiles the filters for this machine (tens of microseconds).
    pub(crate) fn compile() -> Result<Filters, seccompiler::BackendError> {
        let mut programs = vec![
            compile(
                ENOSYS.iter().map(|call| (*call, Vec::new())).collect(),
                libc::ENOSYS,
            )?,
            compile(denied()?, libc::EPERM)?,
        ];
        if cfg!(target_arch = "x86_64") {
            programs.push(refuse_x32());
        }
        Ok(Filters(programs))
    }

    /// Puts this process, and all that it becomes and forks, under the filters.
    pub(crate) fn apply(&self) -> io::Result<()> {
        for program in &self.0 {
            seccompiler::apply_filter(program).map_err(|error| match error {
                seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
                _ => io::Error::from_raw_os_error(libc::EINVAL),
            })?;
        }
        Ok(())
    }
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn denied() -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = EPERM.iter().map(|call| (*call, Vec::new())).collect();
    let any_of = |flags: &mut dyn Iterator<Item = libc::c_int>| {
        flags
            .map(|flag| {
                let flag = u64::from(flag as u32);
                rule(SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)
            })
            .collect::<Result<Vec<_>, _>>()
    };
    rules.insert(
        libc::SYS_clone,
        any_of(&mut NAMESPACE_FLAGS.iter().copied())?,
    );
    let unshared = NAMESPACE_FLAGS.iter().copied().chain([CLONE_NEWTIME]);
    rules.insert(libc::SYS_unshare, any_of(&mut unshared.into_iter())?);
    let vsock = libc::AF_VSOCK as u64;
    rules.insert(
        libc::SYS_socket,
        vec![rule(SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, vsock)?],
    );
    Ok(rules)
}

/// A rule on a call's first argument.
fn rule(
    width: SeccompCmpArgLen,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(0, width, op, value)?])
}

fn compile(rules: Rules, errno: libc::c_int) -> Result<BpfProgram, seccompiler::BackendError> {
    let refuse = SeccompAction::Errno(errno as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, ARCH)?.try_into()
}

/// Refuses call numbers with the x32 bit: they come under the architecture of x86-64,
/// so the check of the architecture does not see them.
fn refuse_x32() -> BpfProgram {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_GE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const X32_BIT: u32 = 0x4000_0000;
    let op = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        // The call's number is the first field of `struct seccomp_data`.
        op(LOAD, 0, 0, 0),
        op(JUMP_IF_GE, 0, 1, X32_BIT),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_within_the_kernels_limit() {
        let Filters(programs) = Filters::compile().unwrap();
        for program in programs {
            assert!(program.len() < libc::BPF_MAXINSNS as usize);
        }
    }
}

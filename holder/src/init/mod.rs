//! A session's init: pid 1 inside.
//!
//! Owns the session's processes: it forks commands, reaps everything, finds and kills
//! what belongs to a command. Works for the holder alone and ends with its socket, which
//! ends the session. Single-threaded; waits for nothing but its two descriptors (and the
//! few steps of a child up to its birth).
//!
//! Invariants:
//! - A main process is known before it can be reaped: its ids are read while forking.
//! - A message about a main process's end comes after all that could be known at that
//!   end; one `MainExited` for each command that was born.

mod freeze;
mod processes;
mod sweep;

use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::MsgFlags;
use nix::unistd::Pid;

use crate::error::Error;
use crate::frame::{self, Fill, FrameReader, Letter};
use crate::protocol::{ProcessInfo, Refusal, Survivor, refusal_errno};
use crate::session::control::{FromInit, MainExit, ToInit};
use crate::spawn::{self, Ground, LET_GO};
use crate::syscalls;
use freeze::Frozen;
use processes::{Belonging, Marks, Process};
use sweep::Sweep;

/// How often, at most, the init looks whether leaders have become useless, while
/// processes of their commands end.
const LEADER_CHECK: Duration = Duration::from_millis(50);

struct Init<'a> {
    control: &'a OwnedFd,
    reader: FrameReader,
    signals: SignalFd,
    ground: Ground,
    /// The commands of this session, until the holder forgets them.
    commands: BTreeMap<String, Marks>,
    sweeps: Vec<Sweep>,
    /// When to look after leaders; `None`: nothing has ended since.
    leader_check: Option<Instant>,
    /// The session's processes, while they stand still.
    frozen: Option<Frozen>,
}

/// Lives until the holder is gone; returns the exit code.
pub(crate) fn run(control: &OwnedFd, ground: Ground) -> i32 {
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let Ok(signals) = SignalFd::with_flags(&children, flags) else {
        return 3;
    };
    let mut init = Init {
        control,
        reader: FrameReader::default(),
        signals,
        ground,
        commands: BTreeMap::new(),
        sweeps: Vec::new(),
        leader_check: None,
        frozen: None,
    };
    loop {
        match init.turn() {
            Ok(true) => {}
            // The holder is gone: ending ends all that is here.
            Ok(false) => return 0,
            Err(_) => return 4,
        }
    }
}

impl Init<'_> {
    /// Waits for something and does it; `false` when the holder is gone.
    fn turn(&mut self) -> Result<bool, Error> {
        let mut fds = [
            PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, self.patience()) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::system("wait")(errno)),
        }
        let said = fds[0].revents().is_some_and(|events| !events.is_empty());
        let died = fds[1].revents().is_some_and(|events| !events.is_empty());
        if died {
            while self
                .signals
                .read_signal()
                .map_err(Error::system("read signals"))?
                .is_some()
            {}
            self.reap()?;
        }
        if said && !self.listen()? {
            return Ok(false);
        }
        self.sweep()?;
        self.check_leaders()?;
        Ok(true)
    }

    fn patience(&self) -> PollTimeout {
        let next = self
            .sweeps
            .iter()
            .map(Sweep::due)
            .chain(self.leader_check)
            .min();
        match next {
            None => PollTimeout::NONE,
            Some(at) => {
                let wait = at.saturating_duration_since(Instant::now());
                // Rounded up: a wait of zero before the time would spin.
                PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            }
        }
    }

    fn tell(&self, message: &FromInit) -> Result<(), Error> {
        frame::send_letter(self.control.as_fd(), message, &[])
    }

    fn listen(&mut self) -> Result<bool, Error> {
        let fill = self
            .reader
            .fill(self.control.as_fd(), MsgFlags::MSG_DONTWAIT)?;
        while let Some(body) = self.reader.next_frame()? {
            let letter: Letter<ToInit> = frame::decode(&body)?;
            let fds = self.reader.take_fds(letter.fds)?;
            self.obey(letter.body, fds)?;
        }
        Ok(fill != Fill::End)
    }

    fn obey(&mut self, message: ToInit, fds: Vec<OwnedFd>) -> Result<(), Error> {
        match message {
            // Meant for the setup process, which has got it.
            ToInit::MapsWritten => Ok(()),
            ToInit::Spawn(order) => {
                match spawn::spawn(&order, fds, &self.ground) {
                    Ok(Some(born)) => {
                        let newer = Marks::new(born);
                        self.commands
                            .values_mut()
                            .for_each(|older| older.give_way(&newer));
                        self.commands.insert(order.command_id, newer);
                        Ok(())
                    }
                    Ok(None) => {
                        // If it has told the holder itself, that came first.
                        let command_id = order.command_id;
                        let refusal = Refusal::KilledEarly {
                            command_id: command_id.clone(),
                        };
                        self.tell(&FromInit::SpawnFailed {
                            command_id,
                            refusal,
                        })
                    }
                    Err(refusal) => {
                        let command_id = order.command_id;
                        self.tell(&FromInit::SpawnFailed {
                            command_id,
                            refusal,
                        })
                    }
                }
            }
            ToInit::Signal {
                token,
                command_id,
                signal,
            } => {
                let processes = self.signal(&command_id, signal)?;
                self.tell(&FromInit::Signalled { token, processes })
            }
            ToInit::Kill { command_id } => {
                self.sweeps.push(Sweep::new(command_id));
                Ok(())
            }
            ToInit::Survivors { token, command_id } => {
                let survivors = survivors(&self.alive(&command_id)?);
                self.tell(&FromInit::Survivors { token, survivors })
            }
            ToInit::Processes { token } => {
                let processes = self.processes()?;
                self.tell(&FromInit::Processes { token, processes })
            }
            ToInit::Freeze { token } => {
                if self.frozen.is_none() {
                    self.frozen = Frozen::freeze()?;
                }
                let still = self.frozen.is_some();
                self.tell(&FromInit::Frozen { token, still })
            }
            ToInit::Thaw { token } => {
                if let Some(frozen) = self.frozen.take() {
                    frozen.thaw();
                }
                self.tell(&FromInit::Thawed { token })
            }
            ToInit::Connect {
                token,
                port,
                version_6,
            } => match syscalls::begin_connection(port, version_6) {
                Ok(socket) => {
                    let begun = FromInit::Connecting {
                        token,
                        refusal: None,
                    };
                    frame::send_letter(self.control.as_fd(), &begun, &[socket.as_fd()])
                }
                Err(error) => self.tell(&FromInit::Connecting {
                    token,
                    refusal: Some(Refusal::ConnectRefused {
                        port,
                        errno: refusal_errno(&error),
                    }),
                }),
            },
            ToInit::Forget { command_id } => {
                self.commands.remove(&command_id);
                Ok(())
            }
        }
    }

    /// All processes, each with the command it belongs to.
    fn scan(&self) -> Result<Vec<(Process, Option<String>)>, Error> {
        let seen = processes::scan().map_err(Error::path("list", "/proc"))?;
        let known = self.commands.iter().map(|(id, marks)| (id.as_str(), marks));
        let belonging = Belonging::new(known, &seen);
        let owners: Vec<Option<String>> = seen
            .iter()
            .map(|process| belonging.owner(process).map(str::to_owned))
            .collect();
        Ok(seen.into_iter().zip(owners).collect())
    }

    /// The living processes of a command, without its leader.
    fn alive(&self, command_id: &str) -> Result<Vec<Process>, Error> {
        let Some(marks) = self.commands.get(command_id) else {
            return Ok(Vec::new());
        };
        let leader = marks.leader.map(Pid::as_raw);
        let of_command = |(process, owner): (Process, Option<String>)| {
            let counts = owner.as_deref() == Some(command_id)
                && process.is_alive()
                && Some(process.pid) != leader;
            counts.then_some(process)
        };
        Ok(self.scan()?.into_iter().filter_map(of_command).collect())
    }

    fn signal(&self, command_id: &str, signal: i32) -> Result<usize, Error> {
        let mut reached = 0;
        for process in self.alive(command_id)? {
            // Numbers are checked by the holder; one that just ended is no failure.
            // SAFETY: a call without pointers.
            reached += usize::from(unsafe { libc::kill(process.pid, signal) } == 0);
        }
        Ok(reached)
    }

    fn processes(&self) -> Result<Vec<ProcessInfo>, Error> {
        let info = |(process, command_id): (Process, Option<String>)| ProcessInfo {
            pid: process.pid,
            ppid: process.ppid,
            name: process.name.into(),
            state: process.state,
            command_id,
        };
        Ok(self.scan()?.into_iter().map(info).collect())
    }

    fn reap(&mut self) -> Result<(), Error> {
        loop {
            let (mut status, mut usage) = (0, zeroed_usage());
            // SAFETY: both results outlive the call and have the types that it writes.
            let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
            if pid <= 0 {
                return Ok(());
            }
            self.leader_check
                .get_or_insert_with(|| Instant::now() + LEADER_CHECK);
            self.buried(Pid::from_raw(pid), status, &usage)?;
        }
    }

    fn buried(&mut self, pid: Pid, status: i32, usage: &libc::rusage) -> Result<(), Error> {
        for marks in self.commands.values_mut() {
            marks.leader = marks.leader.filter(|leader| *leader != pid);
        }
        let main = self
            .commands
            .iter_mut()
            .find(|(_, marks)| marks.main == Some(pid));
        let Some((id, marks)) = main else {
            return Ok(());
        };
        marks.main = None;
        let id = id.clone();
        let survivors = survivors(&self.alive(&id)?);
        self.release_leader(&id, survivors.is_empty());
        let exit = main_exit(status, usage, survivors);
        self.tell(&FromInit::MainExited {
            command_id: id,
            exit,
        })
    }

    /// After the main process's end: ends a leader that nothing needs, makes another let
    /// go of the terminal.
    fn release_leader(&mut self, command_id: &str, useless: bool) {
        let leader = self.commands.get(command_id).and_then(|marks| marks.leader);
        if let Some(leader) = leader {
            let signal = if useless { Signal::SIGKILL } else { LET_GO };
            // It is our child and not yet reaped, so the pid is its own; a command may have
            // killed it, which is as good.
            let _ = kill(leader, signal);
        }
    }

    fn check_leaders(&mut self) -> Result<(), Error> {
        if self.leader_check.is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        self.leader_check = None;
        let waiting: Vec<String> = self
            .commands
            .iter()
            .filter(|(_, marks)| marks.main.is_none() && marks.leader.is_some())
            .map(|(id, _)| id.clone())
            .collect();
        for id in waiting {
            if self.alive(&id)?.is_empty() {
                self.release_leader(&id, true);
            }
        }
        Ok(())
    }

    fn sweep(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let mut sweeps = std::mem::take(&mut self.sweeps);
        let mut going = Vec::with_capacity(sweeps.len());
        for mut sweep in sweeps.drain(..) {
            if sweep.due() > now {
                going.push(sweep);
                continue;
            }
            let alive = self.alive(sweep.command_id())?;
            let others = |doomed: &[Process]| -> Result<Vec<Process>, Error> {
                let doomed: HashSet<i32> = doomed.iter().map(|process| process.pid).collect();
                let all = self.scan()?.into_iter().map(|(process, _)| process);
                Ok(all
                    .filter(|process| !doomed.contains(&process.pid))
                    .collect())
            };
            let again = || self.alive(sweep.command_id());
            if sweep::storms(&sweep, &alive) {
                sweep::freeze_and_kill(again, others)?;
            } else {
                sweep::kill_all(&alive);
            }
            if sweep.is_over(&alive) {
                let main_gone = self
                    .commands
                    .get(sweep.command_id())
                    .is_none_or(|marks| marks.main.is_none());
                if alive.is_empty() && main_gone {
                    self.release_leader(sweep.command_id(), true);
                }
                let command_id = sweep.command_id().to_owned();
                self.tell(&FromInit::Swept {
                    command_id,
                    survivors: survivors(&alive),
                })?;
            } else {
                going.push(sweep);
            }
        }
        self.sweeps = going;
        Ok(())
    }
}

fn survivors(alive: &[Process]) -> Vec<Survivor> {
    alive
        .iter()
        .map(|process| Survivor {
            pid: process.pid,
            name: process.name.clone().into(),
        })
        .collect()
}

fn zeroed_usage() -> libc::rusage {
    // SAFETY: an all-zero rusage is a valid one.
    unsafe { std::mem::zeroed() }
}

fn main_exit(status: i32, usage: &libc::rusage, survivors: Vec<Survivor>) -> MainExit {
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    let exited = libc::WIFEXITED(status);
    MainExit {
        code: exited.then(|| libc::WEXITSTATUS(status)),
        signal: (!exited).then(|| libc::WTERMSIG(status)),
        user_cpu_us: micros(usage.ru_utime),
        system_cpu_us: micros(usage.ru_stime),
        // The kernel counts in KiB.
        max_rss_bytes: usage.ru_maxrss as u64 * 1024,
        survivors,
    }
}

//! Commands, from the holder's side: their end.
//!
//! Owns the rule of when a command has ended, the kills, and the evidence.
//!
//! A command has ended when its main process has, when a kill of it (if any) is through,
//! and when its output is there: all streams have ended, or, if processes live on that
//! hold them open, they have been quiet for a moment. So a background job does not keep
//! its command from ending, and what a filter such as `tee` still has to say is not cut
//! off from what it belongs to.

use std::time::{Duration, Instant};

use super::Holder;
use super::commands::{Command, Phase, unix_ms};
use super::connection::ReplyTo;
use super::output::Output;
use super::timers::Timer;
use crate::evidence;
use crate::protocol::{Event, ExitRecord, ExitStatus, Refusal, Reply, Survivor};
use crate::session::control::{MainExit, ToInit};

/// How long streams that others hold open must be quiet. Longer than a waiting process
/// needs to get the CPU and write, shorter than anybody minds.
const QUIET: Duration = Duration::from_millis(100);

/// How long they are waited for if they are never quiet.
const LONGEST_LINGER: Duration = Duration::from_millis(500);

/// Why the holder kills a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    TimedOut,
    Cancelled,
}

/// The wait for streams that others hold open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linger {
    last_heard: Instant,
    until: Instant,
    /// Whether a timer will ring for it.
    scheduled: bool,
}

impl Linger {
    fn begin() -> Linger {
        let now = Instant::now();
        Linger {
            last_heard: now,
            until: now + LONGEST_LINGER,
            scheduled: false,
        }
    }

    /// Output came.
    pub(super) fn heard(&mut self) {
        self.last_heard = Instant::now();
    }

    fn ends(&self) -> Instant {
        (self.last_heard + QUIET).min(self.until)
    }
}

impl Holder {
    /// A command's time is up.
    pub(super) fn time_out(&mut self, command_id: &str) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        // The timer may be an earlier command's of this name.
        let is_up = command
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now());
        let goes_on = is_up
            && match command.phase {
                Phase::Starting(_) | Phase::Running => command.main_exit.is_none(),
                Phase::Failing(..) | Phase::Ended(_) | Phase::Forgotten => false,
            };
        if goes_on {
            command.verdict.get_or_insert(Verdict::TimedOut);
            self.kill(command_id);
        }
    }

    pub(super) fn cancel(&mut self, command_id: &str, reply_to: ReplyTo) {
        let session_id = match self.command(command_id) {
            Ok(command) => command.session_id.clone(),
            Err(refusal) => return self.refuse(reply_to, refusal),
        };
        if self.ready_session(&session_id).is_err() {
            // Everything of it has gone with its session, or is just going.
            return self.reply(
                reply_to,
                Reply::Survivors {
                    survivors: Vec::new(),
                },
                Vec::new(),
            );
        }
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        command.cancellers.push(reply_to);
        if command.main_exit.is_none() && !matches!(command.phase, Phase::Ended(_)) {
            command.verdict.get_or_insert(Verdict::Cancelled);
        }
        self.kill(command_id);
    }

    pub(super) fn kill(&mut self, command_id: &str) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        if !command.sweeping {
            command.sweeping = true;
            let session_id = command.session_id.clone();
            let message = ToInit::Kill {
                command_id: command_id.to_owned(),
            };
            self.tell_session(&session_id, &message, Vec::new());
        }
    }

    /// A kill is through.
    pub(super) fn swept(&mut self, command_id: &str, survivors: Vec<Survivor>) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        command.sweeping = false;
        command.left = Some(survivors.clone());
        for reply_to in std::mem::take(&mut command.cancellers) {
            self.reply(
                reply_to,
                Reply::Survivors {
                    survivors: survivors.clone(),
                },
                Vec::new(),
            );
        }
        self.fail_if_swept(command_id);
        self.settle(command_id);
    }

    /// A main process has ended.
    pub(super) fn main_exited(&mut self, command_id: &str, exit: MainExit) {
        // What it last said of its start comes first: it is told on another socket.
        self.hear_status(command_id);
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        command.main_exit = Some((exit, unix_ms()));
        if command.is_starting() && command.status.is_none() && command.spawned.pid == 0 {
            let command_id = command_id.to_owned();
            return self.spawn_failed(&command_id.clone(), Refusal::KilledEarly { command_id });
        }
        self.drain(command_id);
        self.settle(command_id);
    }

    /// Ends a command if all that an end takes is there.
    pub(super) fn settle(&mut self, command_id: &str) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        let open = command
            .outputs
            .iter()
            .any(|output: &Output| output.fd.is_some());
        match command.phase {
            Phase::Running => {}
            Phase::Forgotten if !open => return self.remove_command(command_id),
            Phase::Ended(_) if !open => return command.transcript.rest(),
            Phase::Starting(_) | Phase::Failing(..) | Phase::Ended(_) | Phase::Forgotten => return,
        }
        if command.main_exit.is_none() || command.sweeping {
            return;
        }
        if open {
            let linger = command.linger.get_or_insert_with(Linger::begin);
            if linger.ends() > Instant::now() {
                if !linger.scheduled {
                    linger.scheduled = true;
                    self.timers
                        .at(linger.ends(), Timer::Linger(command_id.to_owned()));
                }
                return;
            }
        }
        self.end_command(command_id);
    }

    /// The time that streams were to be quiet is over, or has been put off by output.
    pub(super) fn linger_rings(&mut self, command_id: &str) {
        let linger = self
            .commands
            .get_mut(command_id)
            .and_then(|command| command.linger.as_mut());
        if let Some(linger) = linger {
            linger.scheduled = false;
            self.settle(command_id);
        }
    }

    fn end_command(&mut self, command_id: &str) {
        self.announce_rest(command_id);
        self.close_input(command_id);
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        let record = command.record(command_id);
        if let Err(error) = evidence::write(&command.dir, &record) {
            tracing::error!(%error, command_id, "the exit record can't be written");
        }
        command.phase = Phase::Ended(Box::new(record.clone()));
        // Many commands may wait to be forgotten; their files need not stay open.
        command.transcript.rest();
        tracing::debug!(command_id, status = ?record.status, "command ended");
        self.emit(Event::Exited(record));
    }

    pub(super) fn forget(&mut self, command_id: &str) -> Result<(), Refusal> {
        let command = self.command(command_id)?;
        if !matches!(command.phase, Phase::Ended(_)) {
            return Err(Refusal::CommandRunning {
                command_id: command_id.to_owned(),
            });
        }
        if let Some(command) = self.commands.get_mut(command_id) {
            command.phase = Phase::Forgotten;
            command.namespace = None;
        }
        self.settle(command_id);
        Ok(())
    }

    /// Ends every command of a session that is gone.
    pub(super) fn end_commands_of(&mut self, session_id: &str, gone: &Refusal) {
        let ids: Vec<String> = self
            .commands
            .iter()
            .filter(|(_, command)| command.session_id == session_id)
            .map(|(id, _)| id.clone())
            .collect();
        for id in ids {
            self.hear_status(&id);
            self.drain(&id);
            self.close_outputs(&id);
            self.spawn_failed(&id, gone.clone());
            // Nobody is there any more to answer a kill.
            self.swept(&id, Vec::new());
            let Some(command) = self.commands.get_mut(&id) else {
                continue;
            };
            if matches!(command.phase, Phase::Running) && command.main_exit.is_none() {
                command.main_exit = Some((MainExit::killed(), unix_ms()));
            }
            self.settle(&id);
            self.close_input(&id);
        }
    }
}

impl Command {
    fn record(&self, command_id: &str) -> ExitRecord {
        let main = self.main_exit.as_ref();
        let exit = main.map(|(exit, _)| exit);
        let status = match (self.verdict, exit) {
            (Some(Verdict::TimedOut), _) => ExitStatus::TimedOut,
            (Some(Verdict::Cancelled), _) => ExitStatus::Cancelled,
            (
                None,
                Some(MainExit {
                    code: Some(code), ..
                }),
            ) => ExitStatus::Exited { code: *code },
            (None, exit) => ExitStatus::Signalled {
                signal: exit.and_then(|exit| exit.signal).unwrap_or(libc::SIGKILL),
            },
        };
        // After a kill, what that left; else what was there when the main process ended.
        let survivors = match (&self.left, self.verdict) {
            (Some(left), _) => left.clone(),
            (None, Some(_)) => Vec::new(),
            (None, None) => exit.map(|exit| exit.survivors.clone()).unwrap_or_default(),
        };
        ExitRecord {
            command_id: command_id.to_owned(),
            session_id: self.session_id.clone(),
            status,
            started_unix_ms: self.started_unix_ms,
            ended_unix_ms: main.map_or_else(unix_ms, |(_, ended)| *ended),
            user_cpu_us: exit.map_or(0, |exit| exit.user_cpu_us),
            system_cpu_us: exit.map_or(0, |exit| exit.system_cpu_us),
            max_rss_bytes: exit.map_or(0, |exit| exit.max_rss_bytes),
            survivors,
            streams: self.transcript.totals(),
        }
    }
}

//! Output on its way from a command to its transcript.
//!
//! Owns the reading ends and the pace of announcements. A command's output is read as
//! fast as it comes, whoever listens: it never waits for a gateway.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::read;

use super::Holder;
use super::commands::Command;
use super::poller::Source;
use super::timers::Timer;
use crate::protocol::{Event, Stream};

/// The least time between two announcements of one command's output.
const PACE: Duration = Duration::from_millis(20);

/// Bytes read from one stream before others have a turn.
const TURN: usize = 256 << 10;

/// Bytes read after the main process's end at most, in one go. What it wrote is in the
/// kernel then: a pipe holds 64 KiB (1 MiB at most), a terminal less. More can only come
/// from processes that live on, and is read in turn like all output.
const REST: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Output {
    pub(super) stream: Stream,
    /// `None`: not there yet, or ended.
    pub(super) fd: Option<OwnedFd>,
    /// Whether it has grown since it was last announced.
    unannounced: bool,
}

impl Output {
    pub(super) fn new(stream: Stream, fd: Option<OwnedFd>) -> Output {
        Output {
            stream,
            fd,
            unannounced: false,
        }
    }
}

/// When a command's output was last announced, and whether it will be anew.
#[derive(Debug, Default)]
pub(super) struct Pace {
    last: Option<Instant>,
    scheduled: bool,
}

impl Holder {
    /// A stream has something, or has ended.
    pub(super) fn read_output(&mut self, command_id: &str, stream: Stream) {
        self.pump(command_id, stream, TURN);
        self.announce_in_time(command_id);
        self.settle(command_id);
    }

    /// Reads what is there now on all streams.
    pub(super) fn drain(&mut self, command_id: &str) {
        let Some(command) = self.commands.get(command_id) else {
            return;
        };
        let streams: Vec<Stream> = command.outputs.iter().map(|output| output.stream).collect();
        for stream in streams {
            self.pump(command_id, stream, REST);
        }
    }

    fn pump(&mut self, command_id: &str, stream: Stream, most: usize) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        let Command {
            outputs,
            transcript,
            linger,
            ..
        } = command;
        let Some(output) = outputs.iter_mut().find(|output| output.stream == stream) else {
            return;
        };
        let mut taken = 0;
        while taken < most {
            let Some(fd) = &output.fd else {
                return;
            };
            match read(fd, &mut self.buffer) {
                // A terminal without users says EIO.
                Ok(0) | Err(Errno::EIO) => {
                    let source = Source::Output(command_id.to_owned(), stream);
                    self.poller.remove(fd, &source);
                    output.fd = None;
                    if stream == Stream::Pty {
                        self.close_input(command_id);
                    }
                    return;
                }
                Ok(count) => {
                    taken += count;
                    output.unannounced = true;
                    if let Some(linger) = linger {
                        linger.heard();
                    }
                    if let Err(error) = transcript.append(stream, &self.buffer[..count]) {
                        let detail = with_sources(&error);
                        tracing::error!(command_id, %stream, detail, "output is lost");
                    }
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, command_id, %stream, "output can't be read");
                    let source = Source::Output(command_id.to_owned(), stream);
                    self.poller.remove(fd, &source);
                    output.fd = None;
                    transcript.lose(stream, format!("it cannot be read: {errno}"));
                    output.unannounced = true;
                    return;
                }
            }
        }
    }

    /// Announces growth now, or when the pace allows.
    fn announce_in_time(&mut self, command_id: &str) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        if command.pace.scheduled || !command.outputs.iter().any(|output| output.unannounced) {
            return;
        }
        let next = command.pace.last.map(|last| last + PACE);
        match next.filter(|next| *next > Instant::now()) {
            Some(next) => {
                command.pace.scheduled = true;
                self.timers.at(next, Timer::Announce(command_id.to_owned()));
            }
            None => self.announce(command_id),
        }
    }

    /// Announces growth, unless the gateway has not yet read what it was told.
    pub(super) fn announce(&mut self, command_id: &str) {
        let calm = self.gateway_is_calm();
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        command.pace.scheduled = false;
        command.pace.last = Some(Instant::now());
        if calm {
            self.announce_rest(command_id);
        } else {
            self.announce_in_time(command_id);
        }
    }

    /// Announces all growth that has not been.
    pub(super) fn announce_rest(&mut self, command_id: &str) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        let mut events = Vec::new();
        for output in command
            .outputs
            .iter_mut()
            .filter(|output| output.unannounced)
        {
            output.unannounced = false;
            if let Some(totals) = command.transcript.stream_totals(output.stream) {
                events.push(Event::Output {
                    command_id: command_id.to_owned(),
                    stream: totals.stream,
                    total_bytes: totals.total_bytes,
                    total_lines: totals.total_lines,
                    lost: totals.lost,
                });
            }
        }
        for event in events {
            self.emit(event);
        }
    }

    /// Stops reading all streams.
    pub(super) fn close_outputs(&mut self, command_id: &str) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        for output in &mut command.outputs {
            if let Some(fd) = output.fd.take() {
                let source = Source::Output(command_id.to_owned(), output.stream);
                self.poller.remove(&fd, &source);
            }
        }
    }
}

/// An error in one line, with what caused it.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(source) = at {
        text.push_str(": ");
        text.push_str(&source.to_string());
        at = source.source();
    }
    text
}

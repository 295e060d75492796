//! Input on its way to a command.
//!
//! Owns a bounded queue for each command and the descriptor that it goes to. The queue
//! is filled whole or not at all, so a caller that is told "busy" knows that nothing of
//! its data went in.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::unistd::write;

use super::Holder;
use super::poller::Source;
use crate::protocol::{MAX_STDIN_BYTES, Refusal};
use crate::terminal;

#[derive(Debug)]
pub(super) struct Input {
    /// Where it goes; `None`: not there yet, or closed.
    fd: Option<OwnedFd>,
    terminal: bool,
    queue: VecDeque<u8>,
    /// Whether the input ends after what is queued. On a terminal: whether the end is to
    /// be typed as soon as there is a terminal.
    ends: bool,
    closed: bool,
    /// Whether the last line that went to a terminal is not finished.
    line_open: bool,
}

/// How a queue stands after a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flushed {
    /// All has gone.
    Empty,
    /// The command does not read; some waits.
    Waiting,
    /// There is nowhere to write any more.
    Closed,
}

impl Input {
    pub(super) fn new(terminal: bool, fd: Option<OwnedFd>) -> Input {
        let queue = VecDeque::new();
        Input {
            fd,
            terminal,
            queue,
            ends: false,
            closed: false,
            line_open: false,
        }
    }

    /// Queues data, and the end after it. A terminal's end is typed here, for it depends
    /// on the terminal's present mode; before there is a terminal it is remembered.
    pub(super) fn push(&mut self, command_id: &str, data: &[u8], eof: bool) -> Result<(), Refusal> {
        if self.closed || (self.ends && !self.terminal) {
            return Err(Refusal::StdinClosed {
                command_id: command_id.to_owned(),
            });
        }
        if self.queue.len() + data.len() > MAX_STDIN_BYTES {
            return Err(Refusal::Busy {
                queued: self.queue.len(),
                limit: MAX_STDIN_BYTES,
            });
        }
        self.queue.extend(data);
        if let Some(last) = data.last() {
            self.line_open = *last != b'\n' && *last != b'\r';
        }
        self.ends |= eof;
        self.type_end()
    }

    /// The terminal is there.
    pub(super) fn connect(&mut self, master: OwnedFd) -> Result<(), Refusal> {
        self.fd = Some(master);
        self.type_end()
    }

    fn type_end(&mut self) -> Result<(), Refusal> {
        if self.terminal
            && self.ends
            && let Some(master) = &self.fd
        {
            let typed = terminal::end_of_input(master.as_fd(), self.line_open);
            self.queue
                .extend(typed.map_err(Refusal::spawn("read the terminal's mode"))?);
            self.ends = false;
            self.line_open = false;
        }
        Ok(())
    }

    fn flush(&mut self) -> Flushed {
        let Some(fd) = &self.fd else {
            return if self.closed {
                Flushed::Closed
            } else {
                Flushed::Empty
            };
        };
        while !self.queue.is_empty() {
            match write(fd, self.queue.as_slices().0) {
                Ok(count) => drop(self.queue.drain(..count)),
                Err(Errno::EAGAIN) => return Flushed::Waiting,
                Err(Errno::EINTR) => {}
                // The command has closed its end, or is gone.
                Err(_) => return Flushed::Closed,
            }
        }
        if self.queue.capacity() > MAX_STDIN_BYTES / 4 {
            self.queue = VecDeque::new();
        }
        if self.ends && !self.terminal {
            Flushed::Closed
        } else {
            Flushed::Empty
        }
    }

    /// Forgets what waits and gives the descriptor back.
    fn close(&mut self) -> Option<OwnedFd> {
        self.closed = true;
        self.queue = VecDeque::new();
        self.fd.take()
    }

    /// The terminal, if there is one.
    pub(super) fn terminal(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|_| self.terminal)
    }
}

impl Holder {
    pub(super) fn write_stdin(
        &mut self,
        command_id: &str,
        data: &[u8],
        eof: bool,
    ) -> Result<(), Refusal> {
        self.running(command_id)?
            .input
            .push(command_id, data, eof)?;
        self.feed(command_id);
        Ok(())
    }

    pub(super) fn resize(&mut self, command_id: &str, rows: u16, cols: u16) -> Result<(), Refusal> {
        let command = self.running(command_id)?;
        let Some(master) = command.input.terminal() else {
            return Err(Refusal::NotATerminal {
                command_id: command_id.to_owned(),
            });
        };
        let sized: io::Result<()> = terminal::resize(master.as_fd(), rows, cols);
        sized.map_err(Refusal::spawn("resize the terminal"))
    }

    /// Writes what waits, as far as the command takes it.
    pub(super) fn feed(&mut self, command_id: &str) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        let source = Source::Input(command_id.to_owned());
        match command.input.flush() {
            Flushed::Waiting => {
                if let Some(fd) = &command.input.fd
                    && !self.poller.watches(&source)
                    && let Err(error) = self.poller.add(fd, EpollFlags::EPOLLOUT, source)
                {
                    tracing::error!(%error, command_id, "input can't be watched");
                }
            }
            Flushed::Empty => {
                if let Some(fd) = &command.input.fd {
                    self.poller.remove(fd, &source);
                }
            }
            Flushed::Closed => self.close_input(command_id),
        }
    }

    /// Closes a command's input.
    pub(super) fn close_input(&mut self, command_id: &str) {
        let Some(command) = self.commands.get_mut(command_id) else {
            return;
        };
        if let Some(fd) = command.input.close() {
            self.poller
                .remove(&fd, &Source::Input(command_id.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn pipe() -> (io::PipeReader, Input) {
        let (reader, writer) = io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        super::super::set_nonblocking(&writer).unwrap();
        (reader, Input::new(false, Some(writer)))
    }

    #[test]
    fn a_full_queue_takes_nothing_and_says_so() {
        let (mut reader, mut input) = pipe();
        input
            .push("c", &vec![b'x'; MAX_STDIN_BYTES], false)
            .unwrap();
        assert_eq!(
            input.push("c", b"y", false),
            Err(Refusal::Busy {
                queued: MAX_STDIN_BYTES,
                limit: MAX_STDIN_BYTES
            })
        );
        assert_eq!(input.flush(), Flushed::Waiting);
        let mut some = [0; 65536];
        reader.read_exact(&mut some).unwrap();
        assert_eq!(input.flush(), Flushed::Waiting);
        input.push("c", b"y", true).unwrap();
        assert_eq!(
            input.push("c", b"", false),
            Err(Refusal::StdinClosed {
                command_id: "c".to_owned()
            })
        );
    }

    #[test]
    fn a_pipe_is_closed_after_the_last_byte() {
        let (mut reader, mut input) = pipe();
        input.push("c", b"all", true).unwrap();
        assert_eq!(input.flush(), Flushed::Closed);
        drop(input.close());
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"all");
    }
}

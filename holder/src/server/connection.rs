//! Connections of gateways.
//!
//! Owns the sockets, their frames and who is the gateway: the connection that has last
//! said hello. A connection that says nothing replaces nobody, so looking whether a holder
//! is alive does not cut its gateway off.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::epoll::EpollFlags;
use nix::sys::socket::MsgFlags;

use super::Holder;
use super::poller::Source;
use crate::client::{Asked, Said};
use crate::error::Error;
use crate::frame::{self, Fill, FrameReader, FrameWriter};
use crate::protocol::{Event, Refusal, Reply, Request};

/// Connections that may be open without having said hello; the oldest go first.
const MOST_STRANGERS: usize = 16;

/// Bytes that may wait for a gateway that does not read; then it is cut off. It learns all
/// when it says hello again.
const MOST_QUEUED: usize = 64 << 20;

/// Above this, output is not announced until the gateway has read.
const CALM: usize = 1 << 20;

/// Reads from one connection before others have a turn.
const TURNS: usize = 16;

#[derive(Debug)]
pub(super) struct Connection {
    socket: UnixStream,
    reader: FrameReader,
    writer: FrameWriter,
    greeted: bool,
}

impl Connection {
    /// Whether nothing waits to be sent.
    pub(super) fn is_drained(&self) -> bool {
        self.writer.queued() == 0
    }
}

/// Whom a reply goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyTo {
    pub(super) connection: u64,
    pub(super) id: u64,
}

impl Holder {
    /// Takes a new connection in.
    pub(super) fn greet(&mut self, socket: UnixStream) {
        let key = self.next_connection;
        self.next_connection += 1;
        let watched = socket
            .set_nonblocking(true)
            .map_err(Error::system("use a connection"))
            .and_then(|()| {
                self.poller
                    .add(&socket, EpollFlags::EPOLLIN, Source::Connection(key))
            });
        if let Err(error) = watched {
            tracing::warn!(%error, "cannot take a connection in");
            return;
        }
        let strangers: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, c)| !c.greeted)
            .map(|(key, _)| *key)
            .collect();
        if strangers.len() >= MOST_STRANGERS
            && let Some(oldest) = strangers.into_iter().min()
        {
            self.hang_up(oldest);
        }
        let connection = Connection {
            socket,
            reader: FrameReader::default(),
            writer: FrameWriter::default(),
            greeted: false,
        };
        self.connections.insert(key, connection);
    }

    /// Makes a connection the gateway's, in the place of an older one.
    pub(super) fn promote(&mut self, key: u64) {
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.greeted = true;
        }
        let before = self.gateway.replace(key).filter(|before| *before != key);
        if let Some(before) = before {
            tracing::info!("a newer gateway has connected");
            self.hang_up(before);
        }
    }

    pub(super) fn hang_up(&mut self, key: u64) {
        if let Some(connection) = self.connections.remove(&key) {
            self.poller
                .remove(&connection.socket, &Source::Connection(key));
        }
        if self.gateway == Some(key) {
            self.gateway = None;
            self.thaw_all();
        }
    }

    pub(super) fn serve_connection(&mut self, key: u64, events: EpollFlags) {
        if events.contains(EpollFlags::EPOLLOUT) {
            self.flush(key);
        }
        for _ in 0..TURNS {
            match self.hear(key) {
                Ok(Fill::Data) => {}
                Ok(Fill::WouldBlock) => return,
                Ok(Fill::End) => {
                    self.hang_up(key);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection is cut off");
                    self.hang_up(key);
                    return;
                }
            }
        }
    }

    /// Reads once and does what was asked.
    fn hear(&mut self, key: u64) -> Result<Fill, Error> {
        let Some(connection) = self.connections.get_mut(&key) else {
            return Ok(Fill::WouldBlock);
        };
        let fill = connection
            .reader
            .fill(connection.socket.as_fd(), MsgFlags::MSG_DONTWAIT)?;
        // Looked up anew each time: a request may end the connection.
        while let Some(connection) = self.connections.get_mut(&key) {
            let Some(body) = connection.reader.next_frame()? else {
                break;
            };
            let greeted = connection.greeted;
            let asked: Asked<serde_json::Value> = frame::decode(&body)?;
            let fds = connection.reader.take_fds(asked.fds)?;
            let reply_to = ReplyTo {
                connection: key,
                id: asked.id,
            };
            match serde_json::from_value(asked.request) {
                Ok(request @ Request::Hello { .. }) => self.obey(request, fds, reply_to),
                Ok(request) if greeted => self.obey(request, fds, reply_to),
                Ok(_) => self.refuse(reply_to, Refusal::NotGreeted),
                Err(error) => self.refuse(reply_to, Refusal::invalid(error.to_string())),
            }
        }
        Ok(fill)
    }

    pub(super) fn reply(&mut self, to: ReplyTo, reply: Reply, fds: Vec<OwnedFd>) {
        let said = Said::Reply {
            id: to.id,
            fds: fds.len(),
            result: Ok(reply),
        };
        self.say(to.connection, &said, fds);
    }

    pub(super) fn refuse(&mut self, to: ReplyTo, refusal: Refusal) {
        let said = Said::Reply {
            id: to.id,
            fds: 0,
            result: Err(refusal),
        };
        self.say(to.connection, &said, Vec::new());
    }

    /// Tells the gateway, if there is one; else it will learn by its hello.
    pub(super) fn emit(&mut self, event: Event) {
        if let Some(gateway) = self.gateway {
            self.say(gateway, &Said::Event(event), Vec::new());
        }
    }

    /// Whether the gateway has read most of what it was told.
    pub(super) fn gateway_is_calm(&self) -> bool {
        let gateway = self.gateway.and_then(|key| self.connections.get(&key));
        gateway.is_none_or(|connection| connection.writer.queued() < CALM)
    }

    fn say(&mut self, key: u64, said: &Said, fds: Vec<OwnedFd>) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        match frame::encode(said) {
            Ok(frame) => connection.writer.push(frame, fds),
            Err(error) => {
                // Not reached by anything that fits the holder's own bounds. Cutting the
                // connection leaves no request waiting for ever.
                tracing::error!(%error, "a reply can't be said");
                self.hang_up(key);
                return;
            }
        }
        if connection.writer.queued() > MOST_QUEUED {
            tracing::warn!("a gateway does not read; it is cut off");
            self.hang_up(key);
            return;
        }
        self.flush(key);
    }

    fn flush(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let events = match connection.writer.flush(connection.socket.as_fd()) {
            Ok(true) => EpollFlags::EPOLLIN,
            Ok(false) => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
            Err(_) => {
                self.hang_up(key);
                return;
            }
        };
        if let Err(error) = self
            .poller
            .add(&connection.socket, events, Source::Connection(key))
        {
            tracing::warn!(%error, "a connection is cut off");
            self.hang_up(key);
        }
    }
}

//! The gateway's side of the socket.
//!
//! Owns one connection to a holder: a blocking [`Client`] that many threads use at once,
//! and the thread that reads it. Never retries or reconnects: the caller decides, and
//! `Hello` tells what happened meanwhile.
//!
//! Locks: `writer` guards the socket's sending side (a frame must not be cut by another),
//! `waiting` guards the requests without a reply. `writer` is never taken while `waiting`
//! is held.
//!
//! Invariant: a request ends with its reply or with [`Error::Disconnected`]; none waits
//! on a connection that has ended.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use nix::sys::socket::MsgFlags;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::frame::{self, Fill, FrameReader};
use crate::protocol::{
    CreateSession, Event, HelloReply, PROTOCOL_VERSION, Refusal, Reply, Request, SessionInfo,
    Spawn, Spawned, Survivor,
};

/// A frame from the gateway.
#[derive(Serialize, Deserialize)]
pub(crate) struct Asked<R> {
    pub(crate) id: u64,
    /// Descriptors beside the frame.
    #[serde(default)]
    pub(crate) fds: usize,
    pub(crate) request: R,
}

/// A frame from the holder.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    /// The reply to request `id`.
    Reply {
        id: u64,
        /// Descriptors beside the frame.
        #[serde(default)]
        fds: usize,
        result: Result<Reply, Refusal>,
    },
    Event(Event),
}

/// What the connection's thread hands to its listener.
#[derive(Debug)]
pub enum Notice {
    /// The holder said something.
    Event(Event),
    /// The connection has ended; nothing follows.
    Ended(Error),
}

/// Copies of what a holder keeps of a session's view.
#[derive(Debug)]
pub struct ViewDescriptors {
    /// The FUSE connection: `/dev/fuse`, opened for this view.
    pub connection: OwnedFd,
    /// The view's mount.
    pub mount: OwnedFd,
}

impl ViewDescriptors {
    fn from_frame(fds: Vec<OwnedFd>) -> Result<Option<ViewDescriptors>, Error> {
        let count = fds.len();
        let mut fds = fds.into_iter();
        match (count, fds.next(), fds.next()) {
            (0, ..) => Ok(None),
            (2, Some(connection), Some(mount)) => Ok(Some(ViewDescriptors { connection, mount })),
            _ => Err(Error::Protocol {
                detail: format!("{count} descriptors of a view instead of none or two"),
            }),
        }
    }
}

type Answer = Result<(Reply, Vec<OwnedFd>), Error>;

/// A connection to a holder.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    hello: HelloReply,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    socket: UnixStream,
    writer: Mutex<()>,
    waiting: Mutex<Waiting>,
    next_id: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    ended: bool,
    requests: HashMap<u64, mpsc::SyncSender<Answer>>,
}

impl Client {
    /// Connects and says hello. `listener` gets every event, in order, from the
    /// connection's own thread, and last that the connection has ended. It must not
    /// block: replies wait behind it. Events may come before this returns.
    ///
    /// # Errors
    /// [`Error::Path`] if nothing answers at `path`, [`Error::VersionMismatch`] if the
    /// holder is of another version, [`Error::Disconnected`], [`Error::Protocol`].
    pub fn connect(
        path: &Path,
        listener: impl FnMut(Notice) + Send + 'static,
    ) -> Result<Client, Error> {
        let socket = UnixStream::connect(path).map_err(Error::path("connect to", path))?;
        let shared = Arc::new(Shared {
            socket,
            writer: Mutex::new(()),
            waiting: Mutex::default(),
            next_id: AtomicU64::new(1),
        });
        let reading = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("holder-client".to_owned())
            .spawn(move || reading.read(listener))
            .map_err(Error::system("start a thread"))?;
        // From here on dropping the client ends the connection and the thread.
        let mut client = Client {
            shared,
            hello: nobody(),
            thread: Some(thread),
        };
        let hello = Request::Hello {
            protocol_version: PROTOCOL_VERSION,
        };
        client.hello = match client.request(&hello, &[]) {
            Ok((Reply::Hello(hello), _)) => hello,
            Ok((other, _)) => return Err(unexpected(&other)),
            Err(Error::Refused(Refusal::VersionMismatch { ours, theirs })) => {
                return Err(Error::VersionMismatch {
                    ours: theirs,
                    theirs: ours,
                });
            }
            Err(error) => return Err(error),
        };
        Ok(client)
    }

    /// Whether the connection has ended, so that every request fails.
    pub fn has_ended(&self) -> bool {
        self.shared.waiting().ended
    }

    /// What the holder said to hello: its sessions and commands at that time.
    pub fn hello(&self) -> &HelloReply {
        &self.hello
    }

    /// Asks, and waits for the reply; descriptors go and come beside it.
    ///
    /// # Errors
    /// [`Error::Refused`] with the holder's reason, [`Error::Disconnected`],
    /// [`Error::FrameTooLarge`].
    pub fn request(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Answer {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let frame = frame::encode(&Asked {
            id,
            fds: fds.len(),
            request,
        })?;
        let (answer, waiter) = mpsc::sync_channel(1);
        {
            let mut waiting = self.shared.waiting();
            if waiting.ended {
                return Err(Error::Disconnected);
            }
            waiting.requests.insert(id, answer);
        }
        let sent = {
            let _turn = self
                .shared
                .writer
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            frame::send_all(self.shared.socket.as_fd(), &frame, fds)
        };
        if sent.is_err() {
            // The reading thread sees the end too, and tells all who wait.
            self.shared.close();
        }
        waiter.recv().unwrap_or(Err(Error::Disconnected))
    }

    /// Makes a session. `view` is what goes with a `View::Descriptor`: the mount or directory, and
    /// the mount's connection if the holder is to keep both.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn create_session(
        &self,
        session: CreateSession,
        view: &[BorrowedFd<'_>],
    ) -> Result<(SessionInfo, Option<ViewDescriptors>), Error> {
        match self.request(&Request::CreateSession(Box::new(session)), view)? {
            (Reply::Session(info), fds) => Ok((info, ViewDescriptors::from_frame(fds)?)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Copies of what the holder keeps of a session's view; `None` if it keeps nothing.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn view_descriptors(&self, session_id: &str) -> Result<Option<ViewDescriptors>, Error> {
        let request = Request::ViewDescriptors {
            session_id: session_id.to_owned(),
        };
        match self.request(&request, &[])? {
            (Reply::Done, fds) => ViewDescriptors::from_frame(fds),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Ends a session; returns when it is gone.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn destroy_session(&self, session_id: &str) -> Result<(), Error> {
        self.done(&Request::DestroySession {
            session_id: session_id.to_owned(),
        })
    }

    /// Starts a command; returns when its program runs.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn spawn(&self, spawn: Spawn) -> Result<Spawned, Error> {
        match self.request(&Request::Spawn(Box::new(spawn)), &[])? {
            (Reply::Spawned(spawned), _) => Ok(spawned),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Queues input for a command; `eof` as in `Request::WriteStdin`.
    ///
    /// # Errors
    /// As [`Client::request`]; `Refusal::Busy` if too much waits already.
    pub fn write_stdin(&self, command_id: &str, data: &[u8], eof: bool) -> Result<(), Error> {
        let command_id = command_id.to_owned();
        self.done(&Request::WriteStdin {
            command_id,
            data: data.into(),
            eof,
        })
    }

    /// Kills every process of a command; returns those that could not be ended.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn cancel(&self, command_id: &str) -> Result<Vec<Survivor>, Error> {
        match self.request(
            &Request::Cancel {
                command_id: command_id.to_owned(),
            },
            &[],
        )? {
            (Reply::Survivors { survivors }, _) => Ok(survivors),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Stops the processes of a session for a moment; returns whether they stand still. If not, none
    /// was stopped.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn freeze(&self, session_id: &str) -> Result<bool, Error> {
        let session_id = session_id.to_owned();
        match self.request(&Request::Freeze { session_id }, &[])? {
            (Reply::Frozen { still }, _) => Ok(still),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Sets going what was stopped.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn thaw(&self, session_id: &str) -> Result<(), Error> {
        let session_id = session_id.to_owned();
        self.done(&Request::Thaw { session_id })
    }

    /// Begins a connection to a TCP port of a session's own loopback, of IPv4 or IPv6. The socket does not
    /// block; that it can be written to tells that the connection is there or has failed.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn connect_to(
        &self,
        session_id: &str,
        port: u16,
        version_6: bool,
    ) -> Result<OwnedFd, Error> {
        let session_id = session_id.to_owned();
        let request = Request::Connect {
            session_id,
            port,
            version_6,
        };
        let (reply, fds) = self.request(&request, &[])?;
        let socket = fds.into_iter().next();
        socket.ok_or_else(|| unexpected(&reply))
    }

    /// Asks for something whose reply says nothing.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn done(&self, request: &Request) -> Result<(), Error> {
        match self.request(request, &[])? {
            (Reply::Done, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.close();
        // A listener may own the client and drop it; its thread can't wait for itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the listener of a holder's connection panicked");
        }
    }
}

fn unexpected(reply: &Reply) -> Error {
    Error::Protocol {
        detail: format!("this reply does not fit the request: {reply:?}"),
    }
}

/// Stands in until the holder has said hello.
fn nobody() -> HelloReply {
    HelloReply {
        protocol_version: 0,
        sandbox_id: String::new(),
        holder_pid: 0,
        sessions: Vec::new(),
        commands: Vec::new(),
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        // It fails if the other side has closed already, which is as good.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// The reading thread.
    fn read(&self, mut listener: impl FnMut(Notice)) {
        // Also if the listener panics: nobody must wait for a thread that is gone.
        let over = Over(self);
        let end = match self.read_frames(&mut listener) {
            Ok(()) => Error::Disconnected,
            Err(error) => error,
        };
        drop(over);
        listener(Notice::Ended(end));
    }

    fn read_frames(&self, listener: &mut impl FnMut(Notice)) -> Result<(), Error> {
        let mut reader = FrameReader::default();
        loop {
            while let Some(body) = reader.next_frame()? {
                match frame::decode(&body)? {
                    Said::Event(event) => listener(Notice::Event(event)),
                    Said::Reply { id, fds, result } => {
                        let fds = reader.take_fds(fds)?;
                        let waiter = self.waiting().requests.remove(&id);
                        let Some(waiter) = waiter else {
                            let detail = format!("a reply to request {id}, which nobody made");
                            return Err(Error::Protocol { detail });
                        };
                        let answer = result.map(|reply| (reply, fds)).map_err(Error::from);
                        // A receiver waits until it has its answer; there is room for one.
                        let _ = waiter.send(answer);
                    }
                }
            }
            if reader.fill(self.socket.as_fd(), MsgFlags::empty())? == Fill::End {
                return Ok(());
            }
        }
    }
}

/// Ends the connection for all who wait on it.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.close();
        let mut waiting = self.0.waiting();
        waiting.ended = true;
        // Dropping their senders tells them.
        waiting.requests.clear();
    }
}

//! What the holder waits for.
//!
//! Owns the epoll and which [`Source`] each descriptor of it is. A source that has been
//! removed may still be reported once, if its event was taken from the kernel together with
//! the one that led to the removal; its handler finds nothing to do.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::error::Error;
use crate::protocol::Stream;

/// Events taken from the kernel at once.
const BATCH: usize = 64;

/// Where an event comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// The socket.
    Listener,
    /// Signals.
    Signals,
    /// A connection, by its key.
    Connection(u64),
    /// A session's init or setup process.
    Control(String),
    /// The status socket of a command being started.
    Status(String),
    /// A stream of a command's output.
    Output(String, Stream),
    /// A command's input that waits for room.
    Input(String),
}

pub(super) struct Poller {
    epoll: Epoll,
    tokens: HashMap<Source, u64>,
    sources: HashMap<u64, Source>,
    next: u64,
}

impl Poller {
    pub(super) fn new() -> Result<Poller, Error> {
        let epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(Error::system("make an epoll"))?;
        Ok(Poller {
            epoll,
            tokens: HashMap::new(),
            sources: HashMap::new(),
            next: 0,
        })
    }

    /// Begins to watch a descriptor as `source`, or changes what it is watched for.
    pub(super) fn add(
        &mut self,
        fd: &impl AsFd,
        events: EpollFlags,
        source: Source,
    ) -> Result<(), Error> {
        if let Some(token) = self.tokens.get(&source) {
            let mut event = EpollEvent::new(events, *token);
            return self
                .epoll
                .modify(fd, &mut event)
                .map_err(Error::system("watch a descriptor"));
        }
        self.next += 1;
        let token = self.next;
        self.epoll
            .add(fd, EpollEvent::new(events, token))
            .map_err(Error::system("watch a descriptor"))?;
        self.tokens.insert(source.clone(), token);
        self.sources.insert(token, source);
        Ok(())
    }

    /// Stops watching; must come before the descriptor is closed, for another descriptor
    /// of the same file would keep it in the epoll.
    pub(super) fn remove(&mut self, fd: &impl AsFd, source: &Source) {
        if let Some(token) = self.tokens.remove(source) {
            self.sources.remove(&token);
            if let Err(errno) = self.epoll.delete(fd) {
                tracing::error!(%errno, ?source, "cannot stop watching");
            }
        }
    }

    /// Waits for events, until `until` at the latest (`None`: for ever).
    pub(super) fn wait(
        &mut self,
        until: Option<Instant>,
    ) -> Result<impl Iterator<Item = (Source, EpollFlags)> + use<>, Error> {
        let timeout = match until {
            None => EpollTimeout::NONE,
            Some(until) => {
                let wait = until.saturating_duration_since(Instant::now());
                // Rounded up, or it would spin through the last millisecond.
                let wait = if wait.is_zero() {
                    wait
                } else {
                    wait + Duration::from_millis(1)
                };
                EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::MAX)
            }
        };
        let mut events = [EpollEvent::empty(); BATCH];
        let count = match self.epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(Error::system("wait for events")(errno)),
        };
        let batch: Vec<_> = events[..count]
            .iter()
            .filter_map(|event| Some((self.sources.get(&event.data())?.clone(), event.events())))
            .collect();
        Ok(batch.into_iter())
    }

    /// Whether a source is watched.
    pub(super) fn watches(&self, source: &Source) -> bool {
        self.tokens.contains_key(source)
    }
}

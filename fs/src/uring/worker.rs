//! One thread with one ring, which serves the queues of one processor (or more) for all views.
//!
//! An entry of a queue goes round: the kernel fills it with a request and completes its command;
//! the thread answers into it and submits the next command, which gives it back. It leaves the round
//! when the kernel says that its connection is no more.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use parking_lot::Mutex;

use super::abi::uring;
use super::answer::{Answered, answer, answer_later};
use super::buffers::Buffers;
use super::connection::Connection;
use super::exchange::{Errno, reply_header};
use crate::requests::guarded;

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Commands that can wait for one submission.
const SUBMISSIONS: u32 = 256;
/// Completions that can wait to be looked at. More wait in the kernel.
const COMPLETIONS: u32 = 4096;
/// Entries of a worker that keep the memory of a large request, for all its views together: at most
/// so many times a largest transfer a processor.
const LARGE: usize = 8;
/// The mark of the read that waits for orders; entries of queues are marked by their place.
const ORDERS: u64 = u64::MAX;

/// What a worker is told by other threads.
pub(super) enum Order {
    /// Serve this queue of a connection with these entries.
    Serve {
        connection: Arc<Connection>,
        queue: u16,
        entries: Vec<Buffers>,
    },
    /// The request in this place, whose answer another thread has found, is to be answered so.
    Answer {
        place: usize,
        result: Result<Option<u32>, Errno>,
    },
    /// End when nothing is served any more.
    End,
}

/// Where other threads leave orders for a worker.
pub(super) struct Inbox {
    /// Guards the orders that the worker has not seen.
    orders: Mutex<VecDeque<Order>>,
    bell: OwnedFd,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Arc<Inbox>> {
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Inbox {
            orders: Mutex::default(),
            bell,
        }))
    }

    pub(super) fn send(&self, order: Order) {
        self.orders.lock().push_back(order);
        // It can only fail if 2^64 orders wait.
        if let Err(error) = rustix::io::write(&self.bell, &1u64.to_ne_bytes()) {
            tracing::error!(%error, "a thread that serves views could not be woken");
        }
    }
}

/// One entry of a queue.
struct Entry {
    connection: Arc<Connection>,
    queue: u16,
    /// What the request is answered with; 0 until there was one.
    id: u64,
    unique: u64,
    registered: bool,
    /// It is one of the worker's large ones.
    large: bool,
    /// The kernel has it. It puts a request there only while this thread is in the kernel.
    lent: bool,
    buffers: Buffers,
}

/// The state of the thread.
pub(super) struct Worker {
    ring: Ring,
    inbox: Arc<Inbox>,
    /// Where the kernel puts what it reads from the bell.
    rung: Box<[u8; 8]>,
    entries: Vec<Option<Entry>>,
    /// Places of entries that hold a lot of memory, in the order in which they came to it.
    large: VecDeque<usize>,
    /// Commands that did not fit into the submission queue.
    unsent: VecDeque<(u64, squeue::Entry128)>,
    ending: bool,
}

impl Worker {
    /// A ring for the calling thread, the only one that may use it.
    pub(super) fn new(inbox: Arc<Inbox>) -> io::Result<Worker> {
        let ring = Ring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(SUBMISSIONS)?;
        Ok(Worker {
            ring,
            inbox,
            rung: Box::new([0; 8]),
            entries: Vec::new(),
            large: VecDeque::new(),
            unsent: VecDeque::new(),
            ending: false,
        })
    }

    /// Serves until it is told to end and nothing is left.
    pub(super) fn run(mut self) {
        self.listen();
        let mut completions = Vec::new();
        loop {
            self.send();
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // Completions wait to be taken first.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => {
                    tracing::error!(%error, "a ring that serves views failed; trying again");
                    std::thread::park_timeout(Duration::from_millis(10));
                }
            }
            completions.extend(
                self.ring
                    .completion()
                    .map(|done| (done.user_data(), done.result())),
            );
            for (mark, _) in &completions {
                if let Some(Some(entry)) = self.entries.get_mut(*mark as usize) {
                    entry.lent = false;
                }
            }
            for (mark, result) in completions.drain(..) {
                if mark == ORDERS {
                    self.obey();
                    self.listen();
                } else {
                    self.completed(mark as usize, result);
                }
            }
            self.trim();
            if self.ending && self.entries.iter().all(Option::is_none) {
                return;
            }
        }
    }

    /// Waits for the bell.
    fn listen(&mut self) {
        let read = opcode::Read::new(
            types::Fd(self.inbox.bell.as_raw_fd()),
            self.rung.as_mut_ptr(),
            self.rung.len() as u32,
        );
        self.unsent.push_back((ORDERS, read.build().into()));
    }

    fn obey(&mut self) {
        let orders = std::mem::take(&mut *self.inbox.orders.lock());
        for order in orders {
            match order {
                Order::Serve {
                    connection,
                    queue,
                    entries,
                } => {
                    for buffers in entries {
                        self.register(&connection, queue, buffers);
                    }
                    connection.leave();
                }
                Order::Answer { place, result } => self.answer_found(place, result),
                Order::End => self.ending = true,
            }
        }
    }

    fn register(&mut self, connection: &Arc<Connection>, queue: u16, buffers: Buffers) {
        connection.enter();
        let place = match self.entries.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.entries.push(None);
                self.entries.len() - 1
            }
        };
        let command = command(
            connection,
            uring::REGISTER,
            (queue, 0),
            Some(buffers.pieces()),
        );
        self.entries[place] = Some(Entry {
            connection: Arc::clone(connection),
            queue,
            id: 0,
            unique: 0,
            registered: false,
            large: false,
            lent: false,
            buffers,
        });
        self.unsent.push_back((place as u64, command));
    }

    /// A command of the entry in this place is done: there is a request, or nothing more to come.
    fn completed(&mut self, place: usize, result: i32) {
        let Some(entry) = self.entries.get_mut(place).and_then(Option::as_mut) else {
            tracing::error!(place, result, "a command of no entry was completed");
            return;
        };
        if result < 0 {
            if !entry.registered {
                let error = io::Error::from_raw_os_error(-result);
                // A mount that ends while it begins is nothing to tell of.
                if !matches!(
                    -result,
                    libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED
                ) {
                    tracing::warn!(%error, queue = entry.queue, "the kernel did not take an entry of a queue; /dev/fuse is used");
                }
            } else if !matches!(
                -result,
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED
            ) {
                let error = io::Error::from_raw_os_error(-result);
                tracing::error!(%error, queue = entry.queue, "an entry of a view's queue is lost");
            }
            if let Some(entry) = self.entries[place].take() {
                entry.connection.leave();
            }
            return;
        }
        entry.registered = true;
        let requests = entry.connection.requests();
        let (mut exchange, id) = entry.buffers.request();
        (entry.id, entry.unique) = (id, exchange.header.unique);
        let answered = guarded("request", || {
            answer(requests, &mut exchange).map(|how| (how, exchange.answered()))
        });
        match answered {
            Some(Ok((Answered::Later(slow), _))) => {
                let inbox = Arc::clone(&self.inbox);
                answer_later(requests, slow, move |result| {
                    inbox.send(Order::Answer { place, result });
                });
            }
            Some(Ok((Answered::Now | Answered::Never, bytes))) => self.commit(place, Ok(bytes)),
            Some(Err(errno)) => self.commit(place, Err(errno)),
            None => self.commit(place, Err(Errno(libc::EIO))),
        }
    }

    /// Another thread has found what the request in this place is answered with.
    fn answer_found(&mut self, place: usize, result: Result<Option<u32>, Errno>) {
        let Some(entry) = self.entries.get_mut(place).and_then(Option::as_mut) else {
            tracing::error!(place, "an answer is for no entry");
            return;
        };
        let (mut exchange, _) = entry.buffers.request();
        let put = result.and_then(|count| match count {
            Some(count) => exchange.put_count(count),
            None => Ok(()),
        });
        let result = put.map(|()| exchange.answered());
        self.commit(place, result);
    }

    /// Gives an entry with an answer back to the kernel.
    fn commit(&mut self, place: usize, result: Result<usize, Errno>) {
        let Some(entry) = self.entries.get_mut(place).and_then(Option::as_mut) else {
            tracing::error!(place, "an answer is for no entry");
            return;
        };
        entry
            .buffers
            .set_reply(reply_header(entry.unique, result), result.unwrap_or(0));
        if entry.buffers.is_large() && !entry.large {
            entry.large = true;
            self.large.push_back(place);
        }
        let command = command(
            &entry.connection,
            uring::COMMIT_AND_FETCH,
            (entry.queue, entry.id),
            None,
        );
        self.unsent.push_back((place as u64, command));
    }

    /// Takes memory away from entries that had large requests, until few have any. Those that the
    /// kernel has hold nothing: all completions have been looked at, and no command has been sent
    /// since.
    fn trim(&mut self) {
        for _ in LARGE..self.large.len() {
            let Some(place) = self.large.pop_front() else {
                return;
            };
            match self.entries.get_mut(place).and_then(Option::as_mut) {
                Some(entry) if entry.lent => {
                    entry.large = false;
                    entry.buffers.trim();
                }
                Some(entry) if entry.large => self.large.push_back(place),
                // Gone, or another's place now.
                _ => {}
            }
        }
    }

    /// Moves commands to the submission queue, and those that do not fit to the kernel first.
    fn send(&mut self) {
        while let Some((mark, command)) = self.unsent.front() {
            let (mark, command) = (*mark, command.clone().user_data(*mark));
            // SAFETY: what a command points to (an entry's memory and the names of its pieces, or the
            // bell's bytes) is owned by this worker, which keeps it until the command's completion.
            let pushed = unsafe { self.ring.submission().push(&command) };
            if pushed.is_ok() {
                self.unsent.pop_front();
                if let Some(Some(entry)) = self.entries.get_mut(mark as usize) {
                    entry.lent = true;
                }
            } else if let Err(error) = self.ring.submit() {
                // The caller submits and waits next; what is left follows after that.
                tracing::debug!(%error, "the submission queue of a ring is full");
                return;
            }
        }
    }
}

/// A command to a connection, for a queue and the id of a request.
fn command(
    connection: &Connection,
    code: u32,
    (queue, id): (u16, u64),
    pieces: Option<u64>,
) -> squeue::Entry128 {
    /// Where the count of pieces is in a submission (`len` of `struct io_uring_sqe`).
    const COUNT_AT: usize = 24;
    let mut arguments = [0; 80];
    arguments[8..16].copy_from_slice(&id.to_ne_bytes());
    arguments[16..18].copy_from_slice(&queue.to_ne_bytes());
    let mut entry = opcode::UringCmd80::new(types::Fd(connection.device().as_raw_fd()), code)
        .cmd(arguments)
        .addr(pieces)
        .build();
    if pieces.is_some() {
        // The crate has no way to set it.
        // SAFETY: an Entry128 is a plain `struct io_uring_sqe` of 128 bytes, in which these four are
        // the `len`; any value is valid, and the pointer is to a local value.
        unsafe {
            std::ptr::from_mut(&mut entry)
                .cast::<u8>()
                .add(COUNT_AT)
                .cast::<u32>()
                .write_unaligned(uring::PIECES);
        }
    }
    entry
}

//! Views: a tree served to the kernel over one connection.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Once};
use std::thread::JoinHandle;

use fuser::{Config, Session, SessionACL};
use parking_lot::{Condvar, Mutex};

use crate::adapter::Adapter;
use crate::files::Files;
use crate::notify::Notifier;
use crate::profile::Profile;
use crate::record::Recorder;
use crate::requests::{Known, MAX_TRANSFER, Requests};
use crate::server::Server;
use crate::transport::Transport;
use crate::tree::Tree;
use crate::trees::Trees;
use crate::uring;

/// Threads that do what waits for the disk, for all views of a process together.
const SLOW_THREADS: usize = 4;

/// How a view is served.
#[derive(Clone, Debug)]
pub struct ViewOptions {
    /// Threads that serve requests: 1 to 16. Two let one request overtake another that reads a cold
    /// blob; more only cost memory.
    pub threads: usize,
    /// Whose everything appears to be, for a mount in a user namespace that knows nobody else: the
    /// kernel would refuse every change of what belongs to somebody it cannot name. `None`: owners
    /// are as they are.
    pub owner: Option<Owner>,
    /// How requests come. Over io_uring there is a thread for each processor, shared by all views of
    /// the process, and `threads` means nothing.
    pub transport: Transport,
}

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Default for ViewOptions {
    fn default() -> Self {
        ViewOptions {
            threads: 2,
            owner: None,
            transport: Transport::default(),
        }
    }
}

/// A tree that is being served. It ends when the last mount of the connection is gone.
pub struct View {
    pub(crate) trees: Arc<Trees>,
    recorder: Arc<Recorder>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) known: Arc<Known>,
    transport: Transport,
    server: Server,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("tree", &self.tree()).finish()
    }
}

impl View {
    /// Serves `tree` over `connection`, a descriptor of `/dev/fuse` with a mount. Returns when the
    /// kernel and the view have agreed on how they speak.
    ///
    /// # Errors
    /// The kernel and the view do not agree, the transport is not to be had here, or a thread cannot
    /// be started.
    pub fn serve(
        tree: Arc<Tree>,
        recorder: Arc<Recorder>,
        connection: OwnedFd,
        slow: &Arc<SlowPool>,
        options: &ViewOptions,
    ) -> io::Result<View> {
        let requests = requests(tree, recorder, &connection, slow, options)?;
        match rings_for(options.transport)? {
            Some(ready) => View::of(requests, Transport::Uring, |requests| {
                uring::serve(ready, requests, connection)
            }),
            None => View::of(requests, Transport::Fuse, |requests| {
                serve_with_fuser(requests, connection, options.threads)
            }),
        }
    }

    /// Goes on serving a connection that an earlier process has served over `/dev/fuse`, in the same
    /// trace mode and of the same upper, and left without an end: processes that wait for an answer
    /// get it now. `tree` is a [`Tree::resumed`].
    ///
    /// # Errors
    /// The kernel cannot ask again for what was not answered (before Linux 6.9), or a thread cannot
    /// be started.
    pub fn resume(
        tree: Arc<Tree>,
        recorder: Arc<Recorder>,
        connection: OwnedFd,
        slow: &Arc<SlowPool>,
        options: &ViewOptions,
    ) -> io::Result<View> {
        let requests = requests(tree, recorder, &connection, slow, options)?;
        View::of(requests, Transport::Fuse, |requests| {
            uring::resume(requests, connection)
        })
    }

    fn of(
        requests: Requests,
        transport: Transport,
        serve: impl FnOnce(Requests) -> io::Result<JoinHandle<io::Result<()>>>,
    ) -> io::Result<View> {
        let trees = Arc::clone(&requests.trees);
        let recorder = Arc::clone(&requests.recorder);
        let notifier = Arc::clone(&requests.notifier);
        let known = Arc::clone(&requests.known);
        Ok(View {
            trees,
            recorder,
            notifier,
            known,
            transport,
            server: Server::new(serve(requests)?),
        })
    }

    /// How its requests come: never [`Transport::Auto`].
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// A copy of its connection's descriptor, for whoever keeps it ([`View::resume`]).
    ///
    /// # Errors
    /// There are too many descriptors.
    pub fn connection(&self) -> io::Result<OwnedFd> {
        self.notifier.connection().try_clone()
    }

    /// What is served.
    pub fn tree(&self) -> Arc<Tree> {
        self.trees.current()
    }

    /// Its record.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// File operations by path, of which the kernel is told. `workspace_root` is where the view is
    /// mounted, for absolute symlinks. Not to be used by a thread that serves the view.
    pub fn files(&self, workspace_root: &[u8]) -> Files {
        Files::new(self.tree(), workspace_root)
            .with_notifier(Arc::clone(&self.notifier))
            .with_recorder(Arc::clone(&self.recorder))
    }

    /// Whether it is still served: false once the last mount is gone or the connection broke, if
    /// nobody waits for it in [`View::join`]; otherwise once that is done.
    pub fn is_served(&self) -> bool {
        self.server.is_running()
    }

    /// Waits until the last mount is gone, then ends the record. Whoever else calls it meanwhile
    /// waits as long; afterwards it returns at once.
    ///
    /// # Errors
    /// The connection broke; that is told to one caller alone.
    pub fn join(&self) -> io::Result<()> {
        self.server.join(|| {
            if let Err(error) = self.tree().drop_nameless() {
                tracing::error!(%error, "inodes without names could not be dropped");
            }
            if let Err(error) = self.recorder.end() {
                tracing::error!(%error, "the record of accesses could not be ended");
            }
        })
    }
}

/// What a view does with what the kernel asks.
fn requests(
    tree: Arc<Tree>,
    recorder: Arc<Recorder>,
    connection: &OwnedFd,
    slow: &Arc<SlowPool>,
    options: &ViewOptions,
) -> io::Result<Requests> {
    Ok(Requests {
        trees: Arc::new(Trees::new(tree)),
        profile: Profile::from(recorder.mode()),
        recorder,
        notifier: Arc::new(Notifier::new(connection.as_fd().try_clone_to_owned()?)),
        slow: Arc::clone(slow),
        owner: options.owner,
        known: Arc::default(),
        given_up: AtomicUsize::new(0),
    })
}

/// What a view over io_uring needs. `None`: it is to be served over `/dev/fuse`.
fn rings_for(transport: Transport) -> io::Result<Option<uring::Ready>> {
    let ready = || match uring::obstacle() {
        Some(obstacle) => Err(io::Error::new(io::ErrorKind::Unsupported, obstacle)),
        None => uring::prepare().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("this process may not use io_uring: {error}"),
            )
        }),
    };
    match transport {
        Transport::Fuse => Ok(None),
        Transport::Uring => ready().map(Some),
        Transport::Auto => Ok(ready()
            .inspect_err(|reason| tracing::info!(%reason, "requests come over /dev/fuse"))
            .ok()),
    }
}

fn serve_with_fuser(
    requests: Requests,
    connection: OwnedFd,
    threads: usize,
) -> io::Result<JoinHandle<io::Result<()>>> {
    ALLOCATION.call_once(keep_buffers_apart);
    let mut config = Config::default();
    config.n_threads = Some(threads.clamp(1, 16));
    // What a thread has read and not answered is lost with a descriptor of its own; with the one
    // that is kept elsewhere, the kernel can be made to ask again.
    config.clone_fd = false;
    // Who may use the mount is the kernel's to check, by the mount's options.
    let adapter = Adapter {
        requests: Arc::new(requests),
    };
    let session = Session::from_fd(adapter, connection, SessionACL::All, config)?;
    std::thread::Builder::new()
        .name("fs-view".to_owned())
        .spawn(move || end_of_connection(session.run()))
}

static ALLOCATION: Once = Once::new();

/// Has glibc map fuser's buffers, one of [`MAX_TRANSFER`] and a page for each thread, instead of taking
/// them from its heap. Most requests use their first few hundred bytes; from the heap all of it would
/// be cleared, and so be memory: 12 MB for each view. Left to itself glibc goes to the heap for what is
/// as large as something that was once freed. Replies, which are no larger than a transfer, stay in the
/// heap: they come and go with each read.
fn keep_buffers_apart() {
    #[cfg(target_env = "gnu")]
    {
        let threshold = MAX_TRANSFER as i32 + 1;
        // SAFETY: it takes two numbers, and may be called at any time.
        let done = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, threshold) };
        if done == 0 {
            tracing::warn!("each view will take some 12 MB of memory more than it uses");
        }
    }
}

/// Whether a connection ended as it should, with the last mount. A thread that has a request in hand
/// at that moment is told `ECONNABORTED` (`fuse_dev_do_read` of Linux), all others `ENODEV`, which
/// fuser knows.
fn end_of_connection(served: io::Result<()>) -> io::Result<()> {
    match served {
        Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        served => served,
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A few threads for what waits for the disk. Jobs wait in line; none is dropped.
pub struct SlowPool {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl fmt::Debug for SlowPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowPool")
            .field("waiting", &self.queue.lock().jobs.len())
            .finish()
    }
}

impl SlowPool {
    /// A pool without threads yet; they come with the first jobs.
    pub fn new() -> Arc<SlowPool> {
        Arc::new(SlowPool {
            queue: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Has `job` done by a thread of the pool.
    pub(crate) fn run(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle == 0 && queue.threads < SLOW_THREADS {
            let pool = Arc::clone(self);
            match std::thread::Builder::new()
                .name("fs-slow".to_owned())
                .spawn(move || pool.work())
            {
                Ok(_) => queue.threads += 1,
                Err(error) if queue.threads == 0 => {
                    // Better slow than never.
                    tracing::warn!(%error, "no thread for slow requests; doing one here");
                    if let Some(job) = queue.jobs.pop_back() {
                        drop(queue);
                        job();
                    }
                    return;
                }
                Err(_) => {}
            }
        }
        drop(queue);
        self.changed.notify_one();
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            match queue.jobs.pop_front() {
                Some(job) => {
                    drop(queue);
                    job();
                    queue = self.queue.lock();
                }
                None => {
                    queue.idle += 1;
                    self.changed.wait(&mut queue);
                    queue.idle -= 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmount_under_a_request_is_no_failure() {
        let of = |code| end_of_connection(Err(io::Error::from_raw_os_error(code)));
        assert!(of(libc::ECONNABORTED).is_ok());
        assert_eq!(of(libc::EIO).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(end_of_connection(Ok(())).is_ok());
    }
}

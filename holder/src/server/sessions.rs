//! Sessions, from the holder's side.
//!
//! Owns each session's control socket and stage: being made, ready, ending. What is asked
//! of an init is remembered here until it answers or is gone.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::MsgFlags;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Holder;
use super::connection::ReplyTo;
use super::poller::Source;
use super::timers::Timer;
use crate::bytes::Bytes;
use crate::error::Error;
use crate::frame::{self, Fill, FrameReader, FrameWriter, Letter};
use crate::protocol::{
    CreateSession, EndReason, MAX_SESSIONS, Namespaces, Network, Refusal, Reply, SessionInfo, View,
    refusal_errno, valid_id,
};
use crate::root::RootPlan;
use crate::session::control::{FromInit, ToInit};
use crate::session::{self, Blueprint, ViewSource};
use crate::syscalls::{pidfd_open, pidfd_send_signal};

/// How long the making of a session may take. It takes milliseconds; longer means that
/// a mount hangs.
const MAKE_PATIENCE: Duration = Duration::from_secs(20);

/// How long until a destroy is answered with `StillAlive`; the session ends all the same
/// as soon as the kernel lets it.
const DESTROY_PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Session {
    control: OwnedFd,
    reader: FrameReader,
    writer: FrameWriter,
    stage: Stage,
    setup: Option<Pid>,
    init: Option<Init>,
    info: SessionInfo,
    pub(super) env: Vec<(Bytes, Bytes)>,
    /// Kept for a gateway that comes back: the view's connection, and its mount.
    kept: Vec<OwnedFd>,
    destroyers: Vec<ReplyTo>,
    /// What its init said when it was ready, before the process that forked it said so: two processes
    /// send, and either may come first.
    early: Option<(Namespaces, bool)>,
    /// Whether its processes were stopped, for a gateway that is there.
    pub(super) frozen: bool,
    /// When its stage should be over: the making, or the ending.
    deadline: Instant,
}

struct Init {
    pid: Pid,
    pidfd: OwnedFd,
}

enum Stage {
    Making(ReplyTo),
    Ready,
    Ending(EndReason),
}

/// What an init was asked for by the gateway.
pub(super) struct Ask {
    session_id: String,
    reply_to: ReplyTo,
}

impl Session {
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready)
    }

    /// As the gateway sees it; `None` while it is being made.
    pub(super) fn info(&self) -> Option<SessionInfo> {
        let ending = match self.stage {
            Stage::Making(_) => return None,
            Stage::Ready => false,
            Stage::Ending(_) => true,
        };
        Some(SessionInfo {
            ending,
            ..self.info.clone()
        })
    }

    /// Copies of the view's connection and mount; none if there is nothing to serve it by.
    pub(super) fn kept(&self) -> io::Result<Vec<OwnedFd>> {
        self.kept.iter().map(OwnedFd::try_clone).collect()
    }
}

impl Holder {
    pub(super) fn create_session(
        &mut self,
        request: CreateSession,
        fds: Vec<OwnedFd>,
        reply_to: ReplyTo,
    ) {
        if let Err(refusal) = self.try_create(request, fds, reply_to) {
            self.refuse(reply_to, refusal);
        }
    }

    fn try_create(
        &mut self,
        request: CreateSession,
        fds: Vec<OwnedFd>,
        reply_to: ReplyTo,
    ) -> Result<(), Refusal> {
        let session_id = request.session_id.clone();
        if self.ending.is_some() {
            return Err(Refusal::ShuttingDown);
        }
        if !valid_id(&session_id) {
            return Err(Refusal::invalid("session_id must be 1-128 of A-Za-z0-9._-"));
        }
        if self.sessions.contains_key(&session_id) {
            return Err(Refusal::SessionExists { session_id });
        }
        if self.sessions.len() >= MAX_SESSIONS {
            return Err(Refusal::TooMany {
                what: "sessions".to_owned(),
                limit: MAX_SESSIONS,
            });
        }
        let root = RootPlan::judge(&request, &[&self.settings.run_dir, &self.socket])?;
        let mut fds = fds.into_iter();
        let mut kept = Vec::new();
        let view = match (&request.view, fds.next()) {
            (View::Descriptor, Some(view)) => {
                if let Some(connection) = fds.next() {
                    let mount = view.try_clone();
                    kept = vec![connection, mount.map_err(Refusal::setup("keep the view"))?];
                }
                ViewSource::Descriptor(view)
            }
            (View::Descriptor, None) => return Err(Refusal::ViewRefused { errno: libc::EBADF }),
            (View::MountFuse(options), _) => ViewSource::Fuse(options.clone()),
        };
        let blueprint = Blueprint {
            root,
            view,
            network: request.network,
            scaffold: self.settings.scaffold.clone(),
            may_mount: self.settings.may_mount,
            all_ids: self.settings.ids.all(),
            filters: self.settings.filters.clone(),
            open_files: self.settings.open_files,
            processes: self.settings.processes,
        };
        let launched = session::launch(blueprint).map_err(Refusal::setup("fork"))?;
        let source = Source::Control(session_id.clone());
        if let Err(error) = self
            .poller
            .add(&launched.control, EpollFlags::EPOLLIN, source)
        {
            tracing::error!(%error, "a session can't be watched");
            // The setup process ends at the end of its socket.
            return Err(Refusal::SetupStep {
                step: "watch".to_owned(),
                errno: libc::ENOMEM,
            });
        }
        let info = SessionInfo {
            session_id: session_id.clone(),
            init_pid: 0,
            namespaces: Namespaces::default(),
            network: request.network,
            all_ids: self.settings.ids.all(),
            abstract_sockets_fenced: request.network == Network::Isolated,
            ending: false,
        };
        let session = Session {
            control: launched.control,
            reader: FrameReader::default(),
            writer: FrameWriter::default(),
            stage: Stage::Making(reply_to),
            setup: Some(launched.setup),
            init: None,
            info,
            env: request.env,
            kept,
            destroyers: Vec::new(),
            early: None,
            frozen: false,
            deadline: Instant::now() + MAKE_PATIENCE,
        };
        self.timers
            .at(session.deadline, Timer::MakeSession(session_id.clone()));
        self.sessions.insert(session_id, session);
        Ok(())
    }

    /// Something on a session's control socket.
    pub(super) fn hear_session(&mut self, session_id: &str, events: EpollFlags) {
        if events.contains(EpollFlags::EPOLLOUT) {
            self.flush_session(session_id);
        }
        loop {
            let Some(session) = self.sessions.get_mut(session_id) else {
                return;
            };
            let fill = session
                .reader
                .fill(session.control.as_fd(), MsgFlags::MSG_DONTWAIT);
            match fill {
                Ok(Fill::Data) => {
                    if let Err(error) = self.take_letters(session_id) {
                        tracing::error!(%error, session_id, "an init says what it should not");
                        self.end_session(session_id, EndReason::InitDied { code: 0 });
                        return;
                    }
                }
                Ok(Fill::WouldBlock) => return,
                Ok(Fill::End) | Err(_) => {
                    self.lost_session(session_id);
                    return;
                }
            }
        }
    }

    fn take_letters(&mut self, session_id: &str) -> Result<(), Error> {
        while let Some(session) = self.sessions.get_mut(session_id) {
            let Some(body) = session.reader.next_frame()? else {
                break;
            };
            let letter: Letter<FromInit> = frame::decode(&body)?;
            let fds = session.reader.take_fds(letter.fds)?;
            self.take_letter(session_id, letter.body, fds);
        }
        Ok(())
    }

    fn take_letter(&mut self, session_id: &str, message: FromInit, fds: Vec<OwnedFd>) {
        tracing::trace!(session_id, ?message, "an init says");
        match message {
            FromInit::NeedMaps => self.write_maps(session_id),
            FromInit::Forked { pid } => self.adopt_init(session_id, Pid::from_raw(pid), fds),
            FromInit::Ready {
                namespaces,
                abstract_sockets_fenced,
            } => {
                self.session_is_ready(session_id, namespaces, abstract_sockets_fenced);
            }
            FromInit::Failed(refusal) => self.drop_unmade(session_id, refusal),
            FromInit::SpawnFailed {
                command_id,
                refusal,
            } => self.not_born(&command_id, refusal),
            FromInit::MainExited { command_id, exit } => self.main_exited(&command_id, exit),
            FromInit::Swept {
                command_id,
                survivors,
            } => self.swept(&command_id, survivors),
            FromInit::Signalled { token, processes } => {
                self.answer(token, Reply::Signalled { processes });
            }
            FromInit::Survivors { token, survivors } => {
                self.answer(token, Reply::Survivors { survivors });
            }
            FromInit::Processes { token, processes } => {
                self.answer(token, Reply::Processes { processes });
            }
            FromInit::Frozen { token, still } => self.answer(token, Reply::Frozen { still }),
            FromInit::Thawed { token } => self.answer(token, Reply::Done),
            FromInit::Connecting {
                token,
                refusal: None,
            } => self.answer_with(token, Reply::Done, fds),
            FromInit::Connecting {
                token,
                refusal: Some(refusal),
            } => {
                if let Some(ask) = self.asks.remove(&token) {
                    self.refuse(ask.reply_to, refusal);
                }
            }
        }
    }

    fn write_maps(&mut self, session_id: &str) {
        let Some(setup) = self
            .sessions
            .get(session_id)
            .and_then(|session| session.setup)
        else {
            return;
        };
        match self.settings.ids.write(setup) {
            Ok(()) => self.tell_session(session_id, &ToInit::MapsWritten, Vec::new()),
            Err(error) => self.drop_unmade(
                session_id,
                Refusal::NamespacesRefused {
                    errno: refusal_errno(&error),
                    fix: "the holder could not write the session's id maps; it needs \
                          CAP_SETUID, CAP_SETGID and CAP_SETFCAP, or to run as an ordinary user"
                        .to_owned(),
                },
            ),
        }
    }

    fn adopt_init(&mut self, session_id: &str, pid: Pid, fds: Vec<OwnedFd>) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        if !fds.is_empty() {
            session.kept = fds;
        }
        // It is a child of the setup process or ours, and none of us has reaped it.
        match pidfd_open(pid) {
            Ok(pidfd) => {
                session.info.init_pid = pid.as_raw();
                session.init = Some(Init { pid, pidfd });
                if let Some((namespaces, fenced)) = session.early.take() {
                    self.session_is_ready(session_id, namespaces, fenced);
                }
            }
            Err(error) => self.drop_unmade(session_id, Refusal::setup("watch the init")(error)),
        }
    }

    fn session_is_ready(&mut self, session_id: &str, namespaces: Namespaces, fenced: bool) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        let Stage::Making(reply_to) = session.stage else {
            return;
        };
        if session.init.is_none() {
            session.early = Some((namespaces, fenced));
            return;
        }
        session.info.namespaces = namespaces;
        session.info.abstract_sockets_fenced = fenced;
        session.stage = Stage::Ready;
        let info = session.info.clone();
        match session.kept() {
            Ok(kept) => self.reply(reply_to, Reply::Session(info), kept),
            Err(error) => {
                self.end_session(session_id, EndReason::Destroyed);
                self.refuse(
                    reply_to,
                    Refusal::setup("copy the view's descriptors")(error),
                );
            }
        }
    }

    /// The making took too long.
    pub(super) fn give_session_up(&mut self, session_id: &str) {
        let late = |session: &Session| {
            matches!(session.stage, Stage::Making(_)) && session.deadline <= Instant::now()
        };
        if self.sessions.get(session_id).is_some_and(late) {
            let step = "finish in time; a mount may hang".to_owned();
            self.drop_unmade(
                session_id,
                Refusal::SetupStep {
                    step,
                    errno: libc::ETIMEDOUT,
                },
            );
        }
    }

    /// Ends the making of a session, or a session.
    fn drop_unmade(&mut self, session_id: &str, refusal: Refusal) {
        let making = |session: &Session| match session.stage {
            Stage::Making(reply_to) => Some(reply_to),
            Stage::Ready | Stage::Ending(_) => None,
        };
        let Some(reply_to) = self.sessions.get(session_id).and_then(making) else {
            self.end_session(session_id, EndReason::InitDied { code: 1 });
            return;
        };
        let Some(session) = self.sessions.remove(session_id) else {
            return;
        };
        self.poller
            .remove(&session.control, &Source::Control(session_id.to_owned()));
        if let Some(setup) = session.setup {
            // Our child, not yet reaped; it may have ended by itself.
            let _ = kill(setup, Signal::SIGKILL);
        }
        if let Some(init) = &session.init {
            let _ = pidfd_send_signal(init.pidfd.as_fd(), libc::SIGKILL);
        }
        self.refuse(reply_to, refusal);
        for destroyer in session.destroyers {
            self.reply(destroyer, Reply::Done, Vec::new());
        }
    }

    /// A control socket has ended: its last process has, too.
    fn lost_session(&mut self, session_id: &str) {
        let Some(session) = self.sessions.get(session_id) else {
            return;
        };
        self.poller
            .remove(&session.control, &Source::Control(session_id.to_owned()));
        if matches!(session.stage, Stage::Making(_)) {
            let step = "keep its process alive".to_owned();
            self.drop_unmade(
                session_id,
                Refusal::SetupStep {
                    step,
                    errno: libc::ECHILD,
                },
            );
        }
        // Else its end is near and will be seen by `reap`.
    }

    pub(super) fn destroy_session(&mut self, session_id: &str, reply_to: ReplyTo) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            self.reply(reply_to, Reply::Done, Vec::new());
            return;
        };
        session.destroyers.push(reply_to);
        if matches!(session.stage, Stage::Making(_)) {
            let session_id = session_id.to_owned();
            self.drop_unmade(&session_id.clone(), Refusal::SessionGone { session_id });
        } else {
            session.deadline = Instant::now() + DESTROY_PATIENCE;
            self.timers.at(
                session.deadline,
                Timer::DestroySession(session_id.to_owned()),
            );
            self.end_session(session_id, EndReason::Destroyed);
        }
    }

    /// Begins the end of a session: all in it dies with its init.
    pub(super) fn end_session(&mut self, session_id: &str, reason: EndReason) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        match session.stage {
            Stage::Making(_) => {
                let session_id = session_id.to_owned();
                self.drop_unmade(&session_id.clone(), Refusal::SessionGone { session_id });
                return;
            }
            Stage::Ending(_) => return,
            Stage::Ready => session.stage = Stage::Ending(reason),
        }
        if let Some(init) = &session.init
            && let Err(error) = pidfd_send_signal(init.pidfd.as_fd(), libc::SIGKILL)
            && error.raw_os_error() != Some(libc::ESRCH)
        {
            tracing::error!(%error, session_id, "an init can't be killed");
        }
        // Processes that wait for a dead gateway's filesystem can end only when nobody
        // holds its device open any more. After the kill, so that none of them sees the
        // filesystem fail.
        session.kept.clear();
        // For the same reason: these hold the session's mounts.
        for command in self.commands.values_mut() {
            if command.session_id == session_id {
                command.namespace = None;
            }
        }
    }

    /// Answers destroyers of a session that is not gone in time.
    pub(super) fn tell_stuck(&mut self, session_id: &str) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        // The timer may be an earlier session's of this name.
        if session.deadline > Instant::now() {
            return;
        }
        for reply_to in std::mem::take(&mut session.destroyers) {
            self.refuse(
                reply_to,
                Refusal::StillAlive {
                    session_id: session_id.to_owned(),
                },
            );
        }
    }

    /// Reaps children: setup processes, inits, and whatever else has become ours.
    pub(super) fn reap(&mut self) {
        // What they last said comes first: it may tell that a child is an init.
        let making = |session: &Session| matches!(session.stage, Stage::Making(_));
        let made = self.sessions.iter().filter(|(_, session)| making(session));
        for id in made.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.hear_session(&id, EpollFlags::empty());
        }
        loop {
            let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(errno) => {
                    tracing::error!(%errno, "cannot reap");
                    return;
                }
            };
            let is_init =
                |session: &Session| session.init.as_ref().is_some_and(|init| init.pid == pid);
            let ended = self.sessions.iter().find(|(_, session)| is_init(session));
            if let Some(id) = ended.map(|(id, _)| id.clone()) {
                self.session_is_gone(&id, code);
            } else if let Some(session) = self
                .sessions
                .values_mut()
                .find(|session| session.setup == Some(pid))
            {
                session.setup = None;
            }
        }
    }

    /// An init has been reaped: nothing of its session is alive.
    fn session_is_gone(&mut self, session_id: &str, code: i32) {
        self.hear_session(session_id, EpollFlags::empty());
        if self
            .sessions
            .get(session_id)
            .is_some_and(|s| matches!(s.stage, Stage::Making(_)))
        {
            let step = "keep its init alive".to_owned();
            self.drop_unmade(
                session_id,
                Refusal::SetupStep {
                    step,
                    errno: libc::ECHILD,
                },
            );
            return;
        }
        let Some(session) = self.sessions.remove(session_id) else {
            return;
        };
        self.poller
            .remove(&session.control, &Source::Control(session_id.to_owned()));
        let gone = Refusal::SessionGone {
            session_id: session_id.to_owned(),
        };
        let asks: HashMap<u64, Ask> = self
            .asks
            .extract_if(|_, ask| ask.session_id == session_id)
            .collect();
        for ask in asks.into_values() {
            self.refuse(ask.reply_to, gone.clone());
        }
        self.end_commands_of(session_id, &gone);
        let reason = match session.stage {
            Stage::Ending(reason) => reason,
            Stage::Making(_) | Stage::Ready => EndReason::InitDied { code },
        };
        tracing::info!(session_id, ?reason, "session ended");
        self.emit(crate::protocol::Event::SessionEnded {
            session_id: session_id.to_owned(),
            reason,
        });
        for reply_to in session.destroyers {
            self.reply(reply_to, Reply::Done, Vec::new());
        }
    }

    /// Asks an init for something that the gateway wants to know.
    pub(super) fn ask(
        &mut self,
        session_id: &str,
        reply_to: ReplyTo,
        message: impl FnOnce(u64) -> ToInit,
    ) {
        let token = self.next_token();
        self.asks.insert(
            token,
            Ask {
                session_id: session_id.to_owned(),
                reply_to,
            },
        );
        self.tell_session(session_id, &message(token), Vec::new());
    }

    /// A number for a question to an init.
    pub(super) fn next_token(&mut self) -> u64 {
        self.next_ask += 1;
        self.next_ask
    }

    fn answer(&mut self, token: u64, reply: Reply) {
        self.answer_with(token, reply, Vec::new());
    }

    fn answer_with(&mut self, token: u64, reply: Reply, fds: Vec<OwnedFd>) {
        if let Some(ask) = self.asks.remove(&token) {
            self.reply(ask.reply_to, reply, fds);
        }
    }

    /// Queues a letter to a session's init.
    pub(super) fn tell_session(&mut self, session_id: &str, message: &ToInit, fds: Vec<OwnedFd>) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        match frame::encode(&Letter {
            fds: fds.len(),
            body: message,
        }) {
            Ok(frame) => session.writer.push(frame, fds),
            // A request that fits a frame fits this one, which has less in it.
            Err(error) => tracing::error!(%error, session_id, "a letter is too long"),
        }
        self.flush_session(session_id);
    }

    fn flush_session(&mut self, session_id: &str) {
        let Some(session) = self.sessions.get_mut(session_id) else {
            return;
        };
        let source = Source::Control(session_id.to_owned());
        let events = match session.writer.flush(session.control.as_fd()) {
            Ok(true) => EpollFlags::EPOLLIN,
            Ok(false) => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
            // Its end will be seen by `reap`.
            Err(_) => return,
        };
        if self.poller.watches(&source)
            && let Err(error) = self.poller.add(&session.control, events, source)
        {
            tracing::error!(%error, session_id, "a session can't be watched");
        }
    }
}

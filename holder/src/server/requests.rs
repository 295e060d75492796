//! What the gateway asks, one by one.
//!
//! Owns the dispatch: each request is done at once, or handed to who will reply.

use std::os::fd::OwnedFd;

use super::Holder;
use super::connection::ReplyTo;
use super::sessions::Session;
use crate::protocol::{HelloReply, PROTOCOL_VERSION, Refusal, Reply, Request, SessionInfo};
use crate::session::control::ToInit;

/// The kernel's last signal.
const LAST_SIGNAL: i32 = 64;

impl Holder {
    /// Does what was asked; the reply comes now or later, once.
    pub(super) fn obey(&mut self, request: Request, fds: Vec<OwnedFd>, reply_to: ReplyTo) {
        let done = match request {
            Request::Hello { protocol_version } => self.hello(protocol_version, reply_to),
            Request::CreateSession(request) => {
                self.create_session(*request, fds, reply_to);
                return;
            }
            Request::DestroySession { session_id } => {
                self.destroy_session(&session_id, reply_to);
                return;
            }
            Request::Spawn(request) => {
                self.spawn(*request, reply_to);
                return;
            }
            Request::WriteStdin {
                command_id,
                data,
                eof,
            } => self
                .write_stdin(&command_id, &data.0, eof)
                .map(|()| Reply::Done),
            Request::Signal { command_id, signal } => {
                self.signal(&command_id, signal, reply_to);
                return;
            }
            Request::Resize {
                command_id,
                rows,
                cols,
            } => self.resize(&command_id, rows, cols).map(|()| Reply::Done),
            Request::Cancel { command_id } => {
                self.cancel(&command_id, reply_to);
                return;
            }
            Request::Survivors { command_id } => {
                self.ask_survivors(&command_id, reply_to);
                return;
            }
            Request::Forget { command_id } => self.forget(&command_id).map(|()| Reply::Done),
            Request::ListSessions => Ok(Reply::Sessions {
                sessions: self.session_infos(),
            }),
            Request::Processes { session_id } => match self.ready_session(&session_id) {
                Ok(_) => {
                    self.ask(&session_id, reply_to, |token| ToInit::Processes { token });
                    return;
                }
                Err(refusal) => Err(refusal),
            },
            Request::Freeze { session_id } => match self.ready_session_mut(&session_id) {
                Ok(session) => {
                    session.frozen = true;
                    self.ask(&session_id, reply_to, |token| ToInit::Freeze { token });
                    return;
                }
                Err(refusal) => Err(refusal),
            },
            Request::Thaw { session_id } => match self.ready_session_mut(&session_id) {
                Ok(session) => {
                    session.frozen = false;
                    self.ask(&session_id, reply_to, |token| ToInit::Thaw { token });
                    return;
                }
                Err(refusal) => Err(refusal),
            },
            Request::Connect {
                session_id,
                port,
                version_6,
            } => match self.ready_session(&session_id) {
                Ok(_) => {
                    self.ask(&session_id, reply_to, |token| ToInit::Connect {
                        token,
                        port,
                        version_6,
                    });
                    return;
                }
                Err(refusal) => Err(refusal),
            },
            Request::ViewDescriptors { session_id } => {
                match self.view_descriptors(&session_id) {
                    Ok(kept) => self.reply(reply_to, Reply::Done, kept),
                    Err(refusal) => self.refuse(reply_to, refusal),
                }
                return;
            }
            Request::Shutdown => {
                self.shut_down();
                Ok(Reply::Done)
            }
        };
        match done {
            Ok(reply) => self.reply(reply_to, reply, Vec::new()),
            Err(refusal) => self.refuse(reply_to, refusal),
        }
    }

    fn hello(&mut self, theirs: u32, reply_to: ReplyTo) -> Result<Reply, Refusal> {
        if theirs != PROTOCOL_VERSION {
            return Err(Refusal::VersionMismatch {
                ours: PROTOCOL_VERSION,
                theirs,
            });
        }
        self.promote(reply_to.connection);
        Ok(Reply::Hello(HelloReply {
            protocol_version: PROTOCOL_VERSION,
            sandbox_id: self.settings.sandbox_id.clone(),
            holder_pid: std::process::id() as i32,
            sessions: self.session_infos(),
            commands: self.command_infos(),
        }))
    }

    fn session_infos(&self) -> Vec<SessionInfo> {
        self.sessions.values().filter_map(Session::info).collect()
    }

    /// A session that can be asked for something.
    pub(super) fn ready_session(&self, session_id: &str) -> Result<&Session, Refusal> {
        self.sessions
            .get(session_id)
            .filter(|session| session.is_ready())
            .ok_or_else(|| Refusal::SessionUnknown {
                session_id: session_id.to_owned(),
            })
    }

    fn ready_session_mut(&mut self, session_id: &str) -> Result<&mut Session, Refusal> {
        self.ready_session(session_id)?;
        let session = self.sessions.get_mut(session_id);
        session.ok_or_else(|| Refusal::SessionUnknown {
            session_id: session_id.to_owned(),
        })
    }

    /// Sets going every session that was stopped: whoever wanted that is gone.
    pub(super) fn thaw_all(&mut self) {
        let frozen: Vec<String> = self
            .sessions
            .iter_mut()
            .filter_map(|(id, session)| std::mem::take(&mut session.frozen).then(|| id.clone()))
            .collect();
        for session_id in frozen {
            // Nobody waits for the answer.
            let token = self.next_token();
            self.tell_session(&session_id, &ToInit::Thaw { token }, Vec::new());
        }
    }

    fn view_descriptors(&self, session_id: &str) -> Result<Vec<OwnedFd>, Refusal> {
        let session = self.ready_session(session_id)?;
        session
            .kept()
            .map_err(Refusal::setup("copy the view's descriptors"))
    }

    fn signal(&mut self, command_id: &str, signal: i32, reply_to: ReplyTo) {
        if !(1..=LAST_SIGNAL).contains(&signal) {
            let detail = format!("signal must be 1-{LAST_SIGNAL}");
            self.refuse(reply_to, Refusal::invalid(detail));
            return;
        }
        let command_id = command_id.to_owned();
        match self.session_of(&command_id) {
            Ok(session_id) => {
                self.ask(&session_id, reply_to, |token| ToInit::Signal {
                    token,
                    command_id: command_id.clone(),
                    signal,
                });
                // What forks meanwhile would live on.
                if signal == libc::SIGKILL {
                    self.kill(&command_id);
                }
            }
            Err(refusal) => self.refuse(reply_to, refusal),
        }
    }

    fn ask_survivors(&mut self, command_id: &str, reply_to: ReplyTo) {
        let session_id = match self.command(command_id) {
            Ok(command) => command.session_id.clone(),
            Err(refusal) => {
                self.refuse(reply_to, refusal);
                return;
            }
        };
        if self.ready_session(&session_id).is_err() {
            // With its session, everything of it has gone.
            self.reply(
                reply_to,
                Reply::Survivors {
                    survivors: Vec::new(),
                },
                Vec::new(),
            );
            return;
        }
        let command_id = command_id.to_owned();
        self.ask(&session_id, reply_to, |token| ToInit::Survivors {
            token,
            command_id,
        });
    }

    /// The living session of a command that has been started.
    fn session_of(&self, command_id: &str) -> Result<String, Refusal> {
        let command = self.command(command_id)?;
        if command.is_starting() || self.ready_session(&command.session_id).is_err() {
            return Err(Refusal::CommandNotRunning {
                command_id: command_id.to_owned(),
            });
        }
        Ok(command.session_id.clone())
    }
}

//! Control of commands: signals, the size of the terminal, which there are.

use std::sync::Arc;

use sandstack_api::CommandId;
use sandstack_api::runtime::{
    CommandPage, CommandStanding, CommandStatus, ListCommands, ResizeCommand, SignalCommand,
};
use sandstack_holder::protocol::{Reply, Request};

use crate::clock::now_unix_ms;
use crate::failure::{Failure, Result};
use crate::gateway::{Command, Context, Gateway, Sandbox};
use crate::page::Page;
use crate::sandbox::page_limit;

impl Gateway {
    pub(crate) async fn signal_command(
        self: &Arc<Self>,
        context: &Context,
        request: &SignalCommand,
    ) -> Result<CommandStanding> {
        let signal = parse_signal(&request.signal)?;
        let (command, sandbox) = self.running_command(context, &request.command_session_id)?;
        let ask = Request::Signal {
            command_id: command.id.to_string(),
            signal,
        };
        let holder = sandbox.holder()?;
        let (reply, _) = self
            .blocking(move || Ok(holder.request(&ask, &[])?))
            .await?;
        let processes = match reply {
            Reply::Signalled { processes } => processes as u64,
            other => {
                return Err(Failure::internal(format!(
                    "the holder answered a signal with {other:?}"
                )));
            }
        };
        Ok(CommandStanding {
            command_session_id: command.id.clone(),
            status: command.row.lock().status,
            processes: Some(processes),
        })
    }

    pub(crate) async fn resize_command(
        self: &Arc<Self>,
        context: &Context,
        request: &ResizeCommand,
    ) -> Result<CommandStanding> {
        let (rows, cols) = (request.rows, request.cols);
        if rows == 0 || cols == 0 {
            return Err(Failure::invalid(format!(
                "a terminal of {rows} rows and {cols} columns is none; both must be 1 to 65535"
            )));
        }
        let (command, sandbox) = self.running_command(context, &request.command_session_id)?;
        if !command.row.lock().tty {
            return Err(Failure::conflict(format!(
                "command {} has no terminal; run it with `tty`",
                command.id
            )));
        }
        let ask = Request::Resize {
            command_id: command.id.to_string(),
            rows,
            cols,
        };
        self.ask_holder(&sandbox, ask).await?;
        Ok(CommandStanding {
            command_session_id: command.id.clone(),
            status: command.row.lock().status,
            processes: None,
        })
    }

    /// The command called `id` and its sandbox; a conflict if it has ended.
    fn running_command(
        self: &Arc<Self>,
        context: &Context,
        id: &CommandId,
    ) -> Result<(Arc<Command>, Arc<Sandbox>)> {
        let command = self.command(context, id)?;
        let (sandbox, session, status) = {
            let row = command.row.lock();
            (row.sandbox.clone(), row.session.clone(), row.status)
        };
        if status != CommandStatus::Running {
            return Err(Failure::conflict(format!(
                "command {id} has ended; read_command_lines shows its output"
            )));
        }
        self.session(context, &session)?.touch();
        Ok((command, self.sandbox(context, &sandbox)?))
    }

    pub(crate) fn list_commands(
        self: &Arc<Self>,
        context: &Context,
        request: &ListCommands,
    ) -> Result<CommandPage> {
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let limit = page_limit(request.limit)?;
        let mut commands = self.command_summaries(&sandbox);
        if let Some(session) = &request.workspace_session_id {
            commands.retain(|command| command.workspace_session_id == *session);
        }
        let page = Page::cut(commands, limit, request.page_token.as_deref(), |command| {
            command.command_session_id.to_string()
        })?;
        Ok(CommandPage {
            commands: page.rows,
            next_page_token: page.next,
            sampled_at_unix_ms: now_unix_ms(),
            errors: Vec::new(),
        })
    }
}

/// What people send to programs. The real-time signals go by number.
const SIGNALS: [(&str, i32); 23] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("WINCH", libc::SIGWINCH),
];

/// The number of the signal called `name`.
fn parse_signal(name: &str) -> Result<i32> {
    let number = name.parse().ok().filter(|number| (1..=64).contains(number));
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let called = SIGNALS.iter().find(|(name, _)| *name == short);
    number
        .or_else(|| called.map(|(_, number)| *number))
        .ok_or_else(|| {
            Failure::invalid(format!(
                "signal {name:?} is none; give a name as `TERM` or a number from 1 to 64"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_go_by_name_and_number() {
        for name in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse_signal(name).unwrap(), libc::SIGTERM, "{name}");
        }
        assert_eq!(parse_signal("64").unwrap(), 64);
        for name in ["", "0", "65", "-1", "SIG", "SIGSIGTERM", "HELLO"] {
            let error = parse_signal(name).unwrap_err();
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
    }
}

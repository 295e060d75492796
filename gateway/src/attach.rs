//! Attachments: views at directories of the host.
//!
//! A session's row has them, written before the mount is made, so that a restart finds each: as long
//! as the session lives, its view is there again.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use sandstack_api::runtime::{AttachWorkspaceSession, Attachments, DetachWorkspaceSession};
use sandstack_api::{Blob, ErrorCode};
use sandstack_fs::{another, is_mounted_at, mount_at, unmount, unmount_with_users};
use sandstack_holder::VIEW_SOURCE;
use serde_json::json;

use crate::event::Subject;
use crate::failure::{Failure, Result, io_failure};
use crate::gateway::{Context, Gateway, Session};

impl Gateway {
    pub(crate) async fn attach_workspace_session(
        self: &Arc<Self>,
        context: &Context,
        request: &AttachWorkspaceSession,
    ) -> Result<Attachments> {
        let session = self.session(context, &request.workspace_session_id)?;
        let _gate = session.enter().await?;
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new(
                ErrorCode::Unsupported,
                "this gateway may not mount on its host; start it as root to attach views, or work in the session \
                 with commands and file operations",
            ));
        }
        let (gateway, asked) = (Arc::clone(self), Arc::clone(&session));
        let path = PathBuf::from(request.path.as_os_str());
        let attached = self
            .blocking(move || {
                let _one_at_a_time = gateway.attaching.lock();
                let path = gateway.check_place(&asked, &path)?;
                let Some(path) = path else { return Ok(None) };
                gateway.change_attachments(&asked, |paths| paths.push(blob(&path)))?;
                if let Err(error) = attach(&asked, &path) {
                    gateway
                        .change_attachments(&asked, |paths| paths.retain(|p| *p != blob(&path)))?;
                    return Err(error);
                }
                Ok(Some(path))
            })
            .await?;
        if let Some(path) = attached {
            let subject = about(&session, context.subject());
            self.events.record(
                "workspace_session.attached",
                subject,
                json!({ "path": blob(&path) }),
            );
        }
        Ok(attachments(&session))
    }

    pub(crate) async fn detach_workspace_session(
        self: &Arc<Self>,
        context: &Context,
        request: &DetachWorkspaceSession,
    ) -> Result<Attachments> {
        let session = self.session(context, &request.workspace_session_id)?;
        let _gate = session.enter().await?;
        let (gateway, asked) = (Arc::clone(self), Arc::clone(&session));
        let path = PathBuf::from(request.path.as_os_str());
        let detached = self
            .blocking(move || {
                let _one_at_a_time = gateway.attaching.lock();
                check_form(&path)?;
                let paths = asked.row.lock().attachments.clone();
                let Some(path) = [Some(path.clone()), resolved(&path)]
                    .into_iter()
                    .flatten()
                    .find(|path| paths.contains(&blob(path)))
                else {
                    return Ok(None);
                };
                if is_ours(&path)? {
                    let doing = format!("unmounting {}", path.display());
                    unmount(&path).map_err(io_failure(&doing))?;
                }
                gateway.change_attachments(&asked, |paths| paths.retain(|p| *p != blob(&path)))?;
                Ok(Some(path))
            })
            .await?;
        if let Some(path) = detached {
            let subject = about(&session, context.subject());
            self.events.record(
                "workspace_session.detached",
                subject,
                json!({ "path": blob(&path) }),
            );
        }
        Ok(attachments(&session))
    }

    /// The place of an attachment without symlinks; `None` if it is attached there already.
    fn check_place(&self, session: &Session, path: &Path) -> Result<Option<PathBuf>> {
        check_form(path)?;
        let shown = path.display();
        let paths = session.row.lock().attachments.clone();
        let place = path.canonicalize().map_err(|error| {
            let what = match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("path {shown} does not exist on the gateway's host; make the directory")
                }
                _ => format!("path {shown} cannot be used: {error}"),
            };
            Failure::invalid(what)
        })?;
        if paths.contains(&blob(&place)) && is_ours(&place)? {
            return Ok(None);
        }
        let reading = format!("reading {shown}");
        let metadata = fs::metadata(&place).map_err(io_failure(&reading))?;
        if !metadata.is_dir() {
            return Err(Failure::invalid(format!("path {shown} is no directory")));
        }
        let state = &self.config.state_dir;
        let within = fs::canonicalize(state).is_ok_and(|state| place.starts_with(state));
        if within {
            return Err(Failure::invalid(format!(
                "path {shown} is in the gateway's own directory {}; choose one elsewhere",
                state.display()
            )));
        }
        let above = place.parent().map(fs::metadata).transpose();
        let above = above.map_err(io_failure(&reading))?;
        if above.is_none_or(|above| above.dev() != metadata.dev()) {
            return Err(Failure::new(
                ErrorCode::AlreadyExists,
                format!("something is mounted at {shown} already; choose another directory"),
            ));
        }
        let mut entries = fs::read_dir(&place).map_err(io_failure(&reading))?;
        if entries.next().is_some() {
            return Err(Failure::invalid(format!(
                "path {shown} is not empty, and the view would hide what is in it; choose an empty directory"
            )));
        }
        Ok(Some(place))
    }

    fn change_attachments(
        &self,
        session: &Session,
        change: impl FnOnce(&mut Vec<Blob>),
    ) -> Result<()> {
        let mut row = session.row.lock();
        change(&mut row.attachments);
        self.session_rows.put(session.id.as_ref(), &row)
    }

    /// Puts the view of a session where it was attached before it got a new one. A place that is not
    /// as it was is given up, said in the log and the events.
    pub(crate) fn attach_again(&self, session: &Session) -> Result<()> {
        let _one_at_a_time = self.attaching.lock();
        for path in paths(session) {
            let again = take_away(&path, Ending::Left).and_then(|()| attach(session, &path));
            if let Err(error) = again {
                tracing::warn!(session = %session.id, path = %path.display(), %error, "a view could not be attached again");
                self.change_attachments(session, |paths| paths.retain(|p| *p != blob(&path)))?;
                let details = json!({ "path": blob(&path), "reason": error.to_string() });
                let subject = about(session, Subject::default());
                self.events
                    .record("workspace_session.detached", subject, details);
            }
        }
        Ok(())
    }

    /// Attaches the view of a session where it should be and is not: a gateway that stopped took it
    /// away.
    pub(crate) fn attach_missing(&self, session: &Session) -> Result<()> {
        let there = |path: &Path| is_mounted_at(path, VIEW_SOURCE).unwrap_or(false);
        if paths(session).iter().all(|path| there(path)) {
            return Ok(());
        }
        self.attach_again(session)
    }

    /// Takes the attachments of a session away, whose view ends. They stay in its row.
    pub(crate) fn end_attachments(&self, session: &Session) -> Result<()> {
        let _one_at_a_time = self.attaching.lock();
        paths(session)
            .iter()
            .try_for_each(|path| take_away(path, Ending::View))
    }

    /// Takes all attachments away, before the gateway stops. The next one makes them again.
    pub(crate) fn end_all_attachments(&self) {
        let sandboxes: Vec<_> = self.sandboxes.read().values().cloned().collect();
        for session in sandboxes
            .iter()
            .flat_map(|sandbox| sandbox.sessions_newest_first())
        {
            for path in paths(&session) {
                if let Err(error) = take_away(&path, Ending::Left) {
                    tracing::warn!(path = %path.display(), %error, "a view stays mounted");
                }
            }
        }
    }
}

/// Why an attachment is taken away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Its view ends, with whoever is still in there.
    View,
    /// Nobody serves it, or nobody will.
    Left,
}

fn take_away(path: &Path, ending: Ending) -> Result<()> {
    if !is_ours(path)? {
        return Ok(());
    }
    let result = match ending {
        Ending::View => unmount_with_users(path),
        Ending::Left => unmount(path),
    };
    result.map_err(io_failure(&format!("unmounting {}", path.display())))
}

/// Mounts the view of a session at `path`.
fn attach(session: &Session, path: &Path) -> Result<()> {
    let mount = session.mount.lock();
    let Some(mount) = mount.as_ref() else {
        return Err(Failure::conflict(format!(
            "workspace session {} has no view",
            session.id
        )));
    };
    let copy = another(mount.as_fd()).map_err(|error| {
        let failure = match error.raw_os_error() {
            Some(libc::EINVAL) => Failure::new(
                ErrorCode::Unsupported,
                "views cannot be attached on this host: that needs Linux 6.15 or newer",
            ),
            _ => Failure::internal("a view's mount cannot be copied"),
        };
        failure.caused_by(error)
    })?;
    mount_at(copy.as_fd(), path).map_err(io_failure(&format!("mounting at {}", path.display())))
}

fn check_form(path: &Path) -> Result<()> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(Failure::invalid(format!(
            "path {shown:?} is not absolute, and the gateway does not know the caller's directory"
        )));
    }
    let plain = !path
        .components()
        .any(|part| matches!(part, Component::ParentDir));
    if !plain || path.parent().is_none() {
        return Err(Failure::invalid(format!(
            "path {shown} must name a directory below / and have no `..` in it"
        )));
    }
    Ok(())
}

/// `path` without symlinks above its last part, which may be a mount that nobody serves.
fn resolved(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?.canonicalize().ok()?;
    Some(parent.join(path.file_name()?))
}

fn is_ours(path: &Path) -> Result<bool> {
    is_mounted_at(path, VIEW_SOURCE).map_err(io_failure("reading the mount table"))
}

fn paths(session: &Session) -> Vec<PathBuf> {
    let row = session.row.lock();
    row.attachments
        .iter()
        .map(|path| PathBuf::from(path.as_os_str()))
        .collect()
}

fn attachments(session: &Session) -> Attachments {
    Attachments {
        workspace_session_id: session.id.clone(),
        attachments: session.row.lock().attachments.clone(),
    }
}

fn about(session: &Session, subject: Subject) -> Subject {
    Subject {
        sandbox: Some(session.sandbox.id.clone()),
        session: Some(session.id.clone()),
        ..subject
    }
}

fn blob(path: &Path) -> Blob {
    path.as_os_str().to_owned().into()
}

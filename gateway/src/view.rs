//! The views of sessions: made, put in place, and taken up again by a gateway that comes after.
//!
//! The holder keeps the connection and the mount of each view. When a gateway is killed, the mount
//! stays, and who asks something of it waits; the next gateway goes on serving it, and what runs in
//! the session goes on as well. Over io_uring that cannot be done: what a dead process has read, or
//! should have, is never answered. Such a view is made anew, and what ran in it ends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sandstack_api::ErrorCode;
use sandstack_api::runtime::NetworkProfile;
use sandstack_fs::{
    MountOptions, Owner, Recorder, Transport, Tree, View, ViewOptions, another, detached,
};
use sandstack_holder::protocol::{CreateSession, FuseOptions, Network, View as HolderView};
use sandstack_holder::{Bytes, VIEW_SOURCE};
use sandstack_store::Upper;

use crate::failure::{Failure, Result, io_failure};
use crate::gateway::{Gateway, Sandbox, Session};
use crate::show;

impl Gateway {
    /// Makes the namespaces of a session and puts its view in place there. Whether another gateway can
    /// go on serving it is noted in the session's row, which the caller keeps.
    pub(crate) async fn place_view(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
        session: &Arc<Session>,
    ) -> Result<()> {
        let holder = sandbox.holder()?;
        let spec = sandbox.spec();
        let root = sandbox.provider.root(&spec, &session.id);
        let session = Arc::clone(session);
        let workspace_root = sandbox.workspace_root();
        let gateway = Arc::clone(self);
        self.blocking(move || {
            // A mount of the holder's own, so that ours stays where it can be attached from. Before
            // Linux 6.15 there is but one.
            let mount = session
                .mount
                .lock()
                .as_ref()
                .map(|mount| another(mount.as_fd()).or_else(|_| mount.try_clone()));
            let mount: Option<OwnedFd> = mount
                .transpose()
                .map_err(io_failure("duplicating a descriptor"))?;
            let view = match &mount {
                Some(_) => HolderView::Descriptor,
                None => HolderView::MountFuse(FuseOptions {
                    fs_name: Bytes(VIEW_SOURCE.into()),
                    max_read: None,
                    allow_other: false,
                }),
            };
            let request = CreateSession {
                session_id: session.id.to_string(),
                view,
                workspace_root: Bytes(workspace_root),
                root,
                network: match session.row.lock().network_profile {
                    NetworkProfile::Shared => Network::Shared,
                    NetworkProfile::Isolated => Network::Isolated,
                },
                env: Vec::new(),
            };
            // The holder keeps the connection for a gateway that comes after this one.
            let served = session.view.lock().clone();
            let connection = match served.filter(|view| is_resumable(view)) {
                Some(view) => Some(view.connection().map_err(io_failure("keeping a view"))?),
                None => None,
            };
            let given: Vec<_> = mount.iter().chain(&connection).map(AsFd::as_fd).collect();
            let (_, made) = holder.create_session(request, &given)?;
            if mount.is_none() {
                let made = made.ok_or_else(|| {
                    Failure::internal("the holder mounted a view and sent no connection for it")
                })?;
                gateway.serve_view(&session, made.connection)?;
                *session.mount.lock() = Some(made.mount);
            }
            let view = session.view.lock().clone();
            session.row.lock().resumable = view.is_some_and(|view| is_resumable(&view));
            begin_walk(&session)?;
            gateway.attach_again(&session)
        })
        .await
    }

    /// Where this process may mount: makes the mount of a session's view, which is nowhere yet, and
    /// serves it. Elsewhere the holder mounts, in the session's own namespaces.
    pub(crate) fn mount_view(&self, session: &Session) -> Result<()> {
        if !may_mount() {
            return Ok(());
        }
        let options = MountOptions {
            source: VIEW_SOURCE.to_owned(),
            ..MountOptions::default()
        };
        let mounted = detached(&options).map_err(|error| {
            Failure::new(
                ErrorCode::Unsupported,
                format!("a view cannot be mounted: {error}"),
            )
        })?;
        self.serve_view(session, mounted.connection)?;
        *session.mount.lock() = Some(mounted.mount);
        Ok(())
    }

    /// Gives a session a view, in namespaces of its own; what is left of earlier ones goes.
    pub(crate) async fn reopen_view(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        self.drop_view(session).await?;
        let (gateway, again) = (Arc::clone(self), Arc::clone(session));
        self.blocking(move || gateway.mount_view(&again)).await?;
        self.place_view(&session.sandbox, session).await?;
        let row = session.row.lock().clone();
        self.session_rows.put(row.id.as_ref(), &row)
    }

    /// Goes on serving the view of a session that an earlier gateway left. Returns whether there is
    /// one that can be served on.
    pub(crate) async fn resume_view(self: &Arc<Self>, session: &Arc<Session>) -> Result<bool> {
        if !session.row.lock().resumable {
            return Ok(false);
        }
        let holder = session.sandbox.holder()?;
        let id = session.id.to_string();
        let sessions = &holder.hello().sessions;
        if !sessions
            .iter()
            .any(|known| known.session_id == id && !known.ending)
        {
            return Ok(false);
        }
        let (gateway, session) = (Arc::clone(self), Arc::clone(session));
        self.blocking(move || {
            let Some(kept) = holder.view_descriptors(&id)? else {
                return Ok(false);
            };
            let upper = session.upper();
            let tree = Arc::new(Tree::resumed(Arc::clone(&upper)));
            let recorder = gateway.begin_record(&session, upper)?;
            let options = gateway.view_options();
            let view = View::resume(tree, recorder, kept.connection, &gateway.slow, &options)
                .map_err(io_failure("taking up a view"))?;
            *session.view.lock() = Some(Arc::new(view));
            *session.mount.lock() = Some(kept.mount);
            gateway.attach_missing(&session)?;
            Ok(true)
        })
        .await
    }

    /// Serves the view of a session over `connection`.
    fn serve_view(&self, session: &Session, connection: OwnedFd) -> Result<()> {
        let upper: Arc<Upper> = session.upper();
        let tree = Arc::new(Tree::new(Arc::clone(&upper))?);
        let recorder = self.begin_record(session, upper)?;
        let options = self.view_options();
        let view = View::serve(tree, recorder, connection, &self.slow, &options)
            .map_err(io_failure("serving a view"))?;
        *session.view.lock() = Some(Arc::new(view));
        Ok(())
    }

    fn begin_record(&self, session: &Session, upper: Arc<Upper>) -> Result<Arc<Recorder>> {
        let mode = show::trace_mode(session.row.lock().trace_mode);
        let commands = Arc::clone(&session.namespaces);
        Ok(Recorder::begin(upper, session.id.as_ref(), mode, commands)?)
    }

    fn view_options(&self) -> ViewOptions {
        ViewOptions {
            // Without privileges a session's user namespace has one user and one group.
            owner: (!may_mount()).then(|| Owner {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
            }),
            transport: self.config.settings.views.transport(),
            ..ViewOptions::default()
        }
    }
}

/// Has the kernel learn what is in the view, if the session wants that.
fn begin_walk(session: &Session) -> Result<()> {
    if !session.row.lock().background_walk {
        return Ok(());
    }
    let (view, mount) = (session.view.lock().clone(), session.mount.lock());
    if let (Some(view), Some(mount)) = (view, &*mount) {
        let mount = mount
            .try_clone()
            .map_err(io_failure("duplicating a descriptor"))?;
        let walk = view
            .walk(mount)
            .map_err(io_failure("walking through a view"))?;
        *session.walk.lock() = Some(walk);
    }
    Ok(())
}

fn is_resumable(view: &View) -> bool {
    view.transport() == Transport::Fuse
}

/// Whether this process may mount without a namespace of its own.
fn may_mount() -> bool {
    rustix::process::geteuid().is_root()
}

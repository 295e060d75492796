//! From a request to its handler. Exhaustive: a row of the catalogue without a handler does not
//! compile, and a handler without a row cannot be reached.

use std::sync::Arc;

use sandstack_api::{Call, Request, management, observability, runtime};
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway};

impl Gateway {
    /// Does what `request` asks for.
    pub(crate) async fn dispatch(
        self: &Arc<Self>,
        context: &Context,
        request: Request,
    ) -> Result<Value> {
        match request {
            Request::CreateSandbox(request) => {
                answer::<management::CreateSandbox>(self.create_sandbox(context, request).await)
            }
            Request::ListSandboxes(request) => {
                answer::<management::ListSandboxes>(self.list_sandboxes(context, &request))
            }
            Request::InspectSandbox(request) => {
                answer::<management::InspectSandbox>(self.inspect_sandbox(context, &request))
            }
            Request::DestroySandbox(request) => {
                answer::<management::DestroySandbox>(self.destroy_sandbox(context, &request).await)
            }
            Request::RefreshBase(request) => {
                answer::<management::RefreshBase>(self.refresh_base(context, &request).await)
            }
            Request::SquashLayerstacks(request) => answer::<management::SquashLayerstacks>(
                self.squash_layerstacks(context, &request).await,
            ),
            Request::ExportChanges(request) => {
                answer::<management::ExportChanges>(self.export_changes(context, request).await)
            }
            Request::CollectGarbage(request) => {
                answer::<management::CollectGarbage>(self.collect_garbage(context, &request).await)
            }
            Request::StoreUsage(_) => {
                answer::<management::StoreUsage>(self.store_usage(context).await)
            }
            Request::VerifyStore(_) => {
                answer::<management::VerifyStore>(self.verify_store(context).await)
            }
            Request::Doctor(_) => answer::<management::Doctor>(Ok(self.doctor().await)),
            Request::CreateWorkspaceSession(request) => answer::<runtime::CreateWorkspaceSession>(
                self.create_workspace_session(context, request).await,
            ),
            Request::ListWorkspaceSessions(request) => answer::<runtime::ListWorkspaceSessions>(
                self.list_workspace_sessions(context, &request).await,
            ),
            Request::InspectWorkspaceSession(request) => {
                answer::<runtime::InspectWorkspaceSession>(
                    self.inspect_workspace_session(context, &request).await,
                )
            }
            Request::DiffWorkspaceSession(request) => answer::<runtime::DiffWorkspaceSession>(
                self.diff_workspace_session(context, request).await,
            ),
            Request::PublishWorkspaceSession(request) => {
                answer::<runtime::PublishWorkspaceSession>(
                    self.publish_workspace_session(context, request).await,
                )
            }
            Request::RebaseWorkspaceSession(request) => answer::<runtime::RebaseWorkspaceSession>(
                self.rebase_workspace_session(context, &request).await,
            ),
            Request::AttachWorkspaceSession(request) => answer::<runtime::AttachWorkspaceSession>(
                self.attach_workspace_session(context, &request).await,
            ),
            Request::DetachWorkspaceSession(request) => answer::<runtime::DetachWorkspaceSession>(
                self.detach_workspace_session(context, &request).await,
            ),
            Request::DestroyWorkspaceSession(request) => {
                answer::<runtime::DestroyWorkspaceSession>(
                    self.destroy_workspace_session(context, &request).await,
                )
            }
            Request::ExecCommand(request) => {
                answer::<runtime::ExecCommand>(self.exec_command(context, request).await)
            }
            Request::WriteCommandStdin(request) => answer::<runtime::WriteCommandStdin>(
                self.write_command_stdin(context, request).await,
            ),
            Request::ReadCommandLines(request) => answer::<runtime::ReadCommandLines>(
                self.read_command_lines(context, &request).await,
            ),
            Request::SignalCommand(request) => {
                answer::<runtime::SignalCommand>(self.signal_command(context, &request).await)
            }
            Request::ResizeCommand(request) => {
                answer::<runtime::ResizeCommand>(self.resize_command(context, &request).await)
            }
            Request::ListCommands(request) => {
                answer::<runtime::ListCommands>(self.list_commands(context, &request))
            }
            Request::FileRead(request) => {
                answer::<runtime::FileRead>(self.file_read(context, request).await)
            }
            Request::FileWrite(request) => {
                answer::<runtime::FileWrite>(self.file_write(context, request).await)
            }
            Request::FileEdit(request) => {
                answer::<runtime::FileEdit>(self.file_edit(context, request).await)
            }
            Request::FileStat(request) => {
                answer::<runtime::FileStat>(self.file_stat(context, request).await)
            }
            Request::FileSearch(request) => {
                answer::<runtime::FileSearch>(self.file_search(context, request).await)
            }
            Request::FileDelete(request) => {
                answer::<runtime::FileDelete>(self.file_delete(context, request).await)
            }
            Request::FileMove(request) => {
                answer::<runtime::FileMove>(self.file_move(context, request).await)
            }
            Request::FileMakeDirectory(request) => answer::<runtime::FileMakeDirectory>(
                self.file_make_directory(context, request).await,
            ),
            Request::FileList(request) => {
                answer::<runtime::FileList>(self.file_list(context, request).await)
            }
            Request::FileBlame(request) => {
                answer::<runtime::FileBlame>(self.file_blame(context, request).await)
            }
            Request::ListLayers(request) => {
                answer::<runtime::ListLayers>(self.list_layers(context, &request).await)
            }
            Request::DiffLayers(request) => {
                answer::<runtime::DiffLayers>(self.diff_layers(context, request).await)
            }
            Request::Snapshot(request) => {
                answer::<observability::Snapshot>(self.snapshot(context, &request).await)
            }
            Request::Trace(request) => {
                answer::<observability::Trace>(tokio::task::block_in_place(|| {
                    self.trace(context, &request)
                }))
            }
            Request::Events(request) => {
                answer::<observability::Events>(tokio::task::block_in_place(|| {
                    self.list_events(context, &request)
                }))
            }
            Request::Resources(request) => {
                answer::<observability::Resources>(self.resources(context, request).await)
            }
            Request::Cgroup(request) => {
                answer::<observability::Cgroup>(tokio::task::block_in_place(|| {
                    self.cgroup(context, &request)
                }))
            }
            Request::Topology(request) => {
                answer::<observability::Topology>(self.topology(context, &request).await)
            }
            Request::Daemon(observability::Daemon {}) => {
                context.principal.require_every_sandbox()?;
                answer::<observability::Daemon>(Ok(tokio::task::block_in_place(|| self.daemon())))
            }
            Request::Layerstack(request) => {
                answer::<observability::Layerstack>(self.layerstack(context, &request).await)
            }
            Request::FileActivity(request) => {
                answer::<observability::FileActivity>(self.file_activity(context, request).await)
            }
        }
    }
}

/// Turns a handler's result into JSON. Naming the request's type holds the handler to the row's
/// response.
fn answer<C: Call>(result: Result<C::Response>) -> Result<Value> {
    serde_json::to_value(result?)
        .map_err(|error| Failure::internal("an answer cannot be written").caused_by(error))
}

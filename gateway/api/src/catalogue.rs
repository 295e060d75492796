//! The table of operations: one row each, from which everything else is generated.

use std::fmt;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::{Value, json};

use crate::{ApiError, Authority, ErrorCode, management, observability, runtime};

pub use crate::operation::{EVERY_OPERATION_ERRORS, Effect, Operation};

/// A request type: knows its row and its response.
pub trait Call: Serialize + DeserializeOwned + Into<Request> {
    /// The row.
    const OPERATION: OperationName;
    /// What the operation answers.
    type Response: Serialize + DeserializeOwned + JsonSchema;
}

/// Schemas stand alone (definitions inlined under `$defs`) in JSON Schema 2020-12, as MCP and
/// OpenAPI 3.1 both take them.
fn schema_of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<T>()
}

macro_rules! operations {
    ($($variant:ident {
        name: $name:literal,
        title: $title:literal,
        authority: $authority:ident,
        effect: $effect:ident,
        idempotent: $idempotent:literal,
        open_world: $open_world:literal,
        streams_progress: $streams:literal,
        errors: [$($error:ident),*],
        positional: [$($positional:literal),*],
        $request:ty => $response:ty
    })*) => {
        /// The name of an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OperationName {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        /// A request of any operation. The gateway matches it without a wildcard.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Request {
            $(#[doc = concat!("`", $name, "`")] $variant($request),)*
        }

        impl Request {
            /// Which operation it asks for.
            pub fn operation(&self) -> OperationName {
                match self {
                    $(Request::$variant(_) => OperationName::$variant,)*
                }
            }

            /// Reads the request of `operation` from JSON.
            ///
            /// # Errors
            /// `invalid_request`, naming the field.
            pub fn parse(operation: OperationName, body: &[u8]) -> Result<Request, ApiError> {
                match operation {
                    $(OperationName::$variant => parse_body::<$request>(operation, body).map(Request::$variant),)*
                }
            }
        }

        $(
            impl Call for $request {
                const OPERATION: OperationName = OperationName::$variant;
                type Response = $response;
            }

            impl From<$request> for Request {
                fn from(request: $request) -> Request {
                    Request::$variant(request)
                }
            }
        )*

        /// Every operation, in the order of the documentation.
        pub const OPERATIONS: &[Operation] = &[$(Operation {
            operation: OperationName::$variant,
            name: $name,
            title: $title,
            authority: Authority::$authority,
            effect: Effect::$effect,
            idempotent: $idempotent,
            open_world: $open_world,
            streams_progress: $streams,
            errors: &[$(ErrorCode::$error),*],
            positional: &[$($positional),*],
            request_schema: schema_of::<$request>,
            response_schema: schema_of::<$response>,
        },)*];
    };
}

operations! {
    CreateSandbox {
        name: "create_sandbox",
        title: "Create a sandbox",
        authority: Management,
        effect: Additive,
        idempotent: false,
        open_world: true,
        streams_progress: true,
        errors: [NotFound, AlreadyExists, QuotaExceeded, Conflict, Unsupported],
        positional: ["workspace_root"],
        management::CreateSandbox => management::CreatedSandboxes
    }
    ListSandboxes {
        name: "list_sandboxes",
        title: "List sandboxes",
        authority: Management,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [],
        positional: [],
        management::ListSandboxes => management::SandboxPage
    }
    InspectSandbox {
        name: "inspect_sandbox",
        title: "Inspect a sandbox",
        authority: Management,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: ["sandbox_id"],
        management::InspectSandbox => management::InspectedSandbox
    }
    DestroySandbox {
        name: "destroy_sandbox",
        title: "Destroy a sandbox",
        authority: Management,
        effect: Destructive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["sandbox_id"],
        management::DestroySandbox => management::DestroyedSandbox
    }
    RefreshBase {
        name: "refresh_base",
        title: "Bring in edits of the project directory",
        authority: Management,
        effect: Additive,
        idempotent: false,
        open_world: false,
        streams_progress: true,
        errors: [NotFound, QuotaExceeded, Conflict],
        positional: ["sandbox_id"],
        management::RefreshBase => management::Refreshed
    }
    SquashLayerstacks {
        name: "squash_layerstacks",
        title: "Squash layers",
        authority: Management,
        effect: Destructive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, QuotaExceeded, Conflict],
        positional: ["sandbox_id"],
        management::SquashLayerstacks => management::SquashedLayers
    }
    ExportChanges {
        name: "export_changes",
        title: "Export a layer or a difference",
        authority: Management,
        effect: Additive,
        idempotent: false,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, AlreadyExists, QuotaExceeded, Conflict],
        positional: ["dest"],
        management::ExportChanges => management::ExportedChanges
    }
    CollectGarbage {
        name: "collect_garbage",
        title: "Remove what nothing needs",
        authority: Management,
        effect: Additive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [],
        positional: [],
        management::CollectGarbage => management::CollectedGarbage
    }
    StoreUsage {
        name: "store_usage",
        title: "What the store takes",
        authority: Management,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [],
        positional: [],
        management::StoreUsage => management::StoreUsageReply
    }
    VerifyStore {
        name: "verify_store",
        title: "Check the store",
        authority: Management,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [],
        positional: [],
        management::VerifyStore => management::VerifiedStore
    }
    Doctor {
        name: "doctor",
        title: "Check the host",
        authority: Management,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [],
        positional: [],
        management::Doctor => management::DoctorReport
    }
    CreateWorkspaceSession {
        name: "create_workspace_session",
        title: "Open a workspace session",
        authority: Runtime,
        effect: Additive,
        idempotent: false,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, AlreadyExists, Conflict, QuotaExceeded, Unsupported],
        positional: ["name"],
        runtime::CreateWorkspaceSession => runtime::SessionRecord
    }
    ListWorkspaceSessions {
        name: "list_workspace_sessions",
        title: "List workspace sessions",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: [],
        runtime::ListWorkspaceSessions => runtime::SessionPage
    }
    InspectWorkspaceSession {
        name: "inspect_workspace_session",
        title: "Inspect a workspace session",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: ["workspace_session_id"],
        runtime::InspectWorkspaceSession => runtime::InspectedSession
    }
    DiffWorkspaceSession {
        name: "diff_workspace_session",
        title: "What a session changed",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["workspace_session_id"],
        runtime::DiffWorkspaceSession => runtime::SessionDiff
    }
    PublishWorkspaceSession {
        name: "publish_workspace_session",
        title: "Publish a workspace session",
        authority: Runtime,
        effect: Additive,
        idempotent: false,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict, QuotaExceeded],
        positional: ["workspace_session_id"],
        runtime::PublishWorkspaceSession => runtime::Published
    }
    RebaseWorkspaceSession {
        name: "rebase_workspace_session",
        title: "Bring a session onto the newest layer",
        authority: Runtime,
        effect: Additive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["workspace_session_id"],
        runtime::RebaseWorkspaceSession => runtime::RebasedSession
    }
    AttachWorkspaceSession {
        name: "attach_workspace_session",
        title: "Attach a view to the host",
        authority: Runtime,
        effect: Additive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, AlreadyExists, Conflict, Unsupported],
        positional: ["workspace_session_id", "path"],
        runtime::AttachWorkspaceSession => runtime::Attachments
    }
    DetachWorkspaceSession {
        name: "detach_workspace_session",
        title: "Detach a view from the host",
        authority: Runtime,
        effect: Additive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["workspace_session_id", "path"],
        runtime::DetachWorkspaceSession => runtime::Attachments
    }
    DestroyWorkspaceSession {
        name: "destroy_workspace_session",
        title: "Destroy a workspace session",
        authority: Runtime,
        effect: Destructive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["workspace_session_id"],
        runtime::DestroyWorkspaceSession => runtime::DestroyedSession
    }
    ExecCommand {
        name: "exec_command",
        title: "Run a command",
        authority: Runtime,
        effect: Destructive,
        idempotent: false,
        open_world: true,
        streams_progress: false,
        errors: [NotFound, Conflict, QuotaExceeded],
        positional: ["cmd"],
        runtime::ExecCommand => runtime::CommandReply
    }
    WriteCommandStdin {
        name: "write_command_stdin",
        title: "Feed a command",
        authority: Runtime,
        effect: Destructive,
        idempotent: false,
        open_world: true,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["command_session_id", "stdin"],
        runtime::WriteCommandStdin => runtime::CommandReply
    }
    ReadCommandLines {
        name: "read_command_lines",
        title: "Read a command's output",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: ["command_session_id"],
        runtime::ReadCommandLines => runtime::CommandLines
    }
    SignalCommand {
        name: "signal_command",
        title: "Signal a command",
        authority: Runtime,
        effect: Destructive,
        idempotent: false,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["command_session_id", "signal"],
        runtime::SignalCommand => runtime::CommandStanding
    }
    ResizeCommand {
        name: "resize_command",
        title: "Resize a terminal",
        authority: Runtime,
        effect: Additive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["command_session_id", "rows", "cols"],
        runtime::ResizeCommand => runtime::CommandStanding
    }
    ListCommands {
        name: "list_commands",
        title: "List commands",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: [],
        runtime::ListCommands => runtime::CommandPage
    }
    FileRead {
        name: "file_read",
        title: "Read a file",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["path"],
        runtime::FileRead => runtime::FileContent
    }
    FileWrite {
        name: "file_write",
        title: "Write a file",
        authority: Runtime,
        effect: Destructive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict, PreconditionFailed, QuotaExceeded],
        positional: ["path", "content"],
        runtime::FileWrite => runtime::FileWritten
    }
    FileEdit {
        name: "file_edit",
        title: "Edit a file",
        authority: Runtime,
        effect: Destructive,
        idempotent: false,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict, PreconditionFailed, QuotaExceeded],
        positional: ["path"],
        runtime::FileEdit => runtime::FileEdited
    }
    FileList {
        name: "file_list",
        title: "List files",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["path"],
        runtime::FileList => runtime::FileEntries
    }
    FileStat {
        name: "file_stat",
        title: "What is at a path",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["path"],
        runtime::FileStat => runtime::FileStatus
    }
    FileSearch {
        name: "file_search",
        title: "Search in files",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["pattern"],
        runtime::FileSearch => runtime::SearchMatches
    }
    FileDelete {
        name: "file_delete",
        title: "Remove a file or directory",
        authority: Runtime,
        effect: Destructive,
        idempotent: false,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict, PreconditionFailed, QuotaExceeded],
        positional: ["path"],
        runtime::FileDelete => runtime::FileDeleted
    }
    FileMove {
        name: "file_move",
        title: "Move a file or directory",
        authority: Runtime,
        effect: Destructive,
        idempotent: false,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, AlreadyExists, Conflict, QuotaExceeded],
        positional: ["path", "to"],
        runtime::FileMove => runtime::FileMoved
    }
    FileMakeDirectory {
        name: "file_make_directory",
        title: "Make a directory",
        authority: Runtime,
        effect: Additive,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, AlreadyExists, Conflict, QuotaExceeded],
        positional: ["path"],
        runtime::FileMakeDirectory => runtime::DirectoryMade
    }
    FileBlame {
        name: "file_blame",
        title: "Blame a file",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["path"],
        runtime::FileBlame => runtime::Blame
    }
    ListLayers {
        name: "list_layers",
        title: "List layers",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: [],
        runtime::ListLayers => runtime::LayerPage
    }
    DiffLayers {
        name: "diff_layers",
        title: "What differs between layers",
        authority: Runtime,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound, Conflict],
        positional: ["from", "to"],
        runtime::DiffLayers => runtime::LayerDiff
    }
    Snapshot {
        name: "snapshot",
        title: "What lives now",
        authority: Observability,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: [],
        observability::Snapshot => observability::SnapshotReply
    }
    Trace {
        name: "trace",
        title: "A request's waterfall",
        authority: Observability,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: ["trace_id"],
        observability::Trace => observability::TraceReply
    }
    Events {
        name: "events",
        title: "What happened",
        authority: Observability,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [],
        positional: ["name"],
        observability::Events => observability::EventsReply
    }
    Resources {
        name: "resources",
        title: "What commands use",
        authority: Observability,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: [],
        observability::Resources => observability::ResourcesReply
    }
    Cgroup {
        name: "cgroup",
        title: "A sandbox's control groups",
        authority: Observability,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: [],
        observability::Cgroup => observability::CgroupReply
    }
    Layerstack {
        name: "layerstack",
        title: "Layers, leases and uppers",
        authority: Observability,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: [],
        observability::Layerstack => observability::LayerstackReply
    }
    Topology {
        name: "topology",
        title: "Processes by session",
        authority: Observability,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: [],
        observability::Topology => observability::TopologyReply
    }
    Daemon {
        name: "daemon",
        title: "The gateway's own metrics",
        authority: Observability,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [],
        positional: [],
        observability::Daemon => observability::DaemonReply
    }
    FileActivity {
        name: "file_activity",
        title: "Who touched which file",
        authority: Observability,
        effect: ReadOnly,
        idempotent: true,
        open_world: false,
        streams_progress: false,
        errors: [NotFound],
        positional: ["path"],
        observability::FileActivity => observability::FileActivityReply
    }
}

impl OperationName {
    /// The row.
    pub fn row(self) -> &'static Operation {
        // The variants and the rows come from one list, in one order.
        &OPERATIONS[self as usize]
    }

    /// The name on every surface.
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Finds the operation called `name`; `None` if there is none.
    pub fn find(name: &str) -> Option<OperationName> {
        OPERATIONS
            .iter()
            .find(|row| row.name == name)
            .map(|row| row.operation)
    }
}

impl fmt::Display for OperationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn parse_body<T: DeserializeOwned>(operation: OperationName, body: &[u8]) -> Result<T, ApiError> {
    // No body at all is the empty request, so that `curl -X POST …/list_sandboxes` works.
    let body = if body.is_empty() { b"{}" } else { body };
    let mut reader = serde_json::Deserializer::from_slice(body);
    let invalid =
        |told: String| ApiError::new(ErrorCode::InvalidRequest, format!("{operation}: {told}"));
    // Else an array would do for an object, its elements in the order of the fields.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(invalid(
            "the request is an array; it must be an object".to_owned(),
        ));
    }
    let request = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.into_inner();
        invalid(match cause.classify() {
            Category::Syntax | Category::Eof | Category::Io => {
                format!("the request is not JSON: {cause}")
            }
            // The whole request, or a field that has no path yet.
            Category::Data if path == "." || path == "?" => cause.to_string(),
            Category::Data => format!("{path}: {cause}"),
        })
    })?;
    reader
        .end()
        .map_err(|error| invalid(format!("the request is not JSON: {error}")))?;
    Ok(request)
}

/// The catalogue as JSON, as `GET /v1/catalog` answers it.
pub fn to_json() -> Value {
    let rows: Vec<Value> = OPERATIONS
        .iter()
        .map(|row| {
            json!({
                "name": row.name,
                "title": row.title,
                "description": row.description(),
                "authority": row.authority,
                "effect": row.effect,
                "idempotent": row.idempotent,
                "open_world": row.open_world,
                "streams_progress": row.streams_progress,
                "errors": EVERY_OPERATION_ERRORS.iter().chain(row.errors).collect::<Vec<_>>(),
                "positional": row.positional,
                "request": (row.request_schema)(),
                "response": (row.response_schema)(),
            })
        })
        .collect();
    json!({ "operations": rows })
}

#[cfg(test)]
mod tests;

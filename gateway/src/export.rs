//! Exports: a layer, or what differs between two, at a place on the host.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use sandstack_api::management::{
    ExportChanges, ExportFormat as ApiFormat, ExportedChanges, LeftOut,
};
use sandstack_api::{Blob, ErrorCode};
use sandstack_store::{Error as StoreError, ExportFormat};
use serde_json::json;

use crate::event::Subject;
use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway};
use crate::history::{gone_layer, on_layer};
use crate::show;

impl Gateway {
    pub(crate) async fn export_changes(
        self: &Arc<Self>,
        context: &Context,
        request: ExportChanges,
    ) -> Result<ExportedChanges> {
        let sandbox = self.ready_sandbox(context, &request.sandbox_id)?;
        let stack = sandbox.stack()?.clone();
        let from = request.from.as_ref().map(show::parse_layer).transpose()?;
        let to = request.to.as_ref().map(show::parse_layer).transpose()?;
        // A patch is of a difference.
        let from = match (from, request.format) {
            (None, ApiFormat::Patch) => stack.layer_at(1)?.map(|base| base.id),
            (from, _) => from,
        };
        let format = match request.format {
            ApiFormat::Dir => ExportFormat::Directory,
            ApiFormat::Tar => ExportFormat::Tar,
            ApiFormat::TarZst => ExportFormat::TarZstd,
            ApiFormat::Patch => ExportFormat::Patch,
        };
        let dest = PathBuf::from(request.dest.as_os_str());
        let gateway = Arc::clone(self);
        let (to, exported) = {
            let _span = context.trace.span("layers.export");
            self.blocking(move || {
                gateway.check_dest(&dest)?;
                let (to, exported) =
                    on_layer(&stack, to, |to| stack.export(from, to, format, &dest));
                let exported = exported.map_err(|error| match error {
                    StoreError::NoLayer(_) => gone_layer(error, &stack),
                    error => failure_at(error, &dest),
                })?;
                Ok((to, exported))
            })
            .await?
        };
        let subject = Subject {
            sandbox: Some(sandbox.id.clone()),
            ..context.subject()
        };
        let details =
            json!({ "dest": request.dest, "to": to.to_string(), "files": exported.files });
        self.events.record("layer.exported", subject, details);
        let left_out = exported.left_out.iter().take(show::MAX_ROWS);
        Ok(ExportedChanges {
            sandbox_id: sandbox.id.clone(),
            dest: request.dest,
            format: request.format,
            from: from.map(show::layer_id),
            to: show::layer_id(to),
            files: exported.files,
            directories: exported.directories,
            symlinks: exported.symlinks,
            special_files: exported.special_files,
            bytes: exported.bytes,
            deleted: show::paths(&exported.deleted),
            deleted_count: exported.deleted.len() as u64,
            left_out: left_out
                .map(|left| LeftOut {
                    path: Blob(left.path.as_bytes().to_vec()),
                    what: left.what.to_owned(),
                })
                .collect(),
            left_out_count: exported.left_out.len() as u64,
        })
    }

    /// Refuses a place that cannot be meant.
    fn check_dest(&self, dest: &Path) -> Result<()> {
        let shown = dest.display();
        if dest.as_os_str().is_empty() {
            return Err(Failure::invalid(
                "dest is empty; give the absolute path of what is to be made",
            ));
        }
        if !dest.is_absolute() {
            return Err(Failure::invalid(format!(
                "dest {shown} is relative; give an absolute path, for the gateway does not know the caller's directory"
            )));
        }
        if dest.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(Failure::invalid("dest contains a NUL byte"));
        }
        let (Some(parent), Some(name)) = (dest.parent(), dest.file_name()) else {
            return Err(Failure::invalid(format!(
                "dest {shown} names no file or directory below /; give the path of what is to be made"
            )));
        };
        if dest.components().any(|part| part == Component::ParentDir) {
            return Err(Failure::invalid(format!(
                "dest {shown} has `..` in it; give the path without"
            )));
        }
        let real = parent.canonicalize().map_err(|error| {
            let parent = parent.display();
            Failure::invalid(match error.kind() {
                io::ErrorKind::NotFound => format!(
                    "dest {shown} is to be in {parent}, which does not exist on the gateway's host; make that directory"
                ),
                _ => format!("dest {shown} is to be in {parent}, which cannot be used: {error}"),
            })
        })?;
        if real != parent {
            return Err(Failure::invalid(format!(
                "dest {shown} goes through a symlink; if {} is meant, give that",
                real.join(name).display()
            )));
        }
        let home = self.config.host.home.as_ref();
        if home.is_some_and(|home| *home == dest || home.canonicalize().is_ok_and(|h| h == dest)) {
            return Err(Failure::invalid(format!(
                "dest {shown} is the home directory; give a path in it"
            )));
        }
        let state = &self.config.state_dir;
        if state
            .canonicalize()
            .is_ok_and(|state| real.starts_with(&state) || dest == state)
        {
            return Err(Failure::invalid(format!(
                "dest {shown} is in the gateway's own directory {}; choose one elsewhere",
                state.display()
            )));
        }
        Ok(())
    }
}

/// A failure to export, where it is the destination's.
fn failure_at(error: StoreError, dest: &Path) -> Failure {
    let shown = dest.display();
    let StoreError::Io { path, source, .. } = &error else {
        return error.into();
    };
    // It is made beside its place.
    if !dest.parent().is_some_and(|parent| path.starts_with(parent)) {
        return error.into();
    }
    let failure = match source.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => Failure::new(
            ErrorCode::AlreadyExists,
            format!("something is at {shown} already; remove it or choose another dest"),
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Failure::new(
            ErrorCode::QuotaExceeded,
            format!("the disk that {shown} is to be on is full; nothing was left there"),
        ),
        _ => Failure::invalid(format!("dest {shown} cannot be written: {source}")),
    };
    failure.caused_by(error)
}

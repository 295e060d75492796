//! File operations: on a live session, or on the head without one.
//!
//! On the head a lease and an upper are made for the operation alone; a write publishes them as one
//! layer owned by the request.

use std::sync::Arc;

use globset::{GlobBuilder, GlobMatcher};
use sandstack_api::runtime::{
    Blame, BlameRange, FileBlame, FileContent, FileEdit, FileEdited, FileEntries, FileEntry,
    FileList, FileRead, FileWrite, FileWritten,
};
use sandstack_api::{
    Blob, CommandId, Encoding, ErrorCode, LayerId, MAX_WINDOW_BYTES, RequestId, SandboxId,
    SessionId, Text,
};
use sandstack_fs::{DirectoryItem, Error as FsError, Files, Tree};
use sandstack_store::{
    BlameRun, Digest, FileBlame as StoreBlame, LayerKind, Outcome, Owner, PublishOptions, RelPath,
    Upper, unified_diff,
};

use crate::clock::now_unix_ms;
use crate::event::Subject;
use crate::failure::{Failure, Result};
use crate::gateway::{Context, Gateway, Sandbox};
use crate::page::Page;
use crate::sandbox::page_limit;
use crate::show;

/// Largest file that can be edited or blamed through an operation, in bytes.
const MAX_EDITED: u64 = 32 << 20;

/// What a file operation works on.
pub(crate) struct Place {
    pub(crate) files: Files,
    pub(crate) upper: Arc<Upper>,
    /// `None` on the head.
    session: Option<SessionId>,
}

impl Gateway {
    /// Runs `work` on the view of a session, or on the head. On the head what it changed is
    /// published afterwards; the id of the new layer is returned beside its result.
    pub(crate) async fn with_files<T: Send + 'static>(
        self: &Arc<Self>,
        context: &Context,
        sandbox_id: &SandboxId,
        session_id: Option<&SessionId>,
        work: impl FnOnce(&Place) -> Result<T> + Send + 'static,
    ) -> Result<(T, Option<LayerId>)> {
        let sandbox = self.sandbox(context, sandbox_id)?;
        let root = sandbox.workspace_root();
        if let Some(id) = session_id {
            let session = self.session_of(context, sandbox_id, id)?;
            let _gate = session.enter().await?;
            let view = session.view()?;
            let (upper, id) = (session.upper(), id.clone());
            let result = self
                .blocking(move || {
                    work(&Place {
                        files: view.files(&root),
                        upper,
                        session: Some(id),
                    })
                })
                .await?;
            return Ok((result, None));
        }
        let gateway = Arc::clone(self);
        let owner = context.request_id.to_string();
        let subject = context.subject();
        self.blocking(move || gateway.on_head(&sandbox, &root, &owner, subject, work))
            .await
    }

    fn on_head<T>(
        &self,
        sandbox: &Sandbox,
        root: &[u8],
        owner: &str,
        subject: Subject,
        work: impl FnOnce(&Place) -> Result<T>,
    ) -> Result<(T, Option<LayerId>)> {
        let stack = sandbox.stack()?;
        let lease = stack.take_lease(None, &format!("operation:{owner}"), None, now_unix_ms())?;
        let run = || -> Result<(T, Option<LayerId>)> {
            let upper = Arc::new(self.store.open_upper(&lease)?);
            let tree = Arc::new(Tree::new(Arc::clone(&upper))?);
            let files = Files::new(tree, root);
            let result = work(&Place {
                files,
                upper: Arc::clone(&upper),
                session: None,
            })?;
            if upper.state().is_empty() {
                return Ok((result, None));
            }
            let options = PublishOptions {
                request_id: Some(owner.to_owned()),
                policy: show::policy(&sandbox.row.lock().record.publish_policy),
                ..PublishOptions::new(Owner::Operation(owner.to_owned()), now_unix_ms())
            };
            let report = stack.publish(&upper, &options, &mut |_| {})?;
            match report.outcome {
                Outcome::Published(layer) => {
                    let subject = Subject {
                        sandbox: Some(sandbox.id.clone()),
                        ..subject
                    };
                    let details = serde_json::json!({
                        "layer": layer.id.to_string(),
                        "changed_paths": report.changed_paths,
                        "merged_paths": report.merged.len(),
                    });
                    self.events.record("layer.published", subject, details);
                    Ok((result, Some(show::layer_id(layer.id))))
                }
                Outcome::NoChange | Outcome::DryRun | Outcome::StaleReads => Ok((result, None)),
                Outcome::Conflict => {
                    let paths: Vec<String> = report
                        .conflicts
                        .iter()
                        .map(|conflict| conflict.path.to_string())
                        .collect();
                    Err(Failure::conflict(format!(
                        "another publish changed {} at the same time; read it again and retry",
                        paths.join(", ")
                    ))
                    .with("paths", paths))
                }
            }
        };
        let result = run();
        self.store.release(lease.id())?;
        result
    }

    pub(crate) async fn file_read(
        self: &Arc<Self>,
        context: &Context,
        request: FileRead,
    ) -> Result<FileContent> {
        let limit = request.limit.unwrap_or(MAX_WINDOW_BYTES as u64);
        if limit == 0 || limit > MAX_WINDOW_BYTES as u64 {
            return Err(Failure::invalid(format!(
                "limit is {limit}; it must be 1 to {MAX_WINDOW_BYTES}"
            )));
        }
        let (sandbox, session) = (
            request.sandbox_id.clone(),
            request.workspace_session_id.clone(),
        );
        let (content, _) = self
            .with_files(context, &sandbox, session.as_ref(), move |place| {
                let failed = |error| Failure::of_path(error, &request.path.0);
                let (info, bytes) = place
                    .files
                    .read(&request.path.0, request.offset, limit as usize)
                    .map_err(failed)?;
                let digest = place.files.digest(info.attributes.ino).map_err(failed)?;
                let length = bytes.len() as u64;
                let text = match request.encoding {
                    Some(Encoding::Base64) => Text::base64(&bytes),
                    Some(Encoding::Utf8) | None => Text::new(bytes),
                };
                Ok(FileContent {
                    path: show::path(&info.path),
                    text,
                    offset: request.offset,
                    length,
                    size: info.attributes.size,
                    truncated: request.offset + length < info.attributes.size,
                    digest: digest.to_string(),
                    mode: u32::from(info.attributes.mode),
                })
            })
            .await?;
        Ok(content)
    }

    pub(crate) async fn file_write(
        self: &Arc<Self>,
        context: &Context,
        request: FileWrite,
    ) -> Result<FileWritten> {
        let text = Text {
            content: request.content,
            encoding: request.encoding,
        };
        let bytes = text.bytes().map_err(Failure::invalid)?;
        if let Some(mode) = request.mode
            && mode > 0o7777
        {
            return Err(Failure::invalid(format!(
                "mode is {mode:o}; it must be 0 to 7777, in octal"
            )));
        }
        let expected = request
            .expected_digest
            .as_deref()
            .map(parse_expected)
            .transpose()?;
        let path = request.path;
        let (mut written, layer) = self
            .with_files(
                context,
                &request.sandbox_id,
                request.workspace_session_id.as_ref(),
                move |place| {
                    if let Some(expected) = expected {
                        check_expected(&place.files, &path.0, expected)?;
                    }
                    let mode = request.mode.map(|mode| mode as u16);
                    let written = place
                        .files
                        .write(&path.0, &bytes, mode)
                        .map_err(|error| Failure::of_path(error, &path.0))?;
                    Ok(FileWritten {
                        path: show::path(&written.info.path),
                        created: written.created,
                        size: written.info.attributes.size,
                        digest: Digest::of(&bytes).to_string(),
                        mode: u32::from(written.info.attributes.mode),
                        layer: None,
                    })
                },
            )
            .await?;
        written.layer = layer;
        Ok(written)
    }

    pub(crate) async fn file_edit(
        self: &Arc<Self>,
        context: &Context,
        request: FileEdit,
    ) -> Result<FileEdited> {
        if request.edits.is_empty() {
            return Err(Failure::invalid("edits is empty; give at least one"));
        }
        if let Some(index) = request
            .edits
            .iter()
            .position(|edit| edit.old_string.0.is_empty())
        {
            return Err(Failure::invalid(format!(
                "edits[{index}].old_string is empty; give the text to find"
            )));
        }
        let expected = request
            .expected_digest
            .as_deref()
            .map(parse_expected)
            .transpose()?;
        let (sandbox, session) = (
            request.sandbox_id.clone(),
            request.workspace_session_id.clone(),
        );
        let (mut edited, layer) = self
            .with_files(context, &sandbox, session.as_ref(), move |place| {
                if let Some(expected) = expected {
                    check_expected(&place.files, &request.path.0, expected)?;
                }
                edit(place, &request)
            })
            .await?;
        edited.layer = layer;
        Ok(edited)
    }

    pub(crate) async fn file_list(
        self: &Arc<Self>,
        context: &Context,
        request: FileList,
    ) -> Result<FileEntries> {
        let limit = page_limit(request.limit)?;
        let glob = request.glob.as_deref().map(compile_glob).transpose()?;
        let (sandbox, session) = (
            request.sandbox_id.clone(),
            request.workspace_session_id.clone(),
        );
        let (entries, _) = self
            .with_files(context, &sandbox, session.as_ref(), move |place| {
                let failed = |error| Failure::of_path(error, &request.path.0);
                let items = match &glob {
                    None => place.files.list(&request.path.0).map_err(failed)?,
                    Some(glob) => {
                        let base = place.files.stat(&request.path.0).map_err(failed)?.path;
                        let mut items = Vec::new();
                        place
                            .files
                            .walk(
                                &request.path.0,
                                |_| true,
                                |item| {
                                    if glob.is_match(relative(&item.path, &base)) {
                                        items.push(item);
                                    }
                                    true
                                },
                            )
                            .map_err(failed)?;
                        items
                    }
                };
                let page = Page::cut(items, limit, request.page_token.as_deref(), |item| {
                    item.path.as_bytes().escape_ascii().to_string()
                })?;
                Ok(FileEntries {
                    entries: page.rows.into_iter().map(entry).collect(),
                    next_page_token: page.next,
                })
            })
            .await?;
        Ok(entries)
    }

    pub(crate) async fn file_blame(
        self: &Arc<Self>,
        context: &Context,
        request: FileBlame,
    ) -> Result<Blame> {
        if request.workspace_session_id.is_some() && request.layer.is_some() {
            return Err(Failure::invalid(
                "give workspace_session_id or layer, not both",
            ));
        }
        let layer = request.layer.as_ref().map(show::parse_layer).transpose()?;
        let sandbox = self.sandbox(context, &request.sandbox_id)?;
        let (sandbox_id, session) = (
            request.sandbox_id.clone(),
            request.workspace_session_id.clone(),
        );
        if let (None, Some(layer)) = (&session, layer) {
            let path = parse_path(&request.path)?;
            return self
                .blocking(move || Ok(show_blame(&path, &sandbox.stack()?.blame(layer, &path)?)))
                .await;
        }
        if let Some(id) = &session {
            let session = self.session_of(context, &sandbox_id, id)?;
            let _gate = session.enter().await?;
            self.settle_writers(&session).await;
        }
        let (blame, _) = self
            .with_files(context, &sandbox_id, session.as_ref(), move |place| {
                let failed = |error| Failure::of_path(error, &request.path.0);
                let info = place.files.stat(&request.path.0).map_err(failed)?;
                if info.attributes.size > MAX_EDITED {
                    return Err(Failure::new(
                        ErrorCode::TooLarge,
                        format!(
                            "{} has {} bytes; up to {MAX_EDITED} are blamed",
                            info.path, info.attributes.size
                        ),
                    ));
                }
                let stack = sandbox.stack()?;
                let base = place.upper.lease().base;
                let blame = match &place.session {
                    None => stack.blame(base, &info.path)?,
                    Some(id) => {
                        let (_, bytes) = place
                            .files
                            .read(&request.path.0, 0, MAX_EDITED as usize)
                            .map_err(failed)?;
                        stack.blame_live(
                            &place.upper,
                            &info.path,
                            &bytes,
                            Owner::Session(id.to_string()),
                        )?
                    }
                };
                Ok(show_blame(&info.path, &blame))
            })
            .await?;
        Ok(blame)
    }
}

fn parse_path(path: &Blob) -> Result<RelPath> {
    RelPath::parse(&path.0).map_err(|error| Failure::invalid(format!("path: {error}")))
}

/// A digest that a file must have; `None` means that it must not exist.
pub(crate) fn parse_expected(text: &str) -> Result<Option<Digest>> {
    match text {
        "" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|error| Failure::invalid(format!("expected_digest: {error}"))),
    }
}

pub(crate) fn check_expected(files: &Files, path: &[u8], expected: Option<Digest>) -> Result<()> {
    let present = match files.stat(path) {
        Ok(info) => Some(
            files
                .digest(info.attributes.ino)
                .map_err(|error| Failure::of_path(error, path))?,
        ),
        Err(FsError::NotFound) => None,
        Err(error) => return Err(Failure::of_path(error, path)),
    };
    if present == expected {
        return Ok(());
    }
    let shown = path.escape_ascii();
    let message = match (present, expected) {
        (None, _) => format!("\"{shown}\" does not exist, and content with a digest was expected"),
        (Some(_), None) => format!("\"{shown}\" exists, and was expected not to"),
        (Some(present), Some(_)) => {
            format!("the content of \"{shown}\" is another: its digest is {present}")
        }
    };
    Err(Failure::new(ErrorCode::PreconditionFailed, message)
        .with("present_digest", present.map(|digest| digest.to_string())))
}

fn edit(place: &Place, request: &FileEdit) -> Result<FileEdited> {
    let failed = |error| Failure::of_path(error, &request.path.0);
    let info = place.files.stat(&request.path.0).map_err(failed)?;
    if info.attributes.size > MAX_EDITED {
        return Err(Failure::new(
            ErrorCode::TooLarge,
            format!(
                "{} has {} bytes; up to {MAX_EDITED} can be edited",
                info.path, info.attributes.size
            ),
        ));
    }
    let (info, old) = place
        .files
        .read(&request.path.0, 0, MAX_EDITED as usize)
        .map_err(failed)?;
    let mut new = old.clone();
    let mut replacements = 0;
    for (index, edit) in request.edits.iter().enumerate() {
        let places = occurrences(&new, &edit.old_string.0);
        match places.len() {
            0 => {
                return Err(Failure::invalid(format!(
                    "edits[{index}].old_string does not occur in {}; nothing was changed",
                    info.path
                ))
                .with("edit", index)
                .with("occurrences", 0));
            }
            count if count > 1 && !edit.replace_all => {
                return Err(Failure::invalid(format!(
                    "edits[{index}].old_string occurs {count} times in {}; make it unique or give replace_all; nothing \
                     was changed",
                    info.path
                ))
                .with("edit", index)
                .with("occurrences", count));
            }
            _ => {}
        }
        replacements += places.len() as u64;
        new = replace(&new, &places, edit.old_string.0.len(), &edit.new_string.0);
    }
    if !request.dry_run && new != old {
        place
            .files
            .write(&request.path.0, &new, None)
            .map_err(failed)?;
    }
    Ok(FileEdited {
        path: show::path(&info.path),
        replacements,
        diff: Blob(unified_diff(info.path.as_bytes(), &old, &new)),
        size: new.len() as u64,
        digest: Digest::of(&new).to_string(),
        layer: None,
    })
}

/// Where `needle` occurs, without overlaps.
fn occurrences(text: &[u8], needle: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = 0;
    while at + needle.len() <= text.len() {
        // The first byte is looked for with the standard library's fast search.
        let Some(next) = text[at..].iter().position(|byte| *byte == needle[0]) else {
            break;
        };
        at += next;
        if text[at..].starts_with(needle) {
            places.push(at);
            at += needle.len();
        } else {
            at += 1;
        }
    }
    places
}

fn replace(text: &[u8], places: &[usize], length: usize, with: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    for place in places {
        out.extend_from_slice(&text[at..*place]);
        out.extend_from_slice(with);
        at = place + length;
    }
    out.extend_from_slice(&text[at..]);
    out
}

/// Compiles a pattern in which `*` and `?` stay within one name.
pub(crate) fn compile_glob(pattern: &str) -> Result<GlobMatcher> {
    GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| Failure::invalid(format!("glob: {error}")))
}

pub(crate) fn relative<'p>(path: &'p RelPath, base: &RelPath) -> &'p std::path::Path {
    use std::os::unix::ffi::OsStrExt;
    let rest = path
        .as_bytes()
        .strip_prefix(base.as_bytes())
        .unwrap_or(path.as_bytes());
    std::path::Path::new(std::ffi::OsStr::from_bytes(
        rest.strip_prefix(b"/").unwrap_or(rest),
    ))
}

fn entry(item: DirectoryItem) -> FileEntry {
    FileEntry {
        path: show::path(&item.path),
        kind: item.attributes.kind.as_str().to_owned(),
        mode: u32::from(item.attributes.mode),
        size: item.attributes.size,
        mtime_unix_ms: item.attributes.mtime.unix_ms(),
        target: item.target.map(|target| Blob(target.into_vec())),
    }
}

fn show_blame(path: &RelPath, blame: &StoreBlame) -> Blame {
    Blame {
        path: show::path(path),
        digest: blame.digest.to_string(),
        total_lines: blame.lines,
        text: blame.text,
        ranges: blame.runs.iter().map(show_run).collect(),
    }
}

fn show_run(run: &BlameRun) -> BlameRange {
    let layer = run.layer.as_ref();
    // The base tells only that its lines are the original ones.
    let published = layer.filter(|layer| layer.id.kind != LayerKind::Base);
    BlameRange {
        start: run.start,
        count: run.count,
        owner: run.owner.to_string(),
        session_name: published.and_then(|layer| layer.session_name.clone()),
        layer: layer.map(|layer| show::layer_id(layer.id)),
        command_session_id: (run.command.as_deref()).and_then(|id| CommandId::new(id).ok()),
        request_id: published
            .and_then(|layer| layer.request_id.as_deref())
            .and_then(|id| RequestId::new(id).ok()),
        time_unix_ms: published.map(|layer| layer.time_unix_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occurrences_do_not_overlap() {
        assert_eq!(occurrences(b"aaaa", b"aa"), [0, 2]);
        assert_eq!(occurrences(b"abcabc", b"bc"), [1, 4]);
        assert_eq!(occurrences(b"ab", b"abc"), Vec::<usize>::new());
        assert_eq!(replace(b"abcabc", &[1, 4], 2, b"X"), b"aXaX");
    }

    #[test]
    fn stars_stay_within_a_name() {
        let glob = compile_glob("src/*.rs").unwrap();
        assert!(glob.is_match("src/a.rs") && !glob.is_match("src/b/a.rs"));
        let glob = compile_glob("**/*.{rs,toml}").unwrap();
        assert!(glob.is_match("a.rs") && glob.is_match("b/c/d.toml"));
        assert!(compile_glob("a[").is_err());
    }
}

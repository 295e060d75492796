//! Operations on files and directories as a whole: what is where, what is moved and removed, and
//! which lines something is found in.

use std::sync::Arc;

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use sandstack_api::Blob;
use sandstack_api::runtime::{
    DirectoryMade, FileDelete, FileDeleted, FileMakeDirectory, FileMove, FileMoved, FileSearch,
    FileStat, FileStatus, SearchMatch, SearchMatches,
};
use sandstack_fs::{DirectoryItem, Error as FsError};
use sandstack_store::{Kind, Policy, RelPath, Route, Router};

use crate::failure::{Failure, Result};
use crate::file::{Place, check_expected, compile_glob, parse_expected, relative};
use crate::gateway::{Context, Gateway};
use crate::sandbox::page_limit;
use crate::show;

/// Largest file that is searched, in bytes.
const MAX_SEARCHED: u64 = 32 << 20;
/// Most bytes of a line that are shown.
const MAX_LINE: usize = 1 << 10;
/// Most bytes that the automaton of a pattern may take.
const MAX_PATTERN: usize = 10 << 20;

impl Gateway {
    pub(crate) async fn file_stat(
        self: &Arc<Self>,
        context: &Context,
        request: FileStat,
    ) -> Result<FileStatus> {
        let (sandbox, session) = (request.sandbox_id, request.workspace_session_id);
        let path = request.path;
        let (status, _) = self
            .with_files(context, &sandbox, session.as_ref(), move |place| {
                let failed = |error| Failure::of_path(error, &path.0);
                let item = place.files.status(&path.0).map_err(failed)?;
                let found = item.attributes;
                let digest = match found.kind {
                    Kind::File => Some(place.files.digest(found.ino).map_err(failed)?),
                    _ => None,
                };
                Ok(FileStatus {
                    path: show::path(&item.path),
                    kind: found.kind.as_str().to_owned(),
                    mode: u32::from(found.mode),
                    uid: found.uid,
                    gid: found.gid,
                    links: found.nlink,
                    inode: found.ino,
                    size: found.size,
                    mtime_unix_ms: found.mtime.unix_ms(),
                    target: item.target.map(|target| Blob(target.into_vec())),
                    digest: digest.map(|digest| digest.to_string()),
                })
            })
            .await?;
        Ok(status)
    }

    pub(crate) async fn file_delete(
        self: &Arc<Self>,
        context: &Context,
        request: FileDelete,
    ) -> Result<FileDeleted> {
        let (sandbox, session) = (request.sandbox_id, request.workspace_session_id);
        let expected = request.expected_digest.as_deref().map(parse_expected);
        let expected = expected.transpose()?;
        let path = request.path;
        let (mut deleted, layer) = self
            .with_files(context, &sandbox, session.as_ref(), move |place| {
                if let Some(expected) = expected {
                    check_expected(&place.files, &path.0, expected)?;
                }
                let (path, removed) = place
                    .files
                    .remove(&path.0, request.recursive)
                    .map_err(|error| Failure::of_path(error, &path.0))?;
                Ok(FileDeleted {
                    path: show::path(&path),
                    removed,
                    layer: None,
                })
            })
            .await?;
        deleted.layer = layer;
        Ok(deleted)
    }

    pub(crate) async fn file_move(
        self: &Arc<Self>,
        context: &Context,
        request: FileMove,
    ) -> Result<FileMoved> {
        let (sandbox, session) = (request.sandbox_id, request.workspace_session_id);
        let (from, to) = (request.path, request.to);
        let (mut moved, layer) = self
            .with_files(context, &sandbox, session.as_ref(), move |place| {
                // What is missing is what is moved; everything else is about where to.
                place
                    .files
                    .status(&from.0)
                    .map_err(|error| Failure::of_path(error, &from.0))?;
                let (path, to) = place
                    .files
                    .rename(&from.0, &to.0, request.replace)
                    .map_err(|error| match error {
                        FsError::Invalid => {
                            Failure::invalid("a directory cannot be moved below itself".to_owned())
                        }
                        error => Failure::of_path(error, &to.0),
                    })?;
                Ok(FileMoved {
                    path: show::path(&path),
                    to: show::path(&to),
                    layer: None,
                })
            })
            .await?;
        moved.layer = layer;
        Ok(moved)
    }

    pub(crate) async fn file_make_directory(
        self: &Arc<Self>,
        context: &Context,
        request: FileMakeDirectory,
    ) -> Result<DirectoryMade> {
        let mode = request.mode.unwrap_or(0o755);
        if mode > 0o7777 {
            return Err(Failure::invalid(format!(
                "mode is {mode:o}; it must be 0 to 7777, in octal"
            )));
        }
        let (sandbox, session) = (request.sandbox_id, request.workspace_session_id);
        let path = request.path;
        let (mut made, layer) = self
            .with_files(context, &sandbox, session.as_ref(), move |place| {
                let (item, created) = place
                    .files
                    .make_directory(&path.0, mode as u16, true)
                    .map_err(|error| Failure::of_path(error, &path.0))?;
                Ok(DirectoryMade {
                    path: show::path(&item.path),
                    created,
                    layer: None,
                })
            })
            .await?;
        made.layer = layer;
        Ok(made)
    }

    pub(crate) async fn file_search(
        self: &Arc<Self>,
        context: &Context,
        request: FileSearch,
    ) -> Result<SearchMatches> {
        let limit = page_limit(request.limit)?;
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(request.ignore_case)
            .fixed_strings(request.literal)
            .line_terminator(Some(b'\n'))
            .size_limit(MAX_PATTERN)
            .build(&request.pattern)
            .map_err(|error| Failure::invalid(format!("pattern: {error}")))?;
        let after = request.page_token.as_deref().map(Mark::parse).transpose()?;
        let (sandbox, session) = (
            request.sandbox_id.clone(),
            request.workspace_session_id.clone(),
        );
        let (found, _) = self
            .with_files(context, &sandbox, session.as_ref(), move |place| {
                search(place, &request, &matcher, limit, after)
            })
            .await?;
        Ok(found)
    }
}

/// Where a page ended.
struct Mark {
    path: RelPath,
    line: u64,
}

impl Mark {
    fn of(found: &SearchMatch) -> String {
        format!("{}:{}", found.line, found.path.0.escape_ascii())
    }

    fn parse(token: &str) -> Result<Mark> {
        let refused = || Failure::invalid("page_token is none that this operation gave".to_owned());
        let (line, path) = token.split_once(':').ok_or_else(refused)?;
        let path = unescape(path).ok_or_else(refused)?;
        Ok(Mark {
            line: line.parse().map_err(|_| refused())?,
            path: RelPath::parse(&path).map_err(|_| refused())?,
        })
    }
}

/// What `escape_ascii` has made of bytes.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                other => other,
            },
            other => other,
        });
    }
    Some(bytes)
}

fn search(
    place: &Place,
    request: &FileSearch,
    matcher: &RegexMatcher,
    limit: usize,
    after: Option<Mark>,
) -> Result<SearchMatches> {
    let failed = |error| Failure::of_path(error, &request.path.0);
    let glob = request.glob.as_deref().map(compile_glob).transpose()?;
    let base = place.files.stat(&request.path.0).map_err(failed)?.path;
    let policy = Policy::default();
    let router = std::cell::RefCell::new(Router::new(&place.upper, &policy));
    let broken = std::cell::RefCell::new(None);
    let is_left_out = |path: &RelPath, is_directory: bool| {
        if path.names().any(|name| name == b".git") {
            return Ok(true);
        }
        let route = router.borrow_mut().route(path, is_directory)?;
        Ok::<_, sandstack_store::Error>(route == Route::Ignored && !request.include_ignored)
    };
    let mut files: Vec<DirectoryItem> = Vec::new();
    let single = place.files.status(&request.path.0).map_err(failed)?;
    if single.attributes.kind == Kind::File {
        files.push(single);
    } else {
        place
            .files
            .walk(
                &request.path.0,
                |path| match is_left_out(path, true) {
                    Ok(left_out) => !left_out,
                    Err(error) => {
                        broken.replace(Some(error));
                        false
                    }
                },
                |item| {
                    let wanted = item.attributes.kind == Kind::File
                        && glob
                            .as_ref()
                            .is_none_or(|glob| glob.is_match(relative(&item.path, &base)))
                        && after.as_ref().is_none_or(|after| item.path >= after.path);
                    match wanted.then(|| is_left_out(&item.path, false)) {
                        Some(Ok(false)) => files.push(item),
                        Some(Err(error)) => {
                            broken.replace(Some(error));
                        }
                        Some(Ok(true)) | None => {}
                    }
                    broken.borrow().is_none()
                },
            )
            .map_err(failed)?;
    }
    if let Some(error) = broken.into_inner() {
        return Err(error.into());
    }
    let mut searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .line_number(true)
        .build();
    let mut found = SearchMatches {
        matches: Vec::new(),
        files_searched: 0,
        next_page_token: None,
    };
    for item in files {
        if item.attributes.size > MAX_SEARCHED {
            continue;
        }
        let path = item.path.as_bytes();
        let size = item.attributes.size as usize;
        let (_, bytes) = place
            .files
            .read(path, 0, size)
            .map_err(|error| Failure::of_path(error, path))?;
        found.files_searched += 1;
        let first_line = match &after {
            Some(after) if after.path == item.path => after.line + 1,
            _ => 1,
        };
        let mut lines = Lines {
            matcher,
            path: &item.path,
            first_line,
            room: limit + 1 - found.matches.len(),
            matches: &mut found.matches,
        };
        search_one(&mut searcher, matcher, &bytes, &mut lines)?;
        if found.matches.len() > limit {
            found.matches.truncate(limit);
            found.next_page_token = found.matches.last().map(Mark::of);
            break;
        }
    }
    Ok(found)
}

fn search_one(
    searcher: &mut Searcher,
    matcher: &RegexMatcher,
    bytes: &[u8],
    lines: &mut Lines<'_>,
) -> Result<()> {
    searcher
        .search_slice(matcher, bytes, lines)
        .map_err(|error| Failure::internal(format!("searching: {error}")))
}

/// Takes lines of one file.
struct Lines<'a> {
    matcher: &'a RegexMatcher,
    path: &'a RelPath,
    first_line: u64,
    /// How many more are wanted.
    room: usize,
    matches: &'a mut Vec<SearchMatch>,
}

impl Sink for Lines<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> std::io::Result<bool> {
        let line = found.line_number().unwrap_or_default();
        if line < self.first_line {
            return Ok(true);
        }
        let text = found.bytes();
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let first = self.matcher.find(text).map_err(std::io::Error::other)?;
        self.matches.push(SearchMatch {
            path: show::path(self.path),
            line,
            column: first.map_or(1, |first| first.start() as u64 + 1),
            text: Blob(text[..text.len().min(MAX_LINE)].to_vec()),
            cut: text.len() > MAX_LINE,
        });
        self.room -= 1;
        Ok(self.room > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_are_written() {
        for path in ["a/b:c", "x\\n", "tab\t\"quoted\"", "ü"] {
            let found = SearchMatch {
                path: Blob(path.as_bytes().to_vec()),
                line: 17,
                column: 1,
                text: Blob(Vec::new()),
                cut: false,
            };
            let mark = Mark::parse(&Mark::of(&found)).unwrap();
            assert_eq!((mark.path.as_bytes(), mark.line), (path.as_bytes(), 17));
        }
        for wrong in ["", "x", "x:a", "1:\\x", "1:../a"] {
            assert!(Mark::parse(wrong).is_err(), "{wrong}");
        }
    }
}

//! What two changes of one node come to. Content and metadata are merged apart: one side's
//! `chmod +x` and the other's edit both survive.

use super::conflict::ConflictKind;
use super::delta::{same_body, same_metadata};
use super::resolve::Pass;
use super::route::Route;
use crate::content::{Content, Layout};
use crate::digest::Digest;
use crate::error::Result;
use crate::lower::{encode_xattrs, load_xattrs};
use crate::merge::{Hunk, MergeOutcome, Origin, merge_text, merge_union, merge_with_markers};
use crate::name::RelPath;
use crate::node::{Body, Ino, Kind, Node, NodeMeta, Timestamp, Xattrs};
use crate::text::{Interner, changes, lines};

/// Largest marked text of one conflict, in bytes.
const MAX_MARKED: usize = 256 << 10;

/// What two changes of one node come to.
pub(super) enum Combined {
    /// This node. Its content is one side's.
    Node(Node),
    /// This node, whose content was merged by lines.
    Lines { node: Node, merge: LineMerge },
    /// They do not go together.
    Conflict(Disagreement),
}

/// Where the lines of a merged file come from.
pub(super) struct LineMerge {
    /// The text of mine.
    pub(super) mine: Vec<u8>,
    pub(super) origins: Vec<Origin>,
}

/// Why two changes do not go together.
pub(super) struct Disagreement {
    pub(super) kind: ConflictKind,
    pub(super) hunks: Vec<Hunk>,
    pub(super) marked: Option<Vec<u8>>,
}

impl From<ConflictKind> for Disagreement {
    fn from(kind: ConflictKind) -> Self {
        Disagreement {
            kind,
            hunks: Vec::new(),
            marked: None,
        }
    }
}

/// What two contents come to.
enum Content3 {
    Head,
    Mine,
    Lines { bytes: Vec<u8>, merge: LineMerge },
    Conflict(Disagreement),
}

impl Pass<'_> {
    /// Combines `head` and `mine`, which are of one type and both differ from `base`.
    pub(super) fn combine(
        &self,
        path: &RelPath,
        base: Option<&Node>,
        head: &Node,
        mine: &Node,
        route: Route,
    ) -> Result<Combined> {
        let ours = route == Route::Ours;
        let (Some(mut meta), Some(ino)) = (
            self.combine_meta(base, head, mine, ours)?,
            combine_ino(base, head, mine),
        ) else {
            return Ok(Combined::Conflict(ConflictKind::Metadata.into()));
        };
        meta.ino = ino;
        let body = match self.combine_body(path, base, head, mine, route)? {
            Content3::Head => head.body.clone(),
            Content3::Mine => mine.body.clone(),
            Content3::Conflict(conflict) => return Ok(Combined::Conflict(conflict)),
            Content3::Lines { bytes, merge } => {
                let size = bytes.len() as u64;
                let content = Content {
                    size,
                    stored: size,
                    digest: self.resolver.batch.put(&bytes)?,
                    layout: Layout::Whole,
                };
                // Neither side has this content: a time that either had would hide it from tools.
                let now = Timestamp::now();
                (meta.mtime, meta.ctime) = (now, now);
                let body = Body::File(content);
                let node = Node { meta, body };
                return Ok(Combined::Lines { node, merge });
            }
        };
        Ok(Combined::Node(Node { meta, body }))
    }

    fn combine_body(
        &self,
        path: &RelPath,
        base: Option<&Node>,
        head: &Node,
        mine: &Node,
        route: Route,
    ) -> Result<Content3> {
        if same_body(head, mine) || base.is_some_and(|base| same_body(base, mine)) {
            return Ok(Content3::Head);
        }
        if base.is_some_and(|base| same_body(base, head)) || route == Route::Ours {
            return Ok(Content3::Mine);
        }
        let conflict = |kind: ConflictKind| Ok(Content3::Conflict(kind.into()));
        let (Body::File(head), Body::File(mine)) = (&head.body, &mine.body) else {
            return conflict(if base.is_some() {
                ConflictKind::Content
            } else {
                ConflictKind::AddAdd
            });
        };
        let base = base.and_then(Node::content);
        let base_text = match base {
            Some(content) => self.text(content)?,
            None => Some(Vec::new()),
        };
        let (Some(base_text), Some(head), Some(mine)) =
            (base_text, self.text(head)?, self.text(mine)?)
        else {
            return conflict(if base.is_some() {
                ConflictKind::Binary
            } else {
                ConflictKind::AddAdd
            });
        };
        if route == Route::Union {
            let merged = merge_union(&base_text, &head, &mine);
            return Ok(Content3::Lines {
                bytes: merged.bytes,
                merge: LineMerge {
                    mine,
                    origins: merged.origins,
                },
            });
        }
        if base.is_none() {
            return Ok(match containing(&head, &mine) {
                Some(Containing::Head) => Content3::Head,
                Some(Containing::Mine(origins)) => Content3::Lines {
                    bytes: mine.clone(),
                    merge: LineMerge { mine, origins },
                },
                None => return conflict(ConflictKind::AddAdd),
            });
        }
        Ok(match merge_text(&base_text, &head, &mine) {
            MergeOutcome::Clean(merged) => Content3::Lines {
                bytes: merged.bytes,
                merge: LineMerge {
                    mine,
                    origins: merged.origins,
                },
            },
            MergeOutcome::Conflicts(hunks) => {
                tracing::debug!(%path, conflicts = hunks.len(), "text conflict");
                Content3::Conflict(Disagreement {
                    kind: ConflictKind::Content,
                    hunks,
                    marked: self.marked(&base_text, &head, &mine),
                })
            }
        })
    }

    /// The text with its conflicts marked, if that was asked for and is not too large.
    fn marked(&self, base: &[u8], head: &[u8], mine: &[u8]) -> Option<Vec<u8>> {
        let options = self.resolver.options;
        if !options.markers {
            return None;
        }
        let head_label = self.resolver.head_layer.id.to_string();
        let label = match &options.session_name {
            Some(name) => name.clone(),
            None => options.owner.to_string(),
        };
        let text = merge_with_markers((base, "base"), (head, &head_label), (mine, &label));
        (text.len() <= MAX_MARKED).then_some(text)
    }

    /// Merges mode, owner and extended attributes field by field; `None` if both sides changed one
    /// to different values. Times are the newer side's, the rest the head's.
    fn combine_meta(
        &self,
        base: Option<&Node>,
        head: &Node,
        mine: &Node,
        ours: bool,
    ) -> Result<Option<NodeMeta>> {
        let mut meta = NodeMeta {
            mtime: head.meta.mtime.max(mine.meta.mtime),
            ctime: head.meta.ctime.max(mine.meta.ctime),
            ..head.meta
        };
        if same_metadata(head, mine) {
            return Ok(Some(meta));
        }
        let (Some(mode), Some(uid), Some(gid)) = (
            field(
                base.map(|node| node.meta.mode),
                head.meta.mode,
                mine.meta.mode,
                ours,
            ),
            field(
                base.map(|node| node.meta.uid),
                head.meta.uid,
                mine.meta.uid,
                ours,
            ),
            field(
                base.map(|node| node.meta.gid),
                head.meta.gid,
                mine.meta.gid,
                ours,
            ),
        ) else {
            return Ok(None);
        };
        (meta.mode, meta.uid, meta.gid) = (mode, uid, gid);
        let xattrs = |node: &Node| node.meta.xattrs;
        meta.xattrs = match field(base.map(xattrs), xattrs(head), xattrs(mine), ours) {
            Some(xattrs) => xattrs,
            None => match self.combine_xattrs(base, head, mine)? {
                Some(xattrs) => xattrs,
                None => return Ok(None),
            },
        };
        Ok(Some(meta))
    }

    /// Merges extended attributes one by one; `None` if both sides changed one differently, or, in
    /// the inner option, if none is left.
    fn combine_xattrs(
        &self,
        base: Option<&Node>,
        head: &Node,
        mine: &Node,
    ) -> Result<Option<Option<Digest>>> {
        let objects = self.resolver.batch.objects();
        let load = |node: &Node| load_xattrs(objects, node.meta.xattrs.as_ref());
        let (head, mine) = (load(head)?, load(mine)?);
        let base = base.map(load).transpose()?.unwrap_or_default();
        let mut merged = Xattrs::new();
        for name in base.keys().chain(head.keys()).chain(mine.keys()) {
            let (old, head, mine) = (base.get(name), head.get(name), mine.get(name));
            match field(Some(old), head, mine, false) {
                Some(Some(value)) => {
                    merged.insert(name.clone(), value.clone());
                }
                Some(None) => {}
                None => return Ok(None),
            }
        }
        if merged.is_empty() {
            return Ok(Some(None));
        }
        Ok(Some(Some(
            self.resolver.batch.put(&encode_xattrs(&merged))?,
        )))
    }
}

/// Stands for a number that is still to be given.
pub(super) const NO_NUMBER: Ino = 0;

/// The number of a node that both sides changed: of the side that replaced it. Where the head made
/// it a hard link of another file, which must not get mine's change as well, it is broken off, with
/// a number of its own. `None` if both did that.
fn combine_ino(base: Option<&Node>, head: &Node, mine: &Node) -> Option<Ino> {
    if head.kind() == Kind::Directory {
        return Some(head.meta.ino);
    }
    let base = base.map(|base| base.meta.ino);
    let relinked = |side: &Node| side.meta.links > 1 && Some(side.meta.ino) != base;
    match (relinked(head), relinked(mine)) {
        (true, true) if head.meta.ino != mine.meta.ino => None,
        (true, _) => Some(NO_NUMBER),
        (false, true) => Some(head.meta.ino),
        (false, false) if base == Some(head.meta.ino) => Some(mine.meta.ino),
        (false, false) => Some(head.meta.ino),
    }
}

/// The three-way merge of one value; `None` if both sides changed it, differently.
fn field<T: PartialEq>(base: Option<T>, head: T, mine: T, ours: bool) -> Option<T> {
    if head == mine {
        return Some(head);
    }
    match base {
        Some(base) if base == mine => Some(head),
        Some(base) if base == head => Some(mine),
        _ if ours => Some(mine),
        _ => None,
    }
}

/// Of two texts that were both added, the one that has all lines of the other, in order.
enum Containing {
    Head,
    Mine(Vec<Origin>),
}

fn containing(head: &[u8], mine: &[u8]) -> Option<Containing> {
    let (head_lines, mine_lines) = (lines(head), lines(mine));
    let mut interner = Interner::default();
    let (head_numbers, mine_numbers) = (interner.intern(&head_lines), interner.intern(&mine_lines));
    let changes = changes(&head_numbers, &mine_numbers);
    if changes.iter().all(|change| change.new.is_empty()) {
        return Some(Containing::Head);
    }
    if !changes.iter().all(|change| change.old.is_empty()) {
        return None;
    }
    let mut origins = Vec::new();
    let mut at = 0;
    for change in changes {
        if at < change.old.start {
            origins.push(Origin::Head(at..change.old.start));
        }
        at = change.old.end;
        origins.push(Origin::Mine(change.new));
    }
    if at < head_lines.len() {
        origins.push(Origin::Head(at..head_lines.len()));
    }
    Some(Containing::Mine(origins))
}

//! File operations by path, for the embedder: on a view that is served, or on a tree without one.
//!
//! Paths are followed through symlinks of the view and never out of it. What is changed is told to
//! the kernel, if the tree is served, and recorded.

use std::sync::Arc;

use sandstack_store::{AccessKind, Attributes, Digest, Ino, Kind, Name, ROOT_INO, RelPath};

use crate::error::{Error, Result};
use crate::notify::Notifier;
use crate::record::Recorder;
use crate::tree::{Caller, NewNode, RenameMode, SetAttributes, Tree};

/// Most symlinks on the way to a file, as in the kernel.
const MAX_LINKS: u32 = 40;
/// Bytes written at a time.
const WRITE_PART: usize = 1 << 20;

/// File operations on one tree.
pub struct Files {
    tree: Arc<Tree>,
    workspace_root: Vec<u8>,
    notifier: Option<Arc<Notifier>>,
    recorder: Option<Arc<Recorder>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("tree", &self.tree).finish()
    }
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its path, after symlinks.
    pub path: RelPath,
    /// Its attributes.
    pub attributes: Attributes,
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryItem {
    /// Its path.
    pub path: RelPath,
    /// Its attributes.
    pub attributes: Attributes,
    /// The target, of a symlink.
    pub target: Option<Box<[u8]>>,
}

/// What a write did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The file afterwards.
    pub info: FileInfo,
    /// Whether it is new.
    pub created: bool,
}

/// Where a path leads: the directory and name of its last part, and what is there.
struct Found {
    parent: Ino,
    /// `None` for the workspace root.
    name: Option<Name>,
    path: RelPath,
    attributes: Option<Attributes>,
}

impl Files {
    /// Operations on a tree that nobody serves.
    pub fn new(tree: Arc<Tree>, workspace_root: &[u8]) -> Self {
        Files {
            tree,
            workspace_root: workspace_root.to_vec(),
            notifier: None,
            recorder: None,
        }
    }

    pub(crate) fn with_notifier(self, notifier: Arc<Notifier>) -> Self {
        Files {
            notifier: Some(notifier),
            ..self
        }
    }

    pub(crate) fn with_recorder(self, recorder: Arc<Recorder>) -> Self {
        Files {
            recorder: Some(recorder),
            ..self
        }
    }

    /// What is at `path`; symlinks are followed.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::Loop`], [`Error::NotPermitted`] if a
    /// symlink leads out of the workspace, [`Error::Invalid`] for `..` above the root,
    /// [`Error::Store`].
    pub fn stat(&self, path: &[u8]) -> Result<FileInfo> {
        let found = self.resolve(path)?;
        match found.attributes {
            Some(attributes) => Ok(FileInfo {
                path: found.path,
                attributes,
            }),
            None => {
                self.note_missing(&found);
                Err(Error::NotFound)
            }
        }
    }

    /// Reads up to `length` bytes at `offset` of the file at `path`.
    ///
    /// # Errors
    /// As [`Files::stat`]; [`Error::IsDirectory`]; [`Error::Invalid`] for a special file.
    pub fn read(&self, path: &[u8], offset: u64, length: usize) -> Result<(FileInfo, Vec<u8>)> {
        let info = self.stat(path)?;
        check_file(&info.attributes)?;
        let bytes = self.tree.read(info.attributes.ino, offset, length)?;
        self.note(info.attributes.ino, AccessKind::Read, bytes.len() as u64);
        Ok((info, bytes))
    }

    /// The digest of the content of the file with inode number `ino`.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn digest(&self, ino: Ino) -> Result<Digest> {
        Ok(self.tree.upper().digest(ino)?)
    }

    /// Makes the content of the file at `path` be `bytes`. A file that exists stays the same inode
    /// and keeps its mode unless one is given; one that does not is made with `mode` (default
    /// 0644), and the directories above it too, owned as the nearest one that exists.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub fn write(&self, path: &[u8], bytes: &[u8], mode: Option<u16>) -> Result<Written> {
        let mut found = self.resolve_making_parents(path)?;
        let created = found.attributes.is_none();
        let attributes = match found.attributes {
            Some(attributes) => {
                check_file(&attributes)?;
                attributes
            }
            None => self.make(&mut found, mode.unwrap_or(0o644), NewNode::File)?,
        };
        let ino = attributes.ino;
        for (index, part) in bytes.chunks(WRITE_PART).enumerate() {
            let offset = (index * WRITE_PART) as u64;
            self.tree
                .with_room(ino, || self.tree.write(ino, offset, part, None))?;
        }
        // Cut last, so that nobody sees it empty.
        let set = SetAttributes {
            size: Some(bytes.len() as u64),
            ..SetAttributes::default()
        };
        let set = SetAttributes {
            mode: if created { None } else { mode },
            ..set
        };
        let attributes = self.tree.set_attributes(EMBEDDER, ino, set)?;
        self.note(ino, AccessKind::Write, bytes.len() as u64);
        self.tell_inode(ino);
        Ok(Written {
            info: FileInfo {
                path: found.path,
                attributes,
            },
            created,
        })
    }

    /// What is at `path`; a symlink at its end is not followed.
    ///
    /// # Errors
    /// As [`Files::stat`].
    pub fn status(&self, path: &[u8]) -> Result<DirectoryItem> {
        let found = self.place(path)?;
        let Some(attributes) = found.attributes else {
            self.note_missing(&found);
            return Err(Error::NotFound);
        };
        let target = match attributes.kind {
            Kind::Symlink => Some(self.tree.read_link(attributes.ino)?),
            _ => None,
        };
        Ok(DirectoryItem {
            path: found.path,
            attributes,
            target,
        })
    }

    /// Makes the directory at `path`, and with `parents` those above it, owned as the nearest one that
    /// exists. Returns it, and whether it is new: with `parents` it may be there.
    ///
    /// # Errors
    /// As [`Files::stat`]; [`Error::Exists`].
    pub fn make_directory(
        &self,
        path: &[u8],
        mode: u16,
        parents: bool,
    ) -> Result<(DirectoryItem, bool)> {
        let mut found = match parents {
            true => self.resolve_making_parents(path)?,
            false => self.place(path)?,
        };
        let created = found.attributes.is_none();
        let attributes = match found.attributes {
            Some(there) if parents && there.kind == Kind::Directory => there,
            Some(_) => return Err(Error::Exists),
            None => self.make(&mut found, mode, NewNode::Directory)?,
        };
        let item = DirectoryItem {
            path: found.path,
            attributes,
            target: None,
        };
        Ok((item, created))
    }

    /// Removes what is at `path`, a symlink itself; a directory that has entries only if it is to be
    /// `recursive`. Returns its path and how many entries are gone, with those below it.
    ///
    /// # Errors
    /// As [`Files::stat`]; [`Error::NotEmpty`]; [`Error::NotPermitted`] for the workspace root. After
    /// an error a part of a directory may be gone.
    pub fn remove(&self, path: &[u8], recursive: bool) -> Result<(RelPath, u64)> {
        let found = self.place(path)?;
        let name = found.name.clone().ok_or(Error::NotPermitted)?;
        let Some(attributes) = found.attributes else {
            self.note_missing(&found);
            return Err(Error::NotFound);
        };
        let mut removed = 0;
        if recursive && attributes.kind == Kind::Directory {
            removed += self.remove_below(&found.path, attributes.ino)?;
        }
        self.remove_entry(found.parent, &name, &attributes)?;
        Ok((found.path, removed + 1))
    }

    fn remove_below(&self, path: &RelPath, ino: Ino) -> Result<u64> {
        // Deepest first; a list of its own, since a tree may be deeper than a stack.
        let mut pending = vec![(path.clone(), ino)];
        let mut entries = Vec::new();
        while let Some((path, directory)) = pending.pop() {
            for item in self.entries(&path, directory)? {
                if item.attributes.kind == Kind::Directory {
                    pending.push((item.path.clone(), item.attributes.ino));
                }
                entries.push((directory, item));
            }
        }
        for (directory, item) in entries.iter().rev() {
            if let Some((_, name)) = item.path.split() {
                self.remove_entry(*directory, &name, &item.attributes)?;
            }
        }
        Ok(entries.len() as u64)
    }

    fn remove_entry(&self, parent: Ino, name: &Name, attributes: &Attributes) -> Result<()> {
        if attributes.kind == Kind::Directory {
            self.tree.remove_directory(parent, name.as_bytes())?;
        } else {
            self.tree.unlink(parent, name.as_bytes())?;
        }
        if let Some(recorder) = &self.recorder {
            if attributes.kind == Kind::Directory {
                recorder.directories_moved();
            }
            recorder.entry(0, parent, name.as_bytes(), AccessKind::Remove, 0);
        }
        self.tell_entry(parent, name.as_bytes());
        self.let_go(attributes.ino)
    }

    /// A name of `ino` is gone. If it was the last, and no kernel knows the inode, that is gone, too.
    fn let_go(&self, ino: Ino) -> Result<()> {
        let known = self.notifier.as_ref().map(|notifier| notifier.inode(ino));
        match known {
            Some(Ok(true)) => Ok(()),
            Some(Ok(false)) | None => self.tree.forget(ino),
            Some(Err(error)) => {
                tracing::debug!(ino, %error, "the kernel was not told of a removed file");
                Ok(())
            }
        }
    }

    /// Moves what is at `from` to `to`, a symlink itself, making the directories above it. What is at
    /// `to` is replaced if `replace` says so, as by `rename(2)`. Returns both paths.
    ///
    /// # Errors
    /// As [`Files::stat`]; [`Error::Exists`], [`Error::NotEmpty`], [`Error::IsDirectory`], and
    /// [`Error::Invalid`] for a directory that is to be below itself.
    pub fn rename(&self, from: &[u8], to: &[u8], replace: bool) -> Result<(RelPath, RelPath)> {
        let found = self.place(from)?;
        let name = found.name.clone().ok_or(Error::NotPermitted)?;
        let Some(moved) = found.attributes else {
            self.note_missing(&found);
            return Err(Error::NotFound);
        };
        let target = match self.place(to) {
            Err(Error::NotFound) => {
                // Only the directories above it: the last part may be a symlink, which stays one.
                let above = to.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                self.make_directory(&to[..above], 0o755, true)?;
                self.place(to)?
            }
            found => found?,
        };
        let new_name = target.name.clone().ok_or(Error::Exists)?;
        let mode = match replace {
            true => RenameMode::Replace,
            false => RenameMode::NoReplace,
        };
        let (old, new) = (
            (found.parent, name.as_bytes()),
            (target.parent, new_name.as_bytes()),
        );
        self.tree.rename(EMBEDDER, old, new, mode)?;
        if let Some(recorder) = &self.recorder {
            recorder.renamed(&self.tree, 0, old, new, false);
        }
        self.tell_entry(old.0, old.1);
        self.tell_entry(new.0, new.1);
        self.tell_inode(moved.ino);
        if let Some(replaced) = target.attributes.filter(|found| found.ino != moved.ino) {
            self.let_go(replaced.ino)?;
        }
        Ok((found.path, target.path))
    }

    /// Lists the directory at `path`, in order of names.
    ///
    /// # Errors
    /// As [`Files::stat`]; [`Error::NotDirectory`].
    pub fn list(&self, path: &[u8]) -> Result<Vec<DirectoryItem>> {
        let info = self.stat(path)?;
        self.entries(&info.path, info.attributes.ino)
    }

    /// Everything below the directory at `path`, in path order, as long as `wanted` says that it
    /// goes on. Directories of which `enter` says no are not entered.
    ///
    /// # Errors
    /// As [`Files::list`].
    pub fn walk(
        &self,
        path: &[u8],
        mut enter: impl FnMut(&RelPath) -> bool,
        mut wanted: impl FnMut(DirectoryItem) -> bool,
    ) -> Result<()> {
        let info = self.stat(path)?;
        let mut pending = self.entries(&info.path, info.attributes.ino)?;
        pending.reverse();
        while let Some(item) = pending.pop() {
            let (path, attributes) = (item.path.clone(), item.attributes);
            if !wanted(item) {
                return Ok(());
            }
            if attributes.kind == Kind::Directory && enter(&path) {
                let below = self.entries(&path, attributes.ino)?;
                pending.extend(below.into_iter().rev());
            }
        }
        Ok(())
    }

    fn entries(&self, path: &RelPath, ino: Ino) -> Result<Vec<DirectoryItem>> {
        let mut items = Vec::new();
        self.tree.list(ino, 2, true, |name, attributes, _| {
            if let Ok(name) = Name::new(name) {
                items.push(DirectoryItem {
                    path: path.join(&name),
                    attributes: *attributes,
                    target: None,
                });
            }
            true
        })?;
        self.note(ino, AccessKind::List, 0);
        for item in items
            .iter_mut()
            .filter(|item| item.attributes.kind == Kind::Symlink)
        {
            item.target = Some(self.tree.read_link(item.attributes.ino)?);
        }
        items.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(items)
    }

    fn make(&self, found: &mut Found, mode: u16, node: NewNode) -> Result<Attributes> {
        let name = found.name.clone().ok_or(Error::IsDirectory)?;
        let directory = self.tree.attributes(found.parent)?;
        let owner = Caller {
            uid: directory.uid,
            gid: directory.gid,
            pid: 0,
        };
        let made = self
            .tree
            .create(owner, found.parent, name.as_bytes(), mode, node)?;
        if let Some(recorder) = &self.recorder {
            recorder.named(made.ino, found.parent, name.as_bytes());
            recorder.entry(0, found.parent, name.as_bytes(), AccessKind::Create, 0);
        }
        self.tell_entry(found.parent, name.as_bytes());
        Ok(made)
    }

    fn resolve_making_parents(&self, path: &[u8]) -> Result<Found> {
        match self.resolve(path) {
            Err(Error::NotFound) => {}
            resolved => return resolved,
        }
        // Directory by directory, so that symlinks on the way are followed.
        let parts: Vec<&[u8]> = path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
            .collect();
        for end in 1..parts.len() {
            let mut found = self.resolve(&parts[..end].join(&b'/'))?;
            if found.attributes.is_none() {
                self.make(&mut found, 0o755, NewNode::Directory)?;
            }
        }
        self.resolve(path)
    }

    /// Follows `path`. The last part may be missing, nothing before it.
    fn resolve(&self, path: &[u8]) -> Result<Found> {
        self.follow(path, true)
    }

    /// The same, but for a symlink at the end.
    fn place(&self, path: &[u8]) -> Result<Found> {
        self.follow(path, false)
    }

    fn follow(&self, path: &[u8], last_too: bool) -> Result<Found> {
        let mut pending: Vec<Vec<u8>> = Vec::new();
        push_parts(&mut pending, self.relative(path)?);
        let mut links = 0;
        let mut at = vec![(ROOT_INO, RelPath::ROOT)];
        let mut last = Found {
            parent: ROOT_INO,
            name: None,
            path: RelPath::ROOT,
            attributes: Some(self.tree.attributes(ROOT_INO)?),
        };
        while let Some(part) = pending.pop() {
            let (parent, parent_path) = at.last().cloned().expect("the root is never left");
            match last.attributes {
                None => return Err(Error::NotFound),
                Some(attributes) if attributes.kind != Kind::Directory => {
                    return Err(Error::NotDirectory);
                }
                Some(_) => {}
            }
            if part == b".." {
                if at.len() == 1 {
                    return Err(Error::NotPermitted);
                }
                at.pop();
                let (ino, path) = at.last().cloned().expect("checked above");
                last = Found {
                    parent: ino,
                    name: None,
                    path,
                    attributes: Some(self.tree.attributes(ino)?),
                };
                continue;
            }
            let name = Name::new(&part).map_err(|_| Error::NameTooLong)?;
            let attributes = match self.tree.lookup(parent, name.as_bytes()) {
                Ok(attributes) => Some(attributes),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error),
            };
            if let Some(attributes) = attributes
                && attributes.kind == Kind::Symlink
                && (last_too || !pending.is_empty())
            {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Error::Loop);
                }
                let target = self.tree.read_link(attributes.ino)?;
                if target.starts_with(b"/") {
                    at.truncate(1);
                    last.attributes = Some(self.tree.attributes(ROOT_INO)?);
                }
                push_parts(&mut pending, self.relative(&target)?);
                continue;
            }
            let path = parent_path.join(&name);
            if let Some(attributes) = attributes
                && attributes.kind == Kind::Directory
            {
                at.push((attributes.ino, path.clone()));
            }
            last = Found {
                parent,
                name: Some(name),
                path,
                attributes,
            };
        }
        Ok(last)
    }

    /// A path or a symlink's target, without the workspace root in front.
    fn relative<'p>(&self, path: &'p [u8]) -> Result<&'p [u8]> {
        if !path.starts_with(b"/") {
            return Ok(path);
        }
        match path.strip_prefix(self.workspace_root.as_slice()) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => Ok(rest),
            _ => Err(Error::NotPermitted),
        }
    }

    fn note(&self, ino: Ino, kind: AccessKind, bytes: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.inode(0, ino, kind, bytes);
        }
    }

    fn note_missing(&self, found: &Found) {
        if let (Some(recorder), Some(name)) = (&self.recorder, &found.name) {
            recorder.entry(0, found.parent, name.as_bytes(), AccessKind::Missing, 0);
        }
    }

    fn tell_inode(&self, ino: Ino) {
        if let Some(notifier) = &self.notifier
            && let Err(error) = notifier.inode(ino)
        {
            tracing::debug!(ino, %error, "the kernel was not told of a changed file");
        }
    }

    fn tell_entry(&self, parent: Ino, name: &[u8]) {
        if let Some(notifier) = &self.notifier
            && let Err(error) = notifier
                .entry(parent, name)
                .and_then(|()| notifier.inode(parent))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::debug!(parent, %error, "the kernel was not told of a new entry");
        }
    }
}

/// The embedder itself, which keeps set-id bits as root does.
const EMBEDDER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};

fn push_parts(pending: &mut Vec<Vec<u8>>, path: &[u8]) {
    let parts = path
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".");
    pending.extend(parts.rev().map(<[u8]>::to_vec));
}

fn check_file(attributes: &Attributes) -> Result<()> {
    match attributes.kind {
        Kind::File => Ok(()),
        Kind::Directory => Err(Error::IsDirectory),
        _ => Err(Error::Invalid),
    }
}

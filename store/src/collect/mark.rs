//! The mark: which objects a set of layers reaches.
//!
//! Of digests only the first eight bytes are kept, so that a million objects cost some 20 MB: an
//! equal beginning only spares an object.

use rustc_hash::FxHashSet;

use crate::content::{Content, Layout};
use crate::digest::Digest;
use crate::directory::DirectoryEntry;
use crate::error::Result;
use crate::known_groups::MIN_STORED;
use crate::layer::LayerRoot;
use crate::links::LinkTable;
use crate::lower::load_directory;
use crate::node::{Body, Node};
use crate::objects::Objects;
use crate::pins::short;

/// What was reached so far.
#[derive(Default)]
pub(crate) struct Marks {
    seen: FxHashSet<u64>,
    /// Content of which something is stored beside the objects.
    contents: FxHashSet<u64>,
    roots: FxHashSet<Digest>,
}

impl Marks {
    /// Whether an object was reached.
    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.seen.contains(&short(digest))
    }

    /// Whether content was reached of which the groups may be stored.
    pub(crate) fn has_content(&self, digest: &Digest) -> bool {
        self.contents.contains(&short(digest))
    }

    /// How many objects were reached.
    pub(crate) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Marks what the layer with root `root` reaches; `each` is told of every object that is met
    /// for the first time.
    ///
    /// # Errors
    /// As reading an object: a mark that is not whole must not be swept by.
    pub(crate) fn add_layer(
        &mut self,
        objects: &Objects,
        root: &Digest,
        each: &mut dyn FnMut(&Digest) -> Result<()>,
    ) -> Result<()> {
        if !self.roots.insert(*root) {
            return Ok(());
        }
        let layer = LayerRoot::load(objects, root)?;
        self.add(root, each)?;
        let mut trees = Vec::new();
        self.add_node(objects, &layer.node, &mut trees, each)?;
        if let Some(links) = &layer.links
            && self.add(links, each)?
        {
            for linked in LinkTable::load(objects, Some(links))?.0.values() {
                self.add_node(objects, &linked.node, &mut trees, each)?;
            }
        }
        while let Some(tree) = trees.pop() {
            let directory = load_directory(objects, &tree)?;
            for (_, entry) in directory.iter() {
                if let DirectoryEntry::Node(node) = entry {
                    self.add_node(objects, &node, &mut trees, each)?;
                }
            }
        }
        Ok(())
    }

    fn add_node(
        &mut self,
        objects: &Objects,
        node: &Node,
        trees: &mut Vec<Digest>,
        each: &mut dyn FnMut(&Digest) -> Result<()>,
    ) -> Result<()> {
        if let Some(xattrs) = &node.meta.xattrs {
            self.add(xattrs, each)?;
        }
        match &node.body {
            Body::File(content) => self.add_content(objects, content, each),
            Body::Directory { tree, .. } => {
                if self.add(tree, each)? {
                    trees.push(*tree);
                }
                Ok(())
            }
            Body::Symlink(_)
            | Body::Fifo
            | Body::Socket
            | Body::CharDevice(_)
            | Body::BlockDevice(_) => Ok(()),
        }
    }

    /// Marks what a file's bytes lie in.
    pub(crate) fn add_content(
        &mut self,
        objects: &Objects,
        content: &Content,
        each: &mut dyn FnMut(&Digest) -> Result<()>,
    ) -> Result<()> {
        if content.size >= MIN_STORED {
            self.contents.insert(short(&content.digest));
        }
        match content.layout {
            Layout::Whole if content.size == 0 => {}
            Layout::Whole => {
                self.add(&content.digest, each)?;
            }
            Layout::Segments(list) => {
                if self.add(&list, each)? {
                    for segment in content.segments(objects)? {
                        self.add(&segment.source.blob, each)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Marks one object; returns whether it is new.
    fn add(
        &mut self,
        digest: &Digest,
        each: &mut dyn FnMut(&Digest) -> Result<()>,
    ) -> Result<bool> {
        let new = self.seen.insert(short(digest));
        if new {
            each(digest)?;
        }
        Ok(new)
    }
}

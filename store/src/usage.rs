//! What the store takes, and for whom.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::collect::Marks;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::lease::LeaseId;
use crate::pins::short;
use crate::stack::StackId;
use crate::store::Store;

/// What a store takes on disk. The first three add up to what the disk says of its directory, but
/// for some small files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes on disk of packs and blob files, and of what is known of large ones.
    pub object_bytes: u64,
    /// Bytes on disk of the database.
    pub database_bytes: u64,
    /// Bytes on disk of all uppers.
    pub upper_bytes: u64,
    /// Objects that the database knows, and their bytes.
    pub objects: u64,
    /// Bytes of those objects.
    pub stored_bytes: u64,
    /// Bytes of objects that nothing reaches: what a collection would remove.
    pub garbage_bytes: u64,
    /// Bytes of objects that several stacks reach.
    pub shared_bytes: u64,
    /// By stack.
    pub stacks: Vec<StackUsage>,
    /// By lease.
    pub leases: Vec<LeaseUsage>,
}

/// What a stack takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackUsage {
    /// The stack.
    pub stack: StackId,
    /// Layers in its history.
    pub layers: u64,
    /// Bytes of the regular files of its head.
    pub logical_bytes: u64,
    /// Bytes of the objects that its layers and leases reach, each counted once.
    pub stored_bytes: u64,
    /// Of those the bytes that no other stack reaches.
    pub unique_bytes: u64,
    /// Bytes on disk of its uppers.
    pub upper_bytes: u64,
}

/// What the upper of a lease takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseUsage {
    /// The lease.
    pub lease: LeaseId,
    /// Its stack.
    pub stack: StackId,
    /// Who holds it.
    pub holder: String,
    /// Bytes on disk of its upper.
    pub upper_bytes: u64,
}

impl Store {
    /// What the store takes on disk, and for whom. Every directory of every layer is read once for
    /// each stack, so it is no thing to ask for all the time.
    ///
    /// # Errors
    /// [`crate::Error::Io`], [`crate::Error::Database`], or as reading an object.
    pub fn usage(&self) -> Result<StoreUsage> {
        // What is counted stays while it is counted, whatever is squashed or released meanwhile.
        let _no_collection = self.inner().collecting.lock();
        let mut usage = StoreUsage {
            object_bytes: self.objects().disk_bytes()?,
            database_bytes: self.inner().db.disk_bytes()?,
            ..StoreUsage::default()
        };
        for lease in self.leases()? {
            let record = lease.record();
            let upper_bytes = self.upper_bytes(lease.id())?;
            usage.upper_bytes += upper_bytes;
            usage.leases.push(LeaseUsage {
                lease: lease.id(),
                stack: record.stack,
                holder: record.holder.clone(),
                upper_bytes,
            });
        }
        // How many stacks reach an object.
        let mut reached: FxHashMap<u64, u32> = FxHashMap::default();
        // The roots of each stack, which others may publish to or destroy meanwhile.
        let mut reaches = Vec::new();
        for id in self.stack_ids()? {
            let (stack, head, roots) = match self.stack(id).and_then(|stack| {
                let head = stack.layer(stack.head())?;
                let mut roots = stack.roots()?;
                roots.extend(stack.leases()?.iter().map(|lease| lease.record().base_root));
                Ok((stack, head, roots))
            }) {
                // It was destroyed in between.
                Err(Error::NoStack(_) | Error::NoLayer(_)) => continue,
                found => found?,
            };
            let stored_bytes = self.reach_of(&roots, &mut |digest| {
                *reached.entry(short(digest)).or_insert(0) += 1;
                Ok(())
            })?;
            reaches.push(roots);
            usage.stacks.push(StackUsage {
                stack: id,
                layers: stack.layer_count(),
                logical_bytes: head.logical_bytes,
                stored_bytes,
                unique_bytes: 0,
                upper_bytes: usage
                    .leases
                    .iter()
                    .filter(|lease| lease.stack == id)
                    .map(|lease| lease.upper_bytes)
                    .sum(),
            });
        }
        let mut shared = FxHashSet::default();
        for item in self.objects().all() {
            let (digest, place) = item?;
            usage.objects += 1;
            usage.stored_bytes += place.length();
            match reached.get(&short(&digest)) {
                None => usage.garbage_bytes += place.length(),
                Some(1) => {}
                Some(_) => {
                    usage.shared_bytes += place.length();
                    shared.insert(short(&digest));
                }
            }
        }
        for (stack, roots) in usage.stacks.iter_mut().zip(&reaches) {
            let mut shared_here = 0;
            self.reach_of(roots, &mut |digest| {
                if shared.contains(&short(digest)) {
                    shared_here += self.objects().length(digest)?;
                }
                Ok(())
            })?;
            stack.unique_bytes = stack.stored_bytes - shared_here;
        }
        Ok(usage)
    }

    /// Bytes on disk of packs and blob files, which is quickly found.
    ///
    /// # Errors
    /// [`crate::Error::Io`].
    pub fn object_bytes(&self) -> Result<u64> {
        self.objects().disk_bytes()
    }

    /// Bytes on disk of the objects, the database and the uppers together, which is quickly found.
    ///
    /// # Errors
    /// [`crate::Error::Io`] or [`crate::Error::Database`].
    pub fn disk_bytes(&self) -> Result<u64> {
        let mut bytes = self.objects().disk_bytes()? + self.inner().db.disk_bytes()?;
        for lease in self.leases()? {
            bytes += self.upper_bytes(lease.id())?;
        }
        Ok(bytes)
    }

    /// The bytes of all objects that these layers reach; `each` is told of every one.
    fn reach_of(
        &self,
        roots: &[Digest],
        each: &mut dyn FnMut(&Digest) -> Result<()>,
    ) -> Result<u64> {
        let mut marks = Marks::default();
        let mut bytes = 0;
        for root in roots {
            marks.add_layer(self.objects(), root, &mut |digest| {
                bytes += self.objects().length(digest)?;
                each(digest)
            })?;
        }
        Ok(bytes)
    }
}

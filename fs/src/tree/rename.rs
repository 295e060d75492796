//! Renaming. A directory keeps what is in it, wherever it is moved, at the cost of one entry.

use sandstack_store::{
    Attributes, Attrs, Ino, Kind, Name, NewBody, ROOT_INO, Record, Slot, State, Timestamp,
    Transaction,
};

use super::create::push_entry_at;
use super::{Caller, Tree, new_name};
use crate::error::{Error, Result};

/// What happens to a target that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// The rename fails.
    NoReplace,
    /// It takes the source's place.
    Exchange,
    /// It is replaced, and a whiteout (a character device 0:0) takes the source's place, for an
    /// overlay filesystem on top.
    Whiteout,
}

/// A directory of a rename, with what is known of it.
struct Side {
    directory: Attributes,
    name: Name,
}

/// The places in listings of the two names afterwards. A name that is there before and after keeps
/// its own, so that no listing misses it; one that goes leaves it to the other in the same directory.
fn cookies(state: &State, from: &Side, to: &Side, mode: RenameMode) -> (u64, u64) {
    let own = |side: &Side| match state.slot(side.directory.ino, side.name.as_bytes()) {
        Some(Slot::Entry(entry)) => Some(entry.cookie),
        Some(Slot::Whiteout) | None => None,
    };
    let next = |side: &Side| state.next_cookie(side.directory.ino);
    let moves = from.directory.ino != to.directory.ino;
    let from_goes = matches!(mode, RenameMode::Replace | RenameMode::NoReplace);
    let left = own(from).filter(|_| from_goes && !moves);
    (
        own(from).unwrap_or_else(|| next(from)),
        // Not what the other may just have got.
        own(to).or(left).unwrap_or_else(|| next(to) + 1),
    )
}

/// A directory's link count and times are set once, even if both sides are the same.
#[derive(Default)]
struct LinkChanges {
    source: i32,
    target: i32,
}

impl Tree {
    /// Renames. Returns the attributes of what was replaced, after it lost its name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`] (`NoReplace`), [`Error::NotDirectory`],
    /// [`Error::IsDirectory`], [`Error::NotEmpty`], [`Error::Invalid`] (a directory into itself),
    /// [`Error::NameTooLong`], [`Error::Store`].
    pub fn rename(
        &self,
        caller: Caller,
        (parent, name): (Ino, &[u8]),
        (new_parent, to_name): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<Option<Attributes>> {
        let (name, to_name) = (new_name(name)?, new_name(to_name)?);
        let whiteout = match mode {
            RenameMode::Whiteout => Some(self.upper.new_ino()?),
            _ => None,
        };
        let mut change = self.upper.begin();
        let from = Side {
            directory: self.directory(change.state(), parent)?,
            name,
        };
        let to = Side {
            directory: self.directory(change.state(), new_parent)?,
            name: to_name,
        };
        let source = self.entry(change.state(), &from)?.ok_or(Error::NotFound)?;
        let target = self.entry(change.state(), &to)?;
        self.check(
            change.state(),
            (&from, &source),
            (&to, target.as_ref()),
            mode,
        )?;
        if target
            .as_ref()
            .is_some_and(|target| target.ino == source.ino)
        {
            // Two names of one file: nothing is to be done, by POSIX.
            return Ok(None);
        }
        let now = Timestamp::now();
        let mut links = LinkChanges::default();
        let moves = from.directory.ino != to.directory.ino;
        if source.kind == Kind::Directory && moves {
            links.source -= 1;
            links.target += 1;
        }
        let (from_cookie, to_cookie) = cookies(change.state(), &from, &to, mode);
        let mut replaced = None;
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                if target.kind == Kind::Directory && moves {
                    links.source += 1;
                    links.target -= 1;
                }
                // Both names go before either comes back, so that a directory's place is the new one.
                self.push_no_entry(&mut change, from.directory.ino, from.name.clone())?;
                self.push_no_entry(&mut change, to.directory.ino, to.name.clone())?;
                push_entry_at(
                    &mut change,
                    from.directory.ino,
                    from.name.clone(),
                    target.ino,
                    target.kind,
                    from_cookie,
                );
                self.push_renamed(&mut change, &target, now)?;
            }
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            (_, target) => {
                if let Some(target) = target {
                    links.target -= i32::from(target.kind == Kind::Directory);
                    replaced = Some(self.push_unlink(&mut change, target.ino, now)?);
                }
                self.push_no_entry(&mut change, from.directory.ino, from.name.clone())?;
            }
        }
        push_entry_at(
            &mut change,
            to.directory.ino,
            to.name.clone(),
            source.ino,
            source.kind,
            to_cookie,
        );
        self.push_renamed(&mut change, &source, now)?;
        if let Some(ino) = whiteout {
            self.push_whiteout(&mut change, caller, (&from, ino, from_cookie), now);
        }
        if moves {
            self.push_directory_change(&mut change, &from.directory, links.source, now)?;
            self.push_directory_change(&mut change, &to.directory, links.target, now)?;
        } else {
            self.push_directory_change(
                &mut change,
                &to.directory,
                links.source + links.target,
                now,
            )?;
        }
        change.commit()?;
        Ok(replaced)
    }

    fn entry(&self, state: &State, side: &Side) -> Result<Option<Attributes>> {
        match self
            .upper
            .lookup(state, side.directory.ino, side.name.as_bytes())?
        {
            None => Ok(None),
            Some((ino, _)) => self.attributes_in(state, ino).map(Some),
        }
    }

    fn check(
        &self,
        state: &State,
        (from, source): (&Side, &Attributes),
        (to, target): (&Side, Option<&Attributes>),
        mode: RenameMode,
    ) -> Result<()> {
        if source.kind == Kind::Directory && self.is_within(state, to.directory.ino, source.ino)? {
            return Err(Error::Invalid);
        }
        let Some(target) = target else { return Ok(()) };
        match mode {
            RenameMode::NoReplace => Err(Error::Exists),
            RenameMode::Exchange => {
                let loops = target.kind == Kind::Directory
                    && self.is_within(state, from.directory.ino, target.ino)?;
                if loops { Err(Error::Invalid) } else { Ok(()) }
            }
            RenameMode::Replace | RenameMode::Whiteout => match (source.kind, target.kind) {
                _ if source.ino == target.ino => Ok(()),
                (Kind::Directory, Kind::Directory) if self.upper.is_empty(state, target.ino)? => {
                    Ok(())
                }
                (Kind::Directory, Kind::Directory) => Err(Error::NotEmpty),
                (Kind::Directory, _) => Err(Error::NotDirectory),
                (_, Kind::Directory) => Err(Error::IsDirectory),
                _ => Ok(()),
            },
        }
    }

    /// Whether directory `ino` is `ancestor` or lies below it.
    fn is_within(&self, state: &State, ino: Ino, ancestor: Ino) -> Result<bool> {
        let mut at = ino;
        loop {
            if at == ancestor {
                return Ok(true);
            }
            if at == ROOT_INO {
                return Ok(false);
            }
            match self.upper.parent(state, at)? {
                Some((above, _)) => at = above,
                None => return Ok(false),
            }
        }
    }

    fn push_renamed(
        &self,
        change: &mut Transaction<'_>,
        moved: &Attributes,
        now: Timestamp,
    ) -> Result<()> {
        let attrs = Attrs {
            ctime: now,
            ..Attrs::from(moved)
        };
        self.push_attrs(change, moved.ino, attrs)
    }

    fn push_whiteout(
        &self,
        change: &mut Transaction<'_>,
        caller: Caller,
        (from, ino, cookie): (&Side, Ino, u64),
        now: Timestamp,
    ) {
        let attrs = Attrs {
            mode: 0,
            uid: caller.uid,
            gid: caller.gid,
            nlink: 1,
            atime: now,
            mtime: now,
            ctime: now,
        };
        change.push(Record::Inode {
            ino,
            attrs,
            in_lower: false,
            body: NewBody::CharDevice(0),
        });
        push_entry_at(
            change,
            from.directory.ino,
            from.name.clone(),
            ino,
            Kind::CharDevice,
            cookie,
        );
    }
}

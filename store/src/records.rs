//! Tables of small records for whoever embeds the store, in the store's own database, so that
//! they are as durable as what they describe.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::db::{self, Db, Durability, key};
use crate::error::Result;

/// A table of records by key, ordered by the key's bytes.
#[derive(Clone)]
pub struct Table {
    db: Arc<Db>,
    prefix: Vec<u8>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("name", &String::from_utf8_lossy(&self.prefix))
            .finish()
    }
}

impl Table {
    pub(crate) fn new(db: Arc<Db>, name: &str) -> Self {
        // The NUL ends the name, so that no table's name is a prefix of another's rows.
        Table {
            db,
            prefix: key(&[name.as_bytes(), &[0]]),
        }
    }

    /// Sets the record at `key`; durable against a killed process at once, and against power loss
    /// with the next durable commit of anything.
    ///
    /// # Errors
    /// [`crate::Error::Database`], [`crate::Error::Io`] if the disk is full, [`crate::Error::Failed`].
    pub fn put<T: Serialize>(&self, key: &[u8], value: &T) -> Result<()> {
        self.put_many([(key, value)])
    }

    /// Sets several records, all or none.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn put_many<'a, T: Serialize + 'a>(
        &self,
        rows: impl IntoIterator<Item = (&'a [u8], &'a T)>,
    ) -> Result<()> {
        let mut batch = self.db.batch();
        for (row, value) in rows {
            batch.insert(&self.db.records, &self.row(row), &db::encode(value));
        }
        self.db.commit(batch, Durability::Process)
    }

    /// The record at `key`; `None` if there is none.
    ///
    /// # Errors
    /// [`crate::Error::Database`]; [`crate::Error::Corrupt`] if it is no `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>> {
        match self.db.records.get(self.row(key))? {
            None => Ok(None),
            Some(bytes) => self.decode(&bytes).map(Some),
        }
    }

    /// Removes the record at `key`, if there is one.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn remove(&self, key: &[u8]) -> Result<()> {
        self.remove_many([key])
    }

    /// Removes several records, all or none.
    ///
    /// # Errors
    /// As [`Table::put`].
    pub fn remove_many<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) -> Result<()> {
        let mut batch = self.db.batch();
        for row in keys {
            batch.remove(&self.db.records, &self.row(row));
        }
        self.db.commit(batch, Durability::Process)
    }

    /// The records whose key begins with `prefix`, in order of the key, as long as `wanted` says
    /// so.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn scan<T: DeserializeOwned>(
        &self,
        prefix: &[u8],
        mut wanted: impl FnMut(&[u8], T) -> bool,
    ) -> Result<()> {
        for guard in self.db.records.prefix(self.row(prefix)) {
            let (key, value) = guard.into_inner()?;
            if !wanted(&key[self.prefix.len()..], self.decode(&value)?) {
                break;
            }
        }
        Ok(())
    }

    /// Like [`Table::scan`] of all rows, from row `first` on.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn scan_from<T: DeserializeOwned>(
        &self,
        first: &[u8],
        mut wanted: impl FnMut(&[u8], T) -> bool,
    ) -> Result<()> {
        for guard in self.db.records.range(self.row(first)..) {
            let (key, value) = guard.into_inner()?;
            let Some(row) = key.strip_prefix(self.prefix.as_slice()) else {
                break;
            };
            if !wanted(row, self.decode(&value)?) {
                break;
            }
        }
        Ok(())
    }

    /// Like [`Table::scan`], in the opposite order.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn scan_back<T: DeserializeOwned>(
        &self,
        prefix: &[u8],
        mut wanted: impl FnMut(&[u8], T) -> bool,
    ) -> Result<()> {
        for guard in self.db.records.prefix(self.row(prefix)).rev() {
            let (key, value) = guard.into_inner()?;
            if !wanted(&key[self.prefix.len()..], self.decode(&value)?) {
                break;
            }
        }
        Ok(())
    }

    fn row(&self, row: &[u8]) -> Vec<u8> {
        key(&[&self.prefix, row])
    }

    fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T> {
        db::decode(
            &format!(
                "a record of table {}",
                String::from_utf8_lossy(&self.prefix)
            ),
            bytes,
        )
    }
}

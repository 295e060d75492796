//! The exit record of a command on disk.
//!
//! Owns `exit.json`, beside the transcript: the same content as the `Exited` event, so
//! the evidence of an end survives the holder. Written whole or not at all.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::Error;
use crate::protocol::ExitRecord;

/// The file's name.
const NAME: &str = "exit.json";

/// Writes the record of a command that ended.
///
/// # Errors
/// [`Error::Path`].
pub(crate) fn write(dir: &Path, record: &ExitRecord) -> Result<(), Error> {
    let path = dir.join(NAME);
    let json = serde_json::to_vec(record).map_err(|error| Error::Format {
        path: path.clone(),
        detail: error.to_string(),
    })?;
    let draft = dir.join(".exit.json.new");
    fs::write(&draft, json).map_err(Error::path("write", &draft))?;
    fs::rename(&draft, &path).map_err(Error::path("create", path))
}

/// Reads the record of a command; `None` if it has not ended (or its holder was killed
/// before it did).
///
/// # Errors
/// [`Error::Path`] if it can't be read, [`Error::Format`] if it can't be understood.
pub fn read(dir: &Path) -> Result<Option<ExitRecord>, Error> {
    let path = dir.join(NAME);
    let json = match fs::read(&path) {
        Ok(json) => json,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::path("read", path)(error)),
    };
    let record = serde_json::from_slice(&json).map_err(|error| Error::Format {
        path,
        detail: error.to_string(),
    })?;
    Ok(Some(record))
}

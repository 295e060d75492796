//! The mount table.
//!
//! Owns reading `/proc/self/mountinfo`: which mounts there are, where, and by which id.
//! Changes nothing.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The source that the mounts of sessions' views have in mount tables. By it they are found where they
/// are attached to the host, and kept out of other sessions.
pub const VIEW_SOURCE: &str = "sandstack-session";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The kernel's id of it.
    pub(crate) id: u64,
    /// Where it is.
    pub(crate) point: PathBuf,
    /// Whether it is a session's view ([`VIEW_SOURCE`]).
    pub(crate) is_view: bool,
}

/// The mounts of this process's mount namespace, in the order they were made.
pub(crate) fn table() -> io::Result<Vec<Mount>> {
    Ok(fs::read("/proc/self/mountinfo")?
        .split(|byte| *byte == b'\n')
        .filter_map(parse)
        .collect())
}

/// Parses `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS … - TYPE SOURCE …`.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let point = unescape(fields.nth(3)?);
    let mut kind = fields.skip_while(|field| *field != b"-").skip(1);
    let is_view = kind.next() == Some(b"fuse") && kind.next() == Some(VIEW_SOURCE.as_bytes());
    Some(Mount {
        id,
        point: OsString::from_vec(point).into(),
        is_view,
    })
}

/// Undoes the kernel's octal escapes (`\040` for a space).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, tail)) = rest.split_first() {
        let octal = (*byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(value) => {
                bytes.push(value);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    bytes
}

/// The mount points at or under any of `paths`, outermost first.
pub(crate) fn at_or_under<'a>(table: &'a [Mount], paths: &[PathBuf]) -> Vec<&'a Path> {
    let mut points: Vec<&Path> = table
        .iter()
        .map(|mount| mount.point.as_path())
        .filter(|point| paths.iter().any(|path| point.starts_with(path)))
        .collect();
    points.sort_unstable();
    points
}

/// Whether a descriptor's mount is attached in this mount namespace.
pub(crate) fn is_attached(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))
        .and_then(|id| id.trim().parse::<u64>().ok());
    Ok(table()?.iter().any(|mount| Some(mount.id) == id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_escapes_is_read_byte_for_byte() {
        let line = b"36 35 98:0 /a /mnt/with\\040space\\134and\xff rw,noatime - ext3 /dev/root rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.id, 36);
        assert_eq!(
            mount.point.into_os_string().into_vec(),
            b"/mnt/with space\\and\xff"
        );
        assert!(!mount.is_view);
    }

    #[test]
    fn a_view_is_known_by_its_type_and_source() {
        let is_view = |tail: &str| {
            let line = format!("36 35 0:98 / /place rw,nosuid shared:1 - {tail} rw,user_id=0");
            parse(line.as_bytes()).unwrap().is_view
        };
        assert!(is_view("fuse sandstack-session"));
        assert!(!is_view("fuse sandstack"));
        assert!(!is_view("tmpfs sandstack-session"));
    }

    #[test]
    fn only_whole_components_are_under_a_path() {
        let mount = |id, point: &str| Mount {
            id,
            point: point.into(),
            is_view: false,
        };
        let table = [
            mount(1, "/"),
            mount(2, "/a/b"),
            mount(3, "/a"),
            mount(4, "/ab"),
        ];
        let found = at_or_under(&table, &["/a".into()]);
        assert_eq!(found, [Path::new("/a"), Path::new("/a/b")]);
    }
}

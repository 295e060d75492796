//! An export as a tar archive: the format of POSIX.1-2001 ("pax"), with extended attributes as
//! `SCHILY.xattr.…` and holes as GNU's sparse format 1.0 has them.
//!
//! Each entry has a header of 512 bytes. What does not fit into it (long names, times with
//! nanoseconds, large numbers, attributes) stands in a header of records before it.

use std::collections::HashMap;

use super::Exported;
use super::place::Output;
use crate::content::{Content, Segment};
use crate::error::Result;
use crate::lower::Lower;
use crate::name::RelPath;
use crate::node::{Body, Ino, Kind, Node, Timestamp};

const BLOCK: u64 = 512;
/// Bytes of a name in a header.
const NAME_BYTES: usize = 100;
const COPY_BYTES: usize = 1 << 20;
/// Largest number in a field of seven octal digits.
const MAX_SMALL: u64 = 0o7_777_777;
/// Largest number in a field of eleven octal digits.
const MAX_LARGE: u64 = 0o77_777_777_777;

pub(super) fn write(
    out: &mut Output,
    lower: &Lower,
    entries: &[(RelPath, Node)],
    exported: &mut Exported,
) -> Result<()> {
    let mut linked: HashMap<Ino, &RelPath> = HashMap::new();
    for (path, node) in entries {
        if node.kind() == Kind::Socket {
            // No tar has one.
            exported.leave_out(path, "special_file");
            continue;
        }
        let first = match node.meta.links > 1 && node.kind() != Kind::Directory {
            true => linked.get(&node.meta.ino).copied(),
            false => None,
        };
        exported.count(node, first.is_none());
        if first.is_none() {
            linked.insert(node.meta.ino, path);
        }
        write_entry(out, lower, path, node, first)?;
    }
    // Two empty blocks end an archive.
    out.put(&[0; 2 * BLOCK as usize])
}

fn write_entry(
    out: &mut Output,
    lower: &Lower,
    path: &RelPath,
    node: &Node,
    first: Option<&RelPath>,
) -> Result<()> {
    let mut name = if path.is_root() {
        b".".to_vec()
    } else {
        path.as_bytes().to_vec()
    };
    let mut header = Header::new(node);
    let mut records = Records::default();
    let mut data = Data::None;
    match (&node.body, first) {
        (_, Some(first)) => {
            header.kind = b'1';
            header.link = first.as_bytes().to_vec();
        }
        (Body::File(content), None) => {
            header.kind = b'0';
            data = Data::of(lower, content)?;
            header.size = data.size(content);
            if let Data::Sparse { .. } = data {
                records.add(b"GNU.sparse.major", b"1");
                records.add(b"GNU.sparse.minor", b"0");
                records.add(b"GNU.sparse.name", &name);
                records.add(b"GNU.sparse.realsize", content.size.to_string().as_bytes());
                let last = path.names().last().unwrap_or_default();
                name = [b"GNUSparseFile.0/", last].concat();
            }
        }
        (Body::Directory { .. }, None) => {
            header.kind = b'5';
            name.push(b'/');
        }
        (Body::Symlink(target), None) => {
            header.kind = b'2';
            header.link = target.to_vec();
        }
        (Body::CharDevice(number), None) => header.device(b'3', *number),
        (Body::BlockDevice(number), None) => header.device(b'4', *number),
        (Body::Fifo | Body::Socket, None) => header.kind = b'6',
    }
    if first.is_none() {
        for (attribute, value) in lower.xattrs(node)? {
            records.add(&[b"SCHILY.xattr.", &attribute[..]].concat(), &value);
        }
    }
    header.name = name;
    header.overflow(&mut records);
    if !records.0.is_empty() {
        let size = records.0.len() as u64;
        let mut extra = Header::extra(size);
        let last = path.names().last().unwrap_or(b"root");
        extra.name = [b"PaxHeaders/", last].concat();
        out.put(&extra.encode())?;
        out.put(&records.0)?;
        pad(out, size)?;
    }
    out.put(&header.encode())?;
    data.write(out, lower)?;
    pad(out, header.size)
}

fn pad(out: &mut Output, size: u64) -> Result<()> {
    let rest = size.next_multiple_of(BLOCK) - size;
    out.put(&[0; BLOCK as usize][..rest as usize])
}

/// What follows a header.
enum Data {
    None,
    /// The segments, which are all of the file.
    Whole(Vec<Segment>),
    /// Where they lie, and the segments.
    Sparse {
        map: Vec<u8>,
        segments: Vec<Segment>,
    },
}

impl Data {
    fn of(lower: &Lower, content: &Content) -> Result<Data> {
        let segments = content.segments(lower.objects())?;
        if content.stored == content.size {
            return Ok(Data::Whole(segments));
        }
        // Neighbours together, and an empty run at the end, which tells the size.
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for segment in &segments {
            match runs.last_mut() {
                Some((offset, length)) if *offset + *length == segment.offset => {
                    *length += segment.length;
                }
                _ => runs.push((segment.offset, segment.length)),
            }
        }
        if runs
            .last()
            .is_none_or(|(offset, length)| offset + length < content.size)
        {
            runs.push((content.size, 0));
        }
        let mut map = format!("{}\n", runs.len()).into_bytes();
        for (offset, length) in runs {
            map.extend(format!("{offset}\n{length}\n").bytes());
        }
        map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
        Ok(Data::Sparse { map, segments })
    }

    fn size(&self, content: &Content) -> u64 {
        match self {
            Data::None => 0,
            Data::Whole(_) => content.size,
            Data::Sparse { map, .. } => map.len() as u64 + content.stored,
        }
    }

    fn write(&self, out: &mut Output, lower: &Lower) -> Result<()> {
        let segments = match self {
            Data::None => return Ok(()),
            Data::Whole(segments) => segments,
            Data::Sparse { map, segments } => {
                out.put(map)?;
                segments
            }
        };
        let mut buffer = vec![0; COPY_BYTES];
        for segment in segments {
            let mut done = 0;
            while done < segment.length {
                let part = &mut buffer[..COPY_BYTES.min((segment.length - done) as usize)];
                let at = segment.source.offset + done;
                lower.objects().read_at(&segment.source.blob, at, part)?;
                out.put(part)?;
                done += part.len() as u64;
            }
        }
        Ok(())
    }
}

/// Records of what a header cannot hold.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        // The length counts its own digits.
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        self.0.extend(format!("{length} ").bytes());
        self.0.extend_from_slice(key);
        self.0.push(b'=');
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }
}

struct Header {
    name: Vec<u8>,
    mode: u64,
    uid: u64,
    gid: u64,
    size: u64,
    mtime: Timestamp,
    kind: u8,
    link: Vec<u8>,
    major: u64,
    minor: u64,
}

impl Header {
    fn new(node: &Node) -> Header {
        Header {
            name: Vec::new(),
            mode: u64::from(node.meta.mode),
            uid: u64::from(node.meta.uid),
            gid: u64::from(node.meta.gid),
            size: 0,
            mtime: node.meta.mtime,
            kind: b'0',
            link: Vec::new(),
            major: 0,
            minor: 0,
        }
    }

    /// The header of records of `size` bytes.
    fn extra(size: u64) -> Header {
        Header {
            name: Vec::new(),
            mode: 0o644,
            uid: 0,
            gid: 0,
            size,
            mtime: Timestamp::default(),
            kind: b'x',
            link: Vec::new(),
            major: 0,
            minor: 0,
        }
    }

    fn device(&mut self, kind: u8, number: u64) {
        self.kind = kind;
        self.major = u64::from(rustix::fs::major(number));
        self.minor = u64::from(rustix::fs::minor(number));
    }

    /// Moves what does not fit into records.
    fn overflow(&mut self, records: &mut Records) {
        if self.name.len() > NAME_BYTES {
            records.add(b"path", &self.name);
        }
        if self.link.len() > NAME_BYTES {
            records.add(b"linkpath", &self.link);
        }
        for (key, value, most) in [
            (&b"size"[..], &mut self.size, MAX_LARGE),
            (b"uid", &mut self.uid, MAX_SMALL),
            (b"gid", &mut self.gid, MAX_SMALL),
            (b"SCHILY.devmajor", &mut self.major, MAX_SMALL),
            (b"SCHILY.devminor", &mut self.minor, MAX_SMALL),
        ] {
            if *value > most {
                records.add(key, value.to_string().as_bytes());
            }
        }
        let Timestamp { secs, nanos } = self.mtime;
        if nanos > 0 || !(0..=MAX_LARGE as i64).contains(&secs) {
            records.add(b"mtime", decimal(secs, nanos).as_bytes());
        }
    }

    fn encode(&self) -> [u8; BLOCK as usize] {
        let mut block = [0; BLOCK as usize];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        let octal = |value: u64, digits: usize, most: u64| {
            // What is too large stands in the records.
            format!("{:0digits$o}", value.min(most))
        };
        let short = |bytes: &[u8]| bytes[..bytes.len().min(NAME_BYTES)].to_vec();
        put(0, &short(&self.name));
        put(100, octal(self.mode, 7, MAX_SMALL).as_bytes());
        put(108, octal(self.uid, 7, MAX_SMALL).as_bytes());
        put(116, octal(self.gid, 7, MAX_SMALL).as_bytes());
        put(124, octal(self.size, 11, MAX_LARGE).as_bytes());
        let secs = u64::try_from(self.mtime.secs).unwrap_or(0);
        put(136, octal(secs, 11, MAX_LARGE).as_bytes());
        put(148, b"        ");
        put(156, &[self.kind]);
        put(157, &short(&self.link));
        put(257, b"ustar\x0000");
        put(329, octal(self.major, 7, MAX_SMALL).as_bytes());
        put(337, octal(self.minor, 7, MAX_SMALL).as_bytes());
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

/// A time in decimal seconds.
fn decimal(secs: i64, nanos: u32) -> String {
    let text = match (secs, nanos) {
        (secs, 0) => return secs.to_string(),
        (secs, nanos) if secs < 0 => format!("-{}.{:09}", -(secs + 1), 1_000_000_000 - nanos),
        (secs, nanos) => format!("{secs}.{nanos:09}"),
    };
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_digits() {
        let mut records = Records::default();
        records.add(b"path", b"x");
        records.add(b"path", &[b'y'; 90]);
        let text = String::from_utf8(records.0).unwrap();
        let mut rest = &text[..];
        while !rest.is_empty() {
            let length: usize = rest.split(' ').next().unwrap().parse().unwrap();
            assert!(rest[..length].ends_with('\n'), "{rest:?}");
            rest = &rest[length..];
        }
    }

    #[test]
    fn times_before_1970_are_negative() {
        assert_eq!(decimal(-1, 500_000_000), "-0.5");
        assert_eq!(decimal(-2, 250_000_000), "-1.75");
        assert_eq!(decimal(5, 0), "5");
        assert_eq!(decimal(5, 1), "5.000000001");
    }
}

//! An export as a patch that `git apply` takes.
//!
//! Text is told by hunks with three lines of context, anything else whole ("GIT binary patch").
//! What git does not know (empty directories, owners, most modes, special files) is left out and
//! reported, and so is what lies in a `.git`, which `git apply` refuses.

use super::Exported;
use super::place::Output;
use super::sha1::Sha1;
use crate::compare::PathChange;
use crate::content::Content;
use crate::error::Result;
use crate::lower::Lower;
use crate::name::RelPath;
use crate::node::{Body, Node};
use crate::publish::ChangeKind;
use crate::text::{MAX_TEXT, hunks, is_text};

/// Bytes of one line of a binary patch before they are encoded.
const LINE_BYTES: usize = 52;
/// Bytes of one stored block of a deflate stream: its length has 16 bits.
const STORED_BYTES: usize = 65_535;
const READ_BYTES: usize = 1 << 20;

/// A version of a path as git sees it.
struct Blob<'a> {
    mode: &'static str,
    lower: &'a Lower,
    bytes: Bytes<'a>,
}

enum Bytes<'a> {
    Target(&'a [u8]),
    Content(&'a Content),
}

pub(super) fn write(
    out: &mut Output,
    (from, to): (&Lower, &Lower),
    changes: &[PathChange],
    exported: &mut Exported,
) -> Result<()> {
    // What goes comes first: it may stand where a directory is to be.
    let (gone, rest): (Vec<_>, Vec<_>) = changes
        .iter()
        .partition(|change| change.kind == ChangeKind::Deleted);
    for change in gone.into_iter().chain(rest) {
        if change.path.names().any(|name| name == b".git") {
            exported.leave_out(&change.path, "git_metadata");
            continue;
        }
        write_change(out, (from, to), change, exported)?;
    }
    Ok(())
}

fn write_change(
    out: &mut Output,
    (from, to): (&Lower, &Lower),
    change: &PathChange,
    exported: &mut Exported,
) -> Result<()> {
    let path = &change.path;
    if let Some(node) = &change.new {
        let counts = match &node.body {
            Body::Directory { entries, .. } => {
                let same_type = change.kind == ChangeKind::Metadata;
                if same_type {
                    exported.leave_out(path, "mode");
                } else if *entries == 0 {
                    exported.leave_out(path, "directory");
                }
                false
            }
            Body::File(_) | Body::Symlink(_) => true,
            Body::Fifo | Body::Socket | Body::CharDevice(_) | Body::BlockDevice(_) => {
                exported.leave_out(path, "special_file");
                false
            }
        };
        if counts {
            exported.count(node, true);
        }
    }
    let old = change.old.as_ref().and_then(|node| Blob::of(from, node));
    let new = change.new.as_ref().and_then(|node| Blob::of(to, node));
    match (&old, &new) {
        (None, None) => Ok(()),
        (Some(old), Some(new)) if (old.mode == "120000") != (new.mode == "120000") => {
            write_pair(out, path, Some(old), None)?;
            write_pair(out, path, None, Some(new))
        }
        (Some(old), Some(new)) => {
            if change.kind == ChangeKind::Metadata && old.mode == new.mode {
                exported.leave_out(path, "mode");
                return Ok(());
            }
            write_pair(out, path, Some(old), Some(new))
        }
        (old, new) => write_pair(out, path, old.as_ref(), new.as_ref()),
    }
}

fn write_pair(
    out: &mut Output,
    path: &RelPath,
    old: Option<&Blob<'_>>,
    new: Option<&Blob<'_>>,
) -> Result<()> {
    let (old_name, new_name) = (quoted(b"a/", path), quoted(b"b/", path));
    let mut header = Vec::new();
    header.extend_from_slice(b"diff --git ");
    header.extend_from_slice(&old_name);
    header.push(b' ');
    header.extend_from_slice(&new_name);
    header.push(b'\n');
    match (old, new) {
        (None, Some(new)) => header.extend(format!("new file mode {}\n", new.mode).bytes()),
        (Some(old), None) => header.extend(format!("deleted file mode {}\n", old.mode).bytes()),
        (Some(old), Some(new)) if old.mode != new.mode => {
            header.extend(format!("old mode {}\nnew mode {}\n", old.mode, new.mode).bytes());
        }
        _ => {}
    }
    let name_of = |blob: Option<&Blob<'_>>| blob.map_or(Ok("0".repeat(40)), Blob::git_name);
    let (old_hash, new_hash) = (name_of(old)?, name_of(new)?);
    if old_hash == new_hash {
        return out.put(&header);
    }
    header.extend(format!("index {old_hash}..{new_hash}").bytes());
    if let (Some(old), Some(new)) = (old, new)
        && old.mode == new.mode
    {
        header.extend(format!(" {}", new.mode).bytes());
    }
    header.push(b'\n');
    out.put(&header)?;
    let text = |blob: Option<&Blob<'_>>| blob.map_or(Ok(Some(Vec::new())), Blob::text);
    if let (Some(old_text), Some(new_text)) = (text(old)?, text(new)?) {
        if old_text == new_text {
            return Ok(());
        }
        // A name with a space would otherwise end at the space.
        let tab = if path.as_bytes().contains(&b' ') {
            "\t"
        } else {
            ""
        };
        let show = |there: bool, name: &[u8]| match there {
            true => [name, tab.as_bytes()].concat(),
            false => b"/dev/null".to_vec(),
        };
        let names = [
            &b"--- "[..],
            &show(old.is_some(), &old_name),
            b"\n+++ ",
            &show(new.is_some(), &new_name),
            b"\n",
        ];
        out.put(&names.concat())?;
        return out.put(&hunks(&old_text, &new_text));
    }
    out.put(b"GIT binary patch\n")?;
    for blob in [new, old] {
        let size = blob.map_or(0, Blob::size);
        out.put(format!("literal {size}\n").as_bytes())?;
        let mut lines = Base85::new(out);
        write_stored(&mut lines, blob)?;
        lines.finish()?;
        out.put(b"\n")?;
    }
    Ok(())
}

/// Writes a blob as a zlib stream of stored blocks.
fn write_stored(lines: &mut Base85<'_>, blob: Option<&Blob<'_>>) -> Result<()> {
    lines.put(&[0x78, 0x01])?;
    let mut sum = Adler::default();
    let mut left = blob.map_or(0, Blob::size);
    if left == 0 {
        lines.put(&[1, 0, 0, 0xff, 0xff])?;
    }
    if let Some(blob) = blob {
        blob.each(STORED_BYTES, &mut |part| {
            left -= part.len() as u64;
            let length = (part.len() as u16).to_le_bytes();
            let last = u8::from(left == 0);
            lines.put(&[last, length[0], length[1], !length[0], !length[1]])?;
            lines.put(part)?;
            sum.add(part);
            Ok(())
        })?;
    }
    lines.put(&sum.value().to_be_bytes())
}

impl<'a> Blob<'a> {
    fn of(lower: &'a Lower, node: &'a Node) -> Option<Blob<'a>> {
        let (mode, bytes) = match &node.body {
            Body::File(content) if node.meta.mode & 0o100 != 0 => {
                ("100755", Bytes::Content(content))
            }
            Body::File(content) => ("100644", Bytes::Content(content)),
            Body::Symlink(target) => ("120000", Bytes::Target(target)),
            Body::Directory { .. }
            | Body::Fifo
            | Body::Socket
            | Body::CharDevice(_)
            | Body::BlockDevice(_) => return None,
        };
        Some(Blob { mode, lower, bytes })
    }

    fn size(&self) -> u64 {
        match self.bytes {
            Bytes::Target(target) => target.len() as u64,
            Bytes::Content(content) => content.size,
        }
    }

    /// The bytes in parts of `part` bytes, the last one shorter.
    fn each(&self, part: usize, tell: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self.bytes {
            Bytes::Target(target) => target.chunks(part).try_for_each(tell),
            Bytes::Content(content) => {
                let mut buffer = vec![0; part];
                let mut at = 0;
                while at < content.size {
                    let count = content.read_at(self.lower.objects(), at, &mut buffer)?;
                    tell(&buffer[..count])?;
                    at += count as u64;
                }
                Ok(())
            }
        }
    }

    fn git_name(&self) -> Result<String> {
        let mut sha = Sha1::new();
        sha.update(format!("blob {}\0", self.size()).as_bytes());
        self.each(READ_BYTES, &mut |part| {
            sha.update(part);
            Ok(())
        })?;
        Ok(sha.finish())
    }

    /// The bytes, if they are text.
    fn text(&self) -> Result<Option<Vec<u8>>> {
        if self.size() > MAX_TEXT {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(self.size() as usize);
        self.each(READ_BYTES, &mut |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })?;
        Ok(is_text(&bytes).then_some(bytes))
    }
}

/// A name as git writes it: in quotes, with escapes, if it has bytes that need that.
fn quoted(prefix: &[u8], path: &RelPath) -> Vec<u8> {
    let name = [prefix, path.as_bytes()].concat();
    let plain = |byte: &u8| (0x20..0x7f).contains(byte) && !matches!(byte, b'"' | b'\\');
    if name.iter().all(plain) {
        return name;
    }
    let mut out = vec![b'"'];
    for byte in name {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', byte]),
            b'\n' => out.extend(b"\\n"),
            b'\t' => out.extend(b"\\t"),
            byte if plain(&byte) => out.push(byte),
            byte => out.extend(format!("\\{byte:03o}").bytes()),
        }
    }
    out.push(b'"');
    out
}

#[derive(Clone, Copy)]
struct Adler {
    a: u32,
    b: u32,
}

impl Default for Adler {
    fn default() -> Self {
        Adler { a: 1, b: 0 }
    }
}

impl Adler {
    fn add(&mut self, bytes: &[u8]) {
        const MODULUS: u32 = 65_521;
        // So many bytes of 255 do not overflow 32 bits.
        for part in bytes.chunks(5552) {
            for byte in part {
                self.a += u32::from(*byte);
                self.b += self.a;
            }
            self.a %= MODULUS;
            self.b %= MODULUS;
        }
    }

    fn value(self) -> u32 {
        (self.b << 16) | self.a
    }
}

/// Lines of git's base 85: a letter for the count of bytes, then five characters for four bytes.
struct Base85<'a> {
    out: &'a mut Output,
    line: Vec<u8>,
}

impl<'a> Base85<'a> {
    fn new(out: &'a mut Output) -> Self {
        Base85 {
            out,
            line: Vec::with_capacity(LINE_BYTES),
        }
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let count = (LINE_BYTES - self.line.len()).min(bytes.len());
            self.line.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if self.line.len() == LINE_BYTES {
                self.end_line()?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if self.line.is_empty() {
            return Ok(());
        }
        self.end_line()
    }

    fn end_line(&mut self) -> Result<()> {
        const DIGITS: &[u8; 85] =
            b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
        let count = self.line.len() as u8;
        let mut text = vec![match count {
            1..=26 => b'A' + count - 1,
            _ => b'a' + count - 27,
        }];
        for part in self.line.chunks(4) {
            let mut word = [0; 4];
            word[..part.len()].copy_from_slice(part);
            let mut value = u32::from_be_bytes(word);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = DIGITS[(value % 85) as usize];
                value /= 85;
            }
            text.extend_from_slice(&digits);
        }
        text.push(b'\n');
        self.line.clear();
        self.out.put(&text)
    }
}

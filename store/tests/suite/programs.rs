//! A simple model of a view, and random programs of changes to run on it and on an upper.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use proptest::prelude::*;
use sandstack_store::{BLOCK, Kind, NewBody, RelPath, Timestamp, Xattrs};

use crate::fixture::session::{changed, rel};
use crate::fixture::snapshot::{Data, Item};
use crate::fixture::{Random, Session, Snapshot, host};

/// What a view should be: names and what they name.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) names: BTreeMap<RelPath, usize>,
    nodes: HashMap<usize, Node>,
    next: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    kind: Kind,
    mode: u16,
    uid: u32,
    gid: u32,
    xattrs: Xattrs,
    pub(crate) data: Data,
}

/// One change, which is one transaction of the upper.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Create {
        path: String,
        mode: u16,
        body: NewBody,
    },
    Write {
        path: String,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetSize {
        path: String,
        size: u64,
    },
    Punch {
        path: String,
        start: u64,
        end: u64,
    },
    Reserve {
        path: String,
        start: u64,
        end: u64,
        grow: bool,
    },
    Copy {
        from: String,
        from_offset: u64,
        to: String,
        to_offset: u64,
        length: u64,
    },
    Remove {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        one: String,
        other: String,
    },
    Link {
        existing: String,
        path: String,
    },
    Chmod {
        path: String,
        mode: u16,
    },
    Chown {
        path: String,
        uid: u32,
        gid: u32,
    },
    SetXattr {
        path: String,
        name: String,
        value: Vec<u8>,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
}

/// What a step is made from: numbers, so that proptest can make them smaller.
pub(crate) type Raw = (u8, u16, u16, u32);

const NAMES: [&str; 6] = ["a", "b", "c", "d d", "e\\", "\u{fc}"];
/// Files of the model stay below this.
const MAX_SIZE: u64 = 5 * BLOCK + 100;

impl Model {
    pub(crate) fn of(snapshot: &Snapshot) -> Model {
        let mut model = Model {
            names: BTreeMap::new(),
            nodes: HashMap::new(),
            next: 0,
        };
        for (path, item) in &snapshot.0 {
            let number = match model.names.get(&item.first_name) {
                Some(number) if item.names > 1 => *number,
                _ => model.add(Node {
                    kind: item.kind,
                    mode: item.mode,
                    uid: item.uid,
                    gid: item.gid,
                    xattrs: item.xattrs.clone(),
                    data: item.data.clone(),
                }),
            };
            model.names.insert(path.clone(), number);
        }
        model
    }

    pub(crate) fn add(&mut self, node: Node) -> usize {
        self.next += 1;
        self.nodes.insert(self.next, node);
        self.next
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut groups: HashMap<usize, Vec<&RelPath>> = HashMap::new();
        for (path, number) in &self.names {
            groups.entry(*number).or_default().push(path);
        }
        let items = self.names.iter().map(|(path, number)| {
            let node = &self.nodes[number];
            let item = Item {
                kind: node.kind,
                mode: node.mode,
                uid: node.uid,
                gid: node.gid,
                mtime: Timestamp::default(),
                ctime: Timestamp::default(),
                xattrs: node.xattrs.clone(),
                data: node.data.clone(),
                holes: Vec::new(),
                names: groups[number].len() as u32,
                first_name: groups[number][0].clone(),
                ino: 0,
            };
            (path.clone(), item)
        });
        Snapshot(items.collect())
    }

    pub(crate) fn node(&self, path: &str) -> &Node {
        &self.nodes[&self.names[&rel(path)]]
    }

    pub(crate) fn node_mut(&mut self, path: &str) -> &mut Node {
        let number = self.names[&rel(path)];
        self.nodes.get_mut(&number).unwrap()
    }

    pub(crate) fn bytes_mut(&mut self, path: &str) -> &mut Vec<u8> {
        match &mut self.node_mut(path).data {
            Data::File(bytes) => bytes,
            other => panic!("{path} is no file: {other:?}"),
        }
    }

    pub(crate) fn size(&self, path: &str) -> u64 {
        match &self.node(path).data {
            Data::File(bytes) => bytes.len() as u64,
            other => panic!("{path} is no file: {other:?}"),
        }
    }

    /// The paths of some kinds, the root not among them.
    pub(crate) fn paths(&self, wanted: impl Fn(Kind) -> bool) -> Vec<String> {
        self.names
            .iter()
            .filter(|(path, number)| !path.is_root() && wanted(self.nodes[number].kind))
            .map(|(path, _)| path.to_string())
            .collect()
    }

    pub(crate) fn is_empty(&self, path: &str) -> bool {
        let path = rel(path);
        !self
            .names
            .keys()
            .any(|other| *other != path && other.is_within(&path))
    }

    /// The step that a raw one means here; `None` if it means nothing.
    pub(crate) fn step(&self, (what, one, other, number): Raw) -> Option<Step> {
        let pick = |paths: Vec<String>, index: u16| -> Option<String> {
            let count = paths.len();
            paths
                .into_iter()
                .nth(usize::from(index).checked_rem(count)?)
        };
        let file = |index| pick(self.paths(|kind| kind == Kind::File), index);
        let any = |index| pick(self.paths(|_| true), index);
        let no_directory = |index| pick(self.paths(|kind| kind != Kind::Directory), index);
        let fresh = |index: u16| -> Option<String> {
            let mut directories = self.paths(|kind| kind == Kind::Directory);
            directories.push(String::new());
            let name = NAMES[usize::from(index) % NAMES.len()];
            let directory = pick(directories, index / NAMES.len() as u16)?;
            Some(if directory.is_empty() {
                name.to_owned()
            } else {
                format!("{directory}/{name}")
            })
        };
        let free = |index| fresh(index).filter(|path| !self.names.contains_key(&rel(path)));
        let place = |number: u32| u64::from(number) % MAX_SIZE;
        let number_high = number >> 16;
        Some(match what % 24 {
            0..=2 => {
                let body = match number % 12 {
                    0..=4 => NewBody::Empty,
                    5..=8 => NewBody::Directory,
                    9 => NewBody::Symlink(format!("target {other}").into_bytes().into()),
                    10 => NewBody::Fifo,
                    _ => match number_high % 3 {
                        0 => NewBody::Socket,
                        1 => NewBody::CharDevice(u64::from(number)),
                        _ => NewBody::BlockDevice(u64::from(number)),
                    },
                };
                let mode = if matches!(body, NewBody::Symlink(_)) {
                    0o777
                } else {
                    other & 0o7777
                };
                Step::Create {
                    path: free(one)?,
                    mode,
                    body,
                }
            }
            3..=7 => {
                let length = 1 + (number_high as usize * 37) % (3 * BLOCK as usize);
                let bytes = Random::new(u64::from(number)).bytes(length);
                Step::Write {
                    path: file(one)?,
                    offset: place(number),
                    bytes,
                }
            }
            8 => Step::SetSize {
                path: file(one)?,
                size: place(number),
            },
            9 => Step::Punch {
                path: file(one)?,
                start: place(number),
                end: place(number) + place(number_high),
            },
            10 => Step::Reserve {
                path: file(one)?,
                start: place(number),
                end: place(number) + place(number_high) + 1,
                grow: number % 2 == 0,
            },
            11 | 12 => {
                let (from, to) = (file(one)?, file(other)?);
                let (mut from_offset, mut to_offset) =
                    (place(number), place(number_high.wrapping_mul(7919)));
                if number % 3 == 0 {
                    from_offset = from_offset / BLOCK * BLOCK;
                    to_offset = to_offset / BLOCK * BLOCK;
                }
                let length = 1 + place(number.rotate_left(9));
                let overlap = self.names[&rel(&from)] == self.names[&rel(&to)]
                    && from_offset < to_offset + length
                    && to_offset < from_offset + length;
                if overlap {
                    return None;
                }
                Step::Copy {
                    from,
                    from_offset,
                    to,
                    to_offset,
                    length,
                }
            }
            13 | 14 => {
                let path = any(one)?;
                if self.node(&path).kind == Kind::Directory && !self.is_empty(&path) {
                    return None;
                }
                Step::Remove { path }
            }
            15..=17 => {
                let (from, to) = (any(one)?, fresh(other)?);
                let loops = rel(&to).is_within(&rel(&from)) || rel(&from).is_within(&rel(&to));
                let parent = rel(&to).split()?.0;
                if loops || !self.names.contains_key(&parent) {
                    return None;
                }
                if let Some(number) = self.names.get(&rel(&to)) {
                    let directory = self.node(&from).kind == Kind::Directory;
                    let target = self.nodes[number].kind == Kind::Directory;
                    let same = self.names[&rel(&from)] == *number;
                    if same || directory != target || (target && !self.is_empty(&to)) {
                        return None;
                    }
                }
                Step::Rename { from, to }
            }
            18 => {
                let (one, other) = (any(one)?, any(other)?);
                let loops = rel(&one).is_within(&rel(&other)) || rel(&other).is_within(&rel(&one));
                if loops || self.names[&rel(&one)] == self.names[&rel(&other)] {
                    return None;
                }
                Step::Exchange { one, other }
            }
            19 => Step::Link {
                existing: no_directory(one)?,
                path: free(other)?,
            },
            20 => Step::Chmod {
                path: any(one)?,
                mode: other & 0o7777,
            },
            21 => Step::Chown {
                path: any(one)?,
                uid: number,
                gid: u32::from(other),
            },
            22 => Step::SetXattr {
                path: any(one)?,
                name: format!("user.{}", NAMES[usize::from(other) % NAMES.len()]),
                value: Random::new(u64::from(number)).bytes(number_high as usize % 500),
            },
            _ => {
                let path = any(one)?;
                let names: Vec<_> = self.node(&path).xattrs.keys().cloned().collect();
                let name = names.get(usize::from(other).checked_rem(names.len())?)?;
                Step::RemoveXattr {
                    path,
                    name: String::from_utf8(name.clone()).unwrap(),
                }
            }
        })
    }

    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
            Step::Create { path, mode, body } => {
                let parent = self.node(&rel(path).split().unwrap().0.to_string()).clone();
                let (kind, data) = match body {
                    NewBody::Empty | NewBody::Lower(_) => (Kind::File, Data::File(Vec::new())),
                    NewBody::Directory => (Kind::Directory, Data::None),
                    NewBody::Symlink(target) => (Kind::Symlink, Data::Target(target.to_vec())),
                    NewBody::Fifo => (Kind::Fifo, Data::None),
                    NewBody::Socket => (Kind::Socket, Data::None),
                    NewBody::CharDevice(number) => (Kind::CharDevice, Data::Device(*number)),
                    NewBody::BlockDevice(number) => (Kind::BlockDevice, Data::Device(*number)),
                };
                let node = Node {
                    kind,
                    mode: *mode,
                    uid: parent.uid,
                    gid: parent.gid,
                    xattrs: Xattrs::new(),
                    data,
                };
                let number = self.add(node);
                self.names.insert(rel(path), number);
            }
            Step::Write {
                path,
                offset,
                bytes,
            } => {
                let file = self.bytes_mut(path);
                let end = *offset as usize + bytes.len();
                if file.len() < end {
                    file.resize(end, 0);
                }
                file[*offset as usize..end].copy_from_slice(bytes);
            }
            Step::SetSize { path, size } => self.bytes_mut(path).resize(*size as usize, 0),
            Step::Punch { path, start, end } => {
                let file = self.bytes_mut(path);
                let (start, end) = (
                    (*start as usize).min(file.len()),
                    (*end as usize).min(file.len()),
                );
                file[start..end].fill(0);
            }
            Step::Reserve {
                path, end, grow, ..
            } => {
                let file = self.bytes_mut(path);
                if *grow && file.len() < *end as usize {
                    file.resize(*end as usize, 0);
                }
            }
            Step::Copy {
                from,
                from_offset,
                to,
                to_offset,
                length,
            } => {
                let size = self.size(from);
                let length = (*length).min(size.saturating_sub(*from_offset)) as usize;
                if length > 0 {
                    let start = *from_offset as usize;
                    let bytes = self.bytes_mut(from)[start..start + length].to_vec();
                    self.apply(&Step::Write {
                        path: to.clone(),
                        offset: *to_offset,
                        bytes,
                    });
                }
            }
            Step::Remove { path } => {
                self.names.remove(&rel(path));
            }
            Step::Rename { from, to } => {
                self.names.remove(&rel(to));
                self.move_names(&[(from, to)]);
            }
            Step::Exchange { one, other } => self.move_names(&[(one, other), (other, one)]),
            Step::Link { existing, path } => {
                let number = self.names[&rel(existing)];
                self.names.insert(rel(path), number);
            }
            Step::Chmod { path, mode } => self.node_mut(path).mode = *mode,
            Step::Chown { path, uid, gid } => {
                let node = self.node_mut(path);
                (node.uid, node.gid) = (*uid, *gid);
            }
            Step::SetXattr { path, name, value } => {
                self.node_mut(path)
                    .xattrs
                    .insert(name.clone().into(), value.clone());
            }
            Step::RemoveXattr { path, name } => {
                self.node_mut(path).xattrs.remove(name.as_bytes());
            }
        }
    }

    pub(crate) fn move_names(&mut self, moves: &[(&String, &String)]) {
        let names = std::mem::take(&mut self.names);
        for (path, number) in names {
            let moved = moves.iter().find_map(|(from, to)| {
                let rest = path
                    .is_within(&rel(from))
                    .then(|| &path.as_bytes()[from.len()..])?;
                Some(RelPath::parse(&[to.as_bytes(), rest].concat()).unwrap())
            });
            self.names.insert(moved.unwrap_or(path), number);
        }
    }
}

/// Does a step to a session.
pub(crate) fn perform(session: &Session, step: &Step) {
    match step {
        Step::Create { path, mode, body } => {
            session.create(path, *mode, body.clone());
        }
        Step::Write {
            path,
            offset,
            bytes,
        } => {
            session
                .upper
                .write(session.ino(path), *offset, bytes, changed)
                .unwrap();
        }
        Step::SetSize { path, size } => {
            session
                .upper
                .set_size(session.ino(path), *size, changed)
                .unwrap();
        }
        Step::Punch { path, start, end } => {
            session
                .upper
                .punch(session.ino(path), *start, *end, changed)
                .unwrap();
        }
        Step::Reserve {
            path,
            start,
            end,
            grow,
        } => {
            session
                .upper
                .reserve(session.ino(path), *start, *end, *grow, changed)
                .unwrap();
        }
        Step::Copy {
            from,
            from_offset,
            to,
            to_offset,
            length,
        } => {
            let (from, to) = (
                (session.ino(from), *from_offset),
                (session.ino(to), *to_offset),
            );
            session
                .upper
                .copy_range(from, to, *length, changed)
                .unwrap();
        }
        Step::Remove { path } => session.remove(path),
        Step::Rename { from, to } => session.rename(from, to),
        Step::Exchange { one, other } => session.exchange(one, other),
        Step::Link { existing, path } => session.link(existing, path),
        Step::Chmod { path, mode } => session.chmod(path, *mode),
        Step::Chown { path, uid, gid } => session.chown(path, *uid, *gid),
        Step::SetXattr { path, name, value } => session.set_xattr(path, name, value),
        Step::RemoveXattr { path, name } => session.remove_xattr(path, name),
    }
}

/// A random project directory.
pub(crate) fn random_project(dir: &Path, seed: u64, links: bool) {
    let mut random = Random::new(seed);
    fs::create_dir_all(dir).unwrap();
    let mut directories = vec![dir.to_path_buf()];
    let mut files = Vec::new();
    for _ in 0..random.below(25) {
        let path = random.pick(&directories).join(*random.pick(&NAMES));
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match random.below(8) {
            0 | 1 => {
                fs::create_dir(&path).unwrap();
                directories.push(path);
            }
            2 => symlink(format!("t{}", random.below(9)), &path).unwrap(),
            3 if links && !files.is_empty() => fs::hard_link(random.pick(&files), &path).unwrap(),
            4 => {
                let file = fs::File::create(&path).unwrap();
                file.set_len(random.below(MAX_SIZE)).unwrap();
                let bytes = random.bytes(100);
                std::os::unix::fs::FileExt::write_all_at(&file, &bytes, random.below(3 * BLOCK))
                    .unwrap();
                files.push(path);
            }
            _ => {
                let size = random.below(MAX_SIZE) as usize;
                host::write(&path, &random.bytes(size));
                files.push(path);
            }
        }
    }
}

/// Says what was done when a test fails: proptest shows only numbers.
#[derive(Default)]
pub(crate) struct Trace(pub(crate) Vec<String>);

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after these steps:\n  {}", self.0.join("\n  "));
        }
    }
}

pub(crate) fn raw_steps() -> impl Strategy<Value = Vec<Raw>> {
    proptest::collection::vec(any::<Raw>(), 1..60)
}

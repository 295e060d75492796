//! Frames on a unix stream socket.
//!
//! A frame is its body's length as a little-endian `u32`, then the body, which is JSON.
//! Descriptors that belong to a frame are attached to its first byte (`SCM_RIGHTS`),
//! and the body says how many there are; so a reader that got several frames in one
//! read still knows whose they are.
//!
//! Owns the bytes on the socket and descriptors in flight; never interprets a body.
//!
//! Invariant: what a reader buffers is bounded by one frame plus one read, what a writer
//! queues is known ([`FrameWriter::queued`]) and bounded by its user.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::protocol::MAX_FRAME_BYTES;

/// The most descriptors beside one frame. A spawn carries four.
pub(crate) const MAX_FDS: usize = 8;

/// Bytes asked of the socket at once: the size at which the cost of a read no longer
/// shows.
const READ_BYTES: usize = 64 << 10;

const HEADER: usize = 4;

/// Encodes one frame.
pub(crate) fn encode<T: Serialize>(body: &T) -> Result<Vec<u8>, Error> {
    let mut frame = vec![0; HEADER];
    serde_json::to_writer(&mut frame, body).map_err(|error| Error::Protocol {
        detail: error.to_string(),
    })?;
    let length = frame.len() - HEADER;
    if length > MAX_FRAME_BYTES {
        return Err(Error::FrameTooLarge {
            bytes: length,
            limit: MAX_FRAME_BYTES,
        });
    }
    frame[..HEADER].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(frame)
}

/// Decodes a frame's body.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Protocol {
        detail: error.to_string(),
    })
}

/// A body that tells how many descriptors are beside it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Letter<T> {
    #[serde(default)]
    pub(crate) fds: usize,
    pub(crate) body: T,
}

/// Sends one letter on a blocking socket.
pub(crate) fn send_letter<T: Serialize>(
    socket: BorrowedFd<'_>,
    body: T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Error> {
    let frame = encode(&Letter {
        fds: fds.len(),
        body,
    })?;
    send_all(socket, &frame, fds).map_err(Error::system("write the socket"))
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Some bytes.
    Data,
    /// Nothing now.
    WouldBlock,
    /// The end of the stream.
    End,
}

/// Takes frames from a socket.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    fds: VecDeque<OwnedFd>,
}

impl FrameReader {
    /// Reads once from the socket; blocks if the socket does and `flags` don't forbid it.
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>, flags: MsgFlags) -> Result<Fill, Error> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let kept = self.buffer.len();
        self.buffer.resize(kept + READ_BYTES, 0);
        let mut rights = nix::cmsg_space!([RawFd; MAX_FDS]);
        let result = loop {
            let mut parts = [IoSliceMut::new(&mut self.buffer[kept..])];
            let flags = flags | MsgFlags::MSG_CMSG_CLOEXEC;
            match recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut rights), flags) {
                Err(Errno::EINTR) => {}
                other => break other.map(|message| receive(&message)),
            }
        };
        let (bytes, fds, cut) = match result {
            Ok(received) => received,
            Err(errno) => {
                self.buffer.truncate(kept);
                return match errno {
                    Errno::EAGAIN => Ok(Fill::WouldBlock),
                    Errno::ECONNRESET => Ok(Fill::End),
                    _ => Err(Error::System {
                        action: "read the socket",
                        source: errno.into(),
                    }),
                };
            }
        };
        self.buffer.truncate(kept + bytes);
        self.fds.extend(fds);
        if cut || self.fds.len() > 4 * MAX_FDS {
            return Err(Error::Protocol {
                detail: "too many descriptors".to_owned(),
            });
        }
        Ok(if bytes == 0 { Fill::End } else { Fill::Data })
    }

    /// The next whole frame's body, if it is there.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let rest = &self.buffer[self.start..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(Error::FrameTooLarge {
                bytes: length,
                limit: MAX_FRAME_BYTES,
            });
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.start += HEADER + length;
        if self.start == self.buffer.len() {
            // A burst of large frames must not keep its memory for ever.
            self.buffer = Vec::new();
            self.start = 0;
        }
        Ok(Some(body))
    }

    /// The descriptors of the frame last taken, which said that it has `count`.
    pub(crate) fn take_fds(&mut self, count: usize) -> Result<Vec<OwnedFd>, Error> {
        if count > self.fds.len() {
            return Err(Error::Protocol {
                detail: "descriptors are missing".to_owned(),
            });
        }
        Ok(self.fds.drain(..count).collect())
    }
}

type Received = (usize, Vec<OwnedFd>, bool);

fn receive(message: &nix::sys::socket::RecvMsg<'_, '_, UnixAddr>) -> Received {
    let mut fds = Vec::new();
    let cut = message.flags.contains(MsgFlags::MSG_CTRUNC);
    if let Ok(controls) = message.cmsgs() {
        for control in controls {
            if let ControlMessageOwned::ScmRights(received) = control {
                fds.extend(received.into_iter().map(|fd| {
                    // SAFETY: the kernel has just made this descriptor for us, and
                    // nothing else knows of it.
                    unsafe { OwnedFd::from_raw_fd(fd) }
                }));
            }
        }
    }
    (message.bytes, fds, cut)
}

/// Sends what it can of `bytes`, with `fds` on the first of them. Returns bytes sent.
pub(crate) fn send_some(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[RawFd],
    flags: MsgFlags,
) -> Result<usize, Errno> {
    let parts = [IoSlice::new(bytes)];
    let rights = [ControlMessage::ScmRights(fds)];
    let controls: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
    loop {
        let flags = flags | MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<UnixAddr>(socket.as_raw_fd(), &parts, controls, flags, None) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// Sends a whole frame on a blocking socket.
pub(crate) fn send_all(
    socket: BorrowedFd<'_>,
    frame: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut sent = send_some(socket, frame, &fds, MsgFlags::empty())?;
    while sent < frame.len() {
        sent += send_some(socket, &frame[sent..], &[], MsgFlags::empty())?;
    }
    Ok(())
}

/// Queues frames for a non-blocking socket.
#[derive(Debug, Default)]
pub(crate) struct FrameWriter {
    frames: VecDeque<Outgoing>,
    queued: usize,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<OwnedFd>,
}

impl FrameWriter {
    /// Queues one encoded frame.
    pub(crate) fn push(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>) {
        self.queued += bytes.len();
        self.frames.push_back(Outgoing {
            bytes,
            sent: 0,
            fds,
        });
    }

    /// Bytes that wait to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Sends what the socket takes now; `true` when nothing waits any more.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while let Some(frame) = self.frames.front_mut() {
            let fds: Vec<RawFd> = frame.fds.iter().map(AsRawFd::as_raw_fd).collect();
            match send_some(
                socket,
                &frame.bytes[frame.sent..],
                &fds,
                MsgFlags::MSG_DONTWAIT,
            ) {
                Ok(sent) => {
                    // The descriptors went with the first byte.
                    frame.fds.clear();
                    frame.sent += sent;
                    self.queued -= sent;
                    if frame.sent == frame.bytes.len() {
                        self.frames.pop_front();
                    }
                }
                Err(Errno::EAGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn collect(reader: &mut FrameReader, socket: &UnixStream, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < count {
            assert_eq!(
                reader.fill(socket.as_fd(), MsgFlags::empty()).unwrap(),
                Fill::Data
            );
            while let Some(frame) = reader.next_frame().unwrap() {
                frames.push(frame);
            }
        }
        frames
    }

    #[test]
    fn frames_written_in_pieces_arrive_whole() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let bytes = [encode(&"one").unwrap(), encode(&vec![7; 300]).unwrap()].concat();
        let writer = std::thread::spawn(move || {
            for byte in bytes {
                near.write_all(&[byte]).unwrap();
            }
        });
        let frames = collect(&mut FrameReader::default(), &far, 2);
        writer.join().unwrap();
        assert_eq!(decode::<String>(&frames[0]).unwrap(), "one");
        assert_eq!(decode::<Vec<u8>>(&frames[1]).unwrap(), vec![7; 300]);
    }

    #[test]
    fn descriptors_keep_their_order_across_frames_read_together() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut writer = FrameWriter::default();
        let mut readers = Vec::new();
        for n in 0..3u8 {
            let (pipe_reader, pipe_writer) = std::io::pipe().unwrap();
            writer.push(encode(&n).unwrap(), vec![OwnedFd::from(pipe_writer)]);
            writer.push(encode(&"between").unwrap(), Vec::new());
            readers.push(pipe_reader);
        }
        assert!(writer.flush(near.as_fd()).unwrap());
        assert_eq!(writer.queued(), 0);
        let mut reader = FrameReader::default();
        assert_eq!(collect(&mut reader, &far, 6).len(), 6);
        for (n, mut pipe) in readers.into_iter().enumerate() {
            let mut end = std::fs::File::from(reader.take_fds(1).unwrap().remove(0));
            end.write_all(&[n as u8]).unwrap();
            drop(end);
            let mut got = Vec::new();
            pipe.read_to_end(&mut got).unwrap();
            assert_eq!(got, [n as u8]);
        }
        assert!(reader.take_fds(1).is_err());
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_it_is_read() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(&(MAX_FRAME_BYTES as u32 + 1).to_le_bytes())
            .unwrap();
        let mut reader = FrameReader::default();
        reader.fill(far.as_fd(), MsgFlags::empty()).unwrap();
        assert!(matches!(
            reader.next_frame(),
            Err(Error::FrameTooLarge { .. })
        ));
    }

    #[test]
    fn the_end_of_the_stream_is_told_apart_from_nothing_yet() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut reader = FrameReader::default();
        let flags = MsgFlags::MSG_DONTWAIT;
        assert_eq!(reader.fill(far.as_fd(), flags).unwrap(), Fill::WouldBlock);
        drop(near);
        assert_eq!(reader.fill(far.as_fd(), flags).unwrap(), Fill::End);
    }
}

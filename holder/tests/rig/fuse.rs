//! The least FUSE server that can be looked into: one directory with one file, `hello`,
//! that holds the pid of its last reader's request.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

const ROOT: u64 = 1;
const HELLO: u64 = 2;

/// Serves until the filesystem is gone; returns the pids that asked.
pub fn serve(device: OwnedFd) -> JoinHandle<Vec<u32>> {
    std::thread::spawn(move || {
        let mut device = File::from(device);
        let mut pids = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match device.read(&mut buffer) {
                Ok(length) => answer(&mut device, &buffer[..length], &mut pids),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // ENODEV: unmounted.
                Err(_) => return pids,
            }
        }
    })
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn attributes(node: u64) -> Vec<u8> {
    let (mode, links): (u32, u32) = if node == ROOT {
        (0o40755, 2)
    } else {
        (0o100644, 1)
    };
    let size: u64 = if node == ROOT { 0 } else { 6 };
    let mut bytes = Vec::new();
    for value in [node, size, 0, 0, 0, 0] {
        bytes.extend(value.to_le_bytes());
    }
    // Times in nanoseconds, mode, links, owner (nobody), device, block size, flags.
    for value in [0, 0, 0, mode, links, 65534, 65534, 0, 4096, 0] {
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

fn answer(device: &mut File, request: &[u8], pids: &mut Vec<u32>) {
    let (opcode, unique, node) = (word(request, 4), number(request, 8), number(request, 16));
    let pid = word(request, 32);
    let body = &request[40..];
    let mut ok = Vec::new();
    let mut errno = 0;
    match opcode {
        // INIT: version, read-ahead, no flags, queue sizes, largest write.
        26 => {
            for value in [7u32, 31, 65536, 0, 0x000c_0010, 131_072, 1, 0] {
                ok.extend(value.to_le_bytes());
            }
            ok.extend([0; 32]);
        }
        // LOOKUP
        1 if body.starts_with(b"hello\0") => {
            ok.extend(HELLO.to_le_bytes());
            ok.extend([0; 32]);
            ok.extend(attributes(HELLO));
        }
        1 => errno = libc::ENOENT,
        // GETATTR
        3 => {
            ok.extend([0; 16]);
            ok.extend(attributes(node));
        }
        // OPEN, OPENDIR; direct I/O, so that each read is asked.
        14 | 27 => {
            ok.extend([0; 8]);
            ok.extend(1u32.to_le_bytes());
            ok.extend([0; 4]);
        }
        // READ
        15 if number(body, 8) == 0 => {
            pids.push(pid);
            ok.extend(b"inside");
        }
        15 => {}
        // READDIR: one entry.
        28 if number(body, 8) == 0 => {
            ok.extend(HELLO.to_le_bytes());
            ok.extend(1u64.to_le_bytes());
            ok.extend(5u32.to_le_bytes());
            ok.extend(8u32.to_le_bytes());
            ok.extend(b"hello\0\0\0");
        }
        28 => {}
        // RELEASE, FLUSH, RELEASEDIR, ACCESS
        18 | 25 | 29 | 34 => {}
        // STATFS
        17 => ok.extend([0; 80]),
        // FORGET, BATCH_FORGET, INTERRUPT: no answer.
        2 | 42 | 36 => return,
        _ => errno = libc::ENOSYS,
    }
    let length = (16 + ok.len()) as u32;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend((-errno).to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(ok);
    // The asker may have been killed meanwhile.
    let _ = device.write_all(&bytes);
}

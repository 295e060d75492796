//! Rows on one file of 1 GiB.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::mm::{MapFlags, ProtFlags};

use super::{Row, Work, nothing};
use crate::Result;
use crate::input::{BIG_BYTES, Base};
use crate::measure::Numbers;
use crate::peer::Touches;

/// Reads of the row of random reads.
const READS: usize = 50_000;
/// Bytes of the file of random writes, and how many there are.
const WRITTEN_BYTES: u64 = 256 << 20;
const WRITES: usize = 20_000;

pub(super) const ROWS: &[Row] = &[
    Row::reading(
        "seq-read",
        "1 GiB read in pieces of 1 MiB",
        Base::Big,
        sequential_read,
    ),
    Row::reading(
        "mmap-read",
        "1 GiB read through a mapping",
        Base::Big,
        mapped_read,
    ),
    Row::reading(
        "rand-read",
        "50,000 reads of 4 KiB anywhere in 1 GiB",
        Base::Big,
        random_read,
    ),
    Row {
        base: Base::Big,
        ..Row::making(
            "seq-write",
            "1 GiB written in pieces of 1 MiB",
            nothing,
            sequential_write,
        )
    },
    Row {
        base: Base::Big,
        ..Row::making(
            "rand-write",
            "20,000 writes of 4 KiB anywhere in a new file of 256 MiB",
            lay_out,
            random_write,
        )
    },
    Row {
        base: Base::Big,
        touches: Touches::Base,
        // The row that is won by its design says nothing of the others.
        in_mean: false,
        ..Row::making(
            "edit-10-bytes",
            "write of 10 bytes into 1 GiB of the base",
            nothing,
            edit,
        )
    },
];

fn sequential_read(work: &Work<'_>) -> Result<()> {
    let mut file = File::open(work.root.join("big.bin"))?;
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
    }
    whole(bytes)
}

fn whole(bytes: u64) -> Result<()> {
    if bytes != BIG_BYTES {
        return Err(format!("{bytes} bytes were read of {BIG_BYTES}").into());
    }
    Ok(())
}

fn mapped_read(work: &Work<'_>) -> Result<()> {
    let file = File::open(work.root.join("big.bin"))?;
    let length = file.metadata()?.len() as usize;
    whole(length as u64)?;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there; the
    // file is not truncated while it is mapped, so every byte of it can be read until munmap.
    unsafe {
        let start = rustix::mm::mmap(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ,
            MapFlags::SHARED,
            file.as_fd(),
            0,
        )?;
        let bytes = std::slice::from_raw_parts(start.cast::<u8>(), length);
        let sum = bytes
            .chunks(4096)
            .fold(0_u64, |sum, page| sum + u64::from(page[0]));
        std::hint::black_box(sum);
        rustix::mm::munmap(start, length)?;
    }
    Ok(())
}

fn random_read(work: &Work<'_>) -> Result<()> {
    let file = File::open(work.root.join("big.bin"))?;
    let mut numbers = Numbers(5);
    let mut buffer = [0; 4096];
    for _ in 0..READS {
        file.read_exact_at(&mut buffer, numbers.below(BIG_BYTES / 4096) * 4096)?;
    }
    Ok(())
}

fn sequential_write(work: &Work<'_>) -> Result<()> {
    let mut file = File::create(work.new_directory())?;
    let block = vec![b'z'; 1 << 20];
    for _ in 0..BIG_BYTES >> 20 {
        file.write_all(&block)?;
    }
    Ok(())
}

fn lay_out(work: &Work<'_>) -> Result<()> {
    let mut file = File::create(work.new_directory())?;
    let block = vec![b'z'; 1 << 20];
    for _ in 0..WRITTEN_BYTES >> 20 {
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

fn random_write(work: &Work<'_>) -> Result<()> {
    let file = OpenOptions::new().write(true).open(work.new_directory())?;
    let mut numbers = Numbers(6);
    let block = [b'w'; 4096];
    for _ in 0..WRITES {
        file.write_all_at(&block, numbers.below(WRITTEN_BYTES / 4096) * 4096)?;
    }
    Ok(())
}

fn edit(work: &Work<'_>) -> Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .open(work.root.join("big.bin"))?;
    Ok(file.write_all_at(b"ten bytes!", BIG_BYTES / 2 + 13)?)
}

//! Terminals of commands.
//!
//! Owns opening a pair from the session's own `/dev/ptmx`, its size, and the rule by
//! which the end of input is typed. Never reads or writes what flows through it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::termios::{
    InputFlags, LocalFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr,
};

/// Disabled special characters hold this value.
const DISABLED: u8 = 0;

/// A terminal: the holder keeps the master, the command gets the slave.
pub(crate) struct Pair {
    /// The holder's side.
    pub(crate) master: OwnedFd,
    /// The command's side.
    pub(crate) slave: OwnedFd,
}

/// Opens a terminal of this session. The slave comes from the master by descriptor
/// (`TIOCGPTPEER`), so no path in `/dev/pts` is trusted.
pub(crate) fn open(rows: u16, cols: u16) -> io::Result<Pair> {
    let master: OwnedFd = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY | libc::O_CLOEXEC)
        .open("/dev/ptmx")?
        .into();
    let unlocked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int, which outlives the call.
    if unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes open flags by value and returns a new descriptor.
    let slave = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    if slave < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has just made this descriptor for us.
    let slave = unsafe { OwnedFd::from_raw_fd(slave as RawFd) };
    resize(master.as_fd(), rows, cols)?;
    let mut settings = tcgetattr(&slave)?;
    // Lets erase take a whole UTF-8 character from the line.
    settings.input_flags.insert(InputFlags::IUTF8);
    tcsetattr(&slave, SetArg::TCSANOW, &settings)?;
    Ok(Pair { master, slave })
}

/// Makes the terminal the controlling one of this process, a session leader without one.
pub(crate) fn take_control(slave: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes an int by value.
    if unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSCTTY, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets the size; the foreground processes get `SIGWINCH` if it changes.
pub(crate) fn resize(master: BorrowedFd<'_>, rows: u16, cols: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCSWINSZ reads one winsize, which outlives the call.
    if unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The bytes that end the input of a terminal, as a person would type them.
///
/// A terminal that reads lines takes its end-of-file character as "hand over what there
/// is": on an empty line that is nothing, which the reader takes as the end. So after an
/// unfinished line (`line_open`) it takes two. In raw mode the character is a byte like
/// any other, and one is sent, as the key would.
pub(crate) fn end_of_input(master: BorrowedFd<'_>, line_open: bool) -> io::Result<Vec<u8>> {
    let settings = tcgetattr(master)?;
    let eof = settings.control_chars[SpecialCharacterIndices::VEOF as usize];
    if eof == DISABLED {
        return Ok(Vec::new());
    }
    let lines = settings.local_flags.contains(LocalFlags::ICANON);
    Ok(vec![eof; if lines && line_open { 2 } else { 1 }])
}

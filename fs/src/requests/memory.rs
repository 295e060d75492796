//! Memory that was freed, and goes back to the kernel.

/// Gives back what the allocator keeps between what is in use: it does so by itself only at the end
/// of what it has. Takes milliseconds where much was freed.
pub(super) fn trim() {
    // SAFETY: frees nothing that is in use, and may be called by any thread at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

//! Times and identifiers.

use std::time::{SystemTime, UNIX_EPOCH};

/// The present time, in Unix milliseconds. A clock before 1970 shows as 1970.
pub(crate) fn now_unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// Digits of identifiers: lower-case letters and digits without those that look alike.
const DIGITS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// A new identifier: `prefix`, a dash, and 8 random digits (40 bits).
pub(crate) fn new_id(prefix: &str) -> String {
    let digits: String = random::<8>()
        .iter()
        .map(|byte| char::from(DIGITS[usize::from(byte % 32)]))
        .collect();
    format!("{prefix}-{digits}")
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // SAFETY: the pointer and length describe the part of `bytes` that is not filled yet.
        let count = unsafe { libc::getrandom(bytes[filled..].as_mut_ptr().cast(), N - filled, 0) };
        if count > 0 {
            filled += count as usize;
        }
        // A signal interrupted it before any byte: again. Other errors do not exist for a valid
        // buffer and no flags.
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_are_safe_in_a_shell() {
        let (one, other) = (new_id("sb"), new_id("sb"));
        assert_ne!(one, other);
        assert!(sandstack_api::SandboxId::new(&one).is_ok());
        assert!(sandstack_holder::protocol::valid_id(&one));
    }
}

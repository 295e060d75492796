//! Data from a sandbox, made safe for a terminal.
//!
//! A name, a message or a command can hold any bytes, and a terminal obeys some of them: it can be
//! made to hide text, move the cursor, or answer as if it had been typed. Escaped text has none of
//! them and still says which bytes were there.

/// `bytes` on one line: control characters, characters that reorder or hide text, and bytes that
/// are not UTF-8 are written as escapes.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    escape(bytes, |_| false)
}

/// [`escaped`], with line ends and tabs as they are.
pub(crate) fn escaped_lines(bytes: &[u8]) -> String {
    escape(bytes, |character| matches!(character, '\n' | '\t'))
}

fn escape(bytes: &[u8], allowed: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                _ if allowed(character) || !is_harmful(character) => text.push(character),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                control if control.is_ascii() => {
                    text.push_str(&format!("\\x{:02x}", control as u32));
                }
                other => text.push_str(&format!("\\u{{{:x}}}", other as u32)),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Whether a terminal or a reader could be misled by it.
fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            // Line and paragraph separators.
            '\u{2028}' | '\u{2029}'
            // Reordering: the marks, embeddings, overrides and isolates of bidirectional text.
            | '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Invisible: zero-width spaces and joiners, byte order mark, tags.
            | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let cases: [(&[u8], &str); 9] = [
            (b"src/main.rs", "src/main.rs"),
            ("größe 日本 🦀".as_bytes(), "größe 日本 🦀"),
            (b"\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
            (b"a\nb\tc\r", r"a\nb\tc\r"),
            (b"\x07\x00\x7f", r"\x07\x00\x7f"),
            (b"caf\xe9", r"caf\xe9"),
            ("\u{9b}31m".as_bytes(), r"\u{9b}31m"),
            ("evil\u{202e}txt.exe".as_bytes(), r"evil\u{202e}txt.exe"),
            ("in\u{200b}visible".as_bytes(), r"in\u{200b}visible"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(escaped(bytes), expected);
        }
        assert_eq!(escaped_lines(b"a\n\tb\x1b"), "a\n\tb\\x1b");
    }

    #[test]
    fn no_control_character_survives() {
        let all: Vec<u8> = (0..=255).collect();
        assert!(!escaped(&all).chars().any(char::is_control));
    }
}

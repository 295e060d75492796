//! Pages of lists.
//!
//! A page's token is the key of its last row, in hex, so that a page goes on after that row
//! whatever came or went meanwhile.

use crate::failure::{Failure, Result};

/// One page of rows.
pub(crate) struct Page<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) next: Option<String>,
}

impl<T> Page<T> {
    /// Cuts the page after `token` out of all rows, which are in the order of the list.
    pub(crate) fn cut(
        rows: Vec<T>,
        limit: usize,
        token: Option<&str>,
        key: impl Fn(&T) -> String,
    ) -> Result<Page<T>> {
        let start = match token {
            None => 0,
            Some(token) => {
                let last = String::from_utf8(decode(token)?).map_err(|_| no_token(token))?;
                let position = rows.iter().position(|row| key(row) == last);
                // A row that went takes the page with it: better the start again than a hole.
                position.map_or(0, |position| position + 1)
            }
        };
        let more = rows.len() > start + limit;
        let rows: Vec<T> = rows.into_iter().skip(start).take(limit).collect();
        let next = if more {
            rows.last().map(|row| encode(key(row).as_bytes()))
        } else {
            None
        };
        Ok(Page { rows, next })
    }
}

/// The token of a key.
pub(crate) fn encode(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is said of a text that is no token.
pub(crate) fn no_token(token: &str) -> Failure {
    Failure::invalid(format!(
        "page_token {token:?} is none; give next_page_token of an earlier answer"
    ))
}

/// The key of a token.
pub(crate) fn decode(token: &str) -> Result<Vec<u8>> {
    if !token.len().is_multiple_of(2) || !token.is_ascii() {
        return Err(no_token(token));
    }
    let bytes: Option<Vec<u8>> = (0..token.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&token[at..at + 2], 16).ok())
        .collect();
    bytes.ok_or_else(|| no_token(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_tile_the_list() {
        let rows: Vec<String> = (0..25).map(|number| format!("row {number}")).collect();
        let mut seen = Vec::new();
        let mut token = None;
        loop {
            let page = Page::cut(rows.clone(), 10, token.as_deref(), Clone::clone).unwrap();
            seen.extend(page.rows);
            token = page.next;
            if token.is_none() {
                break;
            }
        }
        assert_eq!(seen, rows);
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for token in ["zz", "abc", "é", "ff"] {
            assert!(
                Page::cut(vec![String::new()], 1, Some(token), Clone::clone).is_err(),
                "{token}"
            );
        }
    }
}

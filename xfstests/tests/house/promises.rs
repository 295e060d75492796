//! Promises: that what docs/semantics.md says of a view is held by tests, sentence by sentence.
//!
//! A test quotes a sentence above itself, on a line of its own: `/// > sentence`. A quote that is not
//! on the page any more is as much a fault as a sentence that nothing quotes.

use std::collections::{BTreeMap, BTreeSet};

use crate::hold;
use crate::tree::{self, TextFile};

const PAGE: &str = "docs/semantics.md";

/// The sentences of the page's lists, with their lines.
fn sentences() -> BTreeMap<String, usize> {
    let mut sentences = BTreeMap::new();
    for (number, line) in tree::file(PAGE).lines() {
        let Some(item) = line.strip_prefix("- ") else {
            continue;
        };
        let mut rest = item;
        // A sentence ends with a full stop before a space; so does no name in the page.
        while let Some((sentence, more)) = rest.split_once(". ") {
            sentences.insert(format!("{sentence}."), number);
            rest = more;
        }
        sentences.insert(rest.to_owned(), number);
    }
    sentences
}

/// What the tests of a file quote: the sentence, and the line.
fn quotes(file: &TextFile) -> Vec<(String, usize)> {
    let mut quotes = Vec::new();
    let mut above = Vec::new();
    for (number, line) in file.lines() {
        let line = line.trim();
        if let Some(quoted) = line.strip_prefix("/// > ") {
            above.push((quoted.to_owned(), number));
        } else if line == "#[test]" {
            quotes.append(&mut above);
        } else if !line.starts_with("//") && !line.starts_with("#[") {
            above.clear();
        }
    }
    quotes
}

#[test]
fn each_sentence_of_the_semantics_is_quoted_by_a_test() {
    let sentences = sentences();
    assert!(sentences.len() > 40, "the page was understood");
    let mut quoted = BTreeSet::new();
    let mut faults = Vec::new();
    for file in tree::rust_files() {
        for (quote, number) in quotes(file) {
            if !sentences.contains_key(&quote) {
                let place = format!("{}:{number}", file.path.display());
                faults.push(format!("{place}: {PAGE} does not say: {quote}"));
            }
            quoted.insert(quote);
        }
    }
    let missing = sentences
        .iter()
        .filter(|(sentence, _)| !quoted.contains(*sentence));
    faults.extend(missing.map(|(sentence, line)| format!("{PAGE}:{line}: {sentence}")));
    hold("a sentence of the semantics is quoted by a test:", faults);
}

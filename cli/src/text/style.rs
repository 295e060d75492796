//! Colours and width: what a renderer may use.

/// What the text is written for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Style {
    /// Whether colours are understood and wanted.
    pub(crate) color: bool,
    /// Width to fit in, in characters; `None` where nothing needs to fit.
    pub(crate) columns: Option<u16>,
}

/// What a piece of text means, as a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// It went well; it was added.
    Good,
    /// It went wrong; it was removed.
    Bad,
    /// It goes on, or deserves a look.
    Notice,
    /// A heading.
    Heading,
    /// Less important than what is around it.
    Quiet,
}

impl Tone {
    fn sequence(self) -> &'static str {
        match self {
            Tone::Good => "\x1b[32m",
            Tone::Bad => "\x1b[31m",
            Tone::Notice => "\x1b[33m",
            Tone::Heading => "\x1b[1m",
            Tone::Quiet => "\x1b[2m",
        }
    }
}

impl Style {
    /// `text` in the colour of `tone`, if colours are wanted.
    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        if self.color && !text.is_empty() {
            format!("{}{text}\x1b[0m", tone.sequence())
        } else {
            text.to_owned()
        }
    }
}

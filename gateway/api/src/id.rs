//! Identifiers: opaque strings, one type for each thing, safe to paste in a shell.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Longest identifier, in bytes.
const MAX_LEN: usize = 128;

/// A text that is no identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no valid id: use 1 to {MAX_LEN} of A-Z a-z 0-9 . _ : -")]
pub struct InvalidId {
    /// The text, cut to 200 characters.
    pub text: String,
}

/// What all identifiers have in common.
pub trait Id: Sized {
    /// The identifier's text.
    fn as_str(&self) -> &str;
}

fn validate(text: &str) -> Result<(), InvalidId> {
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
    if text.is_empty() || text.len() > MAX_LEN || !text.bytes().all(allowed) {
        return Err(InvalidId {
            text: text.chars().take(200).collect(),
        });
    }
    Ok(())
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(Box<str>);

        impl $name {
            /// Checks and wraps `text`.
            ///
            /// # Errors
            /// [`InvalidId`] unless it is 1 to 128 of `A-Za-z0-9._:-`.
            pub fn new(text: &str) -> Result<Self, InvalidId> {
                validate(text)?;
                Ok($name(text.into()))
            }
        }

        impl Id for $name {
            fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                $name::new(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(deserializer)?;
                $name::new(&text).map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "pattern": "^[A-Za-z0-9._:-]{1,128}$"
                })
            }
        }
    )*};
}

ids! {
    /// A sandbox, such as `sb-k3v9t2`.
    SandboxId;
    /// A workspace session, such as `ws-8fq2m1`.
    SessionId;
    /// A command session, such as `cmd-x7d0aa`.
    CommandId;
    /// A layer, such as `B000001`, `L000024` or `S000025`; the number is the head's revision.
    LayerId;
    /// A request, given by the caller or generated; also the trace id.
    RequestId;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shell_safe_ids_are_ids() {
        assert!(SandboxId::new("sb-a.B_9:x").is_ok());
        for bad in ["", "a b", "a;b", "$(x)", "é", "a/b", &"x".repeat(129)] {
            assert!(SandboxId::new(bad).is_err(), "{bad:?}");
        }
        let error = serde_json::from_str::<SandboxId>("\"a b\"")
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"a b\""), "{error}");
    }
}

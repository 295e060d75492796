//! Bytes in JSON without loss: [`Blob`] for paths and inputs, [`Text`] for windows of output.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Any bytes: a JSON string when they are UTF-8, otherwise `{"base64": "…"}`.
///
/// Used wherever the kernel allows any bytes: paths, arguments, input to a command.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blob(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoded<'a> {
    base64: Cow<'a, str>,
}

impl Blob {
    /// The bytes as a path component or path of the host.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// The bytes as text for a person: lossy only where they are not UTF-8.
    pub fn display(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

impl From<&str> for Blob {
    fn from(text: &str) -> Self {
        Blob(text.as_bytes().to_vec())
    }
}

impl From<String> for Blob {
    fn from(text: String) -> Self {
        Blob(text.into_bytes())
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Blob(bytes)
    }
}

impl From<OsString> for Blob {
    fn from(text: OsString) -> Self {
        Blob(text.into_vec())
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Encoded {
                base64: STANDARD.encode(&self.0).into(),
            }
            .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BlobVisitor)
    }
}

struct BlobVisitor;

impl<'de> Visitor<'de> for BlobVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a string, or {\"base64\": \"…\"} for bytes that are not UTF-8")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Blob, E> {
        Ok(text.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Blob, A::Error> {
        let Encoded { base64 } = Encoded::deserialize(MapAccessDeserializer::new(map))?;
        STANDARD
            .decode(base64.as_bytes())
            .map(Blob)
            .map_err(|error| A::Error::custom(format!("invalid base64: {error}")))
    }
}

impl JsonSchema for Blob {
    fn schema_name() -> Cow<'static, str> {
        "Blob".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Text, or {\"base64\": …} for bytes that are not UTF-8.",
            "anyOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": { "base64": { "type": "string" } },
                    "required": ["base64"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

/// How the bytes of a [`Text`] or a content field are written in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Encoding {
    /// The bytes themselves; they are UTF-8.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// Standard base64 with padding.
    #[serde(rename = "base64")]
    Base64,
}

/// A window of bytes: as text where it is UTF-8, as base64 where it is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Text {
    /// The bytes, written as `encoding` says.
    pub content: String,
    /// How `content` is written.
    pub encoding: Encoding,
}

impl Text {
    /// Wraps `bytes` in the plainest encoding that loses nothing.
    pub fn new(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(content) => Text {
                content,
                encoding: Encoding::Utf8,
            },
            Err(error) => Text {
                content: STANDARD.encode(error.as_bytes()),
                encoding: Encoding::Base64,
            },
        }
    }

    /// Wraps `bytes` as base64 whatever they are.
    pub fn base64(bytes: &[u8]) -> Self {
        Text {
            content: STANDARD.encode(bytes),
            encoding: Encoding::Base64,
        }
    }

    /// The bytes.
    ///
    /// # Errors
    /// A sentence when `content` claims to be base64 and is not.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        match self.encoding {
            Encoding::Utf8 => Ok(self.content.clone().into_bytes()),
            Encoding::Base64 => STANDARD
                .decode(&self.content)
                .map_err(|error| format!("content is not valid base64: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_json() {
        for bytes in [
            &b"plain"[..],
            b"",
            b"new\nline",
            b"\xff\xfe\0raw",
            "é".as_bytes(),
        ] {
            let blob = Blob(bytes.to_vec());
            let json = serde_json::to_string(&blob).unwrap();
            assert_eq!(serde_json::from_str::<Blob>(&json).unwrap(), blob, "{json}");
            let text = Text::new(bytes.to_vec());
            assert_eq!(text.bytes().unwrap(), bytes);
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_marked() {
        assert_eq!(
            serde_json::to_string(&Blob(vec![0xff])).unwrap(),
            r#"{"base64":"/w=="}"#
        );
        assert_eq!(Text::new(vec![0xff]).encoding, Encoding::Base64);
    }

    #[test]
    fn wrong_shapes_are_refused_with_the_right_shape() {
        let error = serde_json::from_str::<Blob>("5").unwrap_err().to_string();
        assert!(error.contains("base64"), "{error}");
    }
}

//! Tokens: who may call what.
//!
//! A token is 32 random bytes in hex after `sst_`. Only its blake3 digest is kept, and compared in
//! constant time. The first start writes one token file for each authority, mode 0600.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use parking_lot::RwLock;
use sandstack_api::{Authority, AuthoritySet, ErrorCode, SandboxId};
use sandstack_store::{Digest, Store, Table};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::clock::{now_unix_ms, random};
use crate::config::token_file;
use crate::failure::{Failure, Result, io_failure};

/// What is kept of a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct TokenRow {
    digest: Digest,
    authorities: AuthoritySet,
    /// The one sandbox that it is for; `None` means all.
    sandbox: Option<String>,
    /// `None` means never.
    expires_unix_ms: Option<u64>,
    label: String,
}

/// Whoever presented a valid token.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    authorities: AuthoritySet,
    sandbox: Option<String>,
}

impl Principal {
    /// Checks that the token carries `authority`.
    pub(crate) fn require(&self, authority: Authority) -> Result<()> {
        if self.authorities.contains(authority) {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::Forbidden,
            format!(
                "this token has no {authority} authority; use the one in tokens/{authority}.token"
            ),
        ))
    }

    /// Checks that the token is for all sandboxes, as what looks at the whole store needs.
    pub(crate) fn require_every_sandbox(&self) -> Result<()> {
        match &self.sandbox {
            Some(only) => Err(Failure::new(
                ErrorCode::Forbidden,
                format!(
                    "this token is for sandbox {only} alone, and this operation is about the store that all share"
                ),
            )),
            None => Ok(()),
        }
    }

    /// Checks that the token is for `sandbox`.
    pub(crate) fn require_sandbox(&self, sandbox: &SandboxId) -> Result<()> {
        match &self.sandbox {
            Some(only) if only != sandbox.as_ref() => Err(Failure::new(
                ErrorCode::Forbidden,
                format!("this token is for sandbox {only} alone"),
            )),
            _ => Ok(()),
        }
    }
}

pub(crate) struct Tokens {
    rows: RwLock<Vec<TokenRow>>,
}

impl Tokens {
    /// Loads the tokens, and makes those of the three authorities that have no file yet.
    pub(crate) fn open(store: &Store, state_dir: &Path) -> Result<Tokens> {
        let table = store.table("tokens");
        let mut rows = Vec::new();
        table.scan(b"", |_, row: TokenRow| {
            rows.push(row);
            true
        })?;
        let dir = state_dir.join("tokens");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(io_failure(&format!("making {}", dir.display())))?;
        for authority in Authority::ALL {
            let path = token_file(state_dir, authority);
            let known = match fs::read_to_string(&path) {
                Ok(text) => {
                    let digest = Digest::of(text.trim().as_bytes());
                    rows.iter().any(|row| row.digest == digest)
                }
                Err(_) => false,
            };
            if !known {
                rows.push(make(&table, &path, authority)?);
            }
        }
        store.persist()?;
        Ok(Tokens {
            rows: RwLock::new(rows),
        })
    }

    /// Who presents `token`.
    pub(crate) fn principal(&self, token: &[u8]) -> Result<Principal> {
        let digest = Digest::of(token);
        let rows = self.rows.read();
        // Every row is compared, whichever matches, so that time tells nothing.
        let mut found = None;
        for row in rows.iter() {
            if bool::from(row.digest.as_bytes().ct_eq(digest.as_bytes())) {
                found = Some(row);
            }
        }
        let row = found.ok_or_else(|| {
            Failure::new(ErrorCode::Unauthorized, "the token is not known here; each authority's is in tokens/ of the state directory")
        })?;
        if row.expires_unix_ms.is_some_and(|at| at <= now_unix_ms()) {
            return Err(Failure::new(
                ErrorCode::Unauthorized,
                format!("the token {:?} has expired", row.label),
            ));
        }
        Ok(Principal {
            authorities: row.authorities,
            sandbox: row.sandbox.clone(),
        })
    }
}

fn make(table: &Table, path: &Path, authority: Authority) -> Result<TokenRow> {
    let mut token = "sst_".to_owned();
    random::<32>()
        .iter()
        .for_each(|byte| token.push_str(&format!("{byte:02x}")));
    let digest = Digest::of(token.as_bytes());
    let row = TokenRow {
        digest,
        authorities: AuthoritySet::EMPTY.with(authority),
        sandbox: None,
        expires_unix_ms: None,
        label: format!("{authority}.token"),
    };
    // The record first: a file whose token nobody knows would be replaced at the next start.
    table.put(digest.as_bytes(), &row)?;
    let doing = format!("writing {}", path.display());
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(io_failure(&doing))?;
    writeln!(file, "{token}")
        .and_then(|()| file.sync_all())
        .map_err(io_failure(&doing))?;
    fs::rename(&temporary, path).map_err(io_failure(&doing))?;
    Ok(row)
}

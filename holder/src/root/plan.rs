//! What a session shall see, judged.
//!
//! Owns turning a request into paths that are absolute, without dots, and not in each
//! other's way; and making the places that the holder's root lacks, while it is writable.

use std::path::{Component, Path, PathBuf};

use super::make_place;
use crate::bytes::Bytes;
use crate::protocol::{Bind, CreateSession, Refusal, refusal_errno};

/// A request's root, judged.
#[derive(Clone, Debug)]
pub(crate) struct RootPlan {
    workspace_root: PathBuf,
    pub(super) home: Option<(PathBuf, PathBuf)>,
    pub(super) tmp: PathBuf,
    pub(super) var_tmp: PathBuf,
    pub(super) hide: Vec<PathBuf>,
    pub(super) expose: Vec<(PathBuf, PathBuf)>,
    pub(super) writable: Vec<(PathBuf, PathBuf)>,
}

/// Where a view can't be: what the kernel shows there is the session's own.
const NOT_FOR_VIEWS: [&str; 3] = ["/dev", "/proc", "/sys"];

impl RootPlan {
    /// Judges a request; the paths of `own` will be hidden beside those that it names.
    pub(crate) fn judge(request: &CreateSession, own: &[&Path]) -> Result<RootPlan, Refusal> {
        let workspace_root = absolute("workspace_root", &request.workspace_root)?;
        if NOT_FOR_VIEWS
            .iter()
            .any(|path| workspace_root.starts_with(path))
        {
            return Err(Refusal::invalid(
                "workspace_root must not be in /dev, /proc or /sys",
            ));
        }
        if workspace_root == Path::new("/") {
            return Err(Refusal::invalid("workspace_root must not be /"));
        }
        let spec = &request.root;
        let bind = |what: &str, bind: &Bind| -> Result<(PathBuf, PathBuf), Refusal> {
            let target = absolute(what, &bind.target)?;
            if target.starts_with(&workspace_root) || target == Path::new("/") {
                return Err(Refusal::invalid(format!(
                    "{what}: a target must not be / or in the workspace"
                )));
            }
            Ok((absolute(what, &bind.source)?, target))
        };
        let binds = |what: &str, list: &[Bind]| {
            list.iter()
                .map(|entry| bind(what, entry))
                .collect::<Result<Vec<_>, _>>()
        };
        let tmp = absolute("root.tmp", &spec.tmp)?;
        let mut hide: Vec<PathBuf> = own.iter().map(|path| path.to_path_buf()).collect();
        for path in &spec.hide {
            hide.push(absolute("root.hide", path)?);
        }
        if hide.iter().any(|path| path == Path::new("/")) {
            return Err(Refusal::invalid("root.hide must not name /"));
        }
        let home = spec
            .home
            .as_ref()
            .map(|home| bind("root.home", home))
            .transpose()?;
        let var_tmp = spec
            .var_tmp
            .as_ref()
            .map(|path| absolute("root.var_tmp", path))
            .transpose()?;
        Ok(RootPlan {
            home,
            var_tmp: var_tmp.unwrap_or_else(|| tmp.clone()),
            tmp,
            hide,
            expose: binds("root.expose", &spec.expose)?,
            writable: binds("root.writable", &spec.writable)?,
            workspace_root,
        })
    }

    /// Where the view appears.
    pub(crate) fn workspace_root(&self) -> &Path {
        &self.workspace_root
    }

    /// The paths that are covered.
    pub(crate) fn hidden(&self) -> &[PathBuf] {
        &self.hide
    }

    /// The holder's paths that are shown somewhere in the session.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Path> {
        let binds = self.binds().map(|(source, _)| source);
        [&self.tmp, &self.var_tmp]
            .into_iter()
            .chain(binds)
            .map(PathBuf::as_path)
    }

    /// The holder's path and the session's, of each bind that was asked for.
    fn binds(&self) -> impl Iterator<Item = &(PathBuf, PathBuf)> {
        self.home.iter().chain(&self.expose).chain(&self.writable)
    }

    /// Makes places in the holder's root that will be mounted on and are not there. In the
    /// session's own root it is too late: that is read-only. Runs as the holder, in its
    /// namespaces. A place inside another bind is made there later.
    pub(crate) fn make_mountpoints(&self) -> Result<(), Refusal> {
        let tmp = PathBuf::from("/tmp");
        let scratch = [tmp.clone(), "/var/tmp".into(), "/run".into(), "/dev".into()];
        let inner: Vec<&Path> = scratch
            .iter()
            .chain(&self.hide)
            .chain(self.binds().map(|(_, target)| target))
            .map(PathBuf::as_path)
            .collect();
        let places = self
            .binds()
            .map(|(source, target)| (target, !source.is_file()))
            .chain([(&tmp, true), (&self.workspace_root, true)]);
        for (target, is_dir) in places {
            let in_a_bind = inner
                .iter()
                .any(|other| target.starts_with(other) && target != other);
            if !in_a_bind {
                make_place(target, is_dir).map_err(|error| Refusal::MountpointMissing {
                    path: Bytes::from(target.as_path()),
                    errno: refusal_errno(&error),
                })?;
            }
        }
        Ok(())
    }
}

/// A path in the one form that can be compared: absolute, without `.`, `..` and NUL.
fn absolute(what: &str, path: &Bytes) -> Result<PathBuf, Refusal> {
    let bad = || {
        Refusal::invalid(format!(
            "{what}: paths must be absolute, without .. and NUL"
        ))
    };
    if path.0.contains(&0) {
        return Err(bad());
    }
    let mut components = path.as_path().components();
    if components.next() != Some(Component::RootDir) {
        return Err(bad());
    }
    let mut clean = PathBuf::from("/");
    for component in components {
        match component {
            Component::Normal(name) => clean.push(name),
            _ => return Err(bad()),
        }
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Network, RootSpec, View};

    fn request(workspace_root: &str, root: RootSpec) -> CreateSession {
        CreateSession {
            session_id: "s".to_owned(),
            view: View::Descriptor,
            workspace_root: workspace_root.into(),
            root,
            network: Network::Shared,
            env: Vec::new(),
        }
    }

    fn spec() -> RootSpec {
        RootSpec {
            tmp: "/state/tmp".into(),
            ..RootSpec::default()
        }
    }

    fn refused(request: &CreateSession) -> bool {
        matches!(RootPlan::judge(request, &[]), Err(Refusal::Invalid { .. }))
    }

    #[test]
    fn paths_that_could_mean_another_place_are_refused() {
        for bad in [
            "", "work", "/", "/a/../b", "/a\0b", "/proc/x", "/dev/shm", "/sys",
        ] {
            assert!(refused(&request(bad, spec())), "{bad:?}");
        }
        let plan = RootPlan::judge(&request("//project//x/", spec()), &[Path::new("/rd")]).unwrap();
        assert_eq!(plan.workspace_root(), Path::new("/project/x"));
        assert_eq!(plan.var_tmp, plan.tmp);
    }

    #[test]
    fn no_bind_goes_into_the_view_and_the_run_directory_is_always_hidden() {
        let inside = Bind {
            source: "/usr".into(),
            target: "/project/x/bin".into(),
        };
        for root in [
            RootSpec {
                expose: vec![inside.clone()],
                ..spec()
            },
            RootSpec {
                writable: vec![inside.clone()],
                ..spec()
            },
            RootSpec {
                home: Some(inside),
                ..spec()
            },
            RootSpec {
                hide: vec!["/".into()],
                ..spec()
            },
        ] {
            assert!(refused(&request("/project/x", root)));
        }
        let plan = RootPlan::judge(&request("/project/x", spec()), &[Path::new("/rd")]).unwrap();
        assert_eq!(plan.hidden(), [PathBuf::from("/rd")]);
    }
}

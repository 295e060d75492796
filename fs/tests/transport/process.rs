//! Many views of one process: they share what serves them, and not each other's answers.

use std::fs;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sandstack_fs::{
    MountOptions, Recorder, SlowPool, TraceMode, Transport, Tree, View, ViewOptions, detached,
    mount_at, unmount,
};
use sandstack_store::Store;

use crate::fixture::{in_threads, mounted, over_each_transport, processors, wait_until};

/// For tests that serve views in this process: they share its rings, and one counts them.
static TURN: Mutex<()> = Mutex::new(());

/// How many threads of this process serve rings.
fn rings() -> usize {
    fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with("fs-ring"))
        .count()
}

/// A view at a path: a test that fails takes its mount away, too.
struct Mounted {
    view: View,
    point: PathBuf,
}

impl Mounted {
    fn end(&self) {
        unmount(&self.point).unwrap();
        self.view.join().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // It may be gone already.
            let _ = unmount(&self.point);
        }
        mounted().retain(|point| *point != self.point);
    }
}

fn serve(store: &Store, point: &Path, transport: Transport, slow: &Arc<SlowPool>) -> Mounted {
    let empty = point.with_extension("base");
    fs::create_dir(point).unwrap();
    fs::create_dir(&empty).unwrap();
    let imported = store
        .import(&empty, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    let stack = store.create_stack(&imported, 0).unwrap();
    let lease = stack.take_lease(None, "s", None, 0).unwrap();
    let upper = Arc::new(store.open_upper(&lease).unwrap());
    let tree = Arc::new(Tree::new(Arc::clone(&upper)).unwrap());
    let recorder = Recorder::begin(upper, "s", TraceMode::Files, Arc::default()).unwrap();
    let made = detached(&MountOptions::default()).unwrap();
    mount_at(made.mount.as_fd(), point).unwrap();
    mounted().push(point.to_path_buf());
    let options = ViewOptions {
        transport,
        ..ViewOptions::default()
    };
    let view = View::serve(tree, recorder, made.connection, slow, &options).unwrap();
    Mounted {
        view,
        point: point.to_path_buf(),
    }
}

#[test]
fn views_share_the_rings_and_nothing_else() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    over_each_transport("views_share_the_rings_and_nothing_else", |transport| {
        const VIEWS: usize = 12;
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let slow = SlowPool::new();
        let point = |number: usize| dir.path().join(format!("view-{number}"));
        let views: Vec<Mounted> = (0..VIEWS)
            .map(|number| serve(&store, &point(number), transport, &slow))
            .collect();
        for view in &views {
            assert_eq!(view.view.transport(), transport);
        }
        let expected = match transport {
            Transport::Uring => processors(),
            Transport::Fuse | Transport::Auto => 0,
        };
        assert_eq!(rings(), expected);
        in_threads(VIEWS, |number| {
            for round in 0..40 {
                let path = point(number).join(format!("file-{round}"));
                fs::write(&path, format!("{number} {round}")).unwrap();
                if round % 10 == 0 {
                    fs::File::open(&path).unwrap().sync_all().unwrap();
                }
                assert_eq!(
                    fs::read_to_string(&path).unwrap(),
                    format!("{number} {round}")
                );
            }
        });
        for (number, view) in views.iter().enumerate() {
            view.end();
            assert!(!view.view.is_served());
            // The others go on.
            if number + 1 < VIEWS {
                fs::write(point(number + 1).join("after"), "x").unwrap();
            }
        }
        wait_until("the rings to go with the last view", || rings() == 0);
    });
}

/// What the embedder changes behind the kernel's back is told it over `/dev/fuse`, whichever way
/// requests come.
#[test]
fn the_kernel_hears_of_changes_behind_its_back() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    over_each_transport("the_kernel_hears_of_changes_behind_its_back", |transport| {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let point = dir.path().join("view");
        let view = serve(&store, &point, transport, &SlowPool::new());
        let path = point.join("file");
        assert!(!path.exists());
        let files = view.view.files(point.as_os_str().as_encoded_bytes());
        for text in ["first", "second, which is longer", "3"] {
            files.write(b"file", text.as_bytes(), None).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        view.end();
    });
}

//! Watchers: what inotify tells of changes in a view is what it tells on a disk.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::compared;
use crate::fixture::MODES;

const FILL: &str = r#"
mkdir -p dir/sub other
echo one > dir/one
echo two > dir/two
echo three > other/three
ln dir/one other/one
"#;

/// Watches directories and a file of a tree while `act` goes on: the events, with their names.
fn events(root: &Path, act: impl FnOnce()) -> Vec<String> {
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    let watched = ["dir", "dir/sub", "other", "dir/one"].map(|name| {
        let flags = WatchFlags::ALL_EVENTS;
        (
            inotify::add_watch(&inotify, root.join(name), flags).unwrap(),
            name,
        )
    });
    act();
    let mut buffer = [const { MaybeUninit::uninit() }; 4096];
    let mut reader = Reader::new(inotify.as_fd(), &mut buffer);
    let mut events = Vec::new();
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(Errno::AGAIN) => return events,
            Err(error) => panic!("{error}"),
        };
        let of = watched
            .iter()
            .find(|(number, _)| *number == event.wd())
            .unwrap()
            .1;
        events.push(format!("{of} {:?} {:?}", event.events(), event.file_name()));
    }
}

#[test]
fn watchers_hear_what_they_hear_on_a_disk() {
    let name = "watchers_hear_what_they_hear_on_a_disk";
    compared(name, &MODES, &["bash"], FILL, |twins| {
        let script = r#"
            cat dir/one > /dev/null
            echo more >> dir/one
            printf X | dd of=dir/two conv=notrunc status=none
            : > dir/two
            chmod 600 dir/one
            touch -d 2020-01-01T01:01:01 dir/two
            echo new > dir/.new.tmp
            mv dir/.new.tmp dir/two
            mv dir/two other/two
            mv other/three dir/three
            ln dir/three dir/four
            ln -s three dir/link
            mkdir dir/made
            rmdir dir/made
            truncate -s 10 other/one
            rm dir/three dir/four
            setfattr -n user.a -v b dir/sub
            echo in > dir/sub/in
            ls dir/sub > /dev/null
            mv dir/sub dir/renamed
            rm -r dir/renamed
            rm other/one
            rm dir/one
        "#;
        let run = |dir: &Path, outside: &Path| super::run(dir, &twins.here, outside, script);
        let view_root = twins.disk.path("");
        let view = events(&view_root, || {
            let said = run(&view_root, &twins.outside[0]);
            assert_eq!(said.status, Some(0), "{said:?}");
        });
        let plain = events(&twins.plain, || {
            let said = run(&twins.plain, &twins.outside[1]);
            assert_eq!(said.status, Some(0), "{said:?}");
        });
        assert!(view.len() > 60, "{view:#?}");
        assert_eq!(view, plain, "the view on the left, the disk on the right");
    });
}

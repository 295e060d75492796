//! The doctor: what it finds, and what it says of what is missing.

use serde_json::{Value, json};

use crate::rig::{Rig, Setup, needs_root};

fn found(rig: &Rig, name: &str) -> Value {
    let report = rig.call("doctor", json!({})).ok();
    assert_eq!(report["errors"], json!([]), "{report:#}");
    let checks = report["checks"].as_array().unwrap();
    let broken = checks.iter().any(|check| check["status"] == "broken");
    assert_eq!(report["healthy"], !broken, "{report:#}");
    for check in checks {
        assert_eq!(check["status"] == "ok", check["fix"].is_null(), "{check:#}");
    }
    let check = checks.iter().find(|check| check["name"] == name);
    check.unwrap_or_else(|| panic!("{report:#}")).clone()
}

#[test]
fn a_host_on_which_sandboxes_work_is_healthy() {
    let rig = Rig::start();
    for name in [
        "kernel",
        "fuse",
        "user_namespaces",
        "seccomp",
        "state_directory",
    ] {
        let check = found(&rig, name);
        assert_ne!(check["status"], "broken", "{check:#}");
    }
    let left = std::fs::exists(rig.state().join(".doctor")).unwrap();
    assert!(!left);
}

#[test]
fn what_is_missing_is_named_with_its_fix() {
    if !needs_root("taking things away from a gateway") {
        return;
    }
    let cases = [
        (
            "mount --bind /dev/null /dev/fuse",
            "fuse",
            "broken",
            "mknod /dev/fuse",
        ),
        (
            "mount -o bind,ro /sys/fs/cgroup /sys/fs/cgroup; for d in /sys/fs/cgroup /sys/fs/cgroup/*; do \
             mount --bind $d $d 2>/dev/null && mount -o remount,bind,ro $d || true; done",
            "control_groups",
            "limited",
            "delegated",
        ),
        (
            "mount -t tmpfs -o size=256m none %",
            "state_directory",
            "limited",
            "free some space",
        ),
    ];
    for (mounts, name, status, fix) in cases {
        let rig = Rig::start_as(Setup {
            mounts,
            ..Setup::default()
        });
        let check = found(&rig, name);
        assert_eq!(check["status"], status, "{check:#}");
        assert!(check["fix"].as_str().unwrap().contains(fix), "{check:#}");
    }
    let rig = Rig::start_as(Setup {
        config: "[docker]\nsocket = \"/nowhere/docker.sock\"\n",
        ..Setup::default()
    });
    let check = found(&rig, "docker");
    assert_eq!(check["status"], "limited", "{check:#}");
    assert!(
        check["found"]
            .as_str()
            .unwrap()
            .contains("/nowhere/docker.sock")
    );
}

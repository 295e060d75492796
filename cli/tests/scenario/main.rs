//! The main job through the command lines, each call a process of its own, with a real gateway, real
//! views and real commands, in the local provider and in Docker.

#![allow(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by panicking and may talk"
)]

mod adapter;
mod cells;
mod follow;
mod lanes;
mod rig;

use rig::Rig;

#[test]
fn ten_lanes_publish_at_once_in_local_sandboxes() {
    let rig = Rig::start("local");
    lanes::run(&rig, None);
    rig.end();
}

#[test]
fn a_command_is_followed_as_if_it_ran_here() {
    let rig = Rig::start("follow");
    follow::run(&rig);
    rig.end();
}

#[test]
fn every_cell_of_the_publish_table() {
    let rig = Rig::start("cells");
    cells::run(&rig);
    rig.end();
}

#[test]
fn ten_lanes_publish_at_once_in_docker_sandboxes() {
    let Some(image) = rig::docker_image() else {
        return;
    };
    let rig = Rig::start("docker");
    lanes::run(&rig, Some(&image));
    rig.end();
}

#[test]
fn every_verb_of_the_adapter_for_scripts() {
    adapter::run();
}

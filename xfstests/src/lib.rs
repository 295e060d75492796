//! Tests of the whole: that the house keeps its rules (`tests/house.rs`), and that views are what
//! suites of others take for a filesystem (the program `conformance`).
//!
//! Here are the judges, each of which runs one suite on views and tells its results, and the baseline
//! that they are held to. The suites themselves are installed outside the tree.

pub mod baseline;
pub mod fsx;
mod isolated;
pub mod limited;
pub mod pjdfstest;
pub mod pjdfstest_c;
pub mod unionmount;
pub mod view;
pub mod xfstests;

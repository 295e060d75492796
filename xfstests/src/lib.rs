//! Tests of the whole: that the house keeps its rules (`tests/house.rs`).
//!
//! There is nothing to link here; everything is in the tests.

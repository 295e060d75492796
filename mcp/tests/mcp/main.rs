//! `sandbox-mcp` against a gateway that a test plays: as a server within the test, as a process
//! with rmcp's client, and as a process that is fed lines.

mod calls;
mod gateway;
mod lines;
mod sample;
mod tools;
mod windows;

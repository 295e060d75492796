//! Management: sandboxes, their layers, the store, and the host.

mod doctor;
mod layers;
mod sandbox;
mod store;

pub use doctor::*;
pub use layers::*;
pub use sandbox::*;
pub use store::*;

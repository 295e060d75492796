//! Management: sandboxes, their layers, and the store.

mod layers;
mod sandbox;
mod store;

pub use layers::*;
pub use sandbox::*;
pub use store::*;

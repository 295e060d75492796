//! Runtime: workspace sessions, commands, files and layers.

mod attach;
mod command;
mod file;
mod layers;
mod publish;
mod session;
mod tree;

pub use attach::*;
pub use command::*;
pub use file::*;
pub use layers::*;
pub use publish::*;
pub use session::*;
pub use tree::*;

//! Runtime: workspace sessions, commands and files.

mod command;
mod file;
mod publish;
mod session;

pub use command::*;
pub use file::*;
pub use publish::*;
pub use session::*;

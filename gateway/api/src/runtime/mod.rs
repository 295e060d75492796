//! Runtime: workspace sessions, commands and files.

mod attach;
mod command;
mod file;
mod publish;
mod session;

pub use attach::*;
pub use command::*;
pub use file::*;
pub use publish::*;
pub use session::*;

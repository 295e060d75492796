//! Between fuser and the requests of a view, over `/dev/fuse`: decodes, calls, replies. No rule of
//! the filesystem is in here.
//!
//! Every handler runs guarded: a panic in it drops its reply, which fuser answers with `EIO`, and
//! the mount goes on.

mod convert;
mod filesystem;

use std::sync::Arc;

use fuser::Request;
use sandstack_store::for_request;

use crate::meter;
use crate::placement;
use crate::requests::{Requests, guarded};

/// A view as fuser serves it.
pub(crate) struct Adapter {
    pub(crate) requests: Arc<Requests>,
}

impl Adapter {
    /// Runs the handler of a request where its caller is.
    fn serve(&self, request: &Request, operation: &'static str, handler: impl FnOnce()) {
        placement::follow(request.pid());
        let _entered = self.requests.trees.enter();
        meter::count(operation, || guarded(operation, handler));
    }

    /// The same for what is to be done once, however often it is asked.
    fn serve_once(&self, request: &Request, operation: &'static str, handler: impl FnOnce()) {
        self.serve(request, operation, || {
            for_request(request.unique().0, handler);
        });
    }
}

//! Which command of a session wrote what: asked of the store before that may change.

use std::sync::Arc;

use crate::gateway::{Gateway, Session};

impl Gateway {
    /// Has it found out what the commands so far wrote, before another one begins, or whatever
    /// comes next. For one who is in the session, so that nobody publishes it meanwhile.
    pub(crate) async fn settle_writers(self: &Arc<Self>, session: &Arc<Session>) {
        let asked = Arc::clone(session);
        let settled = self
            .blocking(move || {
                let view = asked.view.lock().clone();
                let Some(view) = view else { return Ok(()) };
                let upper = asked.upper();
                let stack = asked.sandbox.stack()?;
                let _alone = asked.settling.lock();
                Ok(
                    stack.settle_writers(&upper, view.recorder().lease(), &mut || {
                        // What is not written now is a gap, and that is noticed.
                        view.recorder().flush().unwrap_or(false)
                    })?,
                )
            })
            .await;
        if let Err(error) = settled {
            tracing::warn!(session = %session.id, %error, "it is not known which command wrote what");
        }
    }
}

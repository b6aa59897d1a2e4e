//! Has the worker count what runners really hold.

use crate::core::Handle;

impl Handle {
    pub(crate) fn weigh_what_is_held(&self) {
        let (held, budget) = (self.engine().held(), self.config().memory);
        for event in self.core().driver.look(|worker, _| worker.outgrown(&held, budget)) {
            tracing::info!(?event, %budget, "batches left more in memory than the node may hold");
            self.feed(event);
        }
    }
}

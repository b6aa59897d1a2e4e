//! The live state of `up`: that of a cluster, inside one process. The same members announce themselves, the same notices are
//! heard, and the same readers read; only what is between them is missing.

use super::{executor, gateway, scheduler};
use crate::roles::executor::describe as node;
use crate::roles::gateway::{describe as gateway_member, follow_catalog, followed};
use crate::roles::scheduler::take_part;
use crate::roles::{BEAT, hear, pass_on, random};
use modelless_live::{Live, MemLive, Member, Notice, Role, keep_announced};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The parts that take part.
pub(super) struct Parts {
    pub(super) name: String,
    pub(super) executor: executor::Handle,
    pub(super) gateway: gateway::Handle,
    pub(super) addresses: gateway::Addresses,
    pub(super) scheduler: scheduler::Handle,
}

/// Keeps all of them in it until `stop`. Gives the live state, and what is told when the catalogue changed.
pub(super) fn join(
    tasks: &mut JoinSet<()>,
    parts: Parts,
    stop: &CancellationToken,
) -> anyhow::Result<(Arc<dyn Live>, Arc<Notify>)> {
    let live: Arc<dyn Live> = Arc::new(MemLive::default());
    let Parts { name, executor, gateway, addresses, scheduler } = parts;
    let members = followed(tasks, &live, stop);
    let (to_gateway, to_scheduler) = (gateway.clone(), scheduler.clone());
    pass_on(tasks, members, stop, move |members| {
        to_gateway.set_members(members.clone());
        to_scheduler.set_members(members);
    });

    let (status, instance) = (executor.status(), random()?);
    let announce = |tasks: &mut JoinSet<()>, describe: Box<dyn FnMut() -> Member + Send>| {
        tasks.spawn(keep_announced(Arc::clone(&live), describe, BEAT, stop.clone()));
    };
    announce(tasks, Box::new(move || node(&status.borrow(), instance, None)));
    let (own, described, http) = (name.clone(), gateway.clone(), addresses.http);
    announce(tasks, Box::new(move || gateway_member(&described, &own, http)));
    announce(tasks, Box::new(move || Member::new(Role::Scheduler, &name, instance)));

    follow_catalog(tasks, &live, &gateway, stop);
    take_part(tasks, &live, &scheduler, stop);
    let look = Arc::new(Notify::new());
    let changed = Arc::clone(&look);
    hear(tasks, &live, stop, move |notice| match notice {
        Notice::Plan { .. } => {} // the scheduler told its pins itself
        Notice::Catalog { .. } | Notice::Missed => {
            executor.catalog_changed();
            changed.notify_one();
        }
    });
    Ok((live, look))
}

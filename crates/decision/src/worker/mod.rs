//! The executor's machine: which variant answers which queries in which batch, what is loaded and what is evicted.
//!
//! A query stays unbound until a lane's prepared slot falls free; then the earliest deadline picks a variant its
//! slack and the backlog allow, and the batch is drawn, earliest deadline first, from **every** class that admits
//! that variant. A lane runs one batch and has exactly one more bound and prepared behind it. Floors hold by
//! construction: a query is only ever put into a batch of a variant its class admits.
//!
//! | file | tells |
//! |---|---|
//! | `api` | what it is told and what it wants done |
//! | `queue` | what waits, by class and deadline |
//! | `residency` | what is in memory, what comes and goes, the replica states |
//! | `bind` | the choice of variant and batch |
//! | `ahead` | what would become of those who wait, if some batch ran first |
//! | `announced` | queries that other nodes may answer as well |
//! | `claiming` | asking for them, and batches that wait to hear which of them they get |
//! | `caution` | how much more has to be reckoned with than is foreseen |
//! | `chance` | how sure it has to be that a query is in time where nothing is sure |
//! | `foresight` | how far it looks ahead, and which ideas of it are switched on |
//! | `flow` | at what rate queries come to gateways |
//! | `level` | which variants a device can afford for all that is asked of it |
//! | `batching` | how large batches become and how long they wait for more |
//! | `turns` | who gathered while a model was loaded takes turns with others |
//! | `spare` | what is done while nothing else is to be done |
//! | `shedding` | who gives way when not all can be in time |
//! | `cutting` | how cores are cut into lanes |
//! | `place` | what a query that came could be answered by |
//! | `ending` | what becomes of the members of a batch that ended |
//! | `quarantine` | members of crashed batches, rerun alone |
//! | `trust` | whether a death is an input's doing or its variant's |
//! | `reason` | why a query is answered by the variant it is |
//! | `report` | what is made known to gateways and people |
//! | `lanes` | batches on their way through preparation and the device |
//! | `apart` | batches on servers, which hold no lane |
//! | `suspects` | batches that run far too long, and what their lanes do meanwhile |
//! | `learn` | what live batches teach about the profiles |
//! | `drift` | profiles that are off for too long |
//! | `behind` | who goes back to the gateway because another node may still be in time |
//! | `pressure` | replicas that are overloaded or disturbed |
//! | `narrowing` | fewer lanes side by side while something slows them down |
//! | `needs` | who depends on what is in memory, and how long others can wait |
//! | `load` | how busy it is, for people |
//! | `machine` | the four verbs |

mod ahead;
mod announced;
mod apart;
mod api;
mod batching;
mod behind;
mod bind;
mod caution;
mod chance;
mod claiming;
mod cutting;
mod drift;
mod ending;
mod flow;
mod foresight;
mod lanes;
mod learn;
mod level;
mod load;
mod machine;
mod narrowing;
mod needs;
mod outgrown;
mod place;
mod places;
mod pressed;
mod pressure;
mod quarantine;
mod queue;
mod reason;
mod report;
mod residency;
mod shedding;
mod spare;
mod suspects;
mod times;
mod trust;
mod turns;

pub use api::{
    Action, BatchId, DeviceConfig, EVICTED, Event, Failure, LaneIx, Outcome, UNLOADED, WorkerConfig,
    WorkerVariant,
};
pub(crate) use api::{draining, is_draining};
pub use foresight::Foresight;
pub use load::WorkerLoad;
pub use machine::Worker;
pub use reason::Reason;
pub use report::ReplicaView;

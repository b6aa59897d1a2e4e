//! The seam to whoever has machines: local processes, the user's own script, a cloud.
//!
//! A provider starts a machine by a name, lists what it has with the tags of this cluster and pool, and takes one away. Asking twice
//! by one name makes one machine: whoever asks may have been killed before it heard the answer. Nothing here decides how many there
//! should be or what to do about a failure; errors only say which kind it was. One suite (`tests/suite`) holds for all providers.
#![warn(missing_docs)]

mod command;
mod ec2;
mod kubernetes;
mod mem;
mod process;

pub use command::{Command, CommandConfig};
pub use ec2::{Ec2, Ec2Config, Ec2Pool, Join, Secrets, Spot, Told};
pub use kubernetes::{Kubernetes, KubernetesConfig, KubernetesPool};
pub use mem::{MemFleet, MemMachines};
pub use process::{Process, ProcessConfig};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// What is to be started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// Its name, which no other machine of the cluster ever has: its node's too.
    pub name: String,
    /// Settings of its executor beyond what the provider knows itself: `executor.name=...`.
    pub settings: Vec<String>,
}

/// A machine that a provider has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Instance {
    /// What the provider calls it.
    pub id: String,
    /// The name that it was started by.
    pub name: String,
    /// It is on its way out.
    #[serde(default)]
    pub ending: bool,
}

/// Why a provider did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// It has none left at the moment.
    #[error("no machine is to be had: {0}")]
    Capacity(String),
    /// No more are allowed.
    #[error("the quota is used up: {0}")]
    Quota(String),
    /// It will not, however often it is asked.
    #[error("it was refused: {0}")]
    Refused(String),
    /// It was asked too often.
    #[error("it was asked too often: {0}")]
    Throttled(String),
    /// Nobody knows whether it did.
    #[error("no answer: {0}")]
    Away(String),
}

impl Error {
    /// Whether it was done is not known, or asking again later may help.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Throttled(_) | Self::Away(_) => true,
            Self::Capacity(_) | Self::Quota(_) | Self::Refused(_) => false,
        }
    }
}

/// Where machines of one pool come from.
#[async_trait]
pub trait Fleet: Send + Sync {
    /// Starts a machine, or finds the one that was started by this name.
    async fn start(&self, wanted: &Wanted) -> Result<Instance, Error>;

    /// All that it has for this pool of this cluster, whoever started them; none that has ended.
    async fn list(&self) -> Result<Vec<Instance>, Error>;

    /// Takes one away. One that is not there is taken away already; asking again for one that does not go makes it go.
    async fn stop(&self, id: &str) -> Result<(), Error>;
}

//! Machines that are pods of Kubernetes: each a pod of its own, made from the pool's `PodTemplate`.
//!
//! Not the replicas of one StatefulSet or Deployment, as Kubernetes would choose itself which of them goes; see ADR 0203. A pod is known
//! by its labels: cluster, pool and machine. Its name follows from the machine's, so asking twice makes one. It is never started
//! again: when its executor has ended, the machine has, and is not listed any more. The last pods that ended are left for who wants
//! to read what they wrote.
//!
//! It knows nothing of prices and decides nothing about how many there are, nor where a pod runs.

mod config;
mod failure;
mod pod;
mod provider;

pub use config::KubernetesPool;
pub use provider::{Kubernetes, KubernetesConfig};

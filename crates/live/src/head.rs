//! What a member says with every heartbeat: little, and which of its lists hold.

use crate::said::within;
use crate::{Error, Load, Member, Role};
use modelless_types::{Micros, NodeId};
use serde::{Deserialize, Serialize};

/// A member without its lists, as it is stored.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    role: Role,
    pub(crate) name: String,
    pub(crate) instance: u64,
    #[serde(default)]
    node: Option<NodeId>,
    #[serde(default)]
    address: Option<String>,
    #[serde(default)]
    draining: bool,
    #[serde(default)]
    load: Load,
    #[serde(default)]
    device_class: String,
    #[serde(default)]
    up: Option<Micros>,
    /// The number of the lists that hold; none of them is 0.
    #[serde(default)]
    pub(crate) said: u64,
}

impl Head {
    pub(crate) fn of(member: &Member, said: u64) -> Self {
        Self {
            role: member.role,
            name: member.name.clone(),
            instance: member.instance,
            node: member.node,
            address: member.address.clone(),
            draining: member.draining,
            load: member.load,
            device_class: member.device_class.clone(),
            up: member.up,
            said,
        }
    }

    pub(crate) fn json(&self) -> Result<String, Error> {
        within(&self.name, serde_json::to_string(self).expect("a member is plain data; this is a bug"))
    }

    /// A member that says no more than this.
    pub(crate) fn bare(self) -> Member {
        Member {
            node: self.node,
            address: self.address,
            draining: self.draining,
            load: self.load,
            device_class: self.device_class,
            up: self.up,
            ..Member::new(self.role, &self.name, self.instance)
        }
    }
}

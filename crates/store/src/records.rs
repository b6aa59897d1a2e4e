//! What the store takes and gives, where `types` has no word for it. Plain values; nothing here does anything.

mod tasks;

pub use tasks::{NewTask, TaskChange};

use crate::error::{Error, Result};
use crate::learnt::{LiveAccuracy, StaleProfile};
use crate::machines::MachineStep;
use crate::trials::Trial;
use crate::versions::Signed;
use modelless_types::{
    Accuracy, AppId, Bytes, DeviceIx, Model, ModelId, NodeId, PlanId, PricePerHour, Profile, ReplicaId,
    ReplicaState, SpaceId, Task, TaskId, TenantId, TensorSpec, Variant, VariantId, VariantSettings,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::SystemTime;

/// A moment in microseconds since 1970, as told by the caller's wall clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMicros(pub u64);

impl UnixMicros {
    /// From a clock that the caller has read. Before 1970 counts as 1970.
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }
}

/// Who owns models and pays for queries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tenant {
    /// Number in the store.
    pub id: TenantId,
    /// Unique.
    pub name: String,
}

/// An application of a tenant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct App {
    /// Number in the store.
    pub id: AppId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Unique for its tenant.
    pub name: String,
}

/// What makes answers of different models interchangeable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum SpaceKind {
    /// The same labels in the same order.
    Labels {
        /// sha256 of them, see [`SpaceKind::labels`].
        hash: String,
    },
    /// Vectors of the same length, comparable only inside the space.
    Embedding {
        /// Their length.
        dimension: u32,
    },
    /// The same named outputs.
    Tensor {
        /// sha256 of their names, types and shapes, see [`SpaceKind::tensor`].
        hash: String,
    },
}

impl SpaceKind {
    /// The space of these labels in this order.
    pub fn labels(labels: &[String]) -> Self {
        let mut hash = Sha256::new();
        for label in labels {
            counted(&mut hash, label);
        }
        Self::Labels { hash: hex(&hash.finalize()) }
    }

    /// The space of these outputs, in any order.
    pub fn tensor(outputs: &[TensorSpec]) -> Self {
        let mut outputs: Vec<&TensorSpec> = outputs.iter().collect();
        outputs.sort_by(|a, b| a.name.cmp(&b.name));
        let mut hash = Sha256::new();
        for output in outputs {
            counted(&mut hash, &output.name);
            counted(&mut hash, output.dtype.name());
            hash.update(output.shape.len().to_le_bytes());
            output.shape.iter().for_each(|axis| hash.update(axis.to_le_bytes()));
        }
        Self::Tensor { hash: hex(&hash.finalize()) }
    }

    /// As stored.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Labels { .. } => "labels",
            Self::Embedding { .. } => "embedding",
            Self::Tensor { .. } => "tensor",
        }
    }
}

/// Length first, so that `ab, c` and `a, bc` differ.
fn counted(hash: &mut Sha256, text: &str) {
    hash.update(text.len().to_le_bytes());
    hash.update(text.as_bytes());
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

/// An output space, found again by name or made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewSpace {
    /// Unique for its tenant; several tasks may share a space.
    pub name: String,
    /// What it is. A space of this name that is of another kind is refused.
    pub kind: SpaceKind,
}

/// An output space.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Space {
    /// Number in the store.
    pub id: SpaceId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Unique for its tenant.
    pub name: String,
    /// What it is.
    pub kind: SpaceKind,
}

/// A model to be registered, with its first variants. See [`Model`] for the fields.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NewModel {
    /// What it was trained for.
    pub task: TaskId,
    /// Who owns it.
    pub tenant: TenantId,
    /// Unique in its task, together with `version`.
    pub name: String,
    /// The owner's version.
    pub version: u32,
    /// Family.
    pub architecture: String,
    /// Licence.
    pub licence: String,
    /// Whom to ask about it; may be empty.
    pub owner: String,
    /// Whether it becomes the default version of its name. The first one does in any case.
    pub promote: bool,
    /// Who registers it.
    pub by: Signed,
    /// The output space of its answers; `None`: the task's default.
    pub space: Option<NewSpace>,
    /// The adapter's JSON.
    pub adapter: String,
    /// How it is made runnable.
    pub variants: Vec<NewVariant>,
}

impl NewModel {
    pub(crate) fn numbered(self, id: ModelId, space: SpaceId, promoted: u64) -> (Model, Vec<NewVariant>) {
        let model = Model {
            id,
            task: self.task,
            tenant: self.tenant,
            name: self.name,
            version: self.version,
            architecture: self.architecture,
            licence: self.licence,
            owner: self.owner,
            promoted,
            space,
            adapter: self.adapter,
        };
        (model, self.variants)
    }
}

/// A variant to be registered. See [`Variant`] for the fields.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NewVariant {
    /// Unique in its task.
    pub name: String,
    /// How it is run.
    pub settings: VariantSettings,
    /// sha256 of the artefact, in lower-case hexadecimal.
    pub artefact: String,
    /// Size of the artefact.
    pub artefact_bytes: Bytes,
    /// What is known of it already, at most one per device class.
    pub profiles: Vec<Profile>,
}

impl NewVariant {
    pub(crate) fn numbered(mut self, id: VariantId, model: ModelId, ordinal: u8) -> Variant {
        self.profiles.sort_by(|a, b| a.device_class.cmp(&b.device_class));
        Variant {
            id,
            model,
            ordinal,
            name: self.name,
            settings: self.settings,
            artefact: self.artefact,
            artefact_bytes: self.artefact_bytes,
            profiles: self.profiles,
        }
    }
}

/// What the variants of a model are measured with.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// A labelled set that lies among the artefacts.
    pub set: Option<SetArtefact>,
    /// How accurate its owner says it is.
    pub declared: Option<Accuracy>,
    /// So long at most measuring all of them for the first time may take, in milliseconds; `None`: as long as it takes.
    pub within_ms: Option<u64>,
    /// Who wants it to be the default once all of them are measured, in their own words; nobody of a version that is it when it is
    /// registered.
    pub promote: Option<String>,
}

/// A labelled set among the artefacts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetArtefact {
    /// Shown with every accuracy that is measured on it.
    pub name: String,
    /// sha256, in lower-case hexadecimal.
    pub artefact: String,
}

/// Who measures a variant on a device class, or why that failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Measuring {
    /// What.
    pub variant: VariantId,
    /// Where.
    pub device_class: String,
    /// The name of the node that does it, or did.
    pub node: String,
    /// Until then nobody else takes it up; after a failure the node itself does not either.
    pub until: UnixMicros,
    /// How far it is, for people.
    pub progress: String,
    /// Why it could not be measured.
    pub failed: Option<String>,
    /// How often it failed in a row.
    pub attempts: u32,
}

/// A model as it was registered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Registered {
    /// With its number.
    pub model: Model,
    /// With their numbers and ordinals, in the order given.
    pub variants: Vec<Variant>,
}

/// Everything that is registered, as of one moment. Each list is in the order of ids.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Catalog {
    /// Grows with every change of what stands here.
    pub version: u64,
    /// Owners.
    pub tenants: Vec<Tenant>,
    /// Those who ask.
    pub apps: Vec<App>,
    /// Output spaces.
    pub spaces: Vec<Space>,
    /// Tasks.
    pub tasks: Vec<Task>,
    /// Models.
    pub models: Vec<Model>,
    /// Variants with their profiles (in the order of device classes).
    pub variants: Vec<Variant>,
    /// Profiles that live traffic found to be off.
    #[serde(default)]
    pub stale: Vec<StaleProfile>,
    /// What was said of answers, as of when something else changed: see [`crate::Store::live_accuracies`].
    #[serde(default)]
    pub live: Vec<LiveAccuracy>,
    /// Trials that run.
    #[serde(default)]
    pub trials: Vec<Trial>,
}

impl Catalog {
    /// A tenant's task by its name.
    pub fn task_named(&self, tenant: TenantId, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.tenant == tenant && task.name == name)
    }

    /// The models of a task.
    pub fn models_of(&self, task: TaskId) -> impl Iterator<Item = &Model> {
        self.models.iter().filter(move |model| model.task == task)
    }

    /// Of each name the version that answers where nothing is pinned: the one that was promoted last. A name whose versions
    /// are all candidates has none.
    pub fn defaults(&self) -> BTreeSet<ModelId> {
        let mut last: BTreeMap<(TaskId, TenantId, &str), &Model> = BTreeMap::new();
        for model in self.models.iter().filter(|model| model.promoted > 0) {
            let known = last.entry((model.task, model.tenant, &model.name)).or_insert(model);
            if model.promoted > known.promoted {
                *known = model;
            }
        }
        last.into_values().map(|model| model.id).collect()
    }

    /// Whether a model with variants of these names could be stored in a task of somebody's, as far as what is there says: said before
    /// minutes are spent on measuring it.
    pub fn could_take(
        &self,
        (task, tenant): (TaskId, TenantId),
        (name, version): (&str, u32),
        space: Option<&NewSpace>,
        variants: &[&str],
    ) -> Result<()> {
        let same = |known: &Model| (known.tenant, &*known.name, known.version) == (tenant, name, version);
        if self.models_of(task).any(same) {
            return Err(Error::exists("model", format!("{name} version {version}")));
        }
        let mut names = BTreeSet::new();
        let there = self.models_of(task).flat_map(|model| self.variants_of(model.id));
        names.extend(there.map(|variant| &*variant.name));
        if let Some(taken) = variants.iter().find(|name| !names.insert(**name)) {
            return Err(Error::exists("variant", *taken));
        }
        let known = |new: &NewSpace| {
            self.spaces.iter().find(|space| space.tenant == tenant && space.name == new.name)
        };
        match space.and_then(|new| Some((known(new)?, new))) {
            Some((known, new)) => crate::check::same_space(known, new),
            None => Ok(()),
        }
    }

    /// The variants of a model.
    pub fn variants_of(&self, model: ModelId) -> impl Iterator<Item = &Variant> {
        self.variants.iter().filter(move |variant| variant.model == model)
    }
}

/// How a node stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Takes queries.
    Up,
    /// Finishing what it has.
    Draining,
    /// Said good-bye, or was given up on.
    Gone,
}

impl NodeState {
    /// As shown and stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Gone => "gone",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Up, Self::Draining, Self::Gone].into_iter().find(|state| state.name() == name)
    }
}

/// A node that reports for work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewNode {
    /// Unique; a node that comes back under its name gets its number back.
    pub name: String,
    /// Machines that are scaled together.
    pub pool: String,
    /// Where machines fail together.
    pub zone: String,
    /// Hardware that behaves alike.
    pub device_class: String,
    /// Batches it runs side by side.
    pub lanes: u16,
    /// Memory for models.
    pub memory: Bytes,
    /// What it costs.
    pub price: PricePerHour,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Number in the store.
    pub id: NodeId,
    /// What it said of itself.
    #[serde(flatten)]
    pub about: NewNode,
    /// How it stands.
    pub state: NodeState,
    /// When it last said so.
    pub last_seen: UnixMicros,
}

/// The process that is a node just now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// Drawn when the process started; at most 63 bits.
    pub instance: u64,
    /// One more each time it says that it is there.
    pub beat: u64,
    /// Where it runs, for people and for those on the same machine.
    pub place: String,
}

/// A variant on a node's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Replica {
    /// Number in the store.
    pub id: ReplicaId,
    /// Which variant. It may have been removed by force meanwhile; then its owner should let go of it.
    pub variant: VariantId,
    /// On which node.
    pub node: NodeId,
    /// On which of its devices.
    pub device: DeviceIx,
    /// How it stands.
    pub state: ReplicaState,
}

impl Replica {
    /// Neither in memory nor on its way there or out.
    pub(crate) fn at_rest(&self) -> bool {
        matches!(self.state, ReplicaState::Inactive | ReplicaState::Failed)
    }

    /// What becomes of it when its machine ends, if anything does.
    pub(crate) fn lost_with(&self, end: &MachineStep) -> Option<NewTransition> {
        (!self.at_rest()).then(|| NewTransition {
            replica: self.id,
            from: self.state,
            to: ReplicaState::Failed,
            cause: format!("its machine ended: {}", end.why),
            who: format!("scheduler {}", end.by.who),
            at: end.by.at,
        })
    }

    /// Serving, or about to.
    pub(crate) fn busy(&self) -> bool {
        self.state.serves() || self.state == ReplicaState::Loading
    }

    pub(crate) fn must_be_at_rest(&self) -> Result<()> {
        if self.at_rest() {
            return Ok(());
        }
        let by = format!("it is {}", self.state);
        Err(Error::InUse { what: "replica", name: self.id.to_string(), by })
    }

    pub(crate) fn must_be(&self, expected: ReplicaState) -> Result<()> {
        if self.state == expected {
            return Ok(());
        }
        Err(Error::StateChanged { replica: self.id, expected, found: self.state })
    }
}

/// A change of a replica's state to be recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewTransition {
    /// Whose.
    pub replica: ReplicaId,
    /// The state the caller knows it in; if it is in another by now, nothing is recorded.
    pub from: ReplicaState,
    /// The state it is in from now on. That it may follow is for the caller to know.
    pub to: ReplicaState,
    /// Why, for people. Long texts are cut.
    pub cause: String,
    /// Who decided it, for people.
    pub who: String,
    /// When.
    pub at: UnixMicros,
}

/// A recorded change of a replica's state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Transition {
    /// Place in the history of all replicas.
    pub seq: u64,
    /// The variant of the replica, which may be gone when this is read.
    pub variant: VariantId,
    /// The node of the replica.
    pub node: NodeId,
    /// What happened.
    #[serde(flatten)]
    pub change: NewTransition,
}

/// A saved plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Number in the store.
    pub id: PlanId,
    /// The plan it was made from; `None` for the first.
    pub parent: Option<PlanId>,
    /// The plan itself, in JSON.
    pub json: String,
    /// When it was saved.
    pub at: UnixMicros,
}

/// What became of a plan that was to be saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a plan that lost must be thrown away and made again from the current one"]
pub enum SavePlan {
    /// It is the current plan.
    Saved(PlanId),
    /// Another scheduler was first; nothing was stored.
    Lost {
        /// The plan that is current instead.
        current: Option<PlanId>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::DType;

    #[test]
    fn label_spaces_differ_by_text_and_order() {
        let space =
            |labels: &[&str]| SpaceKind::labels(&labels.iter().map(|&l| l.to_owned()).collect::<Vec<_>>());
        assert_eq!(space(&["a", "b"]), space(&["a", "b"]));
        assert_ne!(space(&["a", "b"]), space(&["b", "a"]));
        assert_ne!(space(&["ab", "c"]), space(&["a", "bc"]));
    }

    #[test]
    fn tensor_spaces_do_not_depend_on_the_order_of_outputs() {
        let output = |name: &str, shape: &[u32]| TensorSpec {
            name: name.to_owned(),
            dtype: DType::Fp32,
            shape: shape.to_vec(),
        };
        let (a, b) = (output("a", &[10]), output("b", &[2, 3]));
        assert_eq!(SpaceKind::tensor(&[a.clone(), b.clone()]), SpaceKind::tensor(&[b.clone(), a.clone()]));
        assert_ne!(SpaceKind::tensor(&[a.clone(), b]), SpaceKind::tensor(&[a, output("b", &[3, 2])]));
    }

    #[test]
    fn a_space_of_another_dimension_is_told_before_anything_is_measured() {
        let kind = |dimension| SpaceKind::Embedding { dimension };
        let space = Space { id: SpaceId(1), tenant: TenantId::DEFAULT, name: "s".to_owned(), kind: kind(8) };
        let catalog = Catalog { spaces: vec![space], ..Catalog::default() };
        let could = |name: &str, dimension, variants: &[&str]| {
            let new = NewSpace { name: name.to_owned(), kind: kind(dimension) };
            catalog.could_take((TaskId(1), TenantId::DEFAULT), ("m", 1), Some(&new), variants)
        };
        assert!(could("s", 8, &["a", "b"]).is_ok() && could("other", 9, &["a"]).is_ok());
        assert!(matches!(could("s", 9, &["a"]), Err(Error::Invalid { .. })));
        assert!(matches!(could("s", 8, &["a", "a"]), Err(Error::AlreadyExists { .. })), "twice in one model");
    }
}

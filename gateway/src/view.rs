//! What requests read: the catalogue and the nodes' state, replaced whole when either changes. Everything that
//! an answer's headers repeat is written out beforehand.

use crate::errors::ApiError;
use crate::goals::Given;
use crate::oip::Signature;
use crate::suggest::{excerpt, suggest};
use http::HeaderValue;
use modelless_decision::route::{Table, TaskInfo};
use modelless_store::{Catalog, Floor, SpaceKind};
use modelless_telemetry::{Metrics, Served, TaskMetrics, VariantMetrics};
use modelless_types::{Accuracy, Goals, Model, ModelId, NodeId, Refusal, Task, TenantId, Variant, VariantId};
use modelless_wire::NodeStatus;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A variant with what answers say of it.
#[derive(Debug)]
pub(crate) struct VariantView {
    pub(crate) variant: Variant,
    pub(crate) model: Arc<Model>,
    /// What floors are compared with; `None` while nothing was measured.
    pub(crate) accuracy: Option<Accuracy>,
    /// Where that comes from.
    pub(crate) floor: Option<Floor>,
    pub(crate) model_header: HeaderValue,
    pub(crate) variant_header: HeaderValue,
    pub(crate) accuracy_header: Option<HeaderValue>,
    pub(crate) accuracy_from_header: Option<HeaderValue>,
    /// Of the output space.
    pub(crate) space_header: HeaderValue,
    pub(crate) metrics: VariantMetrics,
    /// The same as Triton counts it.
    pub(crate) served: Arc<Served>,
}

/// A task with its models and variants.
#[derive(Debug)]
pub(crate) struct TaskView {
    pub(crate) task: Task,
    /// Newest version of a name first.
    pub(crate) models: Vec<Arc<Model>>,
    /// Of each name the version that answers where nothing is pinned.
    pub(crate) defaults: BTreeSet<ModelId>,
    pub(crate) variants: Vec<VariantView>,
    /// Positions of the task's labels.
    labels: HashMap<String, u16>,
    pub(crate) metrics: TaskMetrics,
    /// The tensors that it shows where tensors are asked for.
    pub(crate) signature: Signature,
}

/// Tasks by name.
pub(crate) type Tasks = HashMap<String, TaskView>;

/// All of it.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) nodes: Vec<Arc<NodeStatus>>,
    node_headers: Vec<(NodeId, HeaderValue)>,
}

impl View {
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        tasks: Arc<Tasks>,
        nodes: Vec<Arc<NodeStatus>>,
        node_headers: Vec<(NodeId, HeaderValue)>,
    ) -> Self {
        Self { catalog, tasks, nodes, node_headers }
    }

    /// A task by the name in a URL.
    pub(crate) fn task(&self, name: &str) -> Result<&TaskView, ApiError> {
        self.tasks.get(name).ok_or_else(|| {
            let mut names: Vec<&str> = self.catalog.tasks.iter().map(|task| task.name.as_str()).collect();
            names.sort_unstable();
            let message = format!("there is no task {}{}", excerpt(name), suggest(name, names));
            ApiError::not_found("unknown_task", message)
        })
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&NodeStatus> {
        self.nodes.iter().find(|node| node.node == id).map(|node| &**node)
    }

    pub(crate) fn node_header(&self, id: NodeId) -> Option<HeaderValue> {
        self.node_headers.iter().find(|(known, _)| *known == id).map(|(_, name)| name.clone())
    }
}

/// The tasks of the default tenant, by name.
pub(crate) fn tasks(catalog: &Catalog, table: &Table, metrics: &Metrics) -> Tasks {
    let of_default = |task: &&Task| task.tenant == TenantId::DEFAULT;
    let named = catalog.tasks.iter().filter(of_default).map(|task| {
        let info = table.tasks.iter().find(|info| info.id == task.id);
        (task.name.clone(), task_view(catalog, task, info, metrics))
    });
    named.collect()
}

fn task_view(catalog: &Catalog, task: &Task, info: Option<&TaskInfo>, metrics: &Metrics) -> TaskView {
    let mut models: Vec<Arc<Model>> = catalog.models_of(task.id).cloned().map(Arc::new).collect();
    models.sort_by(|a, b| a.name.cmp(&b.name).then(b.version.cmp(&a.version)));
    let mut variants: Vec<VariantView> = Vec::new();
    for model in &models {
        for variant in catalog.variants_of(model.id) {
            let accuracy = info.and_then(|info| info.variant(variant.ordinal)).map(|v| v.accuracy);
            let floors = variant.profiles.iter().map(|profile| catalog.floor(task, variant.id, profile));
            let floor = floors.into_iter().find(|floor| Some(floor.value) == accuracy);
            variants.push(VariantView {
                model: Arc::clone(model),
                accuracy,
                floor,
                model_header: header(&model.name),
                variant_header: header(&variant.name),
                accuracy_header: accuracy.map(|accuracy| header(&accuracy.to_string())),
                accuracy_from_header: floor.map(|floor| header(&floor.from.to_string())),
                space_header: space(catalog, model),
                metrics: metrics.variant(&task.name, &variant.name),
                served: metrics.served(&task.name, variant.id.0),
                variant: variant.clone(),
            });
        }
    }
    variants.sort_by_key(|view| view.variant.ordinal);
    let at = |(at, label): (usize, &String)| Some((label.clone(), u16::try_from(at).ok()?));
    let labels = task.labels.iter().enumerate().filter_map(at).collect();
    let defaults = catalog.defaults();
    let defaults = models.iter().map(|model| model.id).filter(|id| defaults.contains(id)).collect();
    let dimension = catalog.spaces.iter().find(|space| space.id == task.default_space);
    let dimension = dimension.and_then(|space| match space.kind {
        SpaceKind::Embedding { dimension } => Some(dimension),
        SpaceKind::Labels { .. } | SpaceKind::Tensor { .. } => None,
    });
    let signature = Signature::of(task, dimension);
    let metrics = metrics.task(&task.name);
    TaskView { task: task.clone(), models, defaults, variants, labels, metrics, signature }
}

fn space(catalog: &Catalog, model: &Model) -> HeaderValue {
    let space = catalog.spaces.iter().find(|space| space.id == model.space);
    space.map_or_else(|| header(&model.space.to_string()), |space| header(&space.name))
}

/// Names may hold any letters; what no header can hold is shown as `?`.
pub(crate) fn header(text: &str) -> HeaderValue {
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or_else(|_| {
        let plain: String = text.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect();
        HeaderValue::try_from(plain).expect("printable ASCII is a header; this is a bug")
    })
}

impl TaskView {
    /// The position of a label.
    pub(crate) fn label(&self, label: &str) -> Option<u16> {
        self.labels.get(label).copied()
    }

    pub(crate) fn variant(&self, id: VariantId) -> Option<&VariantView> {
        self.variants.iter().find(|view| view.variant.id == id)
    }

    /// Goals as decisions take them: pins by number.
    pub(crate) fn resolve(&self, given: &Given) -> Result<Goals, ApiError> {
        let of_variant = given.variant.as_ref().and_then(|name| self.named_variant(name));
        let model = given.model.as_ref().map(|name| self.pinned(name, of_variant));
        let variant = given.variant.as_ref().map(|name| {
            let found = self.named_variant(name);
            let known = || self.variants.iter().map(|view| view.variant.name.as_str());
            found.map(|view| view.variant.id).ok_or_else(|| self.no_such("variant", name, known()))
        });
        let (model, variant) = (model.transpose()?, variant.transpose()?);
        Ok(given.resolved(model, variant))
    }

    fn named_variant(&self, name: &str) -> Option<&VariantView> {
        self.variants.iter().find(|view| view.variant.name == *name)
    }

    /// The version that a pin by name means: of `NAME@VERSION` that one, of `NAME` the default, or that of the variant which
    /// is pinned beside it.
    fn pinned(&self, pin: &str, variant: Option<&VariantView>) -> Result<ModelId, ApiError> {
        let versions = |name: &str| self.models.iter().filter(|model| model.name == name).collect::<Vec<_>>();
        let of_name = versions(pin);
        if let Some(newest) = of_name.first() {
            let pinned_variant = variant.filter(|view| view.model.name == pin).map(|view| view.model.id);
            let default = of_name.iter().map(|model| model.id).find(|id| self.defaults.contains(id));
            return pinned_variant.or(default).ok_or_else(|| {
                let why = format!(
                    "all versions of model {pin} of task {:?} are candidates; pin one, as in {pin}@{}",
                    self.task.name, newest.version
                );
                ApiError::from(Refusal::PinUnusable { why })
            });
        }
        if let Some((name, wanted)) = pin.rsplit_once('@') {
            let of_name = versions(name);
            let found = of_name.iter().find(|model| model.version.to_string() == wanted);
            if let Some(model) = found {
                return Ok(model.id);
            }
            if !of_name.is_empty() {
                let known: Vec<String> = of_name.iter().map(|model| model.version.to_string()).collect();
                let (task, wanted) = (&self.task.name, excerpt(wanted));
                let why = format!(
                    "model {name} of task {task:?} has no version {wanted}; it has {}",
                    known.join(", ")
                );
                return Err(ApiError::from(Refusal::PinUnusable { why }));
            }
        }
        let known = self.models.iter().map(|model| model.name.as_str());
        Err(self.no_such("model", pin, known))
    }

    /// Whether queries that pin nothing may be answered by it.
    pub(crate) fn is_default(&self, model: ModelId) -> bool {
        self.defaults.contains(&model)
    }

    fn no_such<'a>(&self, what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> ApiError {
        let near = suggest(name, known);
        let why = format!("task {:?} has no {what} {}{near}", self.task.name, excerpt(name));
        ApiError::from(Refusal::PinUnusable { why })
    }
}

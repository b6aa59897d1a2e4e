//! What requests read: the catalogue and the nodes' state, replaced whole when either changes. Everything that
//! an answer's headers repeat is written out beforehand.

use crate::errors::ApiError;
use crate::goals::Given;
use crate::oip::Signature;
use crate::suggest::{excerpt, suggest};
use crate::trials::{Running, Trials};
use http::HeaderValue;
use modelless_decision::route::{Table, TaskInfo};
use modelless_store::{Catalog, Floor, Grant, SpaceKind};
use modelless_telemetry::{Metrics, Served, TaskMetrics, VariantMetrics};
use modelless_types::{
    Accuracy, Goals, Model, ModelId, NodeId, Refusal, Task, TenantId, Variant, VariantId, VariantSet,
};
use modelless_wire::NodeStatus;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// What its tenant may use of it, where that is not all because it is another's.
    among: Option<VariantSet>,
    /// The tensors that it shows where tensors are asked for.
    pub(crate) signature: Signature,
    /// A version that answers some of its queries, to be compared.
    pub(crate) trial: Option<Arc<Running>>,
}

/// Tasks by name.
pub(crate) type Tasks = HashMap<String, TaskView>;

/// All of it, as one tenant sees it. Catalogue and nodes are those of all: what is shown of them goes by the tasks.
#[derive(Debug, Default)]
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
            let mut names: Vec<&str> = self.tasks.keys().map(String::as_str).collect();
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

/// What each tenant sees.
#[derive(Debug, Default)]
pub(crate) struct Views {
    of: HashMap<TenantId, Arc<View>>,
    /// For the tenant that is there before any is made, and for what concerns machines.
    first: Arc<View>,
    /// For a tenant that was made a moment ago.
    nothing: Arc<View>,
}

impl Views {
    pub(crate) fn new(
        catalog: &Arc<Catalog>,
        tasks: &TasksOf,
        nodes: &[Arc<NodeStatus>],
        node_headers: &[(NodeId, HeaderValue)],
    ) -> Self {
        let view = |tasks: Arc<Tasks>| {
            Arc::new(View::new(Arc::clone(catalog), tasks, nodes.to_vec(), node_headers.to_vec()))
        };
        let of: HashMap<_, _> =
            tasks.iter().map(|(tenant, tasks)| (*tenant, view(Arc::clone(tasks)))).collect();
        let nothing = view(Arc::default());
        let first = of.get(&TenantId::DEFAULT).unwrap_or(&nothing);
        Self { first: Arc::clone(first), nothing, of }
    }

    pub(crate) fn of(&self, tenant: TenantId) -> &Arc<View> {
        if tenant == TenantId::DEFAULT { &self.first } else { self.of.get(&tenant).unwrap_or(&self.nothing) }
    }
}

/// Each tenant's tasks, by name.
pub(crate) type TasksOf = BTreeMap<TenantId, Arc<Tasks>>;

/// Its own, and those of which it may use some models; where names are the same its own, else the older one.
pub(crate) fn tasks(
    catalog: &Catalog,
    grants: &[Grant],
    table: &Table,
    (metrics, trials): (&Metrics, &Trials),
) -> TasksOf {
    let mut of: BTreeMap<TenantId, Tasks> = BTreeMap::new();
    let known = |task: &Task| table.tasks.iter().find(|info| info.id == task.id);
    for task in &catalog.tasks {
        let view = task_view(catalog, (task, known(task)), (metered(catalog, task), None), (metrics, trials));
        of.entry(task.tenant).or_default().insert(task.name.clone(), view);
    }
    for task in &catalog.tasks {
        let granted: Vec<&Grant> = grants.iter().filter(|grant| grant.task == task.id).collect();
        if granted.is_empty() {
            continue;
        }
        for tenant in catalog.tenants.iter().filter(|tenant| tenant.id != task.tenant) {
            let names = granted.iter().filter(|grant| grant.to.is_none_or(|to| to == tenant.id));
            let names: BTreeSet<&str> = names.map(|grant| grant.name.as_str()).collect();
            if !catalog.models_of(task.id).any(|model| names.contains(model.name.as_str())) {
                continue;
            }
            let tasks = of.entry(tenant.id).or_default();
            if !tasks.contains_key(&task.name) {
                // Counted beside the owner's own: how much that asks is not theirs to see, nor the other way round.
                let counted = format!("{} for {}", metered(catalog, task), tenant.name);
                let view =
                    task_view(catalog, (task, known(task)), (counted, Some(&names)), (metrics, trials));
                tasks.insert(task.name.clone(), view);
            }
        }
    }
    of.into_iter().map(|(tenant, tasks)| (tenant, Arc::new(tasks))).collect()
}

/// What metrics, and whatever shows all tenants' tasks, call a task: names are unique in a tenant only.
pub(crate) fn metered(catalog: &Catalog, task: &Task) -> String {
    let owner = catalog.tenants.iter().find(|tenant| tenant.id == task.tenant);
    match owner.filter(|owner| owner.id != TenantId::DEFAULT) {
        Some(owner) => format!("{}/{}", owner.name, task.name),
        None => task.name.clone(),
    }
}

fn task_view(
    catalog: &Catalog,
    (task, info): (&Task, Option<&TaskInfo>),
    (metered, only): (String, Option<&BTreeSet<&str>>),
    (metrics, trials): (&Metrics, &Trials),
) -> TaskView {
    let seen = |model: &&Model| only.is_none_or(|names| names.contains(model.name.as_str()));
    let mut models: Vec<Arc<Model>> =
        catalog.models_of(task.id).filter(seen).cloned().map(Arc::new).collect();
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
                metrics: metrics.variant(&metered, &variant.name),
                served: metrics.served(&metered, variant.id.0),
                variant: variant.clone(),
            });
        }
    }
    variants.sort_by_key(|view| view.variant.ordinal);
    let at = |(at, label): (usize, &String)| Some((label.clone(), u16::try_from(at).ok()?));
    let labels = task.labels.iter().enumerate().filter_map(at).collect();
    let defaults = catalog.defaults();
    let trial = trials.of(task.id, &defaults);
    let defaults = models.iter().map(|model| model.id).filter(|id| defaults.contains(id)).collect();
    let dimension = catalog.spaces.iter().find(|space| space.id == task.default_space);
    let dimension = dimension.and_then(|space| match space.kind {
        SpaceKind::Embedding { dimension } => Some(dimension),
        SpaceKind::Labels { .. } | SpaceKind::Tensor { .. } => None,
    });
    let signature = Signature::of(task, dimension);
    let metrics = metrics.task(&metered);
    let among = only.map(|_| variants.iter().map(|view| view.variant.ordinal).collect());
    TaskView { task: task.clone(), models, defaults, variants, labels, metrics, among, signature, trial }
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
    /// For those who change something in it: only whose it is.
    pub(crate) fn owned(&self) -> Result<&Self, ApiError> {
        if self.among.is_none() {
            return Ok(self);
        }
        let message =
            format!("task {:?} belongs to another tenant; you may ask it and not change it", self.task.name);
        Err(ApiError::new(http::StatusCode::FORBIDDEN, "not_yours", message))
    }

    /// The position of a label.
    pub(crate) fn label(&self, label: &str) -> Option<u16> {
        self.labels.get(label).copied()
    }

    pub(crate) fn variant(&self, id: VariantId) -> Option<&VariantView> {
        self.variants.iter().find(|view| view.variant.id == id)
    }

    /// In which output space goals are answered: that of what they pin, else the default one.
    pub(crate) fn space_of(&self, goals: &Goals) -> modelless_types::SpaceId {
        let variant = goals.variant.and_then(|id| self.variant(id)).map(|view| view.model.space);
        let model =
            || self.models.iter().find(|model| Some(model.id) == goals.model).map(|model| model.space);
        variant.or_else(model).unwrap_or(self.task.default_space)
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
        Ok(Goals { among: self.among, ..given.resolved(model, variant) })
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

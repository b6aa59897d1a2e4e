//! Shared memory of clients on this machine, as Triton's extension `system_shared_memory` has it: a client registers a part of an object
//! in `/dev/shm` under a name, and then says of a tensor where it lies in there instead of sending it.
//!
//! Nothing is mapped. Inputs are copied out and outputs copied in by `pread` and `pwrite`, with their bounds checked each time, so
//! a client that cuts its object short or writes into it meanwhile gets a refusal or nonsense of its own making, and nobody else
//! notices ([docs/adr/0181](../../../docs/adr/0181-regions-are-copied-never-mapped.md)).
//!
//! What may be opened, and by whom, is [`memory`]'s and [`peer`]'s business; here is who has which region.

mod memory;
mod peer;

pub(crate) use peer::Ends;

use crate::access::Caller;
use crate::core::Core;
use crate::errors::ApiError;
use crate::http::body::Held;
use crate::oip::Output;
use crate::oip::request::Request;
use crate::suggest::excerpt;
use bytes::Bytes as Buffer;
use http::StatusCode;
use memory::Memory;
use modelless_types::{AppId, TenantId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// Regions of all together: each holds a file open.
pub(crate) const REGIONS_MAX: usize = 512;
/// Regions of one application.
const OF_ONE_MAX: usize = 128;
/// Regions of one tenant, so that two are needed at least to leave none to others.
const OF_TENANT_MAX: usize = 256;
/// Bytes of the regions of one application: what they keep from going away while they are registered.
const BYTES_MAX: u64 = 16 << 30;
/// Registrations that are looked at side by side: each reads the table of all sockets, and whoever reaches the server may ask for it.
const LOOKING: usize = 2;
/// Of a region's name.
const NAME_MAX: usize = 256;

/// Where a tensor lies, as a request says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Area {
    /// The name it was registered by.
    pub(crate) region: String,
    /// From the region's begin.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Area {
    /// Of what a tensor's parameters say, if they name a region.
    pub(crate) fn of(
        tensor: &str,
        region: Option<String>,
        (offset, bytes): (Option<u64>, Option<u64>),
    ) -> Result<Option<Self>, ApiError> {
        let Some(region) = region else { return Ok(None) };
        let bytes = bytes.ok_or_else(|| {
            let message =
                format!("{} is in shared memory, and `shared_memory_byte_size` is missing", excerpt(tensor));
            ApiError::malformed(message)
        })?;
        Ok(Some(Self { region, offset: offset.unwrap_or(0), bytes }))
    }
}

/// Room for an output.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    area: Area,
    memory: Arc<Memory>,
}

/// A region as its owner is shown it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Region {
    pub(crate) name: String,
    /// The object's name.
    pub(crate) key: String,
    /// From the object's begin.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Whose a region is. Keys of an application come and go; another application of the same tenant is somebody else.
type Owner = (TenantId, AppId);

/// All that are registered.
#[derive(Debug)]
pub(crate) struct Regions {
    kept: Mutex<BTreeMap<(Owner, String), Arc<Memory>>>,
    /// Places of those who look for whose a connection is.
    looking: Semaphore,
}

impl Default for Regions {
    fn default() -> Self {
        Self { kept: Mutex::default(), looking: Semaphore::new(LOOKING) }
    }
}

/// Whether any is served, said before anything else.
pub(crate) fn switched_on(core: &Core) -> Result<(), ApiError> {
    if core.config.shared_memory { Ok(()) } else { Err(off()) }
}

fn off() -> ApiError {
    let message = "shared memory is not taken here; send tensors in the body, or have the server started with --shared-memory";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "no_shared_memory", message)
}

/// What a GPU's memory is asked for.
pub(crate) fn no_gpus() -> ApiError {
    let message =
        "memory of GPUs is not taken here; send tensors in the body, or by the system's shared memory";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "no_shared_memory", message)
}

impl Regions {
    fn kept(&self) -> MutexGuard<'_, BTreeMap<(Owner, String), Arc<Memory>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of an application, or the one that is named.
    pub(crate) fn of(&self, caller: &Caller, name: Option<&str>) -> Result<Vec<Region>, ApiError> {
        let owner = owner(caller);
        let kept = self.kept();
        let own = kept.iter().filter(|((of, _), _)| *of == owner);
        let shown = |((_, name), memory): (&(Owner, String), &Arc<Memory>)| Region {
            name: name.clone(),
            key: memory.key.clone(),
            offset: memory.offset,
            bytes: memory.bytes,
        };
        let all: Vec<Region> =
            own.filter(|((_, of), _)| name.is_none_or(|name| of == name)).map(shown).collect();
        match name {
            Some(name) if all.is_empty() => Err(unknown(name)),
            _ => Ok(all),
        }
    }

    /// Registers a part of an object that belongs to the user at the other end of this connection.
    pub(crate) async fn register(
        &self,
        caller: &Caller,
        ends: Option<Ends>,
        region: Region,
    ) -> Result<(), ApiError> {
        check_name(&region.name)?;
        let ends = ends.ok_or_else(peer::stranger)?;
        let Region { name, key, offset, bytes } = region;
        let failed =
            || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the region could not be opened");
        let _place = self.looking.acquire().await.map_err(|_| failed())?;
        let opened = tokio::task::spawn_blocking(move || {
            let user = ends.user()?;
            Memory::open(&key, (offset, bytes), user)
        });
        let memory = opened.await.map_err(|_| failed())??;
        self.put(owner(caller), name, memory)
    }

    fn put(&self, owner: Owner, name: String, memory: Memory) -> Result<(), ApiError> {
        let mut kept = self.kept();
        let own = || kept.iter().filter(|((of, _), _)| *of == owner);
        if own().any(|((_, known), _)| *known == name) {
            let message = format!("there is a region {} already; unregister it first", excerpt(&name));
            return Err(ApiError::new(StatusCode::CONFLICT, "region_exists", message));
        }
        let of_tenant = kept.keys().filter(|((tenant, _), _)| *tenant == owner.0).count();
        let (count, bytes) = (own().count(), own().map(|(_, memory)| memory.bytes).sum::<u64>());
        let full = if kept.len() >= REGIONS_MAX {
            format!("there are {REGIONS_MAX} regions here")
        } else if count >= OF_ONE_MAX {
            format!("your application has {OF_ONE_MAX} regions")
        } else if of_tenant >= OF_TENANT_MAX {
            format!("your tenant has {OF_TENANT_MAX} regions")
        } else if bytes.saturating_add(memory.bytes) > BYTES_MAX {
            format!("your application's regions would have more than {BYTES_MAX} bytes together")
        } else {
            kept.insert((owner, name), Arc::new(memory));
            return Ok(());
        };
        let message = format!("{full}, which is the limit; unregister some");
        Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_regions", message))
    }

    /// Forgets one, or all of the application where none is named. One that is not there is forgotten already, as Triton has it. Requests at
    /// hand end with what they began with.
    pub(crate) fn unregister(&self, caller: &Caller, name: Option<&str>) {
        let owner = owner(caller);
        self.kept().retain(|(of, known), _| *of != owner || name.is_some_and(|name| name != known));
    }

    fn find(&self, caller: &Caller, area: &Area) -> Result<Arc<Memory>, ApiError> {
        let found = self.kept().get(&(owner(caller), area.region.clone())).map(Arc::clone);
        let memory = found.ok_or_else(|| unknown(&area.region))?;
        let end = area.offset.checked_add(area.bytes);
        if end.is_none_or(|end| end > memory.bytes) {
            let message = format!(
                "{} bytes from {} on are not within the region {}, which has {}",
                area.bytes,
                area.offset,
                excerpt(&area.region),
                memory.bytes
            );
            return Err(out_of(message));
        }
        Ok(memory)
    }
}

fn owner(caller: &Caller) -> Owner {
    (caller.tenant, caller.app)
}

fn check_name(name: &str) -> Result<(), ApiError> {
    if name.is_empty() || name.len() > NAME_MAX {
        let message = format!("a region's name has 1 to {NAME_MAX} bytes");
        return Err(ApiError::malformed(message));
    }
    Ok(())
}

fn unknown(name: &str) -> ApiError {
    let message = format!("there is no region {} of yours; register it first", excerpt(name));
    ApiError::not_found("unknown_region", message)
}

fn out_of(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "out_of_region", message)
}

/// Reads the inputs that lie in regions, and finds the room of outputs that are to go there. What is read counts as held until the request has
/// ended, and against the same limit as a body.
pub(crate) async fn resolve<'a>(
    core: &'a Core,
    caller: &Caller,
    request: &mut Request,
) -> Result<Option<Held<'a>>, ApiError> {
    let areas = || request.inputs.iter().filter_map(|input| input.area.as_ref());
    if areas().next().is_none() && request.outputs.iter().all(|output| output.area.is_none()) {
        return Ok(None);
    }
    switched_on(core)?;
    let bytes = areas().fold(0_u64, |sum, area| sum.saturating_add(area.bytes));
    let most = caller.max_body(core.config.max_body_bytes);
    if bytes > most {
        return Err(ApiError::too_large(most));
    }
    for output in &mut request.outputs {
        if let Some(area) = output.area.take() {
            let memory = core.regions.find(caller, &area)?;
            output.room = Some(Room { area, memory });
        }
    }
    let held = Held::of(core, caller, usize::try_from(bytes).unwrap_or(usize::MAX))?;
    for input in &mut request.inputs {
        if let Some(area) = input.area.take() {
            let memory = core.regions.find(caller, &area)?;
            input.data = Buffer::from(memory.read(&area).await?);
        }
    }
    Ok(Some(held))
}

/// Puts outputs into the rooms that were asked for them.
pub(crate) async fn deliver(outputs: &mut [Output]) -> Result<(), ApiError> {
    for output in outputs {
        let Some(Room { area, memory }) = &output.room else { continue };
        let bytes = output.data.len() as u64;
        if bytes > area.bytes {
            let message =
                format!("the output {} has {bytes} bytes, and there is room for {}", output.name, area.bytes);
            return Err(out_of(message));
        }
        memory.write(area, &output.data).await?;
        output.data = Vec::new();
    }
    Ok(())
}

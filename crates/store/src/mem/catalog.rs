//! What is added to the catalogue, and tasks that leave it.

use super::State;
use crate::check;
use crate::error::{Error, Result};
use crate::records::{NewSpace, NewVariant, Space};
use modelless_types::{ModelId, SpaceId, TaskId, TenantId, Variant, VariantId};

impl State {
    pub(super) fn remove_task(&mut self, id: TaskId) -> Result<()> {
        if self.catalog.models_of(id).next().is_some() {
            return Err(Error::task_in_use(id));
        }
        self.task(id)?;
        self.catalog.tasks.retain(|task| task.id != id);
        self.policies.retain(|of, _| of.task != Some(id));
        Ok(())
    }

    pub(super) fn space(&mut self, tenant: TenantId, new: NewSpace) -> Result<SpaceId> {
        let known = self.catalog.spaces.iter().find(|space| space.tenant == tenant && space.name == new.name);
        if let Some(known) = known {
            check::same_space(known, &new)?;
            return Ok(known.id);
        }
        let id = SpaceId(self.next_id("space")?);
        self.catalog.spaces.push(Space { id, tenant, name: new.name, kind: new.kind });
        Ok(id)
    }

    pub(super) fn add_variants(
        &mut self,
        task: TaskId,
        model: ModelId,
        new: Vec<NewVariant>,
    ) -> Result<Vec<Variant>> {
        let used = self.ordinals.get(&task).copied().unwrap_or_default();
        check::room(&self.task(task)?.name, used, new.len())?;
        let mut added = Vec::with_capacity(new.len());
        for (new, ordinal) in new.into_iter().zip(used..) {
            let models: Vec<ModelId> = self.catalog.models_of(task).map(|model| model.id).collect();
            let taken = |known: &Variant| known.name == new.name && models.contains(&known.model);
            if self.catalog.variants.iter().any(taken) {
                return Err(Error::exists("variant", new.name));
            }
            let ordinal = u8::try_from(ordinal).expect("there is room up to 256; this is a bug");
            let variant = new.numbered(VariantId(self.next_id("variant")?), model, ordinal);
            self.catalog.variants.push(variant.clone());
            added.push(variant);
        }
        self.ordinals.insert(task, used + added.len());
        Ok(added)
    }
}

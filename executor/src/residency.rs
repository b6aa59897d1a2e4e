//! Loading and unloading, as the machine asks for it.

use crate::catalogue::Known;
use crate::core::Handle;
use modelless_decision::worker::Event;
use modelless_engine::{EngineError, LoadSpec, Loaded};
use modelless_types::{DeviceIx, VariantId};

impl Handle {
    pub(crate) fn load(&self, device: DeviceIx, variant: VariantId) {
        let me = self.clone();
        self.spawn(async move {
            let event = match me.load_now(variant).await {
                Ok(loaded) => {
                    // What is shared with its runner is memory as well.
                    let memory = loaded.memory + loaded.slots;
                    Event::Loaded { device, variant, memory, took: loaded.load_time }
                }
                Err(why) => {
                    tracing::warn!(%variant, why, "a variant would not load");
                    Event::LoadFailed { device, variant, why }
                }
            };
            me.feed(event);
        });
    }

    async fn load_now(&self, variant: VariantId) -> Result<Loaded, String> {
        let known = self.catalogue().variant(variant).ok_or("it is not registered any longer")?;
        let lanes = self.config().lanes_for(known.settings.threads);
        let loaded = match self.engine().load(self.spec(variant, &known, lanes).await?).await {
            // It was lost to the machine without being lost to the engine: begin again.
            Err(EngineError::AlreadyLoaded(_)) => {
                self.engine().unload(variant).await.map_err(|err| err.to_string())?;
                self.engine().load(self.spec(variant, &known, lanes).await?).await
            }
            other => other,
        }
        .map_err(|err| err.to_string())?;
        if let Err(why) = known.check(&loaded.inputs, &loaded.outputs) {
            if let Err(error) = self.engine().unload(variant).await {
                tracing::warn!(%variant, %error, "a variant that does not fit its adapter would not unload");
            }
            return Err(why);
        }
        Ok(loaded)
    }

    pub(crate) async fn spec(
        &self,
        variant: VariantId,
        known: &Known,
        lanes: u16,
    ) -> Result<LoadSpec, String> {
        let (artefacts, digest) = (self.artefacts(), known.artefact.clone());
        // Opening verifies the digest, which reads the whole file.
        let opened = tokio::task::spawn_blocking(move || artefacts.open(&digest));
        let artefact = opened.await.map_err(|err| err.to_string())?.map_err(|err| err.to_string())?;
        Ok(LoadSpec {
            variant,
            model: known.model,
            artefact,
            settings: known.settings.clone(),
            lanes,
            expect: None,
        })
    }

    pub(crate) fn unload(&self, device: DeviceIx, variant: VariantId) {
        let me = self.clone();
        self.spawn(async move {
            match me.engine().unload(variant).await {
                Ok(freed) => tracing::debug!(%variant, memory = %freed.memory, "unloaded"),
                Err(EngineError::NotLoaded(_)) => {}
                Err(error) => tracing::warn!(%variant, %error, "a variant would not unload"),
            }
            me.feed(Event::Unloaded { device, variant });
        });
    }
}

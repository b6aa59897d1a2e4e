//! Clears away artefacts that no model names: what was sent for a registration that came to nothing, or belonged to a model
//! that was removed. What is young stays, as its registration may be on its way.

use super::identity;
use modelless_store::{Artefacts, Cleared, Error, Store};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

/// What was put or wanted within this time stays. Far longer than a registration may take.
pub(crate) const UNUSED: Duration = Duration::from_hours(24);
/// After a start.
const FIRST: Duration = Duration::from_mins(1);
/// A round takes far less; one whose database falls silent in the middle is tried again with the next.
const WITHIN: Duration = Duration::from_mins(10);
/// Between rounds.
const EVERY: Duration = Duration::from_hours(1);

/// Notes whose artefacts lie in a folder, before anything is put there.
pub(crate) async fn begin(store: &dyn Store, artefacts: &Artefacts) -> anyhow::Result<()> {
    let (id, artefacts) = (identity(store).await?, artefacts.clone());
    let alone = tokio::task::spawn_blocking(move || artefacts.used_by(&id)).await??;
    if !alone {
        tracing::info!(
            "artefacts that nobody names are left where they are: others have used this folder as well, or did before \
             that was noted (its file `stores`)"
        );
    }
    Ok(())
}

/// Looks soon and then every hour until stopped. What goes wrong is tried again with the next look.
pub(crate) async fn run(store: Arc<dyn Store>, artefacts: Artefacts, stop: CancellationToken) {
    let mut due = interval_at(Instant::now() + FIRST, EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = due.tick() => {}
        }
        let round = async {
            match timeout(WITHIN, clear(&*store, &artefacts, UNUSED)).await {
                Ok(cleared) => cleared,
                Err(_) => Err(anyhow::anyhow!("the store fell silent")),
            }
        };
        let cleared = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            cleared = round => cleared,
        };
        match cleared {
            Ok(Cleared { artefacts: 0, .. }) => {}
            Ok(Cleared { artefacts, bytes }) => tracing::info!(artefacts, bytes, "cleared away artefacts"),
            Err(error) => tracing::warn!(%error, "artefacts that nobody names were not cleared away"),
        }
    }
}

/// One round.
async fn clear(store: &dyn Store, artefacts: &Artefacts, unused: Duration) -> anyhow::Result<Cleared> {
    let id = identity(store).await?;
    let (named, artefacts) = (named(store).await?, artefacts.clone());
    Ok(tokio::task::spawn_blocking(move || artefacts.clear(&id, &named, unused)).await??)
}

/// Everything that a model needs.
async fn named(store: &dyn Store) -> Result<BTreeSet<String>, Error> {
    let catalog = store.catalog().await?;
    let mut named: BTreeSet<String> =
        catalog.variants.iter().map(|variant| variant.artefact.clone()).collect();
    for model in &catalog.models {
        named.extend(addresses(&model.adapter));
        let evidence = store.evidence(model.id).await?;
        named.extend(evidence.set.map(|set| set.artefact));
    }
    Ok(named)
}

/// Whatever looks like one, so that nothing is missed that an adapter of another version names.
fn addresses(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|c: char| !c.is_ascii_hexdigit());
    words.filter(|word| word.len() == 64).map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_store::{Evidence, MemStore, NewModel, NewTask, NewVariant, SetArtefact, Signed};
    use modelless_types::{
        AccuracyRule, Bytes, Engine, Goals, LiveRule, TaskKind, TenantId, TensorSpec, VariantSettings,
    };

    #[tokio::test]
    async fn what_a_model_needs_stays_until_the_model_is_gone() {
        let folder = modelless_testkit::temp_dir("clearing").unwrap();
        let artefacts = Artefacts::new(folder.path()).unwrap();
        let store = MemStore::new();
        begin(&store, &artefacts).await.unwrap();
        let put = |what: &str| artefacts.put(what.as_bytes()).unwrap().sha256;
        let [model, tokenizer, set, other] = ["model", "tokenizer", "set", "other"].map(put);
        let spec = |name: &str| TensorSpec {
            name: name.to_owned(),
            dtype: modelless_types::DType::Fp32,
            shape: vec![1],
        };
        let task = NewTask {
            tenant: TenantId::DEFAULT,
            name: "t".to_owned(),
            kind: TaskKind::Tensor,
            metric: "accuracy".to_owned(),
            accuracy_rule: AccuracyRule::Point,
            live_accuracy: LiveRule::default(),
            declared_accuracy: modelless_types::DeclaredRule::default(),
            labels: Vec::new(),
            inputs: vec![spec("x")],
            outputs: vec![spec("y")],
            space: None,
            defaults: Goals::default(),
            batching: None,
            cache: modelless_types::CacheFor::OFF,
            keep: modelless_types::KeepFor::ALWAYS,
            ahead: modelless_types::Ahead::default(),
            description: String::new(),
        };
        let task = store.create_task(task).await.unwrap();
        let variant = NewVariant {
            name: "v".to_owned(),
            settings: VariantSettings::new(Engine::Onnx, "fp32", 1),
            artefact: model.clone(),
            artefact_bytes: Bytes(5),
            profiles: Vec::new(),
        };
        let new = NewModel {
            task: task.id,
            tenant: TenantId::DEFAULT,
            name: "m".to_owned(),
            version: 1,
            architecture: String::new(),
            licence: String::new(),
            owner: String::new(),
            promote: false,
            by: Signed::default(),
            space: None,
            adapter: format!(r#"{{"tokens": {{"tokenizer": "{tokenizer}"}}}}"#),
            variants: vec![variant],
        };
        let evidence = SetArtefact { name: "s".to_owned(), artefact: set.clone() };
        let evidence = Evidence { set: Some(evidence), ..Evidence::default() };
        let registered = store.register_with(new, evidence).await.unwrap();
        let cleared = clear(&store, &artefacts, Duration::ZERO).await.unwrap();
        assert_eq!(cleared, Cleared { artefacts: 1, bytes: 5 });
        assert_eq!(artefacts.wanted(&other).unwrap(), None);
        for sha256 in [&model, &tokenizer, &set] {
            assert!(artefacts.wanted(sha256).unwrap().is_some());
        }
        store.remove_model(registered.model.id, true, Signed::default()).await.unwrap();
        assert_eq!(clear(&store, &artefacts, UNUSED).await.unwrap().artefacts, 0, "a while longer");
        assert_eq!(clear(&store, &artefacts, Duration::ZERO).await.unwrap().artefacts, 3);
        // Another store in the same folder.
        assert_eq!(put("other"), other);
        let second = MemStore::new();
        begin(&second, &artefacts).await.unwrap();
        for store in [&store, &second] {
            assert_eq!(clear(store, &artefacts, Duration::ZERO).await.unwrap().artefacts, 0);
        }
    }
}

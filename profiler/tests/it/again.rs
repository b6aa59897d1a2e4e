//! What a second attempt to register does, and does not do again.

use crate::fake::{FIRST, echo, package, profiler};
use crate::{registrar, write_set};
use modelless_engine::FakeEngine;
use modelless_engine::fake::FakeModel;
use modelless_profiler::{
    Error, Known, LabelledSet, NewRegistration, NewRegistrationVariant, Progress, Registrar,
};
use modelless_store::{SetArtefact, Signed};
use modelless_types::{Task, VariantId};
use std::sync::Arc;

/// Two variants, measured one after the other.
fn wanted(set: &str, artefacts: [&str; 2], package: &modelless_profiler::Package) -> NewRegistration {
    let variant = |(name, artefact): (&str, &str)| NewRegistrationVariant {
        name: name.to_owned(),
        settings: package.models[0].variants[0].settings(),
        artefact: artefact.to_owned(),
    };
    NewRegistration {
        name: "echo".to_owned(),
        version: 1,
        architecture: String::new(),
        licence: String::new(),
        owner: String::new(),
        promote: false,
        by: Signed::default(),
        space: None,
        adapter: package.models[0].adapter.clone(),
        declared: None,
        set: Some(SetArtefact { name: "four".to_owned(), artefact: set.to_owned() }),
        variants: ["one", "two"].into_iter().zip(artefacts).map(variant).collect(),
    }
}

/// Which variants were loaded to be measured.
async fn attempt(
    registrar: &Registrar,
    task: &Task,
    set: &LabelledSet,
    wanted: NewRegistration,
) -> (Result<(), Error>, Vec<String>) {
    let mut loaded = Vec::new();
    let mut report = |name: &str, progress| {
        if progress == Progress::Loading {
            loaded.push(name.to_owned());
        }
    };
    let ended = registrar.model(task, wanted, (Some(set), &Known::new()), &mut report).await;
    (ended.map(drop), loaded)
}

#[tokio::test(start_paused = true)]
async fn what_was_measured_before_a_registration_failed_is_not_measured_again() {
    let engine = Arc::new(FakeEngine::new());
    let second = VariantId(FIRST.0 - 1);
    engine.behave(FIRST, echo());
    engine.behave(second, FakeModel { refuses: Some("no such operator".to_owned()), ..echo() });
    let (registrar, _artefacts) = registrar(profiler(&engine));
    let (folder, package) = package();
    let task = registrar.task(&package.task).await.unwrap();
    let set = package.open_set(&task).unwrap().unwrap();
    let put = |what: &[u8]| registrar.artefacts.put(what).unwrap().sha256;
    let (packed, one, two, third) = (put(&set.pack().unwrap()), put(b"one"), put(b"two"), put(b"three"));
    let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();

    let (ended, loaded) = attempt(&registrar, &task, &set, wanted(&packed, [&one, &two], &package)).await;
    assert!(ended.unwrap_err().to_string().contains("no such operator"));
    assert_eq!(loaded, names(&["one", "two"]));
    assert!(registrar.store.catalog().await.unwrap().models.is_empty(), "nothing is half registered");

    // The second one is mended. What the engine is asked for next is known as the next number.
    engine.behave(VariantId(second.0 - 1), echo());
    let (ended, loaded) = attempt(&registrar, &task, &set, wanted(&packed, [&one, &two], &package)).await;
    ended.unwrap();
    assert_eq!(loaded, names(&["two"]));
    let catalog = registrar.store.catalog().await.unwrap();
    let accuracy = |at: usize| catalog.variants[at].profiles[0].accuracy.value.ppm();
    assert_eq!([accuracy(0), accuracy(1)], [750_000, 750_000]);

    // Whatever it depends on is another: it is measured anew.
    let model = catalog.models[0].id;
    registrar.store.remove_model(model, true, Signed::default()).await.unwrap();
    for number in 2..9 {
        engine.behave(VariantId(FIRST.0 - number), echo());
    }
    let (ended, loaded) = attempt(&registrar, &task, &set, wanted(&packed, [&third, &two], &package)).await;
    ended.unwrap();
    assert_eq!(loaded, names(&["one"]), "another artefact");
    let remove = async || {
        let model = registrar.store.catalog().await.unwrap().models[0].id;
        registrar.store.remove_model(model, true, Signed::default()).await.unwrap();
    };
    remove().await;
    write_set(folder.path(), [0, 50, 100, 255], [0, 0, 1, 1]);
    let set = package.open_set(&task).unwrap().unwrap();
    let packed = put(&set.pack().unwrap());
    let (ended, loaded) = attempt(&registrar, &task, &set, wanted(&packed, [&one, &two], &package)).await;
    ended.unwrap();
    assert_eq!(loaded, names(&["one", "two"]), "another labelled set");
    remove().await;
    let again = wanted(&packed, [&one, &two], &package);
    let (ended, loaded) = attempt(&registrar, &task, &set, again.clone()).await;
    assert_eq!((ended.unwrap(), loaded), ((), names(&[])), "nothing is another");

    // What is known well is as good for whoever has another budget, such as what other models of one command left.
    remove().await;
    let budget = std::time::Duration::from_hours(1);
    let hurried = Registrar { profiler: profiler(&engine).within(Some(budget)), ..registrar.clone() };
    let (ended, loaded) = attempt(&hurried, &task, &set, again.clone()).await;
    assert_eq!((ended.unwrap(), loaded), ((), names(&[])), "another budget");

    // Another version of the engine, which whoever measures next learns of.
    remove().await;
    engine.upgrade();
    engine.behave(second, echo());
    let upgraded = Registrar { profiler: profiler(&engine), ..registrar.clone() };
    let (ended, loaded) = attempt(&upgraded, &task, &set, again).await;
    ended.unwrap();
    assert_eq!(loaded, names(&["one", "two"]), "another version of the engine");
}

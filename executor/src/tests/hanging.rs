//! A model that hangs beside others on the only lane.

use super::*;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::time::{Instant, timeout};

/// Another model of the task, with one variant, in memory.
pub(super) async fn another(bed: &mut Bed) -> Variant {
    let artefact = (bed.variants[0].artefact.clone(), bed.variants[0].artefact_bytes);
    let variant = offered(bed, "steady", artefact).await;
    bed.send(10_000, LONG, [variant.ordinal].into_iter().collect(), distinct(10_000));
    assert_eq!(bed.wrong_of(1).await, 0);
    variant
}

/// Another model of the task, with one variant, that the node knows.
pub(super) async fn offered(bed: &Bed, name: &str, (artefact, artefact_bytes): (String, Bytes)) -> Variant {
    let variant = NewVariant {
        name: name.into(),
        settings: VariantSettings::new(EngineKind::Onnx, "fp32", 8),
        artefact,
        artefact_bytes,
        profiles: vec![profile(850_000, 100.0)],
    };
    let model = NewModel {
        task: bed.task,
        tenant: TenantId::DEFAULT,
        name: name.into(),
        version: 1,
        architecture: "none".into(),
        licence: "Apache-2.0".into(),
        owner: String::new(),
        promote: false,
        by: modelless_store::Signed::default(),
        space: None,
        adapter: r#"{"kind": "tensor"}"#.into(),
        variants: vec![variant],
    };
    let registered = bed.store.register_model(model).await.expect("a model");
    let variant = registered.variants.into_iter().next().expect("one");
    bed.engine.behave(variant.id, echo());
    bed.ward.behave(variant.id, echo());
    bed.handle.catalog_changed();
    let offered = |status: &modelless_wire::NodeStatus| {
        status.info.offers.iter().any(|offer| offer.ordinal == variant.ordinal)
    };
    timeout(LONG, bed.handle.status().wait_for(offered)).await.expect("in time").expect("still there");
    variant
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_hangs_holds_the_only_lane_up_for_no_longer_than_until_it_is_suspected() {
    const HUNG: Duration = Duration::from_millis(300);
    let hung_after = Micros(u64::try_from(HUNG.as_micros()).expect("short"));
    let config = Config { hung_after, back_off: Micros::from_millis(10), ..config() };
    let mut bed = bed_with(Setup { config, ..Setup::default() }).await;
    let steady = another(&mut bed).await;
    bed.hang();
    let on_the_lane = Arc::new(AtomicU32::new(0));
    for variant in &bed.variants {
        let count = Arc::clone(&on_the_lane);
        let counted = move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
            None
        };
        let forever: Arc<dyn Fn(u32) -> Duration + Send + Sync> = Arc::new(|_| Duration::from_hours(1));
        let hangs = FakeModel { latency: forever, faults: Arc::new(counted), ..echo() };
        bed.engine.behave(variant.id, hangs.clone());
        bed.ward.behave(variant.id, FakeModel { faults: echo().faults, ..hangs });
    }
    // Asked for the whole time, ten times as long as it takes to be hung.
    let (hangs, others) = ([bed.variants[0].ordinal], [steady.ordinal]);
    let (mut slow, mut pace) = (0, tokio::time::interval(HUNG / 10));
    for key in 0..100 {
        pace.tick().await;
        bed.send(1_000 + key, LONG, hangs.into_iter().collect(), distinct(1_000 + key));
        let asked = Instant::now();
        bed.send(key, LONG, others.into_iter().collect(), distinct(key));
        loop {
            match bed.hear().await {
                Body::Answer { key: answered, .. } if answered == QueryKey(key) => break,
                Body::Refused { key: refused, .. } if refused.0 >= 1_000 => {}
                other @ (Body::Answer { .. }
                | Body::Refused { .. }
                | Body::BadInput { .. }
                | Body::HandedBack { .. }
                | Body::Declined { .. }
                | Body::Claim { .. }
                | Body::Report) => panic!("{other:?}"),
            }
        }
        slow += u32::from(asked.elapsed() >= HUNG / 2);
    }
    // The one that hung, and maybe one that was handed over behind it and never ran.
    let on_the_lane = on_the_lane.load(Ordering::SeqCst);
    assert!((1..=2).contains(&on_the_lane), "{on_the_lane}: once it is known to hang it is tried elsewhere");
    assert_eq!(slow, 0, "of 100 waited until it was known to hang");
    let stood_back = [&bed.engine, &bed.ward].map(|engine| engine.stood_back(bed.variants[0].id));
    assert!(stood_back.iter().all(|times| *times >= 1), "{stood_back:?}: on its lane and alone");
    bed.end().await;
}

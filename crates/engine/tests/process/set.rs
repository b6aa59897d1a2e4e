//! Several engines behind one.

use super::beside::{a_moment, threads};
use super::conformance::spec_of;
use super::*;
use modelless_engine::{Availability, BatchError, EngineEvent, EngineSet, ProcessConfig};
use modelless_types::{Micros, Processor};

fn set() -> EngineSet {
    EngineSet::new(|kind| match kind {
        Kind::Onnx | Kind::Openvino => Ok(config_of(kind)),
        Kind::Torch | Kind::Remote => Err(format!("no {kind} in this test")),
    })
    .unwrap()
}

async fn echo(engines: &EngineSet, n: u32) -> Result<Vec<u8>, BatchError> {
    let mut slot = engines.slot(VariantId(n), 0, 1).unwrap();
    slot.input_mut(0).copy_from_slice(&bytes_f32([1.0, 2.0, 3.0, 4.0]));
    let (sender, receiver) = oneshot::channel();
    engines.submit(slot, LIMIT, Box::new(move |result| drop(sender.send(result))));
    receiver.await.unwrap().map(|outputs| outputs.output(0).to_vec())
}

#[tokio::test]
async fn a_variant_goes_to_the_engine_its_settings_name() {
    let engines = set();
    engines.load(spec_of(Kind::Onnx, 1, "echo")).await.unwrap();
    engines.load(spec_of(Kind::Openvino, 2, "echo")).await.unwrap();
    for n in [1, 2] {
        assert_eq!(echo(&engines, n).await.unwrap(), bytes_f32([1.0, 2.0, 3.0, 4.0]));
    }
    for (kind, n) in [(Kind::Onnx, 1), (Kind::Openvino, 2)] {
        let runners = engines.get(kind).unwrap().runners();
        assert_eq!(
            runners.iter().map(|runner| runner.variants.as_slice()).collect::<Vec<_>>(),
            [[VariantId(n)]]
        );
    }
    assert!(engines.unload(VariantId(1)).await.unwrap().process_ended);
    assert_eq!(engines.slot(VariantId(1), 0, 1).unwrap_err(), EngineError::NotLoaded(VariantId(1)));
    assert_eq!(engines.unload(VariantId(1)).await, Err(EngineError::NotLoaded(VariantId(1))));
    engines.shutdown().await;
    assert!(engines.get(Kind::Openvino).unwrap().runners().is_empty());
}

#[tokio::test]
async fn a_load_gives_way_to_what_another_engine_serves() {
    let engines = EngineSet::new(|kind| match kind {
        Kind::Onnx => Ok(ProcessConfig {
            command: vec![runner(), "misbehave".into(), "hang".into()],
            load_limit: Micros::from_millis(700),
            spare: false,
            ..config_of(kind)
        }),
        Kind::Openvino => Ok(config_of(kind)),
        Kind::Torch | Kind::Remote => Err(format!("no {kind} in this test")),
    })
    .unwrap();
    engines.load(spec_of(Kind::Openvino, 1, "echo")).await.unwrap();
    let loading = engines.load(spec_of(Kind::Onnx, 2, "echo"));
    tokio::pin!(loading);
    let mut gave_way = false;
    let error = loop {
        tokio::select! {
            result = &mut loading => break result.unwrap_err(),
            () = a_moment() => {}
        }
        let loader = engines.get(Kind::Onnx).unwrap().runners();
        if let Some(pid) = loader.first().and_then(|runner| runner.pid) {
            gave_way |= !threads(pid).0.is_empty();
        }
    };
    assert!(matches!(error, EngineError::Stuck { .. }), "{error}");
    assert!(gave_way);
    assert!(echo(&engines, 1).await.is_ok());
}

#[tokio::test]
async fn variants_whose_numbers_look_alike_are_told_apart() {
    let engines = set();
    let far = 1 + 256 * 7;
    engines.load(spec_of(Kind::Onnx, 1, "echo")).await.unwrap();
    engines.load(spec_of(Kind::Openvino, far, "echo")).await.unwrap();
    for n in [1, far, 1] {
        assert!(echo(&engines, n).await.is_ok(), "{n}");
    }
    engines.unload(VariantId(far)).await.unwrap();
    assert!(echo(&engines, 1).await.is_ok());
    assert_eq!(engines.slot(VariantId(far), 0, 1).unwrap_err(), EngineError::NotLoaded(VariantId(far)));
}

#[tokio::test]
async fn an_engine_that_is_not_there_says_so_and_harms_no_other() {
    let engines = set();
    let error = engines
        .load(LoadSpec { settings: VariantSettings::new(Kind::Torch, "fp32", 8), ..spec(1, "echo.onnx") });
    let error = error.await.unwrap_err();
    assert_eq!(error, EngineError::Unavailable("torch is not available: no torch in this test".into()));
    let ready: Vec<(Kind, bool)> = engines
        .engines()
        .await
        .into_iter()
        .map(|(kind, known)| (kind, matches!(known, Availability::Ready { .. })))
        .collect();
    assert_eq!(
        ready,
        [(Kind::Onnx, true), (Kind::Openvino, true), (Kind::Torch, false), (Kind::Remote, false)]
    );
    assert!(matches!(engines.check().await, Availability::Ready { .. }));
    let none = EngineSet::new(|kind| Err(format!("no {kind}"))).unwrap();
    assert!(
        matches!(none.check().await, Availability::Unavailable { reason } if reason.contains("torch: no torch"))
    );
}

#[tokio::test]
async fn a_variant_for_a_gpu_never_runs_elsewhere_and_says_what_is_missing() {
    let on_gpu = || {
        let settings =
            VariantSettings { processor: Processor::Cuda(0), ..VariantSettings::new(Kind::Onnx, "fp32", 8) };
        LoadSpec { settings, ..spec(1, "echo.onnx") }
    };
    let error = set().load(on_gpu()).await.unwrap_err();
    assert!(matches!(&error, EngineError::Unavailable(why) if why.contains("no GPU")), "{error}");
    // Where GPUs may be used, its runner is apart from those of other models, and looks for the library's part itself.
    let engines = EngineSet::new(|kind| match kind {
        Kind::Onnx => Ok(ProcessConfig { gpu: true, ..config_of(Kind::Onnx) }),
        Kind::Openvino | Kind::Torch | Kind::Remote => Err(format!("no {kind} in this test")),
    })
    .unwrap();
    engines.load(spec_of(Kind::Onnx, 2, "echo")).await.unwrap();
    let error = engines.load(on_gpu()).await.unwrap_err();
    assert!(
        matches!(&error, EngineError::Refused { why, .. } if why.contains("onnxruntime-gpu") || why.contains("no /dev/nvidia0")),
        "{error}"
    );
    assert!(echo(&engines, 2).await.is_ok(), "the others go on");
}

#[tokio::test]
async fn deaths_in_every_engine_come_out_of_one_channel() {
    let engines = set();
    let mut events = engines.events().unwrap();
    assert!(engines.events().is_none());
    for (kind, n) in [(Kind::Onnx, 1), (Kind::Openvino, 2)] {
        engines.load(spec_of(kind, n, "echo")).await.unwrap();
        crate::failures::signal(engines.get(kind).unwrap().runners()[0].pid.unwrap(), "KILL");
        let Some(EngineEvent::RunnerDied { variants, .. }) = events.recv().await else { panic!("no event") };
        assert_eq!(variants, [VariantId(n)]);
        assert_eq!(engines.slot(VariantId(n), 0, 1).unwrap_err(), EngineError::NotLoaded(VariantId(n)));
        engines.load(spec_of(kind, n, "echo")).await.unwrap();
        assert!(echo(&engines, n).await.is_ok());
    }
}

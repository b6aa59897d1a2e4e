//! What many do to one offline job at once, each as another process would.

use super::super::store_suite;
use super::{ALL, answer, at, failure, inputs, job, new, places, received, running};
use crate::backends::Backend;
use crate::samples::a_task;
use modelless_store::{Error, JobEnd, Store};
use modelless_types::JobState::{Cancelled, Done};
use modelless_types::{CostPer1k, Micros};
use std::sync::Arc;
use tokio::task::JoinSet;

store_suite!(
    of_many_takers_none_gets_what_another_got,
    of_many_who_end_the_same_inputs_each_input_has_one,
    of_two_who_end_the_last_two_inputs_one_sees_that_the_job_is_done,
    a_job_ends_once_whoever_ends_it_and_whoever_works_on_it,
    many_who_send_at_once_never_have_more_bytes_waiting_than_may,
);

async fn two(backend: &Backend) -> [Arc<dyn Store>; 2] {
    [backend.open().await, backend.open().await]
}

async fn of_many_takers_none_gets_what_another_got(backend: Backend) {
    let stores = two(&backend).await;
    let task = a_task(&*stores[0]).await.id;
    let id = running(&*stores[0], task, 2_000).await.id;
    let mut all = JoinSet::new();
    for nth in 0..8 {
        let store = Arc::clone(&stores[nth % 2]);
        all.spawn(async move {
            let holder = format!("taker {nth}");
            let mut mine = Vec::new();
            loop {
                let some = store.offline().take_job_inputs(id, &holder, (at(5), at(9)), (37, ALL)).await;
                let some = some.unwrap();
                if some.is_empty() {
                    return mine;
                }
                // In between some are given back, and some end: nobody may get those.
                let places = places(&some);
                let (back, keep) = places.split_at(places.len() / 5);
                store.offline().give_back_job_inputs(id, &holder, back.to_vec()).await.unwrap();
                let ended = keep.iter().map(|place| answer(*place, &holder, 6)).collect();
                store.offline().end_job_inputs(id, ended).await.unwrap();
                mine.extend_from_slice(keep);
            }
        });
    }
    let mut taken: Vec<u32> = all.join_all().await.into_iter().flatten().collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..2_000).collect::<Vec<_>>(), "each once");
    let done = job(&*stores[0], id).await;
    assert_eq!((done.state, done.done, done.bytes), (Done, 2_000, 0));
    assert_eq!((done.device, done.cost), (Micros(200_000), CostPer1k(40_000)));
}

async fn of_many_who_end_the_same_inputs_each_input_has_one(backend: Backend) {
    let stores = two(&backend).await;
    let task = a_task(&*stores[0]).await.id;
    let id = running(&*stores[0], task, 400).await.id;
    let mut all = JoinSet::new();
    for nth in 0..4_usize {
        let store = Arc::clone(&stores[nth % 2]);
        all.spawn(async move {
            // In different order, and with different ends.
            let mut parts: Vec<u32> = (0..8).collect();
            parts.rotate_left(nth * 2);
            for part in parts {
                let places = part * 50..(part + 1) * 50;
                let ended = places.map(|place| match nth {
                    0 => failure(place, 6),
                    _ => answer(place, &format!("{nth}"), 6),
                });
                store.offline().end_job_inputs(id, ended.collect()).await.unwrap();
            }
        });
    }
    all.join_all().await;
    let outputs = stores[1].offline().job_outputs(id, 0, (1_000, ALL)).await.unwrap();
    assert!(outputs.iter().map(|output| output.at).eq(0..400), "each has one end");
    let failed = outputs.iter().filter(|output| matches!(output.end, JobEnd::Failure { .. })).count();
    let done = job(&*stores[0], id).await;
    assert_eq!((done.state, done.failed as usize, done.done as usize), (Done, failed, 400 - failed));
    assert_eq!(done.device, Micros(u64::from(done.done) * 100), "each is paid for once");
    assert_eq!(done.bytes, 0);
}

async fn of_two_who_end_the_last_two_inputs_one_sees_that_the_job_is_done(backend: Backend) {
    let stores = two(&backend).await;
    let task = a_task(&*stores[0]).await.id;
    for _ in 0..20 {
        let id = running(&*stores[0], task, 2).await.id;
        let end = |nth: usize, place| stores[nth].offline().end_job_inputs(id, vec![answer(place, "", 6)]);
        let (a, b) = tokio::join!(end(0, 0), end(1, 1));
        let seen = [a.unwrap(), b.unwrap()];
        assert_eq!(seen.iter().filter(|job| job.state == Done).count(), 1, "{seen:?}");
        assert_eq!(job(&*stores[0], id).await.state, Done);
    }
}

async fn a_job_ends_once_whoever_ends_it_and_whoever_works_on_it(backend: Backend) {
    let stores = two(&backend).await;
    let task = a_task(&*stores[0]).await.id;
    for _ in 0..10 {
        let id = running(&*stores[0], task, 200).await.id;
        let work = async {
            for part in 0..4 {
                let taken = stores[0].offline().take_job_inputs(id, "a", (at(5), at(9)), (50, ALL)).await;
                let ended = taken.unwrap().iter().map(|input| answer(input.at, "", 10 + part)).collect();
                stores[0].offline().end_job_inputs(id, ended).await.unwrap();
            }
        };
        let cancel = async {
            // Once some of it is done, so that it comes in between.
            while job(&*stores[1], id).await.done == 0 {
                tokio::task::yield_now().await;
            }
            stores[1].offline().end_job(id, Cancelled, "", at(99)).await.unwrap()
        };
        let ((), ended) = tokio::join!(work, cancel);
        assert_eq!(job(&*stores[0], id).await, ended, "nothing follows the end");
        let outputs = stores[0].offline().job_outputs(id, 0, (1_000, ALL)).await.unwrap();
        assert_eq!((outputs.len(), ended.bytes), (ended.done as usize, 0), "{ended:?}");
        let whole = ended.state == Done && ended.done == 200;
        assert!(whole || ended.state == Cancelled && ended.done < 200, "{ended:?}");
    }
}

async fn many_who_send_at_once_never_have_more_bytes_waiting_than_may(backend: Backend) {
    /// What four jobs count: ten inputs of ten bytes each, and 256 for each.
    const FOUR: u64 = 4 * 10 * (10 + 256);
    let stores = two(&backend).await;
    let task = a_task(&*stores[0]).await.id;
    received(&*stores[0], task, 10).await;
    for _ in 0..8 {
        let mut all = JoinSet::new();
        for nth in 0..6_u32 {
            let store = Arc::clone(&stores[nth as usize % 2]);
            let job = store.offline().add_job(new(task, 10)).await.unwrap().id;
            all.spawn(async move {
                let sent = store.offline().add_job_inputs(job, inputs(0..10), FOUR).await;
                if let Err(error) = &sent {
                    assert!(matches!(error, Error::TooManyBytes { limit: FOUR, .. }), "{error}");
                }
                (job, sent.is_ok())
            });
        }
        let sent = all.join_all().await;
        assert_eq!(sent.iter().filter(|(_, sent)| *sent).count(), 3, "{sent:?}");
        for (job, _) in sent {
            stores[0].offline().end_job(job, Cancelled, "", at(9)).await.unwrap();
        }
    }
}

//! Bounds of offline jobs, and in which order they are listed and forgotten.

use super::super::{missing, refused, store_suite};
use super::{ALL, answer, at, failure, input, inputs, job, new, received, running, take};
use crate::backends::Backend;
use crate::samples::a_task;
use modelless_store::{
    Error, JOB_INPUTS_AT_ONCE, JOB_INPUTS_MAX, JOBS_KEPT, JOBS_OPEN_MAX, JobInput, NewJob,
};
use modelless_types::JobState::{Cancelled, Done, Receiving, Running};
use modelless_types::{AppId, CostPer1k, JobId, TaskId, TenantId};
use sqlx::{Connection as _, PgConnection, Row as _, SqliteConnection};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

store_suite!(
    nonsense_is_refused,
    a_tenant_has_so_many_open_jobs_and_no_more,
    bytes_that_wait_are_bounded_over_all_jobs_of_a_tenant,
    jobs_are_listed_newest_first_and_running_ones_by_deadline,
    only_a_job_that_ended_is_removed_and_with_it_its_outputs,
    jobs_that_ended_long_ago_are_forgotten_and_those_that_were_left_are_ended,
    of_jobs_that_ended_the_newest_are_kept,
    a_large_job_is_ended_and_removed_a_part_at_a_time,
    bodies_are_forgotten_when_their_inputs_end_and_outputs_with_their_job,
);

async fn nonsense_is_refused(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let good = || new(task, 3);
    for bad in [
        NewJob { inputs: 0, ..good() },
        NewJob { inputs: JOB_INPUTS_MAX + 1, ..good() },
        NewJob { name: "x".repeat(201), ..good() },
        NewJob { goals: "no JSON".to_owned(), ..good() },
        NewJob { goals: format!("\"{}\"", "x".repeat(10_000)), ..good() },
        NewJob { made: at(u64::MAX), ..good() },
        NewJob { deadline: Some(at(u64::MAX)), ..good() },
        NewJob { estimate: Some(CostPer1k(u64::MAX)), ..good() },
    ] {
        refused(store.offline().add_job(bad).await);
    }
    missing(store.offline().add_job(NewJob { task: TaskId(99), ..good() }).await);
    missing(store.offline().add_job(NewJob { app: AppId(99), ..good() }).await);
    missing(store.offline().add_job(NewJob { tenant: TenantId(99), ..good() }).await);

    let job = store.offline().add_job(NewJob { name: String::new(), ..good() }).await.unwrap().id;
    let many = vec![input(0); JOB_INPUTS_AT_ONCE + 1];
    refused(store.offline().add_job_inputs(job, many, ALL).await);
    for bad in [
        JobInput { name: String::new(), ..input(0) },
        JobInput { name: "x".repeat(1_001), ..input(0) },
        JobInput { name: "a\nb".to_owned(), ..input(0) },
        JobInput { media: Some(String::new()), ..input(0) },
    ] {
        refused(store.offline().add_job_inputs(job, vec![bad], ALL).await);
    }
    let beyond = store.offline().add_job_inputs(job, vec![input(3)], ALL).await.expect_err("it has three");
    assert!(matches!(beyond, Error::NoSuchInput { inputs: 3, at: 3, .. }), "{beyond}");
    let too_many: Vec<u32> = (0..=1_000).collect();
    refused(store.offline().give_back_job_inputs(job, "a", too_many.clone()).await);
    refused(store.offline().give_back_job_inputs(job, "", vec![0]).await);
    let ended = too_many.into_iter().map(|place| failure(place, 1)).collect();
    refused(store.offline().end_job_inputs(job, ended).await);
    refused(store.offline().end_job_inputs(job, vec![failure(0, u64::MAX)]).await);
    refused(store.offline().take_job_inputs(job, "", (at(1), at(2)), (1, 1)).await);
    refused(store.offline().take_job_inputs(job, "a", (at(1), at(u64::MAX)), (1, 1)).await);
    refused(store.offline().start_job(job, at(u64::MAX)).await);
    refused(store.offline().prune_jobs(at(u64::MAX), at(1)).await);
}

async fn a_tenant_has_so_many_open_jobs_and_no_more(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let first = store.offline().add_job(new(task, 1)).await.unwrap();
    for _ in 1..JOBS_OPEN_MAX {
        store.offline().add_job(new(task, 1)).await.unwrap();
    }
    let error = store.offline().add_job(new(task, 1)).await.unwrap_err();
    assert!(matches!(error, Error::TooManyJobs { limit: JOBS_OPEN_MAX }), "{error}");
    let other = store.access().create_tenant("other").await.unwrap();
    let app = store.access().app(other.id, "default").await.unwrap();
    let others = NewJob { tenant: other.id, app: app.id, ..new(task, 1) };
    let others = store.offline().add_job(others).await.expect("another tenant has room of its own");
    assert_eq!(store.offline().jobs(Some(other.id), None, 9).await.unwrap(), [others]);
    let strange = NewJob { app: app.id, ..new(task, 1) };
    missing(store.offline().add_job(strange).await);
    store.offline().end_job(first.id, Cancelled, "", at(2)).await.unwrap();
    store.offline().add_job(new(task, 1)).await.expect("one has ended");
}

async fn bytes_that_wait_are_bounded_over_all_jobs_of_a_tenant(backend: Backend) {
    // Beside its bytes an input or output counts 256, for its name and its row.
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let running = running(&*store, task, 3).await;
    let made = store.offline().add_job(new(task, 5)).await.unwrap();
    let error = store.offline().add_job_inputs(made.id, inputs(0..3), 1_595).await.unwrap_err();
    assert!(matches!(error, Error::TooManyBytes { own: 798, others: 798, limit: 1_595, .. }), "{error}");
    assert!(error.to_string().contains("when another job is done"), "{error}");
    assert_eq!(store.offline().missing_job_inputs(made.id, 9).await.unwrap().len(), 5, "nothing was kept");
    store.offline().add_job_inputs(made.id, inputs(0..3), 1_596).await.unwrap();
    store.offline().add_job_inputs(made.id, inputs([3]), 1_596).await.unwrap_err();
    // Each that ends makes room, but for its answer, which takes its own until the job is removed.
    let answered = answer(1, "answer", 5);
    let kept = store.offline().end_job_inputs(running.id, vec![answered]).await.unwrap();
    assert_eq!((kept.bytes, kept.kept), (20, 6));
    store.offline().add_job_inputs(made.id, inputs([3]), 1_857).await.unwrap_err();
    store.offline().add_job_inputs(made.id, inputs([3]), 1_858).await.unwrap();
    let tenant = running.tenant;
    assert_eq!(store.offline().job_bytes(tenant).await.unwrap(), 1_858);
    let ended = store.offline().end_job(running.id, Cancelled, "", at(6)).await.unwrap();
    assert_eq!((ended.bytes, ended.kept), (0, 6));
    assert_eq!(store.offline().job_bytes(tenant).await.unwrap(), 1_064 + 262);
    let error = store.offline().add_job_inputs(made.id, inputs([4]), 1_591).await.unwrap_err();
    assert!(matches!(error, Error::TooManyBytes { own: 1_330, others: 262, .. }), "{error}");
    store.offline().remove_job(running.id).await.unwrap();
    let error = store.offline().add_job_inputs(made.id, inputs([4]), 1_329).await.unwrap_err();
    assert!(matches!(error, Error::TooManyBytes { own: 1_330, others: 0, .. }), "{error}");
    assert!(error.to_string().contains("several jobs"), "{error}");
    let other = store.access().create_tenant("other").await.unwrap();
    let app = store.access().app(other.id, "default").await.unwrap();
    let others = NewJob { tenant: other.id, app: app.id, ..new(task, 5) };
    let others = store.offline().add_job(others).await.unwrap();
    store.offline().add_job_inputs(others.id, inputs(0..5), 1_330).await.expect("it has room of its own");
}

async fn jobs_are_listed_newest_first_and_running_ones_by_deadline(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let mut made = Vec::new();
    for deadline in [None, Some(at(500)), Some(at(100)), None, Some(at(100))] {
        let job = store.offline().add_job(NewJob { deadline, ..new(task, 1) }).await.unwrap();
        store.offline().add_job_inputs(job.id, inputs([0]), ALL).await.unwrap();
        made.push(store.offline().start_job(job.id, at(2)).await.unwrap());
    }
    received(&*store, task, 1).await;
    let ids = |jobs: Vec<modelless_store::Job>| jobs.iter().map(|job| job.id.0).collect::<Vec<_>>();
    assert_eq!(made[1].deadline, Some(at(500)));
    let running = async |limit| ids(store.offline().running_jobs(limit).await.unwrap());
    assert_eq!(running(9).await, [3, 5, 2, 1, 4]);
    assert_eq!(running(3).await, [3, 5, 2]);
    store.offline().end_job_inputs(JobId(5), vec![failure(0, 3)]).await.unwrap();
    assert_eq!(running(9).await, [3, 2, 1, 4]);
    assert_eq!(ids(store.offline().jobs(None, None, 9).await.unwrap()), [6, 5, 4, 3, 2, 1]);
    assert_eq!(ids(store.offline().jobs(Some(TenantId::DEFAULT), None, 2).await.unwrap()), [6, 5]);
    assert!(store.offline().jobs(Some(TenantId(7)), None, 9).await.unwrap().is_empty());
    let app = store.access().app(TenantId::DEFAULT, "another").await.unwrap().id;
    let others = store.offline().add_job(NewJob { app, ..new(task, 1) }).await.unwrap();
    received(&*store, task, 1).await;
    let of = |tenant, app| store.offline().jobs(tenant, app, 1);
    let (tenant, app) = (Some(TenantId::DEFAULT), Some(app));
    assert_eq!(
        of(tenant, app).await.unwrap(),
        std::slice::from_ref(&others),
        "however many newer ones others have"
    );
    assert_eq!(of(None, app).await.unwrap(), [others]);
    assert!(of(Some(TenantId(7)), app).await.unwrap().is_empty());
}

async fn only_a_job_that_ended_is_removed_and_with_it_its_outputs(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = running(&*store, task, 2).await.id;
    let error = store.offline().remove_job(id).await.unwrap_err();
    assert!(matches!(error, Error::JobNotEnded { state: Running, .. }), "{error}");
    let open = received(&*store, task, 1).await.id;
    let error = store.offline().remove_job(open).await.unwrap_err();
    assert!(matches!(error, Error::JobNotEnded { state: Receiving, .. }), "{error}");
    store.offline().end_job_inputs(id, vec![answer(0, "", 3), answer(1, "", 3)]).await.unwrap();
    // It outlives its task.
    store.remove_task(task).await.unwrap();
    assert_eq!(job(&*store, id).await.task_name, "fashion");
    store.offline().remove_job(id).await.unwrap();
    assert_eq!(store.offline().job(id).await.unwrap(), None);
    missing(store.offline().remove_job(id).await);
    missing(store.offline().job_outputs(id, 0, (9, ALL)).await);
    let task = a_task(&*store).await.id;
    assert_eq!(running(&*store, task, 1).await.id, JobId(3), "a number is never used again");
}

async fn jobs_that_ended_long_ago_are_forgotten_and_those_that_were_left_are_ended(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let ended = async |time| {
        let id = running(&*store, task, 1).await.id;
        store.offline().end_job_inputs(id, vec![answer(0, "", time)]).await.unwrap();
        id
    };
    let (old, new_enough) = (ended(99).await, ended(100).await);
    let left = received(&*store, task, 2).await.id;
    let working = running(&*store, task, 1).await.id;
    let fresh = store.offline().add_job(NewJob { made: at(100), ..new(task, 1) }).await.unwrap();
    assert_eq!(store.offline().prune_jobs(at(1), at(500)).await.unwrap(), 0);
    assert_eq!(store.offline().prune_jobs(at(100), at(500)).await.unwrap(), 2);
    assert_eq!(store.offline().job(old).await.unwrap(), None);
    assert_eq!(job(&*store, new_enough).await.state, Done);
    let left = job(&*store, left).await;
    assert_eq!((left.state, left.ended, left.bytes), (Cancelled, Some(at(500)), 0));
    assert!(left.why.as_deref().unwrap().contains("did not all come"), "{left:?}");
    assert_eq!(job(&*store, fresh.id).await, fresh);
    assert_eq!(take(&*store, working, "a", (501, 502), 9).await, [0], "work goes on however long it takes");
    assert_eq!(store.offline().prune_jobs(at(100), at(501)).await.unwrap(), 0);
}

async fn of_jobs_that_ended_the_newest_are_kept(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let open = store.offline().add_job(new(task, 1)).await.unwrap().id;
    let other = store.access().create_tenant("other").await.unwrap();
    let app = store.access().app(other.id, "default").await.unwrap();
    let others = NewJob { tenant: other.id, app: app.id, ..new(task, 1) };
    let others = store.offline().add_job(others).await.unwrap().id;
    store.offline().end_job(others, Cancelled, "", at(900)).await.unwrap();
    let mut all = JoinSet::new();
    for part in 0..6 {
        let store = Arc::clone(&store);
        all.spawn(async move {
            let mut ids = Vec::new();
            for nth in (part..JOBS_KEPT + 2).step_by(6) {
                let id = store.offline().add_job(new(task, 1)).await.unwrap().id;
                // The first ends last.
                let time = if nth == 0 { 1_000_000 } else { 1_000 + nth };
                store.offline().end_job(id, Cancelled, "", at(time)).await.unwrap();
                ids.push((nth, id));
            }
            ids
        });
    }
    let ids: BTreeMap<u64, JobId> = all.join_all().await.into_iter().flatten().collect();
    assert_eq!(store.offline().prune_jobs(at(1), at(2_000_000)).await.unwrap(), 2);
    for (nth, there) in [(0, true), (1, false), (2, false), (3, true)] {
        assert_eq!(store.offline().job(ids[&nth]).await.unwrap().is_some(), there, "{nth}");
    }
    assert_eq!(job(&*store, open).await.state, Receiving);
    assert_eq!(job(&*store, others).await.state, Cancelled, "one tenant's jobs push out none of another's");
}

async fn a_large_job_is_ended_and_removed_a_part_at_a_time(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = store.offline().add_job(new(task, 4_500)).await.unwrap().id;
    let there = async |expected: [i64; 3]| {
        assert_eq!(rows(&backend).await.unwrap_or(expected), expected);
    };
    for part in 0..5 {
        store.offline().add_job_inputs(id, inputs(part * 900..(part + 1) * 900), ALL).await.unwrap();
    }
    store.offline().start_job(id, at(1)).await.unwrap();
    for part in 0..3 {
        let ended = (part * 900..(part + 1) * 900).map(|place| answer(place, "", 2)).collect();
        store.offline().end_job_inputs(id, ended).await.unwrap();
    }
    there([1_800, 1_800, 2_700]).await;
    store.offline().end_job(id, Cancelled, "", at(3)).await.unwrap();
    there([0, 0, 2_700]).await;
    store.offline().remove_job(id).await.unwrap();
    there([0, 0, 0]).await;
    assert_eq!(store.offline().job(id).await.unwrap(), None);
}

/// Rows of inputs, bodies and outputs, where there are tables.
async fn rows(backend: &Backend) -> Option<[i64; 3]> {
    let Backend::At(address) = backend else { return None };
    let sql = "SELECT (SELECT count(*) FROM job_inputs), (SELECT count(*) FROM job_bodies), (SELECT count(*) FROM job_outputs)";
    if address.starts_with("postgres") {
        let mut raw = PgConnection::connect(address).await.unwrap();
        let row = sqlx::query(sql).fetch_one(&mut raw).await.unwrap();
        raw.close().await.unwrap();
        Some([row.get(0), row.get(1), row.get(2)])
    } else {
        let mut raw = SqliteConnection::connect(address).await.unwrap();
        let row = sqlx::query(sql).fetch_one(&mut raw).await.unwrap();
        raw.close().await.unwrap();
        Some([row.get(0), row.get(1), row.get(2)])
    }
}

async fn bodies_are_forgotten_when_their_inputs_end_and_outputs_with_their_job(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let there = async |expected: [i64; 3]| {
        assert_eq!(rows(&backend).await.unwrap_or(expected), expected);
    };
    let (id, other) = (running(&*store, task, 3).await.id, running(&*store, task, 2).await.id);
    take(&*store, id, "a", (5, 9), 2).await;
    there([5, 5, 0]).await;
    store.offline().end_job_inputs(id, vec![answer(1, "", 3), failure(2, 3)]).await.unwrap();
    there([3, 3, 2]).await;
    store.offline().end_job(id, Cancelled, "", at(4)).await.unwrap();
    there([2, 2, 2]).await;
    store.offline().end_job_inputs(other, vec![answer(0, "", 3), failure(1, 3)]).await.unwrap();
    there([0, 0, 4]).await;
    store.offline().remove_job(id).await.unwrap();
    there([0, 0, 2]).await;
    store.offline().prune_jobs(at(5), at(6)).await.unwrap();
    there([0, 0, 0]).await;
}

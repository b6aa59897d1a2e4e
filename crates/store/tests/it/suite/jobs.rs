//! Offline jobs: how one comes to be, is worked on and ends. What many do to one at once is in `together`.

mod bounds;
mod together;

use super::{missing, refused, store_suite};
use crate::backends::Backend;
use crate::samples::a_task;
use modelless_store::{
    Error, JOB_INPUTS_AT_ONCE, Job, JobEnd, JobInput, JobOutput, NewJob, Store, UnixMicros,
};
use modelless_types::JobState::{Cancelled, Done, Failed, Receiving, Running};
use modelless_types::{AppId, CostPer1k, JobId, Micros, TaskId, TenantId, VariantId};

store_suite!(
    a_job_is_received_answered_and_told,
    inputs_that_come_again_change_nothing,
    another_input_in_the_same_place_is_refused_and_nothing_of_its_call_is_kept,
    a_job_starts_only_with_all_its_inputs,
    missing_inputs_are_told_in_order,
    taken_inputs_are_nobody_elses_until_their_time_is_over,
    only_its_holder_gives_an_input_back,
    whoever_lives_keeps_what_it_took_and_nothing_that_another_has_by_now,
    so_many_inputs_are_taken_as_were_asked_for_by_number_and_by_bytes,
    an_input_ends_once_whoever_ends_it,
    a_job_is_done_with_its_last_input_and_not_before,
    a_job_that_is_ended_keeps_what_was_done_and_forgets_what_waits,
    outputs_are_read_in_order_and_go_on_where_they_stopped,
    bytes_come_back_as_they_came,
);

/// Nobody minds how many bytes wait.
const ALL: u64 = u64::MAX;

fn at(time: u64) -> UnixMicros {
    UnixMicros(time)
}

fn new(task: TaskId, inputs: u32) -> NewJob {
    NewJob {
        name: "boots".to_owned(),
        tenant: TenantId::DEFAULT,
        app: AppId::DEFAULT,
        task,
        goals: r#"{"accuracy":0.8}"#.to_owned(),
        inputs,
        estimate: Some(CostPer1k(7)),
        deadline: None,
        made: at(1),
    }
}

/// 10 bytes each.
fn input(place: u32) -> JobInput {
    let media = place.is_multiple_of(2).then(|| "image/png".to_owned());
    JobInput { at: place, name: format!("{place}.png"), media, body: format!("body{place:06}").into_bytes() }
}

fn inputs(places: impl IntoIterator<Item = u32>) -> Vec<JobInput> {
    places.into_iter().map(input).collect()
}

fn answer(place: u32, body: &str, time: u64) -> JobOutput {
    let end = JobEnd::Answer {
        body: body.as_bytes().to_vec(),
        variant: VariantId(3),
        variant_name: "small".to_owned(),
        device: Micros(100),
        cost: CostPer1k(20),
    };
    JobOutput { at: place, name: format!("{place}.png"), end, ended: at(time) }
}

fn failure(place: u32, time: u64) -> JobOutput {
    let end = JobEnd::Failure { reason: "bad_input".to_owned(), message: "not a picture".to_owned() };
    JobOutput { end, ..answer(place, "", time) }
}

fn places(inputs: &[JobInput]) -> Vec<u32> {
    inputs.iter().map(|input| input.at).collect()
}

/// A job with all its inputs, receiving.
async fn received(store: &dyn Store, task: TaskId, many: u32) -> Job {
    let job = store.offline().add_job(new(task, many)).await.unwrap();
    let all: Vec<u32> = (0..many).collect();
    for some in all.chunks(JOB_INPUTS_AT_ONCE) {
        store.offline().add_job_inputs(job.id, inputs(some.iter().copied()), ALL).await.unwrap();
    }
    store.offline().job(job.id).await.unwrap().unwrap()
}

/// The same, running.
async fn running(store: &dyn Store, task: TaskId, many: u32) -> Job {
    let job = received(store, task, many).await;
    store.offline().start_job(job.id, at(2)).await.unwrap()
}

async fn take(store: &dyn Store, job: JobId, holder: &str, (now, until): (u64, u64), most: u32) -> Vec<u32> {
    let taken = store.offline().take_job_inputs(job, holder, (at(now), at(until)), (most, ALL)).await;
    places(&taken.unwrap())
}

async fn job(store: &dyn Store, id: JobId) -> Job {
    store.offline().job(id).await.unwrap().expect("it is there")
}

async fn a_job_is_received_answered_and_told(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await;
    let made = store.offline().add_job(new(task.id, 3)).await.unwrap();
    assert_eq!((made.state, made.task_name.as_str(), made.inputs), (Receiving, "fashion", 3));
    assert_eq!((made.estimate, made.made, made.started), (Some(CostPer1k(7)), at(1), None));
    let some = store.offline().add_job_inputs(made.id, inputs([0, 2]), ALL).await.unwrap();
    assert_eq!((some.received, some.bytes), (2, 20));
    store.offline().add_job_inputs(made.id, inputs([1]), ALL).await.unwrap();
    let started = store.offline().start_job(made.id, at(4)).await.unwrap();
    assert_eq!((started.state, started.started, started.bytes), (Running, Some(at(4)), 30));
    let taken =
        store.offline().take_job_inputs(made.id, "gateway-1", (at(5), at(9)), (9, ALL)).await.unwrap();
    assert_eq!(taken, inputs(0..3));
    let two = vec![answer(0, "{}", 6), failure(2, 7)];
    let then = store.offline().end_job_inputs(made.id, two.clone()).await.unwrap();
    assert_eq!((then.done, then.failed, then.bytes, then.state), (1, 1, 10, Running));
    assert_eq!((then.device, then.cost), (Micros(100), CostPer1k(20)));
    let all = store.offline().end_job_inputs(made.id, vec![answer(1, "[1]", 8)]).await.unwrap();
    assert_eq!((all.state, all.ended, all.bytes), (Done, Some(at(8)), 0));
    assert_eq!((all.device, all.cost, all.why.as_deref()), (Micros(200), CostPer1k(40), None));

    // Another process sees the same.
    let again = backend.open().await;
    assert_eq!(job(&*again, made.id).await, all);
    assert_eq!(again.offline().jobs(None, None, 9).await.unwrap(), [all]);
    let outputs = again.offline().job_outputs(made.id, 0, (9, ALL)).await.unwrap();
    assert_eq!(outputs, [two[0].clone(), answer(1, "[1]", 8), two[1].clone()]);
    assert_eq!(again.offline().job(JobId(99)).await.unwrap(), None);
}

async fn inputs_that_come_again_change_nothing(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let made = store.offline().add_job(new(task, 4)).await.unwrap();
    let first = store.offline().add_job_inputs(made.id, inputs([0, 1]), 1_064).await.unwrap();
    let again = store.offline().add_job_inputs(made.id, inputs([1, 0, 1]), 1_064).await.unwrap();
    assert_eq!(again, first);
    // Also where some are new, and at the bound: 10 bytes each, and 256 besides.
    let more = store.offline().add_job_inputs(made.id, inputs(0..4), 1_064).await.unwrap();
    assert_eq!((more.received, more.bytes), (4, 40));
    assert_eq!(store.offline().add_job_inputs(made.id, Vec::new(), 1_064).await.unwrap(), more);
    store.offline().start_job(made.id, at(2)).await.unwrap();
    assert_eq!(take(&*store, made.id, "a", (3, 9), 9).await, [0, 1, 2, 3]);
}

async fn another_input_in_the_same_place_is_refused_and_nothing_of_its_call_is_kept(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let made = store.offline().add_job(new(task, 3)).await.unwrap();
    let before = store.offline().add_job_inputs(made.id, inputs([1]), ALL).await.unwrap();
    let others = [
        JobInput { body: b"other00001".to_vec(), ..input(1) },
        JobInput { name: "other.png".to_owned(), ..input(1) },
        JobInput { media: Some("image/jpeg".to_owned()), ..input(1) },
    ];
    for other in others {
        let error = store.offline().add_job_inputs(made.id, vec![input(0), other], ALL).await.unwrap_err();
        assert!(matches!(error, Error::InputDiffers { at: 1, .. }), "{error}");
        assert_eq!(job(&*store, made.id).await, before, "nothing of that call was kept");
    }
    let twice = vec![input(2), JobInput { body: Vec::new(), ..input(2) }];
    let error = store.offline().add_job_inputs(made.id, twice, ALL).await.unwrap_err();
    assert!(matches!(error, Error::InputDiffers { at: 2, .. }), "{error}");
    store.offline().add_job_inputs(made.id, inputs([0, 2]), ALL).await.unwrap();
    store.offline().start_job(made.id, at(2)).await.unwrap();
    let taken = store.offline().take_job_inputs(made.id, "a", (at(3), at(4)), (9, ALL)).await.unwrap();
    assert_eq!(taken, inputs(0..3), "what came first stays");
}

async fn a_job_starts_only_with_all_its_inputs(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let made = store.offline().add_job(new(task, 3)).await.unwrap();
    store.offline().add_job_inputs(made.id, inputs([0, 1]), ALL).await.unwrap();
    let error = store.offline().start_job(made.id, at(2)).await.unwrap_err();
    assert!(matches!(error, Error::InputsMissing { missing: 1, inputs: 3, .. }), "{error}");
    assert!(take(&*store, made.id, "a", (3, 9), 9).await.is_empty(), "it is not running");
    let error = store.offline().end_job_inputs(made.id, vec![answer(0, "", 3)]).await.unwrap_err();
    assert!(matches!(error, Error::JobNotStarted { .. }), "{error}");
    store.offline().add_job_inputs(made.id, inputs([2]), ALL).await.unwrap();
    let started = store.offline().start_job(made.id, at(4)).await.unwrap();
    assert_eq!(store.offline().start_job(made.id, at(5)).await.unwrap(), started, "it has begun");
    let error = store.offline().add_job_inputs(made.id, inputs([2]), ALL).await.unwrap_err();
    assert!(matches!(error, Error::JobNotReceiving { state: Running, .. }), "{error}");
    let left = store.offline().add_job(new(task, 1)).await.unwrap();
    store.offline().end_job(left.id, Cancelled, "not wanted", at(6)).await.unwrap();
    let error = store.offline().start_job(left.id, at(7)).await.unwrap_err();
    assert!(matches!(error, Error::JobNotReceiving { state: Cancelled, .. }), "{error}");
    for nobody in [
        store.offline().start_job(JobId(99), at(1)).await,
        store.offline().add_job_inputs(JobId(99), inputs([0]), ALL).await,
        store.offline().end_job_inputs(JobId(99), vec![failure(0, 1)]).await,
        store.offline().end_job(JobId(99), Failed, "", at(1)).await,
    ] {
        missing(nobody);
    }
    missing(store.offline().take_job_inputs(JobId(99), "a", (at(1), at(2)), (1, 1)).await);
    missing(store.offline().give_back_job_inputs(JobId(99), "a", vec![0]).await);
    missing(store.offline().job_outputs(JobId(99), 0, (1, 1)).await);
    missing(store.offline().missing_job_inputs(JobId(99), 1).await);
}

async fn missing_inputs_are_told_in_order(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let made = store.offline().add_job(new(task, 10)).await.unwrap();
    let lacks = async |limit| store.offline().missing_job_inputs(made.id, limit).await.unwrap();
    assert_eq!(lacks(99).await, (0..10).collect::<Vec<_>>());
    store.offline().add_job_inputs(made.id, inputs([2, 3, 5, 8]), ALL).await.unwrap();
    assert_eq!(lacks(99).await, [0, 1, 4, 6, 7, 9]);
    assert_eq!((lacks(3).await, lacks(2).await, lacks(0).await), (vec![0, 1, 4], vec![0, 1], vec![]));
    store.offline().add_job_inputs(made.id, inputs([0, 9]), ALL).await.unwrap();
    assert_eq!((lacks(99).await, lacks(1).await), (vec![1, 4, 6, 7], vec![1]));
    store.offline().add_job_inputs(made.id, inputs([1, 4, 6, 7]), ALL).await.unwrap();
    assert!(lacks(99).await.is_empty());
    let large = store.offline().add_job(new(task, 5_000)).await.unwrap();
    let many = store.offline().missing_job_inputs(large.id, u32::MAX).await.unwrap();
    assert_eq!(many.len(), JOB_INPUTS_AT_ONCE, "a list has a bound");
    store.offline().end_job(large.id, Cancelled, "", at(3)).await.unwrap();
    assert!(store.offline().missing_job_inputs(large.id, 9).await.unwrap().is_empty());
}

async fn taken_inputs_are_nobody_elses_until_their_time_is_over(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = running(&*store, task, 5).await.id;
    assert_eq!(take(&*store, id, "a", (10, 20), 2).await, [0, 1]);
    assert_eq!(take(&*store, id, "b", (11, 30), 2).await, [2, 3]);
    assert_eq!(take(&*store, id, "a", (19, 29), 9).await, [4], "not even one's own again");
    assert!(take(&*store, id, "c", (19, 29), 9).await.is_empty());
    // Its time ends with its last moment.
    assert_eq!(take(&*store, id, "c", (20, 40), 9).await, [0, 1]);
    store.offline().end_job_inputs(id, vec![answer(2, "", 25)]).await.unwrap();
    assert_eq!(take(&*store, id, "c", (30, 50), 9).await, [3, 4], "what ended never waits again");
    assert_eq!(take(&*store, id, "c", (99, 999), 9).await, [0, 1, 3, 4]);
    // Other jobs have their own.
    let other = running(&*store, task, 1).await.id;
    assert_eq!(take(&*store, other, "a", (100, 200), 9).await, [0]);
}

async fn only_its_holder_gives_an_input_back(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = running(&*store, task, 4).await.id;
    assert_eq!(take(&*store, id, "a", (10, 20), 3).await, [0, 1, 2]);
    store.offline().give_back_job_inputs(id, "b", vec![0, 1, 2, 3]).await.unwrap();
    assert_eq!(take(&*store, id, "b", (11, 20), 9).await, [3], "nobody gives back what is another's");
    store.offline().end_job_inputs(id, vec![failure(1, 12)]).await.unwrap();
    store.offline().give_back_job_inputs(id, "a", vec![1, 2, 77]).await.unwrap();
    assert_eq!(take(&*store, id, "b", (13, 30), 9).await, [2], "what ended stays ended");
    // Its time was over, and it is another's now.
    assert_eq!(take(&*store, id, "b", (20, 30), 9).await, [0, 3]);
    store.offline().give_back_job_inputs(id, "a", vec![0]).await.unwrap();
    assert!(take(&*store, id, "c", (21, 30), 9).await.is_empty());
    store.offline().give_back_job_inputs(id, "b", Vec::new()).await.unwrap();
}

async fn whoever_lives_keeps_what_it_took_and_nothing_that_another_has_by_now(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = running(&*store, task, 4).await.id;
    assert_eq!(take(&*store, id, "a", (10, 20), 3).await, [0, 1, 2]);
    store.offline().keep_job_inputs(id, "a", at(40), vec![0, 1, 3]).await.unwrap();
    assert_eq!(take(&*store, id, "b", (25, 50), 9).await, [2, 3], "one was not kept, and one nobody had");
    store.offline().keep_job_inputs(id, "a", at(90), vec![2, 3]).await.unwrap();
    assert_eq!(take(&*store, id, "c", (60, 70), 9).await, [0, 1, 2, 3], "another had them");
    store.offline().keep_job_inputs(JobId(99), "a", at(90), vec![0]).await.unwrap_err();
}

async fn so_many_inputs_are_taken_as_were_asked_for_by_number_and_by_bytes(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = running(&*store, task, 1_200).await.id;
    let some = async |most, bytes| {
        let taken = store.offline().take_job_inputs(id, "a", (at(5), at(9)), (most, bytes)).await.unwrap();
        places(&taken)
    };
    assert_eq!(some(9, 30).await, [0, 1, 2]);
    assert_eq!(some(9, 49).await, [3, 4, 5, 6]);
    assert_eq!(some(9, 0).await, [7], "one at least, or nobody would ever take a large one");
    assert_eq!(some(2, 1_000).await, [8, 9]);
    assert!(some(0, 1_000).await.is_empty());
    assert_eq!(some(u32::MAX, ALL).await, (10..1_010).collect::<Vec<_>>(), "a list has a bound");
    assert_eq!(some(u32::MAX, ALL).await.len(), 190);
}

async fn an_input_ends_once_whoever_ends_it(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = running(&*store, task, 4).await.id;
    assert_eq!(take(&*store, id, "a", (10, 20), 3).await, [0, 1, 2]);
    assert_eq!(take(&*store, id, "b", (20, 30), 3).await, [0, 1, 2], "its time was over");
    let by_b = vec![answer(0, "b", 21), failure(1, 21)];
    let first = store.offline().end_job_inputs(id, by_b.clone()).await.unwrap();
    assert_eq!((first.done, first.failed, first.bytes), (1, 1, 20));
    // The same again, and what the slower one found.
    assert_eq!(store.offline().end_job_inputs(id, by_b.clone()).await.unwrap(), first);
    let by_a = vec![failure(0, 22), answer(1, "a", 22), answer(2, "a", 22)];
    let then = store.offline().end_job_inputs(id, by_a).await.unwrap();
    assert_eq!((then.done, then.failed, then.bytes, then.device), (2, 1, 10, Micros(200)));
    let outputs = store.offline().job_outputs(id, 0, (9, ALL)).await.unwrap();
    assert_eq!(outputs, [by_b[0].clone(), by_b[1].clone(), answer(2, "a", 22)]);
    // Of two of the same place in one call the first counts; nobody has taken it, and it is not of this job.
    let odd = vec![answer(3, "first", 23), failure(3, 23), answer(77, "", 23)];
    let done = store.offline().end_job_inputs(id, odd.clone()).await.unwrap();
    assert_eq!((done.done, done.failed, done.state), (3, 1, Done));
    assert_eq!(store.offline().job_outputs(id, 3, (9, ALL)).await.unwrap(), [odd[0].clone()]);
    assert_eq!(store.offline().end_job_inputs(id, odd).await.unwrap(), done, "nothing follows the end");
}

async fn a_job_is_done_with_its_last_input_and_not_before(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = running(&*store, task, 3).await.id;
    for (place, time) in [(2, 30), (0, 10)] {
        let job = store.offline().end_job_inputs(id, vec![failure(place, time)]).await.unwrap();
        assert_eq!((job.state, job.ended), (Running, None));
    }
    assert_eq!(store.offline().running_jobs(9).await.unwrap().len(), 1);
    let job = store.offline().end_job_inputs(id, vec![answer(1, "", 20)]).await.unwrap();
    assert_eq!((job.state, job.ended, job.failed), (Done, Some(at(20)), 2));
    assert!(store.offline().running_jobs(9).await.unwrap().is_empty());
    let same = store.offline().end_job(id, Cancelled, "too late", at(40)).await.unwrap();
    assert_eq!(same, job, "it has ended");
    assert!(take(&*store, id, "a", (50, 60), 9).await.is_empty());
}

async fn a_job_that_is_ended_keeps_what_was_done_and_forgets_what_waits(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = running(&*store, task, 5).await.id;
    take(&*store, id, "a", (10, 20), 3).await;
    store.offline().end_job_inputs(id, vec![answer(1, "x", 11)]).await.unwrap();
    let ended = store.offline().end_job(id, Failed, "its task\0 is gone", at(12)).await.unwrap();
    assert_eq!((ended.state, ended.why.as_deref()), (Failed, Some("its task\u{fffd} is gone")));
    assert_eq!((ended.ended, ended.bytes, ended.done, ended.received), (Some(at(12)), 0, 1, 5));
    assert_eq!(store.offline().end_job(id, Cancelled, "again", at(13)).await.unwrap(), ended);
    let late = store.offline().end_job_inputs(id, vec![answer(0, "late", 14)]).await.unwrap();
    assert_eq!(late, ended, "who was at it comes too late");
    store.offline().give_back_job_inputs(id, "a", vec![0, 2]).await.unwrap();
    assert!(take(&*store, id, "b", (50, 60), 9).await.is_empty());
    let outputs = store.offline().job_outputs(id, 0, (9, ALL)).await.unwrap();
    assert_eq!(outputs, [answer(1, "x", 11)]);
    for no_end in [Receiving, Running, Done] {
        refused(store.offline().end_job(id, no_end, "", at(15)).await);
    }
    // One that was receiving, too.
    let left = received(&*store, task, 2).await;
    let left = store.offline().end_job(left.id, Cancelled, "not wanted", at(16)).await.unwrap();
    assert_eq!((left.state, left.bytes, left.started), (Cancelled, 0, None));
    let error = store.offline().add_job_inputs(left.id, inputs([0]), ALL).await.unwrap_err();
    assert!(matches!(error, Error::JobNotReceiving { state: Cancelled, .. }), "{error}");
}

async fn outputs_are_read_in_order_and_go_on_where_they_stopped(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let id = running(&*store, task, 1_100).await.id;
    let some = async |from, most, bytes| {
        let outputs = store.offline().job_outputs(id, from, (most, bytes)).await.unwrap();
        outputs.iter().map(|output| output.at).collect::<Vec<_>>()
    };
    assert!(some(0, 9, ALL).await.is_empty());
    let ended = vec![answer(7, "0123456789", 3), answer(2, "0123456789", 4), failure(4, 5)];
    store.offline().end_job_inputs(id, ended).await.unwrap();
    assert_eq!(some(0, 9, ALL).await, [2, 4, 7], "with holes");
    assert_eq!((some(3, 9, ALL).await, some(7, 9, ALL).await), (vec![4, 7], vec![7]));
    assert!(some(8, 9, ALL).await.is_empty());
    assert_eq!((some(0, 2, ALL).await, some(0, 9, 25).await), (vec![2, 4], vec![2, 4]));
    assert_eq!(some(0, 9, 33).await, [2, 4, 7]);
    assert_eq!(some(0, 9, 32).await, [2, 4], "13 bytes of a message count, too");
    assert_eq!(some(0, 9, 0).await, [2], "one at least, or nobody would ever read a large one");
    for from in [0, 550] {
        let rest = (from..from + 550).map(|place| answer(place, "x", 6)).collect();
        store.offline().end_job_inputs(id, rest).await.unwrap();
    }
    assert_eq!(some(1, u32::MAX, ALL).await, (1..1_001).collect::<Vec<_>>(), "a list has a bound");
    assert_eq!(job(&*store, id).await.state, Done);
}

async fn bytes_come_back_as_they_came(backend: Backend) {
    let store = backend.open().await;
    let task = a_task(&*store).await.id;
    let made = store.offline().add_job(new(task, 4)).await.unwrap();
    let every: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let bodies = [Vec::new(), every.clone(), vec![0, 0xff, 0], Vec::new()];
    let named = |at: usize, body: &Vec<u8>| JobInput {
        at: u32::try_from(at).unwrap(),
        name: format!("Größe \"{at}\" \\ / ブーツ"),
        media: None,
        body: body.clone(),
    };
    let given: Vec<JobInput> = bodies.iter().enumerate().map(|(at, body)| named(at, body)).collect();
    // One without a single byte comes by itself, too.
    store.offline().add_job_inputs(made.id, given[..3].to_vec(), ALL).await.unwrap();
    let all = store.offline().add_job_inputs(made.id, given[3..].to_vec(), ALL).await.unwrap();
    assert_eq!(all.bytes, 100_003);
    store.offline().start_job(made.id, at(2)).await.unwrap();
    let taken = store.offline().take_job_inputs(made.id, "a", (at(3), at(4)), (9, ALL)).await.unwrap();
    assert_eq!(taken, given);
    let ended = |(place, body): (usize, &Vec<u8>)| {
        let mut output = answer(u32::try_from(place).unwrap(), "", 5);
        output.name.clone_from(&given[place].name);
        let JobEnd::Answer { body: answer, device, cost, .. } = &mut output.end else { unreachable!() };
        answer.clone_from(body);
        (device.0, cost.0) = (u64::MAX, 0);
        output
    };
    let mut outputs: Vec<JobOutput> = bodies.iter().enumerate().map(ended).collect();
    store.offline().end_job_inputs(made.id, outputs[..3].to_vec()).await.unwrap();
    let done = store.offline().end_job_inputs(made.id, outputs[3..].to_vec()).await.unwrap();
    assert_eq!((done.state, done.device.0), (Done, i64::MAX.unsigned_abs()));
    for output in &mut outputs {
        let JobEnd::Answer { device, .. } = &mut output.end else { unreachable!() };
        device.0 = i64::MAX.unsigned_abs();
    }
    assert_eq!(store.offline().job_outputs(made.id, 0, (9, ALL)).await.unwrap(), outputs);
}

//! The end of a batch: answers made of its outputs, and delivered to who still waits.

use super::{Flight, Member};
use crate::catalogue::Known;
use crate::core::Handle;
use modelless_decision::worker::BatchId;
use modelless_engine::Outputs;
use modelless_types::{CostPer1k, Micros, PricePerHour, QueryKey, Refusal};
use modelless_wire::{Answer, Body};
use std::sync::atomic::Ordering;

impl Handle {
    pub(crate) fn answers(&self, flight: &Flight, outputs: &Outputs) -> Vec<(QueryKey, Body)> {
        let ended = self.now();
        let size = outputs.batch();
        let predicted_run = flight.expected.p99();
        // Of the time that it ran, not of the time that it stood behind another. What took no whole microsecond took one.
        let cost = CostPer1k::of_batch(Micros(outputs.run_us.max(1)), self.price(&flight.known), size);
        let answer = |(row, member): (u32, &Member)| {
            let key = member.key;
            let body = match body(flight, outputs, row, member) {
                Ok(body) => body,
                Err(why) => {
                    self.tell_failed(key, flight.variant, &why);
                    return (key, Body::Refused { key, refusal: Refusal::ModelError { why } });
                }
            };
            let answer = Answer {
                body: body.into(),
                model: flight.known.model,
                variant: flight.variant,
                space: flight.known.space,
                batch: size,
                predicted_run,
                cost,
                queued: (flight.bound - member.came).saturating_sub(member.decode),
                decode: member.decode,
                prepare: flight.prepare,
                run: Micros(outputs.run_us),
                at_node: ended - member.came,
                why: member.reason,
            };
            (key, Body::Answer { key, answer: Box::new(answer) })
        };
        (0..).zip(&flight.members).filter(|(_, member)| member.input.is_some()).map(answer).collect()
    }

    /// What an hour costs of what a variant runs on: a lane, or a server of its own price.
    fn price(&self, known: &Known) -> PricePerHour {
        let lane = self.config().price.0.saturating_mul(u64::from(self.core().width.load(Ordering::Relaxed)));
        known.price.unwrap_or(PricePerHour(lane))
    }

    pub(crate) fn deliver(&self, batch: BatchId, alive: &[QueryKey]) {
        let Some(flight) = self.batches().remove(&batch) else { return };
        if flight.answers.is_empty() {
            return;
        }
        let bodies = {
            let mut queries = self.queries();
            for_whom(flight.answers, alive, |key| queries.remove(&key).is_some())
        };
        let told = self.say_and_when(bodies);
        self.core().way_back.took(told, told - flight.ended);
    }
}

/// One member's answer.
fn body(flight: &Flight, outputs: &Outputs, row: u32, member: &Member) -> Result<Vec<u8>, String> {
    let (decoded, params) = (member.input.as_deref(), member.params);
    let adapter = flight.known.adapter().ok_or("its adapter was never bound; this is a bug")?;
    let rows: Vec<&[u8]> = (0..outputs.specs().len()).map(|output| outputs.item(output, row)).collect();
    let output = adapter.finish(decoded, &rows, params).map_err(|error| error.to_string())?;
    let mut body = Vec::with_capacity(256);
    output.write(&flight.known.task.labels, &mut body).map_err(|error| error.to_string())?;
    Ok(body)
}

/// The answers that go out: to who is alive and was still there to be taken out. Who is not alive any more is being
/// refused or was cancelled, perhaps by another thread this moment, which would find nobody to tell if it were gone.
fn for_whom<T>(
    answers: Vec<(QueryKey, T)>,
    alive: &[QueryKey],
    mut take_out: impl FnMut(QueryKey) -> bool,
) -> Vec<T> {
    let wanted = |(key, body)| (alive.contains(&key) && take_out(key)).then_some(body);
    answers.into_iter().filter_map(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_is_being_refused_is_left_to_who_refuses_it() {
        let (alive, refused, gone) = (QueryKey(1), QueryKey(2), QueryKey(3));
        let mut there = vec![alive, refused];
        let answers = vec![(alive, "a"), (refused, "b"), (gone, "c")];
        let out = for_whom(answers, &[alive, gone], |key| {
            let at = there.iter().position(|known| *known == key);
            at.map(|at| there.remove(at)).is_some()
        });
        assert_eq!((out, there), (vec!["a"], vec![refused]));
    }
}

//! What nodes say to a gateway.

use super::Core;
use crate::pending::Outcome;
use modelless_decision::route::Event;
use modelless_types::{NodeId, QueryKey, QueryNumber};
use modelless_wire::{Body, Connection, FromNode, GatewayLink};

impl GatewayLink for Core {
    fn receive(&self, node: NodeId, frame: FromNode) {
        self.receive_over(Connection::default(), node, frame);
    }

    fn receive_over(&self, over: Connection, node: NodeId, frame: FromNode) {
        let FromNode { body, report } = frame;
        self.heard(node, &report);
        let from = (over, node);
        match body {
            Body::Answer { key, answer } => self.finished(from, key, Outcome::Answered(answer), report),
            Body::Refused { key, refusal } => self.finished(from, key, Outcome::Refused(refusal), report),
            Body::BadInput { key, fault, why } => {
                self.finished(from, key, Outcome::BadInput(fault, why), report);
            }
            Body::HandedBack { key, why: _ } if self.pending.is_again(key, node, over) => {
                self.driver.feed(Event::Report { node, report }, self);
            }
            Body::HandedBack { key, why } => {
                self.metrics.handed_back(why.name());
                self.driver.feed(Event::HandedBack { key, node, report, why }, self);
            }
            Body::Declined { key, why } => {
                self.metrics.declined();
                self.driver.feed(Event::Declined { key, node, report, why }, self);
            }
            Body::Claim { queries, lanes } => {
                self.metrics.claimed(queries.len() as u64);
                self.driver.feed(Event::Claim { queries, node, lanes, report }, self);
            }
            Body::Report => self.driver.feed(Event::Report { node, report }, self),
        }
    }

    fn number_of(&self, key: QueryKey) -> Option<QueryNumber> {
        Some(self.number(key))
    }
}

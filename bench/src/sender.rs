//! Queries on their way to an executor, never more than it gives credit for: the rest waits here, in order of coming.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes as Buffer;
use modelless_decision::query::Class;
use modelless_types::{AppId, Bytes, Micros, Prefer, Priority, QueryKey, TenantId};
use modelless_wire::{Demand, Input, NodeLink, QueryFrame, ToNode};

use crate::node::Node;

/// Sends queries of one model, never more than the executor gives credit for.
pub struct Sender<'a> {
    node: &'a Node,
    class: Class,
    inputs: &'a [Buffer],
    latency: Micros,
    next: u64,
    /// Sent and not ended.
    open: BTreeSet<u64>,
    /// Waiting for credit: number and when it should have been answered.
    waiting: VecDeque<(u64, Instant)>,
    /// Waited for credit until it was too late.
    lapsed: Vec<u64>,
}

impl<'a> Sender<'a> {
    /// Queries that want their answer within `latency`, with these inputs in turn.
    pub fn new(node: &'a Node, model: usize, inputs: &'a [Buffer], latency: Duration) -> Result<Self> {
        ensure!(!inputs.is_empty(), "no inputs to send");
        let (task, variant) = &node.served[model];
        let class = Class { task: task.id, admits: [variant.ordinal].into_iter().collect() };
        let latency = Micros(u64::try_from(latency.as_micros())?);
        Ok(Self {
            node,
            class,
            inputs,
            latency,
            next: 0,
            open: BTreeSet::new(),
            waiting: VecDeque::new(),
            lapsed: Vec::new(),
        })
    }

    /// The number of the next query.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Sent and not ended, and waiting for credit.
    pub fn outstanding(&self) -> usize {
        self.open.len() + self.waiting.len()
    }

    /// Takes a query in that came at `came`, and sends it as soon as there is credit.
    pub fn offer(&mut self, came: Instant) -> u64 {
        let key = self.next;
        self.next += 1;
        self.waiting.push_back((key, came));
        self.send_waiting();
        key
    }

    /// Those that waited for credit until it was too late, since the last call.
    pub fn lapsed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.lapsed)
    }

    /// Notes an end; there may be credit again.
    pub fn ended(&mut self, key: u64) {
        self.open.remove(&key);
        self.send_waiting();
    }

    /// Whether a query more would be sent at once.
    pub fn has_credit(&self) -> bool {
        let (queries, bytes) = self.node.link.credit();
        self.open.len() < queries && self.open.len() * self.inputs[0].len() < bytes
    }

    fn send_waiting(&mut self) {
        while !self.waiting.is_empty() && self.has_credit() {
            let Some((key, came)) = self.waiting.pop_front() else { return };
            let spent = Micros(u64::try_from(came.elapsed().as_micros()).unwrap_or(u64::MAX));
            let left = self.latency.saturating_sub(spent);
            if left == Micros::ZERO {
                self.lapsed.push(key);
                continue;
            }
            let first = self.waiting.front().map(|(_, came)| {
                let waited = u64::try_from(came.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.latency.saturating_sub(Micros(waited))
            });
            let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
            let input = &self.inputs[usize::try_from(key).unwrap_or(0) % self.inputs.len()];
            self.open.insert(key);
            self.node.handle.send(ToNode::Query(Box::new(QueryFrame {
                key: QueryKey(key),
                tenant: TenantId::DEFAULT,
                app: AppId::DEFAULT,
                class: self.class,
                deadline_in: left,
                expires_in: left,
                spent,
                max_cost: None,
                prefer: Prefer::default(),
                priority: Priority::default(),
                best_effort: false,
                returnable: false,
                decoded: Bytes(u64::try_from(input.len()).unwrap_or(u64::MAX)),
                input: Input::Raw(input.clone()),
                demand: Demand { class: self.class, waiting, first, among: 1 },
            })));
        }
    }
}

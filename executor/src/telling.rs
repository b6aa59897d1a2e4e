//! A gateway in the same process sends its next query while it is told of an answer. If that were looked at there, its own answer or refusal
//! would be told within the first, and bring another, one within the other until the thread's stack is full. So what comes while
//! something is told on a thread is looked at there when that has been told.

use crate::core::Handle;
use modelless_types::{Micros, Time};
use modelless_wire::ToNode;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

thread_local! {
    static TELLS: Cell<bool> = const { Cell::new(false) };
    /// In the order in which they came, and when. The buffer is used again.
    static CAME: RefCell<VecDeque<(Handle, Time, ToNode)>> = const { RefCell::new(VecDeque::new()) };
}

/// The gateway is told something on this thread.
pub(crate) struct Telling {
    /// Not within the telling of something else.
    outermost: bool,
}

impl Telling {
    pub(crate) fn begin() -> Self {
        Self { outermost: !TELLS.replace(true) }
    }

    /// It was told: looks at what came meanwhile, and at what comes of that.
    pub(crate) fn end(self) {
        if self.outermost {
            while let Some((node, came, frame)) = CAME.with_borrow_mut(VecDeque::pop_front) {
                let late = later(frame, node.now() - came);
                node.hear(late);
            }
        }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        // Also where a gateway panicked: what came is looked at after the next thing that is told here.
        if self.outermost {
            TELLS.set(false);
        }
    }
}

/// Whether something is being told on this thread, or looked at that came meanwhile.
pub(crate) fn is_telling() -> bool {
    TELLS.get()
}

/// A frame after so long: what it says of time is said from the moment in which it was sent.
fn later(mut frame: ToNode, waited: Micros) -> ToNode {
    if let ToNode::Announce(told) = &mut frame {
        told.deadline_in = told.deadline_in.saturating_sub(waited);
        told.expires_in = told.expires_in.saturating_sub(waited);
        told.spent += waited;
    }
    if let ToNode::Query(query) = &mut frame {
        query.deadline_in = query.deadline_in.saturating_sub(waited);
        query.expires_in = query.expires_in.saturating_sub(waited);
        query.spent += waited;
        query.demand.first = query.demand.first.map(|first| first.saturating_sub(waited));
    }
    frame
}

/// Keeps a frame for later, or gives it back where it may be looked at now: nothing is told on this thread, nor was left by a gateway
/// that panicked.
pub(crate) fn put_off(node: &Handle, frame: ToNode) -> Option<ToNode> {
    let is_next = !is_telling() && CAME.with_borrow(VecDeque::is_empty);
    if is_next {
        return Some(frame);
    }
    CAME.with_borrow_mut(|came| came.push_back((node.clone(), node.now(), frame)));
    Telling::begin().end();
    None
}

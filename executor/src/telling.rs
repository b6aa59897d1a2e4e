//! A gateway in the same process sends its next query while it is told of an answer. If that were looked at there, its own answer or refusal
//! would be told within the first, and bring another, one within the other until the thread's stack is full. So what comes while
//! something is told on a thread is looked at there when that has been told.

use crate::core::Handle;
use modelless_wire::ToNode;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

thread_local! {
    static TELLS: Cell<bool> = const { Cell::new(false) };
    /// In the order in which they came. The buffer is used again.
    static CAME: RefCell<VecDeque<(Handle, ToNode)>> = const { RefCell::new(VecDeque::new()) };
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
            while let Some((node, frame)) = CAME.with_borrow_mut(VecDeque::pop_front) {
                node.hear(frame);
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

/// Keeps a frame for later, or gives it back where it may be looked at now.
pub(crate) fn put_off(node: &Handle, frame: ToNode) -> Option<ToNode> {
    if !is_telling() {
        return Some(frame);
    }
    CAME.with_borrow_mut(|came| came.push_back((node.clone(), frame)));
    None
}

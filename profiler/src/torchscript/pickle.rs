//! Reads a pickle without doing what it says: nothing is imported, called or made. What it would call is kept as a note
//! of what it would have called with what.
//!
//! Only the instructions that TorchScript's own writer uses are known; a file with others is refused.

use std::collections::BTreeMap;

/// More than any model's; each takes a few bytes at most.
const STEPS: usize = 4_000_000;

/// A place in [`Pickle::nodes`].
pub(super) type At = usize;

/// Something that a pickle describes.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Nothing, a flag, a fraction: what nothing here needs.
    Plain,
    Number(i64),
    Text(String),
    /// A tuple or list.
    Row(Vec<At>),
    Pairs(Vec<(At, At)>),
    /// A name that would be imported.
    Name(String),
    /// What would be called, with what.
    Call {
        what: At,
        with: At,
    },
    /// An object, and what would be put into it.
    Object {
        class: At,
        state: Option<At>,
    },
    /// Something that lies elsewhere, such as a tensor's numbers.
    Elsewhere(At),
}

/// Everything that a pickle describes.
pub(super) struct Pickle {
    pub(super) nodes: Vec<Node>,
    pub(super) root: At,
}

impl Pickle {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut machine = Machine { rest: bytes, ..Machine::default() };
        for _ in 0..STEPS {
            let [step, after @ ..] = machine.rest else { return Err(cut()) };
            machine.rest = after;
            if *step == b'.' {
                let root = machine.pop()?;
                return Ok(Self { nodes: machine.nodes, root });
            }
            machine.step(*step)?;
        }
        Err("its object has more parts than any model".to_owned())
    }

    pub(super) fn node(&self, at: At) -> &Node {
        self.nodes.get(at).unwrap_or(&Node::Plain)
    }

    pub(super) fn text(&self, at: At) -> Option<&str> {
        if let Node::Text(text) | Node::Name(text) = self.node(at) { Some(text) } else { None }
    }

    pub(super) fn number(&self, at: At) -> Option<i64> {
        if let Node::Number(number) = self.node(at) { Some(*number) } else { None }
    }

    pub(super) fn row(&self, at: At) -> Option<&[At]> {
        if let Node::Row(row) = self.node(at) { Some(row) } else { None }
    }
}

fn cut() -> String {
    "its object is cut short or damaged".to_owned()
}

#[derive(Default)]
struct Machine<'a> {
    rest: &'a [u8],
    nodes: Vec<Node>,
    stack: Vec<At>,
    /// How high the stack was at each mark.
    marks: Vec<usize>,
    memo: BTreeMap<u64, At>,
}

impl<'a> Machine<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let count = usize::try_from(count).map_err(|_| cut())?;
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(cut)?;
        self.rest = rest;
        Ok(taken)
    }

    fn count(&mut self, bytes: u64) -> Result<u64, String> {
        let field = self.take(bytes)?;
        Ok(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn line(&mut self) -> Result<&'a [u8], String> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or_else(cut)?;
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(line)
    }

    fn push(&mut self, node: Node) {
        self.nodes.push(node);
        self.stack.push(self.nodes.len() - 1);
    }

    fn pop(&mut self) -> Result<At, String> {
        let low = self.marks.last().copied().unwrap_or(0);
        let top = self.stack.pop().ok_or_else(cut)?;
        if self.stack.len() < low { Err(cut()) } else { Ok(top) }
    }

    fn top(&self) -> Result<At, String> {
        self.stack.last().copied().ok_or_else(cut)
    }

    /// Everything since the last mark.
    fn marked(&mut self) -> Result<Vec<At>, String> {
        let from = self.marks.pop().ok_or_else(cut)?;
        if from > self.stack.len() {
            return Err(cut());
        }
        Ok(self.stack.split_off(from))
    }

    fn text(&mut self, size: u64) -> Result<(), String> {
        let length = self.count(size)?;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.push(Node::Text(text));
        Ok(())
    }

    fn row(&mut self, count: usize) -> Result<(), String> {
        let mut row = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        row.reverse();
        self.push(Node::Row(row));
        Ok(())
    }

    fn remember(&mut self, bytes: u64) -> Result<(), String> {
        let (name, top) = (self.count(bytes)?, self.top()?);
        self.memo.insert(name, top);
        Ok(())
    }

    fn recall(&mut self, bytes: u64) -> Result<(), String> {
        let name = self.count(bytes)?;
        let known = self.memo.get(&name).copied().ok_or_else(cut)?;
        self.stack.push(known);
        Ok(())
    }

    fn append(&mut self, more: Vec<At>) -> Result<(), String> {
        let top = self.top()?;
        match self.nodes.get_mut(top) {
            Some(Node::Row(row)) => row.extend(more),
            _ => return Err(cut()),
        }
        Ok(())
    }

    fn set(&mut self, more: &[At]) -> Result<(), String> {
        let top = self.top()?;
        let pairs = more.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        match self.nodes.get_mut(top) {
            Some(Node::Pairs(known)) => known.extend(pairs),
            // A dictionary that is made by a call, such as an ordered one: its content is of no use here.
            Some(Node::Call { .. }) => {}
            _ => return Err(cut()),
        }
        Ok(())
    }

    fn name(&mut self) -> Result<(), String> {
        let module = String::from_utf8_lossy(self.line()?).into_owned();
        let name = String::from_utf8_lossy(self.line()?).into_owned();
        self.push(Node::Name(format!("{module}.{name}")));
        Ok(())
    }

    fn build(&mut self) -> Result<(), String> {
        let (given, top) = (self.pop()?, self.top()?);
        match self.nodes.get_mut(top) {
            Some(Node::Object { state, .. }) => *state = Some(given),
            Some(Node::Call { .. }) => {}
            _ => return Err(cut()),
        }
        Ok(())
    }

    fn long(&mut self) -> Result<(), String> {
        let length = self.count(1)?;
        let bytes = self.take(length)?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if negative { 0xff } else { 0 };
        let mut whole = [fill; 8];
        for (into, byte) in whole.iter_mut().zip(bytes) {
            *into = *byte;
        }
        self.push(if bytes.len() > 8 { Node::Plain } else { Node::Number(i64::from_le_bytes(whole)) });
        Ok(())
    }

    fn step(&mut self, step: u8) -> Result<(), String> {
        match step {
            0x80 => self.take(1).map(drop)?,
            b'c' => self.name()?,
            b'X' | b'T' => self.text(4)?,
            b'U' | 0x8c => self.text(1)?,
            b'N' | 0x88 | 0x89 => self.push(Node::Plain),
            b'G' => {
                self.take(8)?;
                self.push(Node::Plain);
            }
            b'K' => self.small(1)?,
            b'M' => self.small(2)?,
            b'J' => {
                let number = u32::try_from(self.count(4)?).map_err(|_| cut())?;
                self.push(Node::Number(number.cast_signed().into()));
            }
            0x8a => self.long()?,
            b'(' => self.marks.push(self.stack.len()),
            b')' | b']' => self.push(Node::Row(Vec::new())),
            b'}' => self.push(Node::Pairs(Vec::new())),
            b't' | b'l' => {
                let row = self.marked()?;
                self.push(Node::Row(row));
            }
            0x85 => self.row(1)?,
            0x86 => self.row(2)?,
            0x87 => self.row(3)?,
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' => {
                let more = self.marked()?;
                self.append(more)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let more = self.marked()?;
                self.set(&more)?;
            }
            b'R' => {
                let (with, what) = (self.pop()?, self.pop()?);
                self.push(Node::Call { what, with });
            }
            0x81 => {
                let (_, class) = (self.pop()?, self.pop()?);
                self.push(Node::Object { class, state: None });
            }
            b'b' => self.build()?,
            b'Q' => {
                let what = self.pop()?;
                self.push(Node::Elsewhere(what));
            }
            b'q' => self.remember(1)?,
            b'r' => self.remember(4)?,
            b'h' => self.recall(1)?,
            b'j' => self.recall(4)?,
            b'0' => self.pop().map(drop)?,
            other => return Err(format!("its object has a part (0x{other:02x}) that no exported model has")),
        }
        Ok(())
    }

    fn small(&mut self, bytes: u64) -> Result<(), String> {
        let number = i64::try_from(self.count(bytes)?).map_err(|_| cut())?;
        self.push(Node::Number(number));
        Ok(())
    }
}

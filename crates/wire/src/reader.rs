//! The reading half of a connection: frames one after the other, those that come in parts when they are whole. What there is no room
//! for among all connections of the process is dropped as it comes, and its frame says so; so does one that does not get on.

use crate::codec::{self, Frame};
use crate::config::limits;
use crate::frame::{HEADER, Header, Kind};
use crate::link::Link;
use crate::lost::{Lost, Nonsense};
use crate::peer::micros;
use crate::received::{Held, Received, Share};
use bytes::{Buf, BufMut, Bytes as Buffer, BytesMut};
use modelless_types::{Micros, Refusal};
use std::io;
use std::sync::Arc;
use tokio::time::Instant;

/// Small frames share a buffer of this size; a larger frame gets one of its own.
const CHUNK: usize = 16 << 10;

/// A frame that came.
pub(crate) struct Came {
    pub(crate) frame: Frame,
    /// How long it waited at its sender, and then was under way in parts.
    pub(crate) late: Micros,
    /// It came in parts, so what it says of the moment is old: others have overtaken it.
    pub(crate) in_parts: bool,
    /// Its payload was dropped: only its head is true.
    pub(crate) dropped: Option<Dropped>,
    /// Gives its room back when it goes.
    _held: Option<Held>,
}

/// Why a payload was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dropped {
    /// There was no room for it.
    NoRoom,
    /// It did not get on for a while, or took far too long.
    Stalled,
}

impl Dropped {
    /// What its query hears.
    pub(crate) fn refusal(self, received: &Received, late: Micros) -> Refusal {
        match self {
            Self::NoRoom => Refusal::BytesFull { limit: received.limit() },
            Self::Stalled => Refusal::TooLate { waited: late },
        }
    }
}

/// Its state survives a dropped [`Reader::next`], so that may stand in a `select!`.
pub(crate) struct Reader {
    link: Arc<Link>,
    buffer: BytesMut,
    /// By the number of their stream, less one.
    under_way: [Option<UnderWay>; limits::STREAMS as usize],
    /// A part that is being read, by the place of its stream, and how much of it is still to come.
    part: Option<(usize, usize)>,
    heard: u64,
    greeted: bool,
    share: Arc<Share>,
}

struct UnderWay {
    header: Header,
    head: Buffer,
    payload: BytesMut,
    since: Instant,
    /// When some of it last came.
    got_on: Instant,
    /// Its room, for as long as it is kept.
    held: Option<Held>,
    /// Bytes of it that came, kept or not.
    came: usize,
}

impl UnderWay {
    /// What came of it is dropped, and so will be what is still to come.
    fn give_up(&mut self, why: Dropped) -> Result<Came, Lost> {
        self.held = None;
        self.payload = BytesMut::new();
        let frame = codec::without_payload(&self.header, &self.head)?;
        let late = self.header.waited + micros(self.since.elapsed());
        Ok(Came { frame, late, in_parts: true, dropped: Some(why), _held: None })
    }
}

impl Reader {
    pub(crate) fn new(link: Arc<Link>, received: Arc<Received>) -> Self {
        let buffer = BytesMut::with_capacity(CHUNK);
        let under_way = Default::default();
        let share = Share::new(received);
        Self { link, buffer, under_way, part: None, heard: 0, greeted: false, share }
    }

    /// Bytes that came so far.
    pub(crate) fn heard(&self) -> u64 {
        self.heard
    }

    /// From now on payloads are taken.
    pub(crate) fn greeted(&mut self) {
        self.greeted = true;
    }

    /// Frames that have not got on for a while, or have been under way for far too long: what came of them is dropped at once, what
    /// may still come of them later.
    pub(crate) fn stalled(&mut self) -> Result<Vec<Came>, Lost> {
        let now = Instant::now();
        let stalls = |under_way: &UnderWay| {
            let rests = now - under_way.got_on >= limits::STALLED;
            under_way.held.is_some() && (rests || now - under_way.since >= limits::UNDER_WAY)
        };
        let stalled = self.under_way.iter_mut().flatten().filter(|under_way| stalls(under_way));
        stalled.map(|under_way| under_way.give_up(Dropped::Stalled)).collect()
    }

    /// The next frame.
    pub(crate) async fn next(&mut self) -> Result<Came, Lost> {
        loop {
            if let Some((at, left)) = self.part {
                if let Some(came) = self.fill(at, left).await? {
                    return Ok(came);
                }
                continue;
            }
            let mut wanted = HEADER;
            if let Some(header) = self.buffer.first_chunk::<HEADER>() {
                let header = Header::parse(header)?;
                if !self.greeted && (header.payload > 0 || header.stream > 0) {
                    let expected = "a greeting";
                    return Err(Nonsense::OutOfPlace { kind: header.kind, expected }.into());
                }
                wanted = header.together();
                if self.buffer.len() >= wanted {
                    if let Some(came) = self.cut(&header)? {
                        return Ok(came);
                    }
                    continue;
                }
            }
            self.make_room(wanted);
            let read = self.link.stream().read(&mut self.buffer).await;
            self.count(read)?;
        }
    }

    fn count(&mut self, read: io::Result<usize>) -> Result<(), Lost> {
        match read {
            Ok(0) => Err(Lost::Closed),
            Ok(count) => {
                self.heard += count as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Lost::Closed),
            Err(error) => Err(Lost::Broken(Arc::new(error))),
        }
    }

    /// Payloads are slices of what was read; nothing is copied.
    fn cut(&mut self, header: &Header) -> Result<Option<Came>, Lost> {
        let mut frame = self.buffer.split_to(header.together()).freeze();
        frame.advance(HEADER);
        let head = frame.split_to(header.head);
        if header.stream == 0 {
            let frame = codec::decode(header, &head, frame)?;
            let late = header.waited;
            return Ok(Some(Came { frame, late, in_parts: false, dropped: None, _held: None }));
        }
        let at = usize::from(header.stream) - 1;
        let nonsense = |why| Lost::from(Nonsense::Parts { stream: header.stream, why });
        if header.kind != Kind::Part {
            if self.under_way[at].is_some() {
                return Err(nonsense("it was begun twice"));
            }
            // Memory that nothing is written to costs nothing, so a large claim does not either.
            let payload = BytesMut::with_capacity(header.payload);
            let held = Some(Held::none(&self.share));
            let since = Instant::now();
            let header = *header;
            self.under_way[at] =
                Some(UnderWay { header, head, payload, since, got_on: since, held, came: 0 });
            return Ok(None);
        }
        let Some(under_way) = &mut self.under_way[at] else { return Err(nonsense("it was not begun")) };
        if header.payload == 0 {
            self.under_way[at] = None; // nobody waits for the rest
        } else if header.payload > under_way.header.payload - under_way.came {
            return Err(nonsense("it is longer than it was said to be"));
        } else {
            self.part = Some((at, header.payload));
            if under_way.held.as_mut().is_some_and(|held| !held.more(header.payload)) {
                return under_way.give_up(Dropped::NoRoom).map(Some);
            }
        }
        Ok(None)
    }

    /// Reads a part to where it stays; gives its frame if that was the last one.
    async fn fill(&mut self, at: usize, left: usize) -> Result<Option<Came>, Lost> {
        let Some(under_way) = &mut self.under_way[at] else { unreachable!("its stream was begun") };
        let here = self.buffer.len().min(left);
        if here > 0 {
            let part = self.buffer.split_to(here);
            if under_way.held.is_some() {
                under_way.payload.put(part);
            }
            under_way.came += here;
            under_way.got_on = Instant::now();
            self.part = (left > here).then_some((at, left - here));
        } else if under_way.held.is_none() {
            self.make_room(HEADER);
            let read = self.link.stream().read(&mut self.buffer).await;
            self.count(read)?;
        } else {
            let before = under_way.payload.len();
            let read = self.link.stream().read(&mut (&mut under_way.payload).limit(left)).await;
            let came = under_way.payload.len() - before;
            under_way.came += came;
            under_way.got_on = Instant::now();
            let left = left - came;
            self.part = (left > 0).then_some((at, left));
            self.count(read)?;
        }
        let whole = |under_way: &UnderWay| under_way.came == under_way.header.payload;
        if self.part.is_some() || !self.under_way[at].as_ref().is_some_and(whole) {
            return Ok(None);
        }
        let Some(UnderWay { header, head, payload, since, held: held @ Some(_), .. }) =
            self.under_way[at].take()
        else {
            return Ok(None); // it was said before that it was dropped
        };
        let frame = codec::decode(&header, &head, payload.freeze())?;
        let late = header.waited + micros(since.elapsed());
        Ok(Some(Came { frame, late, in_parts: true, dropped: None, _held: held }))
    }

    /// A frame that does not fit gets a buffer of exactly its size, so what the kernel has is read straight into
    /// the place where it stays.
    fn make_room(&mut self, wanted: usize) {
        let room = self.buffer.capacity() - self.buffer.len();
        let enough = if wanted == HEADER { CHUNK / 8 } else { 1 };
        if self.buffer.capacity() >= wanted && room >= enough {
            return;
        }
        let mut roomy = BytesMut::with_capacity(wanted.max(CHUNK));
        roomy.extend_from_slice(&self.buffer);
        self.buffer = roomy;
    }
}

//! Artefacts where they are not: gateways give them out over the wire, executors fetch what they lack and check its size and digest.

use async_trait::async_trait;
use bytes::{Buf as _, Bytes as Buffer};
use modelless_executor::Fetch;
use modelless_store::Artefacts;
use modelless_types::Bytes;
use modelless_wire::{Fetcher, Piece, Shelf, Source};
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

/// What a gateway gives out.
pub(super) struct Given(pub(super) Artefacts);

impl Shelf for Given {
    fn piece(&self, sha256: &str, offset: u64, most: usize) -> io::Result<Option<Piece>> {
        // Read through and found whole, now or earlier; a name that is no digest is refused there.
        let file = match self.0.open(sha256) {
            Ok(file) => file,
            Err(modelless_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(io::Error::other(error.to_string())),
        };
        let total = file.metadata()?.len();
        let left = usize::try_from(total.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(most)];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(Some(Piece { total, bytes: bytes.into() }))
    }
}

/// Somebody who may have what is lacking.
#[async_trait]
trait Gives: Send + Sync {
    fn name(&self) -> &str;

    async fn piece(&self, sha256: &str, offset: u64) -> Option<Piece>;
}

#[async_trait]
impl Gives for Source {
    fn name(&self) -> &str {
        Source::name(self)
    }

    async fn piece(&self, sha256: &str, offset: u64) -> Option<Piece> {
        Source::piece(self, sha256, offset).await
    }
}

/// Whom to ask, at this moment.
type Sources = Box<dyn Fn() -> Vec<Arc<dyn Gives>> + Send + Sync>;

/// Fetches into a folder, one artefact after the other: they share the way, and two loads of one file fetch it once.
pub(super) struct Fetching {
    artefacts: Artefacts,
    sources: Sources,
    most: Bytes,
    turn: Mutex<()>,
}

impl Fetching {
    /// Nothing larger than `most` is taken, whatever is said of it.
    pub(super) fn new(artefacts: Artefacts, fetcher: Fetcher, most: Bytes) -> Self {
        let sources =
            move || fetcher.sources().into_iter().map(|source| Arc::new(source) as Arc<dyn Gives>).collect();
        Self { artefacts, sources: Box::new(sources), most, turn: Mutex::new(()) }
    }

    /// All of it from one gateway, or why not.
    async fn fetch_from(
        &self,
        from: Arc<dyn Gives>,
        sha256: &str,
        stated: Option<Bytes>,
    ) -> Result<u64, String> {
        let pieces = Pieces {
            from,
            sha256: sha256.to_owned(),
            stated,
            most: self.most,
            runtime: Handle::current(),
            offset: 0,
            total: None,
            rest: Buffer::new(),
        };
        let (artefacts, wanted) = (self.artefacts.clone(), sha256.to_owned());
        let put = tokio::task::spawn_blocking(move || artefacts.put_as(&wanted, pieces)).await;
        match put.map_err(|error| error.to_string())? {
            Ok(put) => Ok(put.bytes),
            // What our own reader said, without where it was read from.
            Err(modelless_store::Error::Io { doing: "read", source, .. }) => Err(source.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[async_trait]
impl Fetch for Fetching {
    async fn fetch(&self, sha256: &str, stated: Option<Bytes>) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        if self.artefacts.path(sha256).is_ok_and(|path| path.is_file()) {
            return Ok(()); // another load brought it
        }
        let mut whys = Vec::new();
        for from in (self.sources)() {
            let name = from.name().to_owned();
            match self.fetch_from(from, sha256, stated).await {
                Ok(bytes) => {
                    tracing::info!(sha256, bytes, from = name, "fetched an artefact");
                    return Ok(());
                }
                Err(why) => {
                    tracing::warn!(sha256, from = name, why, "an artefact was not fetched");
                    whys.push(format!("gateway {name}: {why}"));
                }
            }
        }
        let why = if whys.is_empty() { "no gateway is connected".to_owned() } else { whys.join("; ") };
        Err(format!("artefact {sha256} is not here and could not be fetched: {why}"))
    }
}

/// An artefact as its pieces come.
struct Pieces {
    from: Arc<dyn Gives>,
    sha256: String,
    /// By the catalogue.
    stated: Option<Bytes>,
    most: Bytes,
    runtime: Handle,
    offset: u64,
    /// By the first piece.
    total: Option<u64>,
    rest: Buffer,
}

impl Pieces {
    /// What is wrong with a piece, in words.
    fn refused(&self, piece: &Piece) -> Option<String> {
        let (total, end) = (Bytes(piece.total), self.offset + piece.bytes.len() as u64);
        if let Some(before) = self.total.filter(|before| *before != piece.total) {
            return Some(format!("it said {} first and {total} then of how long it is", Bytes(before)));
        }
        if let Some(stated) = self.stated.filter(|stated| *stated != total) {
            return Some(format!("it has {} bytes, and {} are registered", total.0, stated.0));
        }
        if total > self.most {
            return Some(format!("it has {total}, and artefact_bytes_max is {}", self.most));
        }
        if end > piece.total {
            return Some(format!("it gave {end} bytes and said that there are {}", piece.total));
        }
        (piece.bytes.is_empty() && end < piece.total)
            .then(|| format!("it gave {end} bytes of {} and then no more", piece.total))
    }
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() && self.total != Some(self.offset) {
            let piece = self.runtime.block_on(self.from.piece(&self.sha256, self.offset));
            let lost = || {
                if self.offset == 0 { "it has not got it" } else { "it gave a part of it and then nothing" }
            };
            let piece = piece.ok_or_else(|| io::Error::other(lost()))?;
            if let Some(why) = self.refused(&piece) {
                return Err(io::Error::other(why));
            }
            self.total = Some(piece.total);
            (self.offset, self.rest) = (self.offset + piece.bytes.len() as u64, piece.bytes);
        }
        let taken = self.rest.len().min(into.len());
        into[..taken].copy_from_slice(&self.rest[..taken]);
        self.rest.advance(taken);
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The sha256 of `abc`.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    /// Gives one piece after the other of what it has, with what it says of the whole.
    struct Gateway {
        name: &'static str,
        pieces: Vec<(u64, &'static [u8])>,
        asked: AtomicUsize,
    }

    fn gateway(name: &'static str, pieces: &[(u64, &'static [u8])]) -> Arc<Gateway> {
        Arc::new(Gateway { name, pieces: pieces.to_vec(), asked: AtomicUsize::new(0) })
    }

    #[async_trait]
    impl Gives for Gateway {
        fn name(&self) -> &str {
            self.name
        }

        async fn piece(&self, sha256: &str, _: u64) -> Option<Piece> {
            assert_eq!(sha256, ABC);
            let (total, bytes) = *self.pieces.get(self.asked.fetch_add(1, Ordering::Relaxed))?;
            Some(Piece { total, bytes: Buffer::from_static(bytes) })
        }
    }

    async fn fetched(gateways: &[Arc<Gateway>], stated: Option<u64>) -> Result<Vec<u8>, String> {
        let folder = modelless_testkit::temp_dir("fetching").unwrap();
        let artefacts = Artefacts::new(folder.path()).unwrap();
        let gateways = gateways.to_vec();
        let sources = move || gateways.iter().map(|one| Arc::clone(one) as Arc<dyn Gives>).collect();
        let most = Bytes(1_000);
        let fetching =
            Fetching { artefacts: artefacts.clone(), sources: Box::new(sources), most, turn: Mutex::new(()) };
        let ended = fetching.fetch(ABC, stated.map(Bytes)).await;
        let path = artefacts.path(ABC).unwrap();
        assert_eq!(path.is_file(), ended.is_ok(), "{ended:?}");
        let left: Vec<_> = std::fs::read_dir(folder.path().join("incoming")).unwrap().collect();
        assert!(left.is_empty(), "it left {left:?}");
        ended.map(|()| std::fs::read(path).unwrap())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn whoever_has_not_got_it_fails_or_gives_another_is_followed_by_the_next() {
        let right = || gateway("right", &[(3, b"ab"), (3, b"c")]);
        for wrong in [
            gateway("empty", &[]),
            gateway("broken", &[(3, b"ab")]),
            gateway("other", &[(3, b"abd")]),
            gateway("endless", &[(3, b"abcabc")]),
            gateway("unsure", &[(3, b"ab"), (4, b"c")]),
            gateway("short", &[(3, b"ab"), (3, b"")]),
            gateway("large", &[(4, b"abcd")]),
        ] {
            let all = fetched(&[wrong, right()], Some(3)).await;
            assert_eq!(all.as_deref(), Ok(&b"abc"[..]));
        }
        let second = right();
        assert_eq!(fetched(&[right(), Arc::clone(&second)], None).await.unwrap(), b"abc");
        assert_eq!(second.asked.load(Ordering::Relaxed), 0, "one has it: nobody else is asked");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_is_larger_than_registered_or_allowed_is_refused_by_name_before_it_comes() {
        let many = [
            (gateway("a", &[(4, b"abcd")]), Some(3), "it has 4 bytes, and 3 are registered"),
            (gateway("a", &[(2, b"ab")]), Some(3), "it has 2 bytes, and 3 are registered"),
            (gateway("a", &[(1_001, b"ab")]), None, "artefact_bytes_max"),
            (gateway("a", &[(3, b"abcabc")]), None, "gave 6 bytes and said that there are 3"),
            (
                gateway("a", &[(3, b"abd")]),
                None,
                "and has a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9",
            ),
            (gateway("a", &[(3, b"ab")]), None, "a part of it"),
            (gateway("a", &[]), None, "gateway a: it has not got it"),
        ];
        for (from, stated, named) in many {
            let why = fetched(&[Arc::clone(&from)], stated).await.unwrap_err();
            assert!(why.contains(ABC) && why.contains(named), "{why}");
            assert!(from.asked.load(Ordering::Relaxed) <= 2, "it was asked on");
        }
        let why = fetched(&[], None).await.unwrap_err();
        assert!(why.contains("no gateway is connected"), "{why}");
        let why = fetched(&[gateway("a", &[]), gateway("b", &[])], None).await.unwrap_err();
        assert!(why.contains("gateway a: ") && why.contains("gateway b: "), "{why}");
    }
}

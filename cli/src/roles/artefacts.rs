//! Artefacts where they are not: gateways give them out over the wire, executors fetch what they lack and check its digest.

use async_trait::async_trait;
use bytes::{Buf as _, Bytes as Buffer};
use modelless_executor::Fetch;
use modelless_store::Artefacts;
use modelless_wire::{Fetcher, Piece, Shelf};
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
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

/// Fetches into a folder, one artefact after the other: they share the way, and two loads of one file fetch it once.
pub(super) struct Fetching {
    artefacts: Artefacts,
    fetcher: Fetcher,
    turn: Mutex<()>,
}

impl Fetching {
    pub(super) fn new(artefacts: Artefacts, fetcher: Fetcher) -> Self {
        Self { artefacts, fetcher, turn: Mutex::new(()) }
    }
}

#[async_trait]
impl Fetch for Fetching {
    async fn fetch(&self, sha256: &str) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        if self.artefacts.path(sha256).is_ok_and(|path| path.is_file()) {
            return Ok(()); // another load brought it
        }
        let pieces = Pieces {
            fetcher: self.fetcher.clone(),
            sha256: sha256.to_owned(),
            runtime: Handle::current(),
            offset: 0,
            total: None,
            rest: Buffer::new(),
        };
        let artefacts = self.artefacts.clone();
        let put = tokio::task::spawn_blocking(move || artefacts.put(pieces)).await;
        let put = put.map_err(|error| error.to_string())?.map_err(|error| {
            format!("artefact {sha256} is not here and could not be fetched from a gateway: {error}")
        })?;
        if put.sha256 != sha256 {
            return Err(format!("a gateway gave {} for artefact {sha256}", put.sha256));
        }
        tracing::info!(sha256, bytes = put.bytes, "fetched an artefact");
        Ok(())
    }
}

/// An artefact as its pieces come.
struct Pieces {
    fetcher: Fetcher,
    sha256: String,
    runtime: Handle,
    offset: u64,
    total: Option<u64>,
    rest: Buffer,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() && self.total != Some(self.offset) {
            let piece = self.runtime.block_on(self.fetcher.piece(&self.sha256, self.offset));
            let piece = piece.ok_or_else(|| io::Error::other("no gateway that is connected has it"))?;
            let total = *self.total.get_or_insert(piece.total);
            let end = self.offset + piece.bytes.len() as u64;
            if piece.total != total || end > total || (piece.bytes.is_empty() && end < total) {
                return Err(io::Error::other("gateways do not agree on how long it is"));
            }
            (self.offset, self.rest) = (end, piece.bytes);
        }
        let taken = self.rest.len().min(into.len());
        into[..taken].copy_from_slice(&self.rest[..taken]);
        self.rest.advance(taken);
        Ok(taken)
    }
}

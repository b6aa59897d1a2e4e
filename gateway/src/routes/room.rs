//! How much an upload may bring: as much as any artefact may have, and no more than its tenant's quota leaves beside what is the tenant's already and
//! what others of its uploads bring just now.

use super::App;
use super::artefacts::{uploaded, with_models};
use crate::access::{Caller, Reserved};
use crate::errors::ApiError;
use crate::http::body;
use http::{HeaderMap, StatusCode};
use modelless_store::UPLOADS_MAX;
use std::sync::Arc;

/// Taken at once for an upload that does not say how long it is.
const STEP: u64 = 64 << 20;
/// Uploads take their time.
const AGAIN_AFTER_S: u64 = 10;

/// The room of one upload.
pub(super) struct Room<'a> {
    app: &'a App,
    caller: &'a Caller,
    /// What any artefact may have.
    usual: u64,
    quota: Option<(u64, Arc<Reserved>)>,
}

impl<'a> Room<'a> {
    /// For an upload with this head.
    pub(super) async fn of(app: &'a App, caller: &'a Caller, headers: &HeaderMap) -> Result<Self, ApiError> {
        let usual = app.core.config.max_artefact_bytes;
        let length = body::check_head(headers, usual)?;
        let locked = app.core.gate.locked();
        if locked && uploaded(app, caller).await?.len() >= UPLOADS_MAX {
            // Before it is written: what nobody is noted for would count for nobody.
            return Err(over(format!(
                "{UPLOADS_MAX} artefacts were uploaded within a day, which is the limit; try again later"
            )));
        }
        let quota = caller.max_artefacts().filter(|_| locked);
        let room =
            Self { app, caller, usual, quota: quota.map(|quota| (quota, Arc::new(caller.reserved()))) };
        room.take(length.map_or((1, STEP), |length| (length.max(1), length.max(1)))).await?;
        Ok(room)
    }

    /// So many bytes have come by now.
    pub(super) async fn holds(&self, total: u64) -> Result<(), ApiError> {
        if total > self.usual {
            return Err(ApiError::too_large(self.usual));
        }
        let has = self.quota.as_ref().map_or(total, |(_, reserved)| reserved.bytes());
        match total.saturating_sub(has) {
            0 => Ok(()),
            more => self.take((more, more.max(STEP))).await,
        }
    }

    async fn take(&self, bounds: (u64, u64)) -> Result<(), ApiError> {
        let Self { app, caller, usual, quota } = self;
        let Some((quota, reserved)) = quota else { return Ok(()) };
        let has = reserved.bytes();
        let none = loop {
            let seen = reserved.seen();
            let own = with_models(app, caller, uploaded(app, caller).await?);
            match reserved.take(seen, (*quota, own.values().sum()), bounds) {
                None => {}
                Some(Ok(())) => return Ok(()),
                Some(Err(none)) => break none,
            }
        };
        match none.alone {
            0 => Err(over(format!(
                "your quota of {quota} bytes of artefacts is used up; remove models that are not needed"
            ))),
            alone if alone < has.saturating_add(bounds.0) => Err(ApiError::too_large(alone.min(*usual))),
            _ => {
                let message = format!(
                    "your quota of {quota} bytes of artefacts has no room for this beside the uploads under way; \
                     try again once they have ended"
                );
                Err(ApiError { retry_after_s: Some(AGAIN_AFTER_S), ..over(message) })
            }
        }
    }

    /// What it has reserved, to be held until what came is noted.
    pub(super) fn reserved(&self) -> Option<Arc<Reserved>> {
        self.quota.as_ref().map(|(_, reserved)| Arc::clone(reserved))
    }
}

fn over(message: String) -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "over_quota", message)
}

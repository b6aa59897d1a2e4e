//! Triton's settings of its tracing and its log: clients read them and set them. There are none here, so what is read is empty and
//! every change is refused.

use super::json;
use crate::errors::ApiError;
use crate::goals::Entries;
use http::StatusCode;

/// Refuses what changes something.
pub(crate) fn unset(changes: usize) -> Result<(), ApiError> {
    if changes == 0 {
        return Ok(());
    }
    let message = "Triton's tracing and log are not here; MODELLESS_LOG sets this server's log at its start";
    Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_served_here", message))
}

/// How many a body would change: each of its entries, one that is `null` too, since that means the usual value.
pub(crate) fn changes(body: &[u8]) -> Result<usize, ApiError> {
    json::check_object(body)?;
    let asked: Entries<'_> = serde_json::from_slice(body).map_err(|error| {
        ApiError::malformed(format!("the settings must be an object, by their names: {error}"))
    })?;
    Ok(asked.0.len())
}

//! What a path and a query string say, for routes that take no goals.

use crate::errors::ApiError;
use crate::suggest::{excerpt, suggest};
use axum::extract::{FromRequestParts, Path};
use http::Uri;
use http::request::Parts;
use serde::de::DeserializeOwned;

/// The parameters in a path.
pub(crate) struct Named<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(named)| Self(named))
            .map_err(|error| ApiError::malformed(format!("the path cannot be read: {}", error.body_text())))
    }
}

/// What a query string says, for routes that take no goals. Each name once, none that is not taken.
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn of(uri: &Uri) -> Result<Self, ApiError> {
        let mut all: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            if all.iter().any(|(known, other)| *known == name && *other != value) {
                let name = excerpt(&name);
                return Err(ApiError::malformed(format!("{name} is given twice with different values")));
            }
            all.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(all))
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let value = self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        self.0.retain(|(known, _)| known != name);
        value
    }

    pub(crate) fn take_flag(&mut self, name: &str) -> Result<bool, ApiError> {
        match self.take(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(other) => {
                let other = excerpt(other);
                Err(ApiError::malformed(format!("{name} is {other}; expected true or false")))
            }
        }
    }

    pub(crate) fn take_number(&mut self, name: &str, least: u32, most: u32) -> Result<Option<u32>, ApiError> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let plain = text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|number| plain && (least..=most).contains(number));
        number.map(Some).ok_or_else(|| {
            let text = excerpt(&text);
            ApiError::malformed(format!("{name} is {text}; expected a whole number from {least} to {most}"))
        })
    }

    pub(crate) fn finish(self, taken: &[&str]) -> Result<(), ApiError> {
        let Some((name, _)) = self.0.first() else { return Ok(()) };
        let near = suggest(name, taken.iter().copied());
        let name = excerpt(name);
        Err(ApiError::malformed(format!("there is no query parameter {name}{near}")))
    }
}

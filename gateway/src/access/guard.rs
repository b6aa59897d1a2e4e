//! The check before each route of HTTP.

use super::{Caller, Deeds, Detail, Needs};
use crate::errors::ApiError;
use crate::routes::{Shared, refused};
use axum::extract::{FromRequestParts, Request};
use axum::response::Response;
use futures_util::future::{BoxFuture, Either, Ready, ready};
use http::request::Parts;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{Layer, Service};

/// An answer whose status is noted.
type Noted = BoxFuture<'static, Result<Response, Infallible>>;

/// Puts a [`Guard`] before a route.
#[derive(Clone)]
pub(crate) struct Guarded {
    pub(crate) app: Shared,
    pub(crate) needs: Needs,
    /// As the table of routes has it.
    pub(crate) path: &'static str,
    /// Whether it asks the store each time.
    pub(crate) looks: bool,
}

impl<S> Layer<S> for Guarded {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { guarded: self.clone(), inner }
    }
}

/// Lets through who may; says no to others before anything of the body was read.
#[derive(Clone)]
pub(crate) struct Guard<S> {
    guarded: Guarded,
    inner: S,
}

impl<S> Service<Request> for Guard<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Ready<Result<Response, Infallible>>, Either<S::Future, Noted>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let Guarded { app, needs, path, looks } = &self.guarded;
        let now = app.core.driver.clock().now();
        match app.core.gate.admit(request.headers(), *needs) {
            Ok(caller) => {
                if *looks && let Err(error) = caller.read(now) {
                    return Either::Left(ready(Ok(refused(request.uri().path(), error))));
                }
                if *looks || !Deeds::counts(*needs, request.method()) {
                    request.extensions_mut().insert(caller);
                    return Either::Right(Either::Left(self.inner.call(request)));
                }
                if let Err(error) = caller.change(now) {
                    return Either::Left(ready(Ok(refused(request.uri().path(), error))));
                }
                let action = format!("{} {path}", request.method());
                let (app, target) = (Arc::clone(app), request.uri().path().to_owned());
                let detail = Detail::default();
                request.extensions_mut().insert(caller.clone());
                request.extensions_mut().insert(detail.clone());
                let answer = self.inner.call(request);
                Either::Right(Either::Right(Box::pin(async move {
                    let deed = app.deeds.begin(&caller, action, target, detail);
                    let Ok(answer) = answer.await;
                    deed.answered(answer.status().as_u16());
                    Ok(answer)
                })))
            }
            Err(denied) => {
                let target = request.uri().path();
                let action = || format!("{} {path}", request.method());
                app.deeds.refuse(&denied, now, (action, target), denied.error.status.as_u16());
                Either::Left(ready(Ok(refused(target, denied.error))))
            }
        }
    }
}

/// Every handler runs behind a [`Guard`], which says who it is.
impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(Self::unchecked)
    }
}

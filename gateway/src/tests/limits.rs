//! What is counted against a tenant besides its queries, and that a request of many queries is let in whole or not at all.

use super::access::made;
use super::world::{Setup, World};
use crate::http::refusals::Slowly;
use axum::body::Body;
use http::{Method, Request, StatusCode};
use modelless_store::{Access as _, Owner, Quota, SecretKey};
use modelless_types::{Scopes, TenantId};
use tower::ServiceExt as _;

/// A world of all tasks whose first tenant has this quota, and its key.
async fn bounded(quota: Quota, setup: Setup) -> (World, SecretKey) {
    let world = World::with(Setup { texts: true, ..Setup::default() }).await;
    let key = made(&world, TenantId::DEFAULT, Scopes::ALL).await;
    world.store.set_quota(Owner::Tenant(TenantId::DEFAULT), quota).await.unwrap();
    (World::with(Setup { store: Some(world.store), ..setup }).await, key)
}

#[tokio::test]
async fn who_looks_for_a_way_in_without_a_key_is_told_slowly() {
    let (world, key) = bounded(Quota::default(), Setup::default()).await;
    for (method, path, status) in [
        (Method::GET, "/admin", StatusCode::NOT_FOUND),
        (Method::GET, "/openai/v2", StatusCode::NOT_FOUND),
        (Method::PUT, "/v1/tasks/fashion", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        for (secret, slowly) in [(None, true), (Some("mlk_of_nobody"), true), (Some(key.expose()), false)] {
            let mut request = Request::builder().method(method.clone()).uri(path);
            if let Some(secret) = secret {
                request = request.header("api-key", secret);
            }
            let got = world.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!(got.status(), status, "{path}");
            let told = got.extensions().get::<Slowly>();
            assert_eq!(told, slowly.then_some(&Slowly::DENIED), "{path} with {secret:?}");
        }
    }
}

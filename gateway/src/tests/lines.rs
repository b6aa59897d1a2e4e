//! The log's line for each query.

use super::access::{locked, made_for};
use super::world::{PNG, Setup, World, send};
use axum::body::Body;
use http::Request;
use modelless_types::{Scope, Scopes, TenantId};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Fields of the queries' lines, as `name=value`.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Vec<String>>>>);

struct Fields(Vec<String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push(format!("{field}={value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push(format!("{field}={value:?}"));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.target() == "modelless_gateway::queries"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(Vec::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_querys_line_says_who_asked_and_calls_the_node_as_answers_do() {
    let (world, ..) = locked().await;
    let scopes: Scopes = [Scope::Query].into_iter().collect();
    let key = made_for(&world, (TenantId::DEFAULT, "camera"), scopes).await;
    let world = World::with(Setup { store: Some(world.store), ..Setup::default() }).await;
    let lines = Lines::default();
    let _until_the_end = tracing::subscriber::set_default(lines.clone());
    let ask = async |query: &str| {
        let request = Request::post(format!("/v1/tasks/fashion{query}")).header("api-key", key.expose());
        let request = request.header("content-type", "image/png").body(Body::from(PNG)).unwrap();
        send(world.router(), request).await
    };
    let answered = ask("").await;
    assert_eq!(ask("?accuracy=0.999").await.status, 422);
    let lines = lines.0.lock().unwrap();
    let [first, second] = &lines[..] else { panic!("{lines:?}") };
    let node = format!("node={}", answered.header("modelless-node"));
    for wanted in ["tenant=default", "app=camera", "task=fashion", &node, "message=answered"] {
        assert!(first.iter().any(|field| field == wanted), "{wanted}: {first:?}");
    }
    for wanted in ["tenant=default", "app=camera", "message=refused"] {
        assert!(second.iter().any(|field| field == wanted), "{wanted}: {second:?}");
    }
}

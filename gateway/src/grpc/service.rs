//! The calls of `inference.GRPCInferenceService`, by name.

use super::coming::{Coming, Held};
use super::infer;
use crate::access::{Caller, Deeds, Detail, Needs};
use crate::errors::ApiError;
use crate::http::refusals::Slowly;
use crate::oip::request::Value;
use crate::oip::{about, residency, settings, statistics};
use crate::regions::{self, Ends, Region};
use crate::routes::{self, App, Shared};
use crate::suggest::noted;
use crate::view::View;
use futures_util::stream::{once, unfold};
use futures_util::{Stream, StreamExt as _};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use modelless_oip::messages::{
    Empty, Index, IndexRequest, InferRequest, Live, LogSettings, ModelConfigResponse, ModelMetadata,
    ModelName, Ready, RegionName, Regions, RegisterCudaRegion, RegisterRegion, RepositoryChoice,
    RepositoryRequest, ServerMetadata, Settings, Statistics,
};
use prost::Message;
use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codec::{BufferSettings, EncodeBody};
use tonic::metadata::{GRPC_CONTENT_TYPE, MetadataMap, MetadataValue};
use tonic::server::NamedService;
use tonic::{Code, Request, Status};
use tonic_prost::ProstEncoder;
use tower::Service;

pub(super) const NAME: &str = "inference.GRPCInferenceService";
/// Besides the tensors a message has names and parameters.
const AROUND: u64 = 1 << 20;
/// Requests of one stream that are open at one time; they are answered in their order.
const STREAM_OPEN: usize = 64;

/// The service.
#[derive(Clone)]
pub(super) struct Inference {
    app: Shared,
}

impl Inference {
    pub(super) fn new(app: Shared) -> Self {
        Self { app }
    }
}

impl NamedService for Inference {
    const NAME: &'static str = NAME;
}

impl Service<http::Request<Body>> for Inference {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let app = Arc::clone(&self.app);
        Box::pin(async move { Ok(call(app, request).await) })
    }
}

/// How large a message may be that asks for no inference: names, and a few settings.
pub(super) const LITTLE: usize = 64 << 10;

/// How large a call's messages may be, unpacked too.
fn most(app: &App, caller: &Caller, name: &str) -> u64 {
    if !matches!(name, "ModelInfer" | "ModelStreamInfer") {
        return LITTLE as u64;
    }
    caller.max_body(app.core.config.max_body_bytes).saturating_add(AROUND)
}

/// Answers as gRPC says them.
fn answers<A: Message + 'static>(
    all: impl Stream<Item = Result<A, Status>> + Send + 'static,
) -> http::Response<Body> {
    let encoder = ProstEncoder::<A>::new(BufferSettings::default());
    let body = EncodeBody::new_server(encoder, all, None, <_>::default(), Some(usize::MAX));
    let mut answer = http::Response::new(Body::new(body));
    answer.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    answer
}

fn answer<A: Message + 'static>(answer: Result<A, ApiError>) -> http::Response<Body> {
    match answer {
        Ok(answer) => answers(once(ready(Ok(answer)))),
        Err(error) => status(&error).into_http(),
    }
}

/// One question, one answer.
async fn one<A, Q, F, Done>(app: Shared, request: http::Request<Coming>, answered: F) -> http::Response<Body>
where
    A: Message + 'static,
    Q: Message + Default,
    F: FnOnce(Shared, Request<Q>) -> Done,
    Done: Future<Output = Result<A, ApiError>>,
{
    let (head, mut coming) = request.into_parts();
    let answered = async {
        let (message, _held) = coming.only().await?;
        let metadata = MetadataMap::from_headers(head.headers);
        answered(app, Request::from_parts(metadata, head.extensions, message)).await
    };
    answer(answered.await)
}

/// The same where the answer is at hand.
async fn told<A, Q>(
    app: Shared,
    request: http::Request<Coming>,
    answer: fn(&App, &View, Q) -> Result<A, ApiError>,
) -> http::Response<Body>
where
    A: Message + 'static,
    Q: Message + Default,
{
    one(app, request, move |app, request: Request<Q>| {
        let view = caller(request.extensions()).map(|caller| app.core.view_of(caller));
        let answer = view.and_then(|view| answer(&app, &view, request.into_inner()));
        async move { answer }
    })
    .await
}

/// Where a refusal is named.
const REFUSAL: &str = "modelless-refusal";

/// How messages may be packed.
const ENCODINGS: &str = "gzip,deflate,identity";

/// Where a call's end is told.
const STATUS: &str = "grpc-status";

/// Who asks: `call` has checked that.
fn caller(extensions: &http::Extensions) -> Result<&Caller, ApiError> {
    extensions.get().ok_or_else(Caller::unchecked)
}

/// What a call asks of whoever comes: as much as the route of HTTP that does the same.
fn needs(name: &str) -> Needs {
    match name {
        "ServerLive" | "ServerReady" => Needs::Nothing,
        "RepositoryModelLoad" | "RepositoryModelUnload" => Needs::ADMIN,
        _ => Needs::QUERY,
    }
}

async fn call(app: Shared, request: http::Request<Body>) -> http::Response<Body> {
    let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let needs = needs(&name);
    let caller = match app.core.gate.admit(request.headers(), needs) {
        Ok(caller) => caller,
        Err(denied) => {
            let said = status(&denied.error);
            let (now, action) = (app.core.driver.clock().now(), || format!("gRPC {name}"));
            app.deeds.refuse(&denied, now, (action, request.uri().path()), denied.error.status.as_u16());
            app.core.refusals.hold(Slowly::DENIED).await;
            return said.into_http();
        }
    };
    let changes = Deeds::counts(needs, request.method());
    if changes && let Err(error) = caller.change(app.core.driver.clock().now()) {
        return status(&error).into_http();
    }
    let most = most(&app, &caller, &name);
    let (mut head, body) = request.into_parts();
    let coming = Coming::of(&head.headers, body, (&app.core, &caller), most);
    head.extensions.insert(caller.clone());
    let detail = Detail::default();
    head.extensions.insert(detail.clone());
    let deed = changes.then(|| {
        let path = head.uri.path().to_owned();
        app.deeds.begin(&caller, format!("gRPC {name}"), path, detail)
    });
    let answer = match coming {
        Ok(coming) => answered(Arc::clone(&app), &name, http::Request::from_parts(head, coming)).await,
        Err(error) => {
            let mut said = status(&error);
            said.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static(ENCODINGS));
            said.into_http()
        }
    };
    // Only a refusal has one in the head.
    match answer.headers().get(REFUSAL).map(HeaderValue::as_bytes) {
        Some(b"over_quota") => app.core.refusals.hold(Slowly::OVER_QUOTA).await,
        Some(b"too_large") => app.core.refusals.hold(Slowly::TOO_LARGE).await,
        _ => {}
    }
    if let Some(deed) = deed {
        // Only a refusal has its status in the head.
        let code = answer.headers().get(STATUS).map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
        deed.answered(as_http(code).as_u16());
    }
    answer
}

async fn answered(app: Shared, name: &str, request: http::Request<Coming>) -> http::Response<Body> {
    match name {
        "ModelInfer" => Box::pin(ask(app, request)).await,
        "ModelStreamInfer" => stream(app, request),
        "ServerLive" => told(app, request, |_, _, Empty {}| Ok(Live { live: true })).await,
        "ServerReady" => {
            told(app, request, |app, _, Empty {}| Ok(Ready { ready: app.core.unready().is_none() })).await
        }
        "ModelReady" => {
            told(app, request, |_, view, model: ModelName| {
                let ready = view.task(&model.name).and_then(|task| about::ready(view, task, &model.version));
                match ready {
                    // Whoever waits for a model asks before there is one: as Triton has it, that is no error.
                    Err(error) if error.status == StatusCode::NOT_FOUND => Ok(Ready { ready: false }),
                    ready => Ok(Ready { ready: ready? }),
                }
            })
            .await
        }
        "ServerMetadata" => {
            told(app, request, |app, _, Empty {}| {
                Ok::<ServerMetadata, _>(about::server(app.core.config.shared_memory))
            })
            .await
        }
        "ModelMetadata" => {
            told(app, request, |_, view, model: ModelName| -> Result<ModelMetadata, _> {
                about::metadata(view.task(&model.name)?, &model.version)
            })
            .await
        }
        "ModelConfig" => {
            told(app, request, |app, view, model: ModelName| {
                let task = view.task(&model.name)?;
                let config = about::config(task, &model.version, app.core.cache.serves(task))?;
                Ok(ModelConfigResponse { config: Some(config) })
            })
            .await
        }
        "ModelStatistics" => one(app, request, counted).await,
        "RepositoryIndex" => {
            told(app, request, |_, view, asked: IndexRequest| {
                Ok(Index { models: about::index(view, asked.ready) })
            })
            .await
        }
        "RepositoryModelLoad" => one(app, request, load).await,
        "RepositoryModelUnload" => one(app, request, unload).await,
        "SystemSharedMemoryStatus" => one(app, request, shown_regions).await,
        "SystemSharedMemoryUnregister" => one(app, request, unregister).await,
        "SystemSharedMemoryRegister" => one(app, request, register).await,
        "CudaSharedMemoryStatus" => told(app, request, |_, _, _: RegionName| Ok(Regions::default())).await,
        "CudaSharedMemoryUnregister" => told(app, request, |_, _, _: RegionName| Ok(Empty {})).await,
        "CudaSharedMemoryRegister" => {
            told(app, request, |_, _, _: RegisterCudaRegion| -> Result<Empty, _> { Err(regions::no_gpus()) })
                .await
        }
        "TraceSetting" => told(app, request, |_, view, asked: Settings| trace_setting(view, asked)).await,
        "LogSettings" => {
            told(app, request, |_, _, asked: LogSettings| {
                settings::unset(asked.settings.len())?;
                Ok(asked)
            })
            .await
        }
        _ => Status::unimplemented(format!("there is no call {name} here")).into_http(),
    }
}

fn trace_setting(view: &View, asked: Settings) -> Result<Settings, ApiError> {
    if !asked.model_name.is_empty() {
        view.task(&asked.model_name)?;
    }
    settings::unset(asked.settings.len())?;
    Ok(asked)
}

async fn counted(app: Shared, request: Request<ModelName>) -> Result<Statistics, ApiError> {
    let caller = caller(request.extensions())?;
    let ModelName { name, version } = request.get_ref();
    let view = app.core.view_of(caller);
    let model_stats = match &**name {
        "" => statistics::of_all(&app.core, caller)?,
        name => statistics::of_task(&view, view.task(name)?, version)?,
    };
    Ok(Statistics { model_stats })
}

async fn load(app: Shared, request: Request<RepositoryRequest>) -> Result<Empty, ApiError> {
    let (caller, (name, parameters)) = of_repository(request)?;
    residency::load(&app.core, &caller, &name, &parameters).await.map(|()| Empty {})
}

async fn unload(app: Shared, request: Request<RepositoryRequest>) -> Result<Empty, ApiError> {
    let (caller, (name, parameters)) = of_repository(request)?;
    residency::unload(&app.core, &caller, &name, &parameters).await.map(|()| Empty {})
}

/// What is said of a model.
type Parameters = Vec<(String, Value)>;

/// Who asks, of which model, and what is said of it.
fn of_repository(request: Request<RepositoryRequest>) -> Result<(Caller, (String, Parameters)), ApiError> {
    let caller = caller(request.extensions())?.clone();
    let detail = request.extensions().get::<Detail>().cloned().unwrap_or_default();
    let asked = request.into_inner();
    let value = |choice: Option<RepositoryChoice>| match choice {
        Some(RepositoryChoice::Bool(truth)) => Value::Bool(truth),
        Some(RepositoryChoice::Int(number)) => Value::Number(number.to_string()),
        Some(RepositoryChoice::Text(text)) => Value::Text(text),
        Some(RepositoryChoice::Raw(_)) | None => Value::Text(String::new()),
    };
    let parameters = asked.parameters.into_iter();
    let parameters: Parameters =
        parameters.map(|(name, parameter)| (name, value(parameter.choice))).collect();
    let version = routes::of_version(&parameters).map(|version| format!(", {version}"));
    detail.say(format!("task {}{}", noted(&asked.model_name), version.unwrap_or_default()));
    Ok((caller, (asked.model_name, parameters)))
}

/// The name of a region; none stands for all.
fn named(name: &str) -> Option<&str> {
    if name.is_empty() { None } else { Some(name) }
}

async fn shown_regions(app: Shared, request: Request<RegionName>) -> Result<Regions, ApiError> {
    if !app.core.config.shared_memory {
        return Ok(Regions::default());
    }
    let all = app.core.regions.of(caller(request.extensions())?, named(&request.get_ref().name))?;
    let message = |Region { name, key, offset, bytes }: Region| {
        (name.clone(), RegisterRegion { name, key, offset, byte_size: bytes })
    };
    Ok(Regions { regions: all.into_iter().map(message).collect() })
}

async fn register(app: Shared, request: Request<RegisterRegion>) -> Result<Empty, ApiError> {
    let (metadata, extensions, RegisterRegion { name, key, offset, byte_size }) = request.into_parts();
    let ends = extensions.get::<Option<Ends>>().copied().flatten();
    let region = Region { name, key, offset, bytes: byte_size };
    let came = (ends, &metadata.into_headers());
    routes::add_region(&app, caller(&extensions)?, came, region).await.map(|()| Empty {})
}

async fn unregister(app: Shared, request: Request<RegionName>) -> Result<Empty, ApiError> {
    app.core.regions.unregister(caller(request.extensions())?, named(&request.get_ref().name));
    Ok(Empty {})
}

async fn ask(app: Shared, request: http::Request<Coming>) -> http::Response<Body> {
    let (head, mut coming) = request.into_parts();
    let answered = async {
        let asked = coming.only().await?;
        infer::run(&app.core, (&head.headers, caller(&head.extensions)?), asked).await
    };
    answer(answered.await)
}

/// Answers come in the order of the requests; one that is refused ends nothing but itself. Each is let in anew: a stream may outlive the key that
/// it was begun with. A message that cannot be read is the last.
fn stream(app: Shared, request: http::Request<Coming>) -> http::Response<Body> {
    let (head, coming) = request.into_parts();
    let headers = Arc::new(head.headers);
    let answered = messages(coming).map(move |message| {
        let (app, headers) = (Arc::clone(&app), Arc::clone(&headers));
        async move {
            let admitted = || app.core.gate.admit(&headers, Needs::QUERY).map_err(|denied| denied.error);
            match message.and_then(|message| Ok((admitted()?, message))) {
                Ok((caller, asked)) => Ok(infer::streamed(&app.core, (&headers, &caller), asked).await),
                Err(error) => {
                    infer::held_up(&app.core, &error).await;
                    Err(status(&error))
                }
            }
        }
    });
    answers(answered.buffered(STREAM_OPEN))
}

/// As they come, each with its memory from then on: those that wait to be answered count too.
fn messages(coming: Coming) -> impl Stream<Item = Result<(InferRequest, Held), ApiError>> + Send {
    unfold(Some(coming), async |coming| {
        let mut coming = coming?;
        let next = coming.next().await.transpose()?;
        let more = next.is_ok().then_some(coming);
        Some((next, more))
    })
}

/// A refusal as gRPC says it. What nothing but other goals would mend is a precondition that failed.
pub(super) fn status(error: &ApiError) -> Status {
    let code = match error.status {
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::CONFLICT => Code::AlreadyExists,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE => Code::ResourceExhausted,
        StatusCode::UNPROCESSABLE_ENTITY => Code::FailedPrecondition,
        StatusCode::NOT_IMPLEMENTED => Code::Unimplemented,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => Code::DeadlineExceeded,
        StatusCode::INTERNAL_SERVER_ERROR => Code::Internal,
        status if status.as_u16() == 499 => Code::Cancelled,
        _ => Code::InvalidArgument,
    };
    let mut status = Status::new(code, error.message.clone());
    if let Ok(reason) = error.reason.parse() {
        status.metadata_mut().insert(REFUSAL, reason);
    }
    if let Some(number) = error.query.and_then(|query| query.to_string().parse().ok()) {
        status.metadata_mut().insert("modelless-query", number);
    }
    status
}

/// What HTTP would have said, so that one column tells what came of both.
fn as_http(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::FailedPrecondition => StatusCode::UNPROCESSABLE_ENTITY,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        // A client that went away; HTTP has no number for it, others use this one.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::Internal | Code::Unknown | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::QueryNumber;

    #[test]
    fn a_refusal_tells_its_name_and_its_query() {
        let error = ApiError { query: Some(QueryNumber(0xbeef)), ..ApiError::malformed("x") };
        let told = status(&error).into_http::<Body>();
        let header = |name: &str| told.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(
            (header(REFUSAL), header("modelless-query")),
            (Some("malformed"), Some("000000000000beef"))
        );
        let told = status(&ApiError::malformed("x")).into_http::<Body>();
        assert!(!told.headers().contains_key("modelless-query"));
    }
}

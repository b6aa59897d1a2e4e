//! The calls of `inference.GRPCInferenceService`, by name.

use super::coming::{Coming, Gathered};
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
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, unfold};
use http::{HeaderValue, StatusCode};
use modelless_oip::messages::{
    Empty, Index, IndexRequest, InferRequest, InferResponse, Live, LogSettings, ModelConfigResponse,
    ModelMetadata, ModelName, Ready, RegionName, Regions, RegisterCudaRegion, RegisterRegion,
    RepositoryChoice, RepositoryRequest, ServerMetadata, Settings, Statistics, StreamResponse,
};
use prost::Message;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::server::{Grpc, NamedService};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

pub(super) const NAME: &str = "inference.GRPCInferenceService";
/// Besides the tensors a message has names and parameters.
const AROUND: usize = 1 << 20;
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
fn most(app: &App, caller: &Caller, name: &str) -> usize {
    if !matches!(name, "ModelInfer" | "ModelStreamInfer") {
        return LITTLE;
    }
    let body = caller.max_body(app.core.config.max_body_bytes);
    usize::try_from(body).unwrap_or(usize::MAX).saturating_add(AROUND)
}

fn codec<A: Message + Default + 'static, Q: Message + Default + 'static>(
    most: usize,
) -> Grpc<ProstCodec<A, Q>> {
    let mut grpc = Grpc::new(ProstCodec::default())
        // Unpacked messages are bounded by the same limit.
        .apply_max_message_size_config(Some(most), Some(usize::MAX));
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        grpc = grpc.accept_compressed(encoding);
    }
    grpc
}

/// One question, one answer.
async fn one<A, Q, F, Done>(app: Shared, request: http::Request<Body>, answer: F) -> http::Response<Body>
where
    A: Message + Default + Send + 'static,
    Q: Message + Default + Send + 'static,
    F: Fn(Shared, Request<Q>) -> Done,
    Done: Future<Output = Result<A, ApiError>> + Send + 'static,
{
    let mut grpc = codec::<A, Q>(bound(request.extensions()));
    let answer = service_fn(move |request: Request<Q>| {
        let done = answer(Arc::clone(&app), request);
        async move { done.await.map(Response::new).map_err(|error| status(&error)) }
    });
    grpc.unary(answer, request).await
}

/// The same where the answer is at hand.
async fn told<A, Q>(
    app: Shared,
    request: http::Request<Body>,
    answer: fn(&App, &View, Q) -> Result<A, ApiError>,
) -> http::Response<Body>
where
    A: Message + Default + Send + 'static,
    Q: Message + Default + Send + 'static,
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

/// Where a call's end is told.
const STATUS: &str = "grpc-status";

/// What `tonic` says of a message that is too large, as everything else here is said. Nothing else ends so.
fn by_name(said: Status, most: usize) -> Status {
    if said.code() == Code::OutOfRange { status(&ApiError::too_large(most as u64)) } else { said }
}

/// How large the messages of a call may be.
#[derive(Clone, Copy)]
struct Bound(usize);

fn bound(extensions: &http::Extensions) -> usize {
    extensions.get().map_or(LITTLE, |Bound(most)| *most)
}

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
    let (head, body) = request.into_parts();
    let (body, gathered) = Coming::counted(body, &app, &caller, most as u64);
    let mut request = http::Request::from_parts(head, body);
    let extensions = request.extensions_mut();
    extensions.insert(caller.clone());
    extensions.insert(Bound(most));
    extensions.insert(gathered);
    let detail = Detail::default();
    extensions.insert(detail.clone());
    let deed = changes.then(|| (Arc::clone(&app), request.uri().path().to_owned()));
    let mut answer = answered(Arc::clone(&app), &name, request).await;
    if let Some(said) = Status::from_header_map(answer.headers())
        && said.code() == Code::OutOfRange
    {
        answer = by_name(said, most).into_http();
    }
    // Only a refusal has one in the head.
    match answer.headers().get(REFUSAL).map(HeaderValue::as_bytes) {
        Some(b"over_quota") => app.core.refusals.hold(Slowly::OVER_QUOTA).await,
        Some(b"too_large") => {
            caller.oversized(app.core.driver.clock().now());
            app.core.refusals.hold(Slowly::TOO_LARGE).await;
        }
        _ => {}
    }
    if let Some((app, path)) = deed {
        // Only a refusal has its status in the head.
        let code = answer.headers().get(STATUS).map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
        app.deeds.note(&caller, format!("gRPC {name}"), detail.with(&path), as_http(code).as_u16());
    }
    answer
}

async fn answered(app: Shared, name: &str, request: http::Request<Body>) -> http::Response<Body> {
    match name {
        "ModelInfer" => Box::pin(one(app, request, ask)).await,
        "ModelStreamInfer" => Box::pin(stream(app, request)).await,
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
        "ModelStatistics" => told(app, request, |_, view, model: ModelName| counted(view, &model)).await,
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

fn counted(view: &View, model: &ModelName) -> Result<Statistics, ApiError> {
    let model_stats = match &*model.name {
        "" => statistics::of_all(view)?,
        name => statistics::of_task(view, view.task(name)?, &model.version)?,
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

async fn ask(app: Shared, request: Request<InferRequest>) -> Result<InferResponse, ApiError> {
    let (metadata, extensions, request) = request.into_parts();
    infer::run(&app.core, (&metadata.into_headers(), caller(&extensions)?), request).await
}

/// Answers come in the order of the requests; one that is refused ends nothing but itself. Each is let in anew: a stream may outlive the key that
/// it was begun with.
async fn stream(app: Shared, request: http::Request<Body>) -> http::Response<Body> {
    let most = bound(request.extensions());
    let mut grpc = codec::<StreamResponse, InferRequest>(most);
    let gathered = request.extensions().get::<Arc<Gathered>>().cloned();
    let answers = service_fn(move |request: Request<Streaming<InferRequest>>| {
        let (app, gathered) = (Arc::clone(&app), gathered.clone());
        async move {
            let (metadata, _, requests) = request.into_parts();
            let headers = Arc::new(metadata.into_headers());
            let answered = requests_of(requests, gathered, most).map(move |request| {
                let (app, headers) = (Arc::clone(&app), Arc::clone(&headers));
                async move {
                    let caller = app
                        .core
                        .gate
                        .admit(&headers, Needs::QUERY)
                        .map_err(|denied| status(&denied.error))?;
                    Ok(infer::streamed(&app.core, (&headers, &caller), request?).await)
                }
            });
            let answers: BoxStream<'static, Result<StreamResponse, Status>> =
                answered.buffered(STREAM_OPEN).boxed();
            Ok::<_, Status>(Response::new(answers))
        }
    });
    grpc.streaming(answers, request).await
}

fn requests_of(
    requests: Streaming<InferRequest>,
    gathered: Option<Arc<Gathered>>,
    most: usize,
) -> impl futures_util::Stream<Item = Result<InferRequest, Status>> + Send {
    unfold((requests, gathered), move |(mut requests, gathered)| async move {
        let next = requests.message().await.transpose()?;
        let next = next.map_err(|said| by_name(said, most));
        if let Some(gathered) = &gathered {
            gathered.taken();
        }
        Some((next, (requests, gathered)))
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

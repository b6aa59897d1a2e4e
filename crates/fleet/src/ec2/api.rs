//! One call to EC2: signed, sent, tried again when that may help, and its failure by name.

use super::config::Ec2Pool;
use super::credentials::{Credentials, Environment};
use super::http::{Call, Http, Server};
use super::query::Parameters;
use super::sign::{Keys, Request, Scope, TOKEN, authorization, stamp};
use super::xml::{self, Element};
use crate::Error;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// For one try.
const WITHIN: Duration = Duration::from_secs(20);
/// Whoever asks asks again by himself; these are for what passes in a moment.
const TRIES: u32 = 4;
/// Before the second try, up to which it is a share of; twice as long before each one after that.
const WAIT: Duration = Duration::from_millis(500);
/// What a failure may say.
const WORDS: usize = 400;
const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";

/// Why a call came to nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// EC2 said so.
    Told { status: u16, code: String, message: String },
    /// Nobody knows whether EC2 heard it.
    Silent(String),
    /// Nothing was asked: there is nothing to sign with.
    NoKeys(String),
}

/// Which kind of failure it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Capacity,
    Quota,
    Throttled,
    /// The service is in trouble, or it is unknown whether it did it.
    Away,
    /// The keys are too old, and newer ones may do.
    Stale,
    /// It is not there (any more).
    Absent,
    Refused,
}

impl Failure {
    pub(super) fn kind(&self) -> Kind {
        match self {
            // That says nothing of what was asked for, and the next call looks for keys again.
            Self::Silent(_) | Self::NoKeys(_) => Kind::Away,
            Self::Told { status, code, .. } => kind(*status, code),
        }
    }

    pub(super) fn error(&self) -> Error {
        let why = self.to_string();
        match self.kind() {
            Kind::Capacity => Error::Capacity(why),
            Kind::Quota => Error::Quota(why),
            Kind::Throttled => Error::Throttled(why),
            Kind::Away => Error::Away(why),
            Kind::Stale | Kind::Absent | Kind::Refused => Error::Refused(why),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Told { status, code, message } if code.is_empty() => {
                write!(f, "EC2 answered with {status}: {message}")
            }
            Self::Told { code, message, .. } => write!(f, "EC2 says {code}: {message}"),
            Self::Silent(why) | Self::NoKeys(why) => f.write_str(why),
        }
    }
}

/// By EC2's own words where they say more than the status.
fn kind(status: u16, code: &str) -> Kind {
    match code {
        "InsufficientInstanceCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientCapacity"
        | "InsufficientFreeAddressesInSubnet"
        | "SpotMaxPriceTooLow"
        | "UnfulfillableCapacity"
        | "Unsupported" => Kind::Capacity,
        "InstanceLimitExceeded"
        | "VcpuLimitExceeded"
        | "MaxSpotInstanceCountExceeded"
        | "MaxSpotFleetRequestCountExceeded"
        | "VolumeLimitExceeded" => Kind::Quota,
        "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "RequestThrottled"
        | "TooManyRequestsException" => Kind::Throttled,
        // The same machine was asked for with other settings, so there may be one: the list tells.
        "IdempotentParameterMismatch" => Kind::Away,
        "ExpiredToken" | "ExpiredTokenException" | "RequestExpired" => Kind::Stale,
        "InvalidInstanceID.NotFound" => Kind::Absent,
        _ if status == 429 => Kind::Throttled,
        _ if status >= 500 => Kind::Away,
        _ => Kind::Refused,
    }
}

#[derive(Clone)]
pub(super) struct Api(Arc<Inner>);

struct Inner {
    server: Server,
    http: Http,
    region: String,
    credentials: Credentials,
}

impl Api {
    pub(super) fn new(pool: &Ec2Pool, environment: Environment) -> Result<Self, String> {
        Ok(Self(Arc::new(Inner {
            server: pool.server()?,
            http: Http { ca: pool.ca.clone(), within: WITHIN },
            region: pool.region.clone(),
            credentials: Credentials::new(pool, environment),
        })))
    }

    /// Tries again what may pass. What is asked must be the same however often it is done.
    pub(super) async fn call(&self, parameters: &Parameters) -> Result<Element, Failure> {
        let body: Arc<str> = form(parameters).into();
        let mut tries = 0;
        loop {
            let (inner, asked) = (Arc::clone(&self.0), Arc::clone(&body));
            let told = spawn_blocking(move || inner.once(&asked, SystemTime::now())).await;
            let failure = match told {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(failure)) => failure,
                Err(error) => return Err(Failure::Silent(format!("the call to EC2 ended: {error}"))),
            };
            tries += 1;
            match failure.kind() {
                Kind::Throttled | Kind::Away if tries < TRIES && !is_mismatch(&failure) => {}
                Kind::Stale if tries < 2 => self.0.credentials.forget(),
                Kind::Capacity
                | Kind::Quota
                | Kind::Throttled
                | Kind::Away
                | Kind::Stale
                | Kind::Absent
                | Kind::Refused => return Err(failure),
            }
            let wait = wait(tries, &body);
            tracing::debug!(%failure, tries, ?wait, "EC2 is asked again");
            sleep(wait).await;
        }
    }
}

fn form(parameters: &Parameters) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}

/// Another try says the same.
fn is_mismatch(failure: &Failure) -> bool {
    matches!(failure, Failure::Told { code, .. } if code == "IdempotentParameterMismatch")
}

/// Longer each time, and another share of it for everything that is asked, so that not all ask again at one moment.
fn wait(tries: u32, asked: &str) -> Duration {
    let digest = Sha256::digest(format!("{tries} {asked}"));
    let share = f64::from(digest[0]) / 255.0;
    WAIT.mul_f64(f64::from(1 << (tries - 1)) * (0.5 + share / 2.0))
}

impl Inner {
    fn once(&self, body: &str, now: SystemTime) -> Result<Element, Failure> {
        let keys = self.credentials.keys().map_err(Failure::NoKeys)?;
        let (host, date) = (self.server.named(), stamp(now));
        let headers = signed(&host, &date, &keys, body, &self.region);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let call = Call { method: "POST", target: "/", headers: &headers, body: body.as_bytes() };
        let answer = self.http.send(&self.server, &call);
        let answer = answer.map_err(|error| Failure::Silent(format!("asking EC2 at {host}: {error}")))?;
        read(answer.status, &answer.body)
    }
}

/// All headers beyond those that every request has.
fn signed(host: &str, date: &str, keys: &Keys, body: &str, region: &str) -> Vec<(&'static str, String)> {
    let mut headers = vec![("content-type", FORM.to_owned()), ("x-amz-date", date.to_owned())];
    headers.extend(keys.token.iter().map(|token| (TOKEN, token.clone())));
    let all: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).chain([("host", host)]).collect();
    let request = Request { method: "POST", path: "/", query: &[], headers: &all, body: body.as_bytes() };
    let header = authorization(&request, keys, Scope { region, service: "ec2" }, date);
    headers.push(("authorization", header));
    headers
}

fn read(status: u16, body: &[u8]) -> Result<Element, Failure> {
    let text = String::from_utf8_lossy(body);
    let read = xml::read(&text);
    if status == 200 {
        return read.map_err(|why| Failure::Silent(format!("what EC2 answered cannot be read: {why}")));
    }
    let errors = read.ok();
    let error = errors
        .as_ref()
        .and_then(|root| [&["Errors", "Error"][..], &["Error"]].iter().find_map(|path| root.at(path)));
    let of = |name: &str| error.and_then(|error| error.text_at(&[name])).unwrap_or_default();
    let message = if error.is_some() { of("Message") } else { text.trim() };
    let message = message.chars().filter(|c| !c.is_control()).take(WORDS).collect();
    Err(Failure::Told { status, code: of("Code").to_owned(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, code: &str, message: &str) -> Error {
        let text = format!(
            "<?xml version=\"1.0\"?><Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>\
             <RequestID>r</RequestID></Response>"
        );
        read(status, text.as_bytes()).unwrap_err().error()
    }

    #[test]
    fn what_ec2_refuses_is_named_by_its_kind() {
        let words = |code: &str| format!("EC2 says {code}: no");
        for code in ["InsufficientInstanceCapacity", "SpotMaxPriceTooLow", "Unsupported"] {
            assert_eq!(told(500, code, "no"), Error::Capacity(words(code)));
        }
        for code in ["VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"] {
            assert_eq!(told(400, code, "no"), Error::Quota(words(code)));
        }
        assert_eq!(told(503, "RequestLimitExceeded", "no"), Error::Throttled(words("RequestLimitExceeded")));
        assert_eq!(told(500, "InternalError", "no"), Error::Away(words("InternalError")));
        assert!(told(400, "IdempotentParameterMismatch", "no").is_passing(), "there may be one");
        for code in ["InvalidAMIID.NotFound", "UnauthorizedOperation", "AuthFailure", "ExpiredToken"] {
            assert_eq!(told(400, code, "no"), Error::Refused(words(code)));
        }
    }

    #[test]
    fn an_answer_that_is_none_is_an_error_that_says_so() {
        let gateway = read(502, b"<html>Bad\nGateway</html>").unwrap_err();
        assert_eq!(gateway.kind(), Kind::Away);
        assert_eq!(gateway.to_string(), "EC2 answered with 502: <html>BadGateway</html>");
        assert!(read(200, b"<a>").unwrap_err().to_string().contains("cannot be read"));
        assert_eq!(read(429, b"").unwrap_err().kind(), Kind::Throttled);
        let other = b"<ErrorResponse><Error><Code>Throttling</Code></Error></ErrorResponse>";
        assert_eq!(read(400, other).unwrap_err().kind(), Kind::Throttled);
        let long = format!("<R><Error><Code>X</Code><Message>{}</Message></Error></R>", "y".repeat(10_000));
        assert!(read(400, long.as_bytes()).unwrap_err().to_string().len() < 500);
    }

    #[test]
    fn waits_grow_and_differ_between_those_who_wait() {
        let (first, last) = (wait(1, "a"), wait(3, "a"));
        assert!(first >= WAIT / 2 && first <= WAIT && last >= WAIT * 2 && last <= WAIT * 4);
        assert_ne!(wait(1, "a"), wait(1, "b"));
        assert_eq!(wait(2, "a"), wait(2, "a"));
    }

    #[test]
    fn a_session_is_signed_and_sent_and_nothing_of_a_secret_is_in_a_header() {
        let keys = Keys { id: "A".into(), secret: "SECRET".into(), token: Some("T".into()) };
        let headers = signed("h", "20150830T123600Z", &keys, "x=y", "eu-central-1");
        let all = format!("{headers:?}");
        assert!(all.contains("SignedHeaders=content-type;host;x-amz-date;x-amz-security-token,"), "{all}");
        assert!(all.contains("/20150830/eu-central-1/ec2/aws4_request") && !all.contains("SECRET"), "{all}");
    }
}

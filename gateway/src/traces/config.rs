//! Where traces go.

use http::{HeaderName, HeaderValue, Uri};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

const PATH: &str = "/v1/traces";

/// Where traces go, and how many.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracesConfig {
    /// A collector that takes OTLP over HTTP: `http://HOST:4318`, or the whole address. Without one nothing is traced.
    pub endpoint: Option<String>,
    /// The address is whole: nothing is put behind it.
    #[serde(skip)]
    pub whole: bool,
    /// Queries that are traced in a second, of each kind: those that their clients trace, those that missed a goal, all others.
    pub per_second: u32,
    /// Certificates of the authorities that the collector is believed by; else those that the machine believes.
    pub ca: Option<PathBuf>,
    /// What is said of this process besides: `deployment.environment=test,service.name=search`.
    pub resource: String,
    /// What is shown to the collector. Only from the environment, so that no file and no list of settings has it.
    #[serde(skip)]
    pub headers: Headers,
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            whole: false,
            per_second: 50,
            ca: None,
            resource: String::new(),
            headers: Headers::default(),
        }
    }
}

/// Headers with secrets in them: nothing shows their values.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers(pub(super) Vec<(HeaderName, HeaderValue)>);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Headers {
    /// `name=value,name=value`, values as in a URL.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut headers = Vec::new();
        for (name, value) in pairs(text)? {
            let wrong = || format!("the header {name:?} cannot be sent as it is written");
            let header = HeaderName::try_from(name.as_str()).map_err(|_| wrong())?;
            let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.push((header, value));
        }
        Ok(Self(headers))
    }
}

/// As OpenTelemetry writes lists in the environment. What is wrong is told without any value.
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut all = Vec::new();
    for (at, part) in text.split(',').map(str::trim).enumerate() {
        if part.is_empty() {
            continue;
        }
        let wrong = || format!("part {} is not of the form NAME=VALUE", at + 1);
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        // Here a plus is a plus, and nothing but a comma ends a value.
        let whole = format!("x={}", value.trim().replace('+', "%2B").replace('&', "%26"));
        let value = form_urlencoded::parse(whole.as_bytes()).next().map(|(_, value)| value.into_owned());
        match name.trim() {
            "" => return Err(wrong()),
            name => all.push((name.to_owned(), value.unwrap_or_default())),
        }
    }
    Ok(all)
}

/// Where to connect, and what to ask for there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// As `host` stands in a request.
    pub(super) authority: String,
    pub(super) path: String,
}

impl TracesConfig {
    pub(super) fn target(&self) -> Result<Option<Target>, String> {
        let given = self.endpoint.as_deref().filter(|text| !text.is_empty());
        given.map(|text| target(text, self.whole)).transpose()
    }

    pub(super) fn resource(&self) -> Result<Vec<(String, String)>, String> {
        pairs(&self.resource).map_err(|why| format!("traces.resource: {why}"))
    }

    /// What is wrong with it, in words.
    pub fn check(&self) -> Result<(), String> {
        self.target()?;
        self.resource()?;
        if self.per_second > 100_000 {
            return Err(format!("traces.per_second is {}; it must be at most 100000", self.per_second));
        }
        Ok(())
    }
}

fn target(text: &str, whole: bool) -> Result<Target, String> {
    // What stands before an `@` or behind a question mark may be a secret.
    let shown = text.split('?').next().unwrap_or_default();
    let shown = shown.rsplit_once('@').map_or(shown, |(_, host)| host);
    let wrong = |why: &str| {
        format!("traces.endpoint: {shown:?} {why}; expected something like http://localhost:4318")
    };
    let uri: Uri = text.parse().map_err(|_| wrong("is no address"))?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        Some(_) | None => return Err(wrong("does not begin with http:// or https://")),
    };
    let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
    if authority.as_str().contains('@') {
        return Err(wrong(
            "has a user in it: give what the collector asks for in OTEL_EXPORTER_OTLP_HEADERS",
        ));
    }
    if uri.query().is_some() {
        return Err(wrong("has a query in it"));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let base = uri.path().trim_end_matches('/');
    let path = match base {
        "" if whole => "/".to_owned(),
        base if whole || base.ends_with(PATH) => base.to_owned(),
        base => format!("{base}{PATH}"),
    };
    Ok(Target { tls, host, port, authority: authority.to_string(), path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_the_collectors_or_the_whole_one() {
        for (text, host, port, path) in [
            ("http://localhost:4318", "localhost", 4318, "/v1/traces"),
            ("http://localhost:4318/", "localhost", 4318, "/v1/traces"),
            ("http://[::1]:4318/v1/traces", "::1", 4318, "/v1/traces"),
            ("https://otlp.example/tenant/a", "otlp.example", 443, "/tenant/a/v1/traces"),
        ] {
            let target = target(text, false).unwrap();
            assert_eq!((target.host.as_str(), target.port, target.path.as_str()), (host, port, path));
        }
        for text in ["localhost:4318", "grpc://a:1", "http://", "http://a/?x=1", "/v1/traces"] {
            assert!(target(text, false).unwrap_err().contains("traces.endpoint"), "{text}");
        }
        for text in ["http://me:a-password@host:1", "http://host/?token=a-password"] {
            let said = target(text, false).unwrap_err();
            assert!(said.contains("host") && !said.contains("a-password"), "{said}");
        }
        assert_eq!(target("https://host/ingest/abc", true).unwrap().path, "/ingest/abc");
        assert_eq!(target("https://host", true).unwrap().path, "/");
    }

    #[test]
    fn headers_are_read_as_opentelemetry_writes_them_and_never_shown() {
        let headers = Headers::parse("authorization=Basic%20YTpi+=&z, x-tenant=7,").unwrap();
        assert_eq!(headers.0[0].1.to_str().unwrap(), "Basic YTpi+=&z");
        assert_eq!(headers.0[1].0, "x-tenant");
        assert!(!format!("{headers:?}").contains("YTpi"), "{headers:?}");
        for wrong in ["secret", "=secret", "a b=secret", "x=a%0Asecret"] {
            let said = Headers::parse(wrong).unwrap_err();
            assert!(!said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_before_anything_runs() {
        let with = |resource: &str| TracesConfig { resource: resource.to_owned(), ..TracesConfig::default() };
        assert_eq!(with("a=1,b=two%20words").check(), Ok(()));
        assert!(with("a").check().unwrap_err().contains("traces.resource"));
        let many = TracesConfig { per_second: 1_000_000, ..TracesConfig::default() };
        assert!(many.check().is_err());
    }
}

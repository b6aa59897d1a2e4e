//! OpenTelemetry's own names in the environment. What is set for all programs of a machine holds for ours, too; a setting of our
//! own counts before it.

use crate::exit::usage;
use modelless_gateway::{TraceHeaders, TracesConfig};
use std::path::PathBuf;

/// What we speak. Others are named by people who have no other program in mind, so they are told.
const PROTOCOL: &str = "http/protobuf";

/// Fills in what `traces` leaves open.
pub(crate) fn fill(traces: &mut TracesConfig) -> anyhow::Result<()> {
    fill_from(traces, &|name| std::env::var(name).ok())
}

fn fill_from(traces: &mut TracesConfig, environment: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<()> {
    let set =
        |name: &str| environment(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    // Of traces alone, or of everything that is exported.
    let of = |what: &str| {
        set(&format!("OTEL_EXPORTER_OTLP_TRACES_{what}"))
            .or_else(|| set(&format!("OTEL_EXPORTER_OTLP_{what}")))
    };
    let off = set("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
        || set("OTEL_TRACES_EXPORTER").is_some_and(|text| text.eq_ignore_ascii_case("none"));
    traces.endpoint = traces.endpoint.take().filter(|text| !text.is_empty());
    let own = traces.endpoint.is_some();
    // What is meant for another collector is not shown to ours.
    let others = own && of("ENDPOINT").is_some_and(|theirs| traces.endpoint.as_ref() != Some(&theirs));
    if !own && !off {
        traces.endpoint = of("ENDPOINT");
        // As OpenTelemetry has it: the address for traces alone is taken as it is.
        traces.whole = set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").is_some();
    }
    if traces.endpoint.is_none() {
        return Ok(());
    }
    if let Some(protocol) = of("PROTOCOL").filter(|protocol| !own && protocol != PROTOCOL) {
        return Err(usage(format!(
            "OTEL_EXPORTER_OTLP_PROTOCOL is {protocol:?}; traces are sent by {PROTOCOL} only, which collectors take at port \
             4318. Name that with --otlp or in gateway.traces.endpoint, or turn traces off with OTEL_TRACES_EXPORTER=none"
        )));
    }
    if let Some(text) = of("HEADERS").filter(|_| !others) {
        traces.headers =
            TraceHeaders::parse(&text).map_err(|why| usage(format!("OTEL_EXPORTER_OTLP_HEADERS: {why}")))?;
    }
    if traces.ca.is_none() && !others {
        traces.ca = of("CERTIFICATE").map(PathBuf::from);
    }
    if traces.resource.is_empty() {
        let name = set("OTEL_SERVICE_NAME").map(|name| format!("service.name={}", encoded(&name)));
        let all = [name, set("OTEL_RESOURCE_ATTRIBUTES")];
        traces.resource = all.into_iter().flatten().collect::<Vec<_>>().join(",");
    }
    traces.check().map_err(|why| {
        usage(format!("{why} (what is not set here comes from OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES)"))
    })
}

/// A name may have what separates parts of a list.
fn encoded(text: &str) -> String {
    text.replace('%', "%25").replace(',', "%2C").replace('=', "%3D")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Usage;

    fn filled(before: TracesConfig, names: &[(&str, &str)]) -> anyhow::Result<TracesConfig> {
        let mut traces = before;
        let environment =
            |name: &str| names.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        fill_from(&mut traces, &environment)?;
        Ok(traces)
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");

    #[test]
    fn what_the_machine_sets_holds() {
        let none = TracesConfig::default;
        let all = filled(
            none(),
            &[
                ENDPOINT,
                ("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
                ("OTEL_SERVICE_NAME", "a,b"),
                ("OTEL_RESOURCE_ATTRIBUTES", "zone=eu"),
            ],
        )
        .unwrap();
        assert_eq!(all.endpoint.as_deref(), Some(ENDPOINT.1));
        assert_eq!(all.resource, "service.name=a%2Cb,zone=eu");
        assert_eq!(all.ca, Some(PathBuf::from("/ca.pem")));
        assert_eq!(all.headers, TraceHeaders::parse("x-token=secret").unwrap());
        assert!(!format!("{all:?}").contains("secret"));

        let special =
            filled(none(), &[ENDPOINT, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/v1/traces")]);
        let special = special.unwrap();
        assert_eq!((special.endpoint.as_deref(), special.whole), (Some("http://other/v1/traces"), true));
        assert!(!all.whole);
        let own = TracesConfig { endpoint: Some("http://own:1".to_owned()), ..none() };
        assert_eq!(filled(own, &[ENDPOINT]).unwrap().endpoint.as_deref(), Some("http://own:1"));
        assert_eq!(filled(none(), &[]).unwrap(), none());
    }

    #[test]
    fn what_another_collector_is_to_be_shown_is_not_shown_to_ours() {
        let secret = ("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret");
        let own =
            |endpoint: &str| TracesConfig { endpoint: Some(endpoint.to_owned()), ..TracesConfig::default() };
        let shown = |traces: TracesConfig, names: &[(&str, &str)]| {
            filled(traces, names).unwrap().headers != TraceHeaders::default()
        };
        assert!(!shown(own("http://own:1"), &[ENDPOINT, secret]));
        assert!(shown(own("http://own:1"), &[secret]), "it names no other");
        assert!(shown(own(ENDPOINT.1), &[ENDPOINT, secret]), "it is the same");
        let off = ("OTEL_SDK_DISABLED", "true");
        assert_eq!(filled(own(""), &[off, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap().endpoint, None);
    }

    #[test]
    fn it_can_be_turned_off_and_what_is_not_spoken_is_told() {
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(filled(TracesConfig::default(), &[ENDPOINT, off]).unwrap().endpoint, None);
        }
        let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        let refused = filled(TracesConfig::default(), &[ENDPOINT, grpc]).unwrap_err();
        assert!(refused.is::<Usage>() && refused.to_string().contains("4318"), "{refused}");
        let own = TracesConfig { endpoint: Some("http://own:4318".to_owned()), ..TracesConfig::default() };
        assert!(filled(own, &[ENDPOINT, grpc]).is_ok(), "it was set for others");
    }
}

//! What a failure of Kubernetes' API means for a machine. Pure.

use crate::Error;
use kube::core::Status;

/// What a failure may say.
const WORDS: usize = 400;

/// Why a call came to nothing.
pub(super) fn error(failure: &kube::Error) -> Error {
    if let kube::Error::Api(status) = failure {
        return of_status(status);
    }
    let why = said(&chain(failure));
    if is_ours(failure) {
        Error::Refused(format!("Kubernetes cannot be asked: {why}"))
    } else {
        Error::Away(format!("asking Kubernetes: {why}"))
    }
}

/// Whether nothing was asked, for a reason that does not pass by itself. Of all others nobody knows whether they were heard.
fn is_ours(failure: &kube::Error) -> bool {
    use kube::Error as E;
    matches!(
        failure,
        E::InferConfig(_)
            | E::InferKubeconfig(_)
            | E::RustlsTls(_)
            | E::TlsRequired
            | E::Auth(_)
            | E::BuildRequest(_)
    )
}

/// What Kubernetes said.
pub(super) fn of_status(status: &Status) -> Error {
    let why = format!("Kubernetes says {} {}: {}", status.code, status.reason, said(&status.message));
    match status.code {
        // Its own words for a namespace's quota; there is no reason of its own for it.
        403 if status.message.contains("exceeded quota") => Error::Quota(why),
        // Another changed what counts a quota at the same moment: nothing was made.
        409 if status.reason == "Conflict" => Error::Throttled(why),
        429 => Error::Throttled(why),
        408 | 500.. => Error::Away(why),
        _ => Error::Refused(why),
    }
}

fn said(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().count() > WORDS { text.chars().take(WORDS).chain("...".chars()).collect() } else { text }
}

/// What went wrong and what that came from.
fn chain(failure: &dyn std::error::Error) -> String {
    let (mut text, mut at) = (failure.to_string(), failure.source());
    while let Some(source) = at {
        let more = source.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        at = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: u16, reason: &str, message: &str) -> Error {
        of_status(&Status::failure(message, reason).with_code(code))
    }

    #[test]
    fn each_answer_has_the_kind_that_the_scheduler_goes_by() {
        let quota = "pods \"p-1\" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=2, limited: pods=2";
        assert!(matches!(of(403, "Forbidden", quota), Error::Quota(why) if why.contains("limited: pods=2")));
        let account = "pods is forbidden: User \"x\" cannot create resource \"pods\"";
        assert!(
            matches!(of(403, "Forbidden", account), Error::Refused(why) if why.contains("cannot create"))
        );
        assert!(matches!(of(409, "Conflict", "the object has been modified"), Error::Throttled(_)));
        assert!(matches!(of(429, "TooManyRequests", "try again"), Error::Throttled(_)));
        for code in [408, 500, 502, 503, 504] {
            assert!(matches!(of(code, "", ""), Error::Away(_)), "{code}");
        }
        for code in [400, 401, 404, 410, 422] {
            assert!(
                matches!(of(code, "Invalid", "spec.containers: Required value"), Error::Refused(_)),
                "{code}"
            );
        }
    }

    #[test]
    fn what_is_said_is_one_line_that_ends() {
        let Error::Away(why) = of(500, "", &"a\n".repeat(10_000)) else { panic!("it is away") };
        assert!(!why.contains('\n') && why.len() < 500);
    }
}

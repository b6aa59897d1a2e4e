//! Signatures of requests, version 4 of AWS's. A pure function of a request, keys, place and time.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// How services are told of a session's token.
pub(super) const TOKEN: &str = "x-amz-security-token";

/// What whoever asks shows of itself. Never shown in anything that is printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) id: String,
    pub(super) secret: String,
    /// Of keys that hold for some hours only.
    pub(super) token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// What is signed. Names of headers are in lower case, `host` among them.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    /// As it is written in the request, without any query.
    pub(super) path: &'a str,
    /// Name and value, both percent-encoded already.
    pub(super) query: &'a [(&'a str, &'a str)],
    pub(super) headers: &'a [(&'a str, &'a str)],
    pub(super) body: &'a [u8],
}

/// For which service of which region.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) region: &'a str,
    pub(super) service: &'a str,
}

/// A moment as signatures write it: `20150830T123600Z`.
pub(super) fn stamp(at: SystemTime) -> String {
    let [year, month, day, hour, minute, second] = calendar(at);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// The same as answers write it: `2015-08-30T12:36:00Z`.
pub(super) fn written(at: SystemTime) -> String {
    let [year, month, day, hour, minute, second] = calendar(at);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month, day, hour, minute and second in UTC.
fn calendar(at: SystemTime) -> [u64; 6] {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for of_month in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < of_month {
            break;
        }
        days -= of_month;
        month += 1;
    }
    [year, month, days + 1, rest / 3_600, rest / 60 % 60, rest % 60]
}

/// The value of the header `authorization`. `stamp` is also that of the header `x-amz-date`, which is among those signed.
pub(super) fn authorization(request: &Request<'_>, keys: &Keys, scope: Scope<'_>, stamp: &str) -> String {
    let day = &stamp[..stamp.len().min(8)];
    let place = format!("{day}/{}/{}/aws4_request", scope.region, scope.service);
    let (canonical, signed) = canonical(request);
    let text = format!("{ALGORITHM}\n{stamp}\n{place}\n{}", hex(&Sha256::digest(canonical)));
    let signature = hex(&mac(&key(&keys.secret, day, scope), &text));
    let id = &keys.id;
    format!("{ALGORITHM} Credential={id}/{place}, SignedHeaders={signed}, Signature={signature}")
}

/// A key for one day, region and service.
fn key(secret: &str, day: &str, scope: Scope<'_>) -> Vec<u8> {
    let first = format!("AWS4{secret}").into_bytes();
    [day, scope.region, scope.service, "aws4_request"].iter().fold(first, |key, text| mac(&key, text))
}

/// A request in the one form that both sides know, and which of its headers are in it.
fn canonical(request: &Request<'_>) -> (String, String) {
    let mut query: Vec<_> = request.query.iter().collect();
    query.sort_unstable();
    let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut headers: Vec<_> = request.headers.iter().collect();
    headers.sort_by_key(|(name, _)| *name);
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let signed = names.join(";");
    let mut text = format!("{}\n{}\n{}\n", request.method, request.path, query.join("&"));
    for (name, value) in headers {
        let value: Vec<&str> = value.split_whitespace().collect();
        let _ = writeln!(text, "{name}:{}", value.join(" "));
    }
    let _ = write!(text, "\n{signed}\n{}", hex(&Sha256::digest(request.body)));
    (text, signed)
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length; this is a bug");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Bytes in lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const STAMP: &str = "20150830T123600Z";

    /// Those of AWS's published examples.
    fn example() -> Keys {
        let secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned();
        Keys { id: "AKIDEXAMPLE".to_owned(), secret, token: None }
    }

    fn signature(request: &Request<'_>, service: &str) -> String {
        let scope = Scope { region: "us-east-1", service };
        let header = authorization(request, &example(), scope, STAMP);
        header.rsplit_once("Signature=").unwrap().1.to_owned()
    }

    #[test]
    fn signs_what_aws_publishes_as_examples_as_they_are_signed_there() {
        let plain = [("host", "example.amazonaws.com"), ("x-amz-date", STAMP)];
        let form = [plain[0], plain[1], ("content-type", "application/x-www-form-urlencoded")];
        let vanilla = Request { method: "GET", path: "/", query: &[], headers: &plain, body: b"" };
        assert_eq!(
            signature(&vanilla, "service"),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
        );
        let query = [("Param2", "value2"), ("Param1", "value1")];
        assert_eq!(
            signature(&Request { query: &query, ..vanilla }, "service"),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            "get-vanilla-query-order-key-case: parameters are put in order"
        );
        let posted = Request { method: "POST", headers: &plain, path: "/", query: &[], body: b"" };
        assert_eq!(
            signature(&posted, "service"),
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
        );
        let posted = Request { headers: &form, body: b"Param1=value1", ..posted };
        assert_eq!(
            signature(&posted, "service"),
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"
        );
    }

    #[test]
    fn signs_the_call_to_iam_of_aws_documentation_as_it_is_signed_there() {
        let headers = [
            ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("host", "iam.amazonaws.com"),
            ("x-amz-date", STAMP),
        ];
        let query = [("Action", "ListUsers"), ("Version", "2010-05-08")];
        let request = Request { method: "GET", path: "/", query: &query, headers: &headers, body: b"" };
        let (canonical, signed) = canonical(&request);
        assert_eq!(signed, "content-type;host;x-amz-date");
        assert_eq!(
            hex(&Sha256::digest(canonical)),
            "f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"
        );
        let scope = Scope { region: "us-east-1", service: "iam" };
        assert_eq!(
            hex(&key(&example().secret, "20150830", scope)),
            "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"
        );
        assert_eq!(
            authorization(&request, &example(), scope, STAMP),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date, \
             Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
        );
    }

    #[test]
    fn moments_are_written_by_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_440_938_160, "2015-08-30T12:36:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(written(at), expected);
            assert_eq!(stamp(at), expected.replace(['-', ':'], ""));
        }
    }

    #[test]
    fn keys_are_not_printed() {
        let printed = format!("{:?}", Keys { token: Some("SESSION".into()), ..example() });
        assert_eq!(printed, "Keys { .. }");
    }
}

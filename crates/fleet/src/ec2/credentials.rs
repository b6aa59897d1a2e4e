//! Where keys come from: a file, the environment, or the metadata service of the machine that this runs on (IMDSv2).
//!
//! They are looked up again with every call, so that new ones need no restart; those of the metadata service are kept until shortly
//! before they end. None of them stands in an error or a log.

use super::config::Ec2Pool;
use super::http::{Call, Http, Server};
use super::sign::{Keys, written};
use serde::Deserialize;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// New ones are asked for so long before they end.
const BEFORE: Duration = Duration::from_mins(5);
/// The metadata service is on the machine or nowhere.
const WITHIN: Duration = Duration::from_secs(3);
const ROLE: &str = "/latest/meta-data/iam/security-credentials/";

/// Looks up names in the environment.
pub(super) type Environment = fn(&str) -> Option<String>;

#[derive(Debug)]
pub(super) struct Credentials {
    file: Option<PathBuf>,
    profile: String,
    metadata: String,
    environment: Environment,
    /// Of the metadata service, with when they end.
    kept: Mutex<Option<(Keys, String)>>,
}

/// What the metadata service tells.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Told {
    access_key_id: String,
    secret_access_key: String,
    token: String,
    expiration: String,
}

impl Credentials {
    pub(super) fn new(pool: &Ec2Pool, environment: Environment) -> Self {
        Self {
            file: pool.credentials_file.clone(),
            profile: pool.profile.clone(),
            metadata: pool.metadata.clone(),
            environment,
            kept: Mutex::default(),
        }
    }

    /// Waits on its thread. Why there are none is told without any part of them.
    pub(super) fn keys(&self) -> Result<Keys, String> {
        if let Some(path) = &self.file {
            let text =
                fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))?;
            return of_file(&text, &self.profile).ok_or_else(|| {
                format!(
                    "{} has no aws_access_key_id and aws_secret_access_key under [{}]",
                    path.display(),
                    self.profile
                )
            });
        }
        let named = |name| (self.environment)(name).filter(|text| !text.is_empty());
        match (named("AWS_ACCESS_KEY_ID"), named("AWS_SECRET_ACCESS_KEY")) {
            (Some(id), Some(secret)) => Ok(Keys { id, secret, token: named("AWS_SESSION_TOKEN") }),
            (None, None) => self.of_machine(),
            (Some(_), None) | (None, Some(_)) => {
                Err("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set".to_owned())
            }
        }
    }

    /// They were refused as too old.
    pub(super) fn forget(&self) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn of_machine(&self) -> Result<Keys, String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((keys, until)) = kept
            && written(SystemTime::now() + BEFORE) < until
        {
            return Ok(keys);
        }
        let none = |why: String| {
            format!(
                "there are no keys for EC2: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or `credentials-file`, or let the machine \
                 have an instance profile ({why})"
            )
        };
        let told = self.told().map_err(none)?;
        let keys = Keys { id: told.access_key_id, secret: told.secret_access_key, token: Some(told.token) };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some((keys.clone(), told.expiration));
        Ok(keys)
    }

    fn told(&self) -> Result<Told, String> {
        let server = Server::parse(&self.metadata)?;
        let http = Http { ca: None, within: WITHIN };
        let ask = |method: &str, target: &str, header: (&str, &str)| {
            let call = Call { method, target, headers: &[header], body: b"" };
            let answer =
                http.send(&server, &call).map_err(|error| format!("the metadata service: {error}"))?;
            match answer.status {
                200 => String::from_utf8(answer.body)
                    .map_err(|_| "the metadata service tells no text".to_owned()),
                status => Err(format!("the metadata service answers {target} with {status}")),
            }
        };
        let token = ask("PUT", "/latest/api/token", ("x-aws-ec2-metadata-token-ttl-seconds", "300"))?;
        let header = ("x-aws-ec2-metadata-token", token.trim());
        let role = ask("GET", ROLE, header)?;
        let role = role.lines().next().unwrap_or_default().trim();
        if role.is_empty() || role.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("the metadata service names no role".to_owned());
        }
        let told = ask("GET", &format!("{ROLE}{role}"), header)?;
        // Not the parser's words: they may quote what it read.
        serde_json::from_str(&told)
            .map_err(|_| "what the metadata service tells of its role has no keys".to_owned())
    }
}

/// As AWS's own tools write them: sections in brackets, and lines `name = value`.
fn of_file(text: &str, profile: &str) -> Option<Keys> {
    let (mut inside, mut keys) = (false, [None, None, None]);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = name.trim() == profile;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| inside) {
            let at = match name.trim() {
                "aws_access_key_id" => 0,
                "aws_secret_access_key" => 1,
                "aws_session_token" => 2,
                _ => continue,
            };
            keys[at] = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        }
    }
    let [id, secret, token] = keys;
    Some(Keys { id: id?, secret: secret?, token })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::sync::mpsc;

    fn none(_: &str) -> Option<String> {
        None
    }

    fn credentials(file: Option<PathBuf>, metadata: &str, environment: Environment) -> Credentials {
        let metadata = metadata.to_owned();
        Credentials { file, profile: "default".into(), metadata, environment, kept: Mutex::default() }
    }

    #[test]
    fn keys_of_a_file_are_those_of_the_profile_that_was_named() {
        let text = "# keys\n[other]\naws_access_key_id = O\naws_secret_access_key = P\n\n[default]\n aws_access_key_id=A\n\
                    aws_secret_access_key = b/c=\nregion = x\naws_session_token = T\n";
        let keys = of_file(text, "default").unwrap();
        assert_eq!((keys.id.as_str(), keys.secret.as_str(), keys.token.as_deref()), ("A", "b/c=", Some("T")));
        assert_eq!(of_file(text, "other").unwrap().id, "O");
        assert_eq!(of_file(text, "nobody"), None);
    }

    #[test]
    fn keys_come_from_the_environment_and_half_of_them_are_an_error_that_does_not_show_them() {
        let both: Environment = |name| match name {
            "AWS_ACCESS_KEY_ID" => Some("A".into()),
            "AWS_SECRET_ACCESS_KEY" => Some("hidden".into()),
            _ => None,
        };
        let keys = credentials(None, "http://127.0.0.1:1", both).keys().unwrap();
        assert_eq!((keys.id.as_str(), keys.token), ("A", None));
        let half: Environment = |name| (name == "AWS_SECRET_ACCESS_KEY").then(|| "hidden".into());
        let why = credentials(None, "http://127.0.0.1:1", half).keys().unwrap_err();
        assert!(why.contains("only one is set") && !why.contains("hidden"), "{why}");
        let why = credentials(None, "http://127.0.0.1:1", none).keys().unwrap_err();
        assert!(why.contains("there are no keys for EC2"), "{why}");
        let why = credentials(Some("/nowhere/keys".into()), "http://127.0.0.1:1", both).keys().unwrap_err();
        assert!(why.contains("/nowhere/keys"), "{why}");
    }

    /// A metadata service that gives so many answers, and tells what it was asked.
    fn metadata(answers: Vec<(u16, String)>) -> (String, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, hear) = mpsc::sync_channel(answers.len());
        std::thread::spawn(move || {
            for (status, body) in answers {
                let (mut line, _) = listener.accept().unwrap();
                let mut head = String::new();
                let mut reader = BufReader::new(line.try_clone().unwrap());
                while !head.ends_with("\r\n\r\n") {
                    reader.read_line(&mut head).unwrap();
                }
                asked.send(head).unwrap();
                write!(line, "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
            }
        });
        (url, hear)
    }

    fn told(until: &str) -> (u16, String) {
        let told = serde_json::json!({"Code": "Success", "AccessKeyId": "A", "SecretAccessKey": "S", "Token": "T",
                                      "Expiration": until});
        (200, told.to_string())
    }

    #[test]
    fn keys_of_the_machine_are_asked_for_with_a_token_and_kept_until_they_end() {
        let first = || [(200, "secret-token".to_owned()), (200, "the-role\n".to_owned())];
        let ended = told("2015-01-01T00:00:00Z");
        let (url, hear) = metadata(
            [first().to_vec(), vec![ended], first().to_vec(), vec![told("2999-01-01T00:00:00Z")]].concat(),
        );
        let machine = credentials(None, &url, none);
        for _ in 0..3 {
            let keys = machine.keys().unwrap();
            assert_eq!((keys.id.as_str(), keys.token.as_deref()), ("A", Some("T")));
        }
        let asked: Vec<String> = hear.iter().collect();
        assert_eq!(asked.len(), 6, "once again for those that had ended, and not after that");
        assert!(
            asked[0].starts_with("PUT /latest/api/token ") && asked[0].contains("token-ttl-seconds: 300")
        );
        assert!(asked[2].starts_with(&format!("GET {ROLE}the-role ")));
        assert!(asked[1..3].iter().all(|head| head.contains("x-aws-ec2-metadata-token: secret-token")));
    }

    #[test]
    fn a_machine_without_a_role_says_so_and_what_is_told_is_never_quoted() {
        let (url, _hear) = metadata(vec![(200, "t".into()), (404, String::new())]);
        let why = credentials(None, &url, none).keys().unwrap_err();
        assert!(why.contains("instance profile") && why.contains("404"), "{why}");
        let broken = (200, "{\"SecretAccessKey\": \"hidden\"}".to_owned());
        let (url, _hear) = metadata(vec![(200, "t".into()), (200, "role".into()), broken]);
        let why = credentials(None, &url, none).keys().unwrap_err();
        assert!(why.contains("has no keys") && !why.contains("hidden"), "{why}");
    }
}

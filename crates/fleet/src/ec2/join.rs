//! What a machine is told when it starts: a script that makes it a node of its cluster. Pure.
//!
//! What is a machine's own stands in front as values in quotes; what follows is the same for all (`machine.sh`). So nothing that
//! anybody chose is ever read as a command.

use super::config::{Join, Secrets};
use std::fmt;
use std::fmt::Write as _;
use std::fs;

/// What all machines do.
const SCRIPT: &str = include_str!("machine.sh");
/// EC2 takes no more.
const BYTES: usize = 16 << 10;

/// What machines are told of their cluster.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// Its name.
    pub cluster: String,
    /// Names and values for the environment of executors: the addresses of database and Redis.
    pub environment: Vec<(String, String)>,
    /// The key that all of its processes share, if they do.
    pub key: Option<String>,
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// A text as one word of a shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The script for one machine. `settings` as for `--set`.
pub(super) fn user_data(join: &Join, told: &Told, settings: &[String]) -> Result<String, String> {
    let setup = match &join.setup {
        Some(path) => fs::read_to_string(path)
            .map_err(|error| format!("`join.setup`: reading {}: {error}", path.display()))?,
        None => String::new(),
    };
    script(join, told, settings, &setup)
}

fn script(join: &Join, told: &Told, settings: &[String], setup: &str) -> Result<String, String> {
    let (mut environment, mut key) = (String::new(), "");
    if join.secrets == Secrets::UserData {
        for (name, value) in &told.environment {
            let _ = writeln!(environment, "{name}={}", quoted(value));
        }
        key = told.key.as_deref().unwrap_or_default();
    }
    let port = join.port.to_string();
    let values = [
        ("cluster", told.cluster.as_str()),
        ("program", &join.program),
        ("fetch", join.fetch.as_deref().unwrap_or_default()),
        ("fetch_sha256", join.fetch_sha256.as_deref().unwrap_or_default()),
        ("port", &port),
        ("key_file", &join.key_file),
        ("key_text", key),
        ("environment_file", &join.environment_file),
        ("environment_text", &environment),
        ("metadata", join.metadata.trim_end_matches('/')),
        ("setup", setup),
    ];
    let mut text = "#!/bin/sh\n".to_owned();
    for (name, value) in values {
        let _ = writeln!(text, "{name}={}", quoted(value));
    }
    text.push_str("set --");
    let key_file = told.key.as_ref().map(|_| format!("key_file={}", join.key_file));
    for setting in settings.iter().chain(&key_file) {
        let _ = write!(text, " --set {}", quoted(setting));
    }
    text.push('\n');
    text.push_str(SCRIPT);
    if text.contains('\0') {
        return Err("what a machine is told has a zero byte in it, which no shell can read".to_owned());
    }
    if text.len() > BYTES {
        return Err(format!(
            "what a machine is told takes {} bytes, and EC2 takes {BYTES}: make the `join.setup` script shorter, for one by letting it \
             fetch another",
            text.len()
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn told() -> Told {
        let environment = vec![("MODELLESS_DATABASE".to_owned(), "postgres://u:pa'ss$(id)@h/d".to_owned())];
        Told { cluster: "blue".into(), environment, key: Some("KEY".into()) }
    }

    /// The script up to what all machines do, and a look at what it knows then.
    fn shell(script: &str, look: &str) -> String {
        let own = script.strip_suffix(SCRIPT).unwrap();
        let mut sh = Command::new("sh");
        let mut sh = sh
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        sh.stdin.take().unwrap().write_all(format!("{own}{look}").as_bytes()).unwrap();
        let output = sh.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn a_machine_knows_its_cluster_its_name_and_where_its_secrets_are_and_has_none_of_them() {
        let settings = ["executor.name=p-1".to_owned(), "executor.zone=a b".to_owned()];
        let text = script(&Join::default(), &told(), &settings, "").unwrap();
        assert!(
            text.starts_with("#!/bin/sh\ncluster='blue'\n")
                && !text.contains("postgres://")
                && !text.contains("KEY")
        );
        assert_eq!(
            shell(&text, "printf '%s|' \"$program\" \"$port\" \"$environment_text\" \"$@\""),
            "/usr/local/bin/modelless|7400||--set|executor.name=p-1|--set|executor.zone=a b|--set|\
             key_file=/etc/modelless/cluster.key|"
        );
    }

    #[test]
    fn secrets_go_along_when_that_is_asked_for_and_are_read_back_as_they_were() {
        let join = Join { secrets: Secrets::UserData, ..Join::default() };
        let text = script(&join, &told(), &[], "").unwrap();
        let look = "eval \"$environment_text\"; printf '%s|' \"$MODELLESS_DATABASE\" \"$key_text\"";
        assert_eq!(shell(&text, look), "postgres://u:pa'ss$(id)@h/d|KEY|");
        let keyless = Told { key: None, ..told() };
        assert!(!script(&join, &keyless, &[], "").unwrap().contains("--set 'key_file"));
        assert!(!format!("{:?}", told()).contains("postgres"), "they are not printed");
    }

    #[test]
    fn what_is_too_long_for_ec2_is_refused_with_what_to_do() {
        let why = script(&Join::default(), &told(), &[], &"x".repeat(BYTES)).unwrap_err();
        assert!(why.contains("EC2 takes 16384") && why.contains("join.setup"), "{why}");
        assert!(script(&Join::default(), &told(), &["a=\0".into()], "").unwrap_err().contains("zero byte"));
        let join = Join { setup: Some("/nowhere/setup.sh".into()), ..Join::default() };
        assert!(user_data(&join, &told(), &[]).unwrap_err().contains("/nowhere/setup.sh"));
    }

    #[test]
    fn the_script_is_one_that_a_shell_can_read() {
        let text = script(&Join::default(), &told(), &[], "echo hello").unwrap();
        let read = Command::new("sh").args(["-n", "-c", &text]).status().unwrap();
        assert!(read.success());
        assert!(text.len() < 6 << 10, "there is room for a setup: {}", text.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn whatever_stands_in_a_value_is_never_a_command(text in "['\"$`\\\\;&|()\n a-z#*~{}<>!-]{0,30}") {
            let told = Told { cluster: text.clone(), ..Told::default() };
            let made = script(&Join::default(), &told, &[format!("x={text}")], &text).unwrap();
            let seen = shell(&made, "printf '%s|%s|%s' \"$cluster\" \"$setup\" \"$2\"");
            prop_assert_eq!(seen, format!("{text}|{text}|x={text}"));
        }
    }
}

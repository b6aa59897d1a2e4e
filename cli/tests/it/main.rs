//! The program as a shell sees it: what it prints where, and how it ends. Nothing here needs an engine or a server.
#![allow(clippy::unwrap_used, reason = "helpers of tests; a failed one is a failed test")]

use modelless_testkit::{free_port, temp_dir};
use std::net::TcpListener;
use std::process::{Command, Output};

fn modelless(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_modelless")).args(args).env_remove("MODELLESS_SERVER").output().unwrap()
}

fn check(args: &[&str], code: i32, said: &str) {
    let output = modelless(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
    assert!(error.contains(said), "{args:?} did not say {said:?}: {error}");
    assert!(!error.contains("panicked"), "{error}");
}

#[test]
fn wrong_usage_ends_with_64_before_anything_is_opened() {
    check(&["fly"], 64, "fly");
    check(&["query"], 64, "TASK");
    check(&["up", "--http", "nowhere"], 64, "--http");
    check(&["up", "--memory", "lots"], 64, "--memory");
    check(&["task", "list", "--server", "localhost"], 64, "http://127.0.0.1:8080");
    let folder = temp_dir("cli").unwrap();
    let manifest = folder.path().join("m.toml");
    let register = ["model", "register", manifest.to_str().unwrap()];
    check(&register, 64, "there is no");
    let text = "name = \"m\"\nartefact = \"x\"\n[adapter]\nkind = \"tensor\"\n";
    std::fs::write(&manifest, text).unwrap();
    check(&register, 64, "--task");
    // Options that describe a model are for a file that has no manifest.
    check(&[&register[..], &["--name", "n"]].concat(), 64, "single ONNX or TorchScript file");
    let package = ["model", "register", folder.path().to_str().unwrap(), "--threads", "2"];
    check(&package, 64, "single ONNX or TorchScript file");
    check(&[&register[..], &["--threads", "0"]].concat(), 64, "--threads");
}

#[test]
fn an_address_that_others_can_reach_is_refused_until_there_is_a_key() {
    let folder = temp_dir("cli").unwrap();
    let data = folder.path().to_str().unwrap();
    let up = ["up", "--http", "0.0.0.0:0", "--data", data];
    check(&up, 64, "--insecure");
    check(&["key", "create", "first", "--data", data], 1, "`admin`");
    check(&["key", "create", "first", "--scopes", "all", "--data", data], 64, "--scopes");
    let made = modelless(&["key", "create", "first", "--scopes", "query,register,admin", "--data", data]);
    let (key, said) = (String::from_utf8(made.stdout).unwrap(), String::from_utf8(made.stderr).unwrap());
    assert!(made.status.success(), "{said}");
    assert!(key.starts_with("mlk_") && key.trim().len() == 68 && key.lines().count() == 1, "only the key");
    assert!(said.contains(&key[..12]) && !said.contains(key.trim()), "{said}");
    check(&up, 64, "--tls-cert");
    let up = [&up[..], &["--insecure"]].concat();
    // What it says next is about something else: no library where there is none.
    let next =
        Command::new(env!("CARGO_BIN_EXE_modelless")).args(up).args(["--onnxruntime", "/nowhere"]).output();
    let next = next.unwrap();
    let said = String::from_utf8_lossy(&next.stderr);
    assert!(!next.status.success() && said.contains("/nowhere") && !said.contains("--insecure"), "{said}");
}

#[test]
fn a_name_in_the_environment_that_nobody_reads_is_refused_with_the_one_that_was_meant() {
    for (wrong, meant) in [("SERVR", "SERVER"), ("EXECUTOR_LANES", "EXECUTOR__LANES")] {
        let name = format!("MODELLESS_{wrong}");
        for args in [&["task", "list"][..], &["executor", "--print-config"]] {
            let run =
                Command::new(env!("CARGO_BIN_EXE_modelless")).args(args).env(&name, "1").output().unwrap();
            let said = String::from_utf8_lossy(&run.stderr);
            assert_eq!(run.status.code(), Some(64), "{said}");
            assert!(said.contains(&name) && said.contains(&format!("mean MODELLESS_{meant}?")), "{said}");
        }
    }
}

#[test]
fn help_and_version_are_no_failure() {
    for args in [&["--help"][..], &["--version"], &["up", "--help"], &["model", "remove", "--help"]] {
        let output = modelless(args);
        assert!(output.status.success() && !output.stdout.is_empty(), "{args:?}");
    }
    let help = String::from_utf8(modelless(&["--help"]).stdout).unwrap();
    assert!(!help.contains("runner"), "runners are not for people");
}

#[test]
fn without_a_server_it_says_how_to_start_one() {
    let server = format!("http://127.0.0.1:{}", free_port().unwrap());
    check(&["task", "list", "--server", &server], 1, "modelless up");
    check(&["query", "fashion", "/nowhere/x.png", "--server", &server], 1, "/nowhere/x.png");
}

#[test]
fn a_taken_port_is_said_before_anything_is_measured() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = temp_dir("cli").unwrap();
    let data = folder.path().join("data");
    check(&["up", "--demo", "--data", data.to_str().unwrap(), "--http", &address], 1, "cannot listen");
    assert!(!data.exists());
}

#[test]
fn a_library_that_is_not_there_is_not_replaced_by_another() {
    let folder = temp_dir("cli").unwrap();
    let data = folder.path().join("data");
    let args =
        ["up", "--data", data.to_str().unwrap(), "--http", "127.0.0.1:0", "--onnxruntime", "/nowhere.so"];
    check(&args, 64, "/nowhere.so");
}

#[test]
fn a_recording_without_its_settings_is_no_recording() {
    let folder = temp_dir("cli").unwrap();
    let log = folder.path().join("router.jsonl");
    std::fs::write(&log, "").unwrap();
    check(&["replay", log.to_str().unwrap(), "--machine", "router"], 1, "router.json");
    std::fs::write(folder.path().join("router.json"), "{}").unwrap();
    check(&["replay", log.to_str().unwrap(), "--machine", "router"], 1, "no settings");
}

#[test]
fn a_shell_completes_commands_with_what_is_printed_for_it() {
    let made = modelless(&["completions", "bash"]);
    assert!(made.status.success());
    let folder = temp_dir("cli").unwrap();
    let script = folder.path().join("completions.bash");
    std::fs::write(&script, made.stdout).unwrap();
    let script = script.to_str().unwrap();
    let completed = |words: &str, at: u32, last: &str| {
        let asked = format!(
            "source '{script}'; COMP_WORDS=({words}); COMP_CWORD={at}; _modelless modelless '{last}' modelless; \
             echo \"${{COMPREPLY[*]}}\""
        );
        let output = Command::new("bash").args(["--norc", "-c", &asked]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(completed("modelless que", 1, "que"), "query");
    assert_eq!(completed("modelless model reg", 2, "reg"), "register");
    assert_eq!(completed("modelless query x --late", 3, "--late"), "--latency-ms");
    check(&["completions", "tcl"], 64, "tcl");
}

#[test]
fn there_is_a_page_for_each_command() {
    let folder = temp_dir("cli").unwrap();
    let pages = folder.path().join("man1");
    check(&["manual", "--out", pages.to_str().unwrap()], 0, "pages written");
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("modelless.1").contains("modelless\\-query(1)"), "the first names the others");
    assert!(page("modelless-query.1").contains("\\-\\-accuracy"), "options are told");
    assert!(page("modelless-model-register.1").contains(".TH modelless-model-register"), "names in full");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    check(&["manual", "--out", file.to_str().unwrap()], 64, "not a folder");
}

//! Clients that others wrote, unmodified: the scripts in `tests/python/` that try them, and what those tell.
//!
//! A script makes calls and tells each in a line: the client, the call, and `ok` or what went wrong, or `not run: ` and why. The
//! end-to-end tests and `cargo xtask clients` read them here, so that the table in the documents tells of what the tests run.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// What a script is given, in the order of its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    /// Where HTTP is served.
    Url,
    /// Where gRPC is served.
    Grpc,
    /// A picture of a boot.
    Picture,
    /// A task of `feature-extraction`.
    Vectors,
    /// A task of `text-classification`.
    Classes,
    /// The program `perf_analyzer`, or `not run: ` and why it cannot be had.
    PerfAnalyzer,
}

/// A script.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    pub file: &'static str,
    pub given: &'static [Given],
    /// It makes so many calls at least.
    pub calls: usize,
}

use Given::{Classes, Grpc, PerfAnalyzer, Picture, Url, Vectors};

/// All of them.
pub const SCRIPTS: &[Script] = &[
    Script { file: "oip_http.py", given: &[Url, Picture], calls: 48 },
    Script { file: "oip_grpc.py", given: &[Grpc, Picture], calls: 47 },
    Script { file: "shared_memory.py", given: &[Url, Grpc, Picture], calls: 44 },
    Script { file: "oip_kserve_rest.py", given: &[Url, Picture], calls: 6 },
    Script { file: "oip_kserve_grpc.py", given: &[Grpc, Picture], calls: 6 },
    Script { file: "oip_open_inference_rest.py", given: &[Url, Picture], calls: 26 },
    Script { file: "oip_open_inference_grpc.py", given: &[Grpc, Picture], calls: 11 },
    Script { file: "hugging_face.py", given: &[Url, Picture, Vectors, Classes], calls: 14 },
    Script { file: "perf_analyzer.py", given: &[Url, Grpc, Picture, PerfAnalyzer], calls: 13 },
    Script { file: "openai_embeddings.py", given: &[Url, Vectors], calls: 14 },
];

/// The script of this name.
pub fn script(file: &str) -> Result<&'static Script> {
    SCRIPTS.iter().find(|script| script.file == file).with_context(|| format!("there is no script {file}"))
}

/// A server to try, and what is registered there.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub url: String,
    pub grpc: String,
    pub picture: String,
    pub vectors: String,
    pub classes: String,
    pub perf_analyzer: String,
}

impl Place {
    fn value(&self, given: Given) -> &str {
        match given {
            Given::Url => &self.url,
            Given::Grpc => &self.grpc,
            Given::Picture => &self.picture,
            Given::Vectors => &self.vectors,
            Given::Classes => &self.classes,
            Given::PerfAnalyzer => &self.perf_analyzer,
        }
    }
}

/// How a call went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Passed,
    Failed(String),
    NotRun(String),
}

/// A call that a client made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    pub client: String,
    pub call: String,
    pub verdict: Verdict,
}

/// What a script told, and what it wrote besides.
#[derive(Debug)]
pub struct Told {
    pub calls: Vec<Call>,
    pub stderr: String,
}

/// Runs one of the scripts, and reads what it tells.
pub fn run(python: &Path, root: &Path, script: &Script, place: &Place) -> Result<Told> {
    let args: Vec<&str> = script.given.iter().map(|given| place.value(*given)).collect();
    tell(python, root, (script.file, &args), script.calls)
}

/// Runs a file of the folder `tests/python/` of this checkout with these arguments, which makes so many calls at least.
pub fn tell(python: &Path, root: &Path, (file, args): (&str, &[&str]), least: usize) -> Result<Told> {
    let output = Command::new(python)
        .arg("-B")
        .arg(root.join("tests/python").join(file))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {file} with {}", python.display()))?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let calls = String::from_utf8_lossy(&output.stdout).lines().map(read).collect::<Result<Vec<_>>>();
    let calls = calls.with_context(|| format!("{file}\n{stderr}"))?;
    let failed = calls.iter().any(|call| matches!(call.verdict, Verdict::Failed(_)));
    // It fails where a call did, and then has told which; else it ended before its end.
    ensure!(output.status.success() || failed, "{file} ended with {}\n{stderr}", output.status);
    ensure!(calls.len() >= least, "{file} made {} calls of {least}: {calls:?}\n{stderr}", calls.len());
    Ok(Told { calls, stderr })
}

fn read(line: &str) -> Result<Call> {
    let parts: Vec<&str> = line.splitn(3, '\t').collect();
    let [client, call, verdict] = parts.as_slice() else {
        anyhow::bail!("{line:?} is not a client, a call and how it went, with tabs between")
    };
    let verdict = match (*verdict, verdict.strip_prefix("not run: ")) {
        ("ok", _) => Verdict::Passed,
        (_, Some(why)) => Verdict::NotRun(why.to_owned()),
        (what, None) => Verdict::Failed(what.to_owned()),
    };
    Ok(Call { client: (*client).to_owned(), call: (*call).to_owned(), verdict })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(script: &str, calls: usize) -> Result<Told> {
        let folder = crate::temp_dir("scripts")?;
        std::fs::create_dir_all(folder.path().join("tests/python"))?;
        std::fs::write(folder.path().join("tests/python/try.py"), script)?;
        tell(Path::new("python3"), folder.path(), ("try.py", &[]), calls)
    }

    #[test]
    fn each_line_is_a_call_and_how_it_went() {
        let script = "import sys\nprint('a\\tcall\\tok\\na\\tother\\tno: \\twhy\\nb\\tcall\\tnot run: no b')\nsys.exit(1)";
        let verdicts: Vec<Verdict> =
            told(script, 3).unwrap().calls.into_iter().map(|call| call.verdict).collect();
        let failed = Verdict::Failed("no: \twhy".to_owned());
        assert_eq!(verdicts, [Verdict::Passed, failed, Verdict::NotRun("no b".to_owned())]);
    }

    /// Tests of their own run these: they need more than a server, or try what is said of clients.
    const ELSEWHERE: [(&str, &str); 2] = [("traces.py", "traces.rs"), ("guide.py", "clients.rs")];

    #[test]
    fn every_script_that_tells_calls_is_listed_and_run_by_the_end_to_end_tests() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
        let run = std::fs::read_to_string(tests.join("tests/it/clients.rs")).unwrap();
        for entry in std::fs::read_dir(tests.join("python")).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            if std::fs::read_to_string(&path).is_ok_and(|text| text.contains("from calls import")) {
                let elsewhere = ELSEWHERE.iter().find(|(script, _)| *script == file);
                let named = |(_, test): &(&str, &str)| {
                    std::fs::read_to_string(tests.join("tests/it").join(test))
                        .is_ok_and(|text| text.contains(&file))
                };
                assert!(script(&file).is_ok() || elsewhere.is_some_and(named), "{file} stands in no list");
            }
        }
        for script in SCRIPTS {
            assert!(run.contains(&format!("\"{}\"", script.file)), "no end-to-end test runs {}", script.file);
        }
    }

    #[test]
    fn a_script_that_did_not_reach_its_end_is_an_error() {
        assert!(told("print('a\\tcall\\tok')", 2).unwrap_err().to_string().contains("1 calls of 2"));
        assert!(told("print('a\\tcall\\tok'); raise ValueError('gone')", 1).is_err());
        assert!(told("print('warning')", 0).is_err(), "a line that is no call");
    }
}

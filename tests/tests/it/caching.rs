//! Answers that are given again, with the real thing: a task that is told so, by the command that people use.

use crate::demo::{Demo, fashion, picture};
use anyhow::{Context, Result, ensure};
use modelless_testkit::Request;

#[test]
fn a_task_that_may_give_answers_again_does_so_from_the_next_query_on() -> Result<()> {
    let demo = Demo::start(&[])?;
    let ask = || -> Result<(String, String)> {
        let request = Request::post("/v1/tasks/fashion").header("content-type", "image/png");
        let answer = demo.server.send(&request.body(picture("boot.png")))?;
        ensure!(answer.status == 200, "{answer}");
        let told = answer.header("modelless-cache").unwrap_or("nothing").to_owned();
        Ok((told, String::from_utf8_lossy(&answer.body).into_owned()))
    };
    ensure!(fashion().exists() && ask()?.0 == "nothing");
    let url = demo.server.url();
    let set = demo.server.command(&["task", "set", "fashion", "--cache", "10m", "--server", &url])?;
    let said = String::from_utf8_lossy(&set.stdout);
    ensure!(set.status.success() && said.contains("given again for 10m"), "{said}");
    let (first, again) = (ask()?, ask()?);
    ensure!((first.0.as_str(), again.0.as_str()) == ("miss", "hit"), "{first:?} {again:?}");
    ensure!(first.1 == again.1, "{first:?} {again:?}");
    let shown = demo.server.command(&["task", "show", "fashion", "--server", &url])?;
    let shown = String::from_utf8(shown.stdout).context("text")?;
    ensure!(shown.contains("given again for 10m"), "{shown}");
    demo.server.stop()
}

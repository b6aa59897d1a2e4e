//! `modelless`: every role of the platform, and the commands to use it.
//!
//! What a command does stands in its own module; here is only which, and what its end means to the shell that
//! started it: 0 done, 1 failed, 2 refused because of its goals, 3 done in part, 64 used wrongly.

mod client;
mod demo;
mod dump;
mod engines;
mod environment;
mod exit;
mod exposed;
mod generate;
mod giving_way;
mod manual;
mod otel;
mod out;
mod plot;
mod profile;
mod progress;
mod replay;
mod roles;
mod signals;
mod simulate;
mod table;
mod up;
mod way;

use clap::{CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Predictions under goals: say how accurate, how fast and how cheap, not which model.
#[derive(Parser, Debug)]
#[command(name = "modelless", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Start the whole platform on this machine.
    Up(Box<up::Options>),
    /// Start a gateway of a cluster.
    Gateway(roles::gateway::WithTls),
    /// Start an executor of a cluster: a node that runs models.
    Executor(roles::Options),
    /// Start a scheduler of a cluster.
    Scheduler(roles::scheduler::WithPools),
    /// List, show and make tasks.
    #[command(subcommand)]
    Task(client::task::Command),
    /// Register, list, show and remove models.
    #[command(subcommand)]
    Model(client::model::Command),
    /// List, show and make the ways in which models are run.
    #[command(subcommand)]
    Variant(client::variant::Command),
    /// Make, list, rotate and end keys.
    #[command(subcommand)]
    Key(client::key::Command),
    /// List what was asked for that changes something.
    Audit(client::audit::Options),
    /// Make and list tenants, and say what they may use.
    #[command(subcommand)]
    Tenant(client::tenant::Command),
    /// Say what holds for the queries of applications beside what they ask for: goals by default, bounds, pinned models.
    #[command(subcommand)]
    Policy(client::policy::Command),
    /// List and show the machines behind a server.
    #[command(subcommand)]
    Node(client::node::Command),
    /// List and show pools of machines that come and go.
    #[command(subcommand)]
    Pool(client::machine::Pool),
    /// List and show machines that come and go, and what became of them.
    #[command(subcommand)]
    Machine(client::machine::Machine),
    /// List and show what is in memory, how that stands and why.
    #[command(subcommand)]
    Replica(client::replica::Command),
    /// Show plans, what they changed, and what would change now.
    Plan(client::plan::Options),
    /// Show what happened, and follow what happens.
    Events(client::events::Options),
    /// Watch what queries come to, as they end.
    Decisions(client::decisions::Options),
    /// Ask for a prediction.
    Query(client::query::Options),
    /// Have many inputs answered when nothing else has to be.
    #[command(subcommand)]
    Job(client::job::Command),
    /// Say whether an answer was right.
    Feedback(client::feedback::Options),
    /// Show what would answer a query, and why.
    Explain(client::explain::Options),
    /// Measure models; show, export, import and draw what was measured.
    #[command(subcommand)]
    Profile(profile::Command),
    /// Install and list inference libraries.
    #[command(subcommand)]
    Engine(engines::Command),
    /// Play a scenario in virtual time with the decisions of the live system.
    Simulate(simulate::Options),
    /// Feed a recording to a fresh machine and compare what it decides.
    Replay(replay::Options),
    /// Print what a shell needs to complete our commands.
    Completions(manual::Completions),
    /// Write pages for `man`, one for each command.
    Manual(manual::Manual),
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // A runner is started by the executor and lives in a process with nothing else in it.
    if let (Some(role), Some(engine)) = (args.get(1), args.get(2))
        && role == "runner"
    {
        return modelless_engine::builtin_runner_main(
            &engine.to_string_lossy(),
            args.iter().skip(3).cloned(),
        );
    }
    // A program of others that makes variants is started in a box, which this process becomes.
    if args.get(1).is_some_and(|role| role == "boxed") {
        return modelless_engine::boxed_main(args.into_iter().skip(2));
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return exit::clap(&error),
    };
    exit::code(run(cli.command))
}

fn run(command: Command) -> anyhow::Result<()> {
    environment::check()?;
    match command {
        Command::Up(options) => up::run(*options),
        Command::Gateway(options) => roles::gateway::run(&options),
        Command::Executor(options) => roles::executor::run(&options),
        Command::Scheduler(options) => roles::scheduler::run(&options),
        Command::Task(command) => client::task::run(command),
        Command::Model(command) => client::model::run(command),
        Command::Variant(command) => client::variant::run(command),
        Command::Audit(options) => client::audit::run(&options),
        Command::Key(command) => client::key::run(command),
        Command::Tenant(command) => client::tenant::run(&command),
        Command::Policy(command) => client::policy::run(&command),
        Command::Node(command) => client::node::run(&command),
        Command::Pool(command) => client::machine::pools(&command),
        Command::Machine(command) => client::machine::machines(&command),
        Command::Replica(command) => client::replica::run(&command),
        Command::Plan(options) => client::plan::run(&options),
        Command::Events(options) => client::events::run(&options),
        Command::Decisions(options) => client::decisions::run(&options),
        Command::Query(options) => client::query::run(&options),
        Command::Job(command) => client::job::run(command),
        Command::Feedback(options) => client::feedback::run(&options),
        Command::Explain(options) => client::explain::run(&options),
        Command::Profile(command) => profile::run(command),
        Command::Engine(command) => engines::run(command),
        Command::Simulate(options) => simulate::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Completions(options) => manual::completions(&options, Cli::command()),
        Command::Manual(options) => manual::manual(&options, Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}

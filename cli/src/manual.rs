//! What a shell and `man` know of this program, made from the arguments themselves, so that they cannot tell of others.

use crate::exit::usage;
use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell that shall complete our commands. Each reads it in another way: see docs/getting-started.md.
    shell: Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Manual {
    /// The folder to write a page for each command to, such as ~/.local/share/man/man1.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn completions(options: &Completions, mut program: Command) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    // Written in one go: whoever reads only a part of it (`| head`) is no reason to panic.
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut program, name, &mut text);
    match io::stdout().write_all(&text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("what was made could not be printed"),
    }
}

pub(crate) fn manual(options: &Manual, program: Command) -> anyhow::Result<()> {
    if options.out.exists() && !options.out.is_dir() {
        return Err(usage(format!("{} is there and is not a folder", options.out.display())));
    }
    fs::create_dir_all(&options.out)
        .with_context(|| format!("the folder {} cannot be made", options.out.display()))?;
    // Names of commands within commands stand in full, as in `man modelless-model-register`.
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let pages = pages(&options.out, &program)?;
    eprintln!(
        "{pages} pages written; `man -l {}` shows the first",
        options.out.join("modelless.1").display()
    );
    Ok(())
}

/// Writes the page of a command and of those within it, and counts them.
fn pages(folder: &Path, command: &Command) -> anyhow::Result<usize> {
    let page = Man::new(command.clone());
    let path = folder.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)?;
    fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    command
        .get_subcommands()
        .filter(|within| !within.is_hide_set())
        .try_fold(1, |sum, within| Ok(sum + pages(folder, within)?))
}

//! `certificates FOLDER NAME...`: writes an authority's certificate and one for each name, for a cluster whose connections are encrypted.

use anyhow::{Result, bail};
use std::path::Path;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, names @ ..] = args.as_slice() else { bail!("usage: certificates FOLDER NAME...") };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    modelless_testkit::certificates::write(Path::new(folder), &names)
}

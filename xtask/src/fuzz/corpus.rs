//! The inputs that are kept: few and small, since they are committed and every run of the tests reads them all.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

const FILES: usize = 400;
const BYTES: u64 = 500_000;

/// Its files and their bytes.
pub(super) fn size(folder: &Path) -> Result<(usize, u64)> {
    let files = files(folder)?;
    Ok((files.len(), files.iter().map(|(bytes, _)| bytes).sum()))
}

/// Takes away what exceeds the bounds: of too many, evenly from small to large, since whole requests are large and odd ones small; then
/// the largest until the rest is small enough.
pub(super) fn bound(folder: &Path) -> Result<()> {
    let files = files(folder)?;
    let (most, mut kept, mut bytes) = (files.len().min(FILES), 0, 0);
    for (at, (size, path)) in files.iter().enumerate() {
        // So many of the first `at + 1` stay.
        let due = (at + 1) * most / files.len();
        if due > kept && bytes + size <= BYTES {
            kept += 1;
            bytes += size;
        } else {
            fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    Ok(())
}

/// The smallest first.
fn files(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        files.push((entry.metadata()?.len(), entry.path()));
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_the_small_stay() {
        let folder = modelless_testkit::temp_dir("corpus").unwrap();
        for at in 0..FILES + 5 {
            fs::write(folder.path().join(format!("{at}")), vec![0; at]).unwrap();
        }
        bound(folder.path()).unwrap();
        assert_eq!(size(folder.path()).unwrap().0, FILES);
        assert!(folder.path().join(format!("{}", FILES + 4)).is_file(), "large ones are among them");
        fs::write(folder.path().join("large"), vec![0; usize::try_from(BYTES).unwrap()]).unwrap();
        bound(folder.path()).unwrap();
        assert!(!folder.path().join("large").exists() && size(folder.path()).unwrap().1 <= BYTES);
    }
}

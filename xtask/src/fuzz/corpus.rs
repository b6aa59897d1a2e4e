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

/// Takes the largest away until the rest keeps the bounds: what small ones reach is worth more for its size.
pub(super) fn bound(folder: &Path) -> Result<()> {
    let (mut count, mut bytes) = (0, 0);
    for (size, path) in files(folder)? {
        count += 1;
        bytes += size;
        if count > FILES || bytes > BYTES {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
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
        assert!(folder.path().join("0").is_file() && !folder.path().join(format!("{FILES}")).is_file());
        fs::write(folder.path().join("large"), vec![0; usize::try_from(BYTES).unwrap()]).unwrap();
        bound(folder.path()).unwrap();
        assert!(!folder.path().join("large").exists() && size(folder.path()).unwrap().1 <= BYTES);
    }
}

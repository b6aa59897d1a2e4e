//! What is made of files, made anew when they change: a certificate that was renewed holds from the next connection on, and those
//! that stand go on with theirs. Files that cannot be used leave what was.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// When a file was written and how long it is; `None` for one that is not there.
type Stamp = Option<(SystemTime, u64)>;

/// How it is made.
type Make<T> = dyn Fn() -> Result<Arc<T>, String> + Send + Sync;

/// Something that is made of files.
pub struct Reloading<T> {
    files: Vec<PathBuf>,
    make: Box<Make<T>>,
    now: Mutex<(Vec<Stamp>, Arc<T>)>,
}

impl<T> Reloading<T> {
    /// Made once now, which must succeed.
    pub fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<Arc<T>, String> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, String> {
        // Looked at before they are read: what changes in between is seen the next time.
        let stamps = stamps(&files);
        let now = Mutex::new((stamps, make()?));
        Ok(Arc::new(Self { files, make: Box::new(make), now }))
    }

    /// What the files say now. Asked once for each connection; a look at three files takes microseconds.
    pub fn get(&self) -> Arc<T> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps(&self.files);
        if now.0 != stamps {
            now.0 = stamps;
            match (self.make)() {
                Ok(made) => {
                    tracing::info!(files = %self, "certificates were read anew");
                    now.1 = made;
                }
                // Perhaps the other half of a pair is still to come; that is a change again.
                Err(why) => {
                    tracing::warn!(why, "changed certificates cannot be used; going on with those before");
                }
            }
        }
        Arc::clone(&now.1)
    }
}

impl<T> fmt::Debug for Reloading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reloading").field(&self.files).finish()
    }
}

impl<T> fmt::Display for Reloading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        f.write_str(&names.join(", "))
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let about = std::fs::metadata(file).ok()?;
        Some((about.modified().ok()?, about.len()))
    };
    files.iter().map(stamp).collect()
}

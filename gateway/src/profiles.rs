//! Profiles as they leave one server and come to another: see `docs/profiles.md`.

use modelless_types::{Profile, VariantSettings};
use serde::{Deserialize, Serialize};

/// What a file of profiles calls itself.
pub const PROFILES: &str = "modelless-profiles";
/// The version of its form. It changes when a reader of the one before would take a file for what it is not.
pub const PROFILES_VERSION: u32 = 1;

/// A file of profiles.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProfileFile {
    /// [`PROFILES`].
    pub format: String,
    /// [`PROFILES_VERSION`].
    pub version: u32,
    /// In the order of tasks, variants and device classes.
    pub profiles: Vec<ProfileEntry>,
}

/// What was measured of one variant on one device class, with what it takes to know the variant again elsewhere.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProfileEntry {
    /// The task's name.
    pub task: String,
    /// The model's name.
    #[serde(default)]
    pub model: String,
    /// Its version.
    #[serde(default)]
    pub model_version: u32,
    /// The variant's name.
    pub variant: String,
    /// sha256 of the artefact, in lower-case hexadecimal.
    pub artefact_sha256: String,
    /// How it is run; compared where it is given.
    #[serde(default)]
    pub settings: Option<VariantSettings>,
    /// What was measured.
    pub profile: Profile,
}

impl ProfileFile {
    /// With these.
    pub fn new(profiles: Vec<ProfileEntry>) -> Self {
        Self { format: PROFILES.to_owned(), version: PROFILES_VERSION, profiles }
    }

    /// Why it cannot be read as what it says it is.
    pub fn check(&self) -> Result<(), String> {
        if self.format != PROFILES {
            return Err(format!("`format` is {:?}, but a file of profiles says {PROFILES:?}", self.format));
        }
        if self.version != PROFILES_VERSION {
            let version = self.version;
            return Err(format!("`version` is {version}; this program reads version {PROFILES_VERSION}"));
        }
        Ok(())
    }
}

//! Profiles as they leave one server and come to another: see `docs/profiles.md`.

use modelless_types::{Profile, VariantSettings};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

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
    /// What stands between a query and the artefact's numbers; compared.
    #[serde(flatten)]
    pub through: Through,
    /// What was measured.
    pub profile: Profile,
}

/// What beside the artefact decides what a variant answers, and so how accurate it is: sha256 of each, in lower-case
/// hexadecimal. Exports of before there was such a thing have none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Through {
    /// Of the adapter in its own notation, without the tokenizer's place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_sha256: Option<String>,
    /// Of the tokenizer's file, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_sha256: Option<String>,
    /// Of the task's labels in their order, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels_sha256: Option<String>,
}

impl Through {
    /// Of a model's adapter as the store has it, where the tokenizer's place is the digest of its file, and a task's labels.
    pub fn of(adapter: &str, labels: &[String]) -> Self {
        // Keys are in order then. What is no JSON is compared as it stands.
        let mut notation = serde_json::from_str(adapter).unwrap_or_else(|_| Value::from(adapter));
        let tokenizer = notation.pointer_mut("/tokens/tokenizer").map(Value::take);
        Self {
            adapter_sha256: Some(digest(&notation.to_string())),
            tokenizer_sha256: tokenizer.and_then(|place| place.as_str().map(str::to_owned)),
            labels_sha256: Some(digest(&Value::from(labels.to_vec()).to_string())),
        }
    }

    /// Why figures that were made through these say nothing of what is made through `own`.
    pub fn unlike(&self, own: &Self) -> Option<String> {
        let parts = [
            ("adapter", &self.adapter_sha256, &own.adapter_sha256),
            ("tokenizer", &self.tokenizer_sha256, &own.tokenizer_sha256),
            ("labels", &self.labels_sha256, &own.labels_sha256),
        ];
        let missing = |(_, theirs, ours): &&(&str, &Option<String>, &Option<String>)| {
            theirs.is_none() && ours.is_some()
        };
        let unsaid: Vec<_> = parts.iter().filter(missing).map(|(name, ..)| *name).collect();
        if !unsaid.is_empty() {
            return Some(format!(
                "it does not say with which {} it was measured; export it again with a newer version",
                unsaid.join(" and ")
            ));
        }
        let other: Vec<_> =
            parts.iter().filter(|(_, theirs, ours)| theirs != ours).map(|(name, ..)| *name).collect();
        (!other.is_empty())
            .then(|| format!("what it was measured with differs from what is here: {}", other.join(", ")))
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::new(), |mut hex, byte| {
        // A string takes all that is written to it.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_query_goes_through_is_told_apart_by_its_parts() {
        let labels = ["cat", "dog"].map(str::to_owned);
        let adapter = |max: u32, tokenizer: &str| {
            format!(
                r#"{{"tokens": {{"tokenizer": "{tokenizer}", "max": {max}}}, "kind": "text-classification"}}"#
            )
        };
        let own = Through::of(&adapter(128, "ab"), &labels);
        assert_eq!(own.tokenizer_sha256.as_deref(), Some("ab"));
        let same = r#"{"kind":"text-classification","tokens":{"max":128,"tokenizer":"ab"}}"#;
        assert_eq!(Through::of(same, &labels).unlike(&own), None, "the order of keys says nothing");
        let others = [
            (Through::of(&adapter(64, "ab"), &labels), "here: adapter"),
            (Through::of(&adapter(128, "cd"), &labels), "here: tokenizer"),
            (Through::of(&adapter(128, "ab"), &["dog", "cat"].map(str::to_owned)), "here: labels"),
            (Through::of(&adapter(64, "cd"), &labels), "here: adapter, tokenizer"),
            (Through::of(r#"{"kind": "tensor"}"#, &labels), "with which tokenizer"),
            (Through::default(), "with which adapter and tokenizer and labels"),
        ];
        for (other, said) in others {
            let why = other.unlike(&own).unwrap();
            assert!(why.contains(said), "{why}");
        }
        let pictures = Through::of(r#"{"kind": "image-classification", "width": 28}"#, &labels);
        assert_eq!(pictures.tokenizer_sha256, None);
        assert!(own.unlike(&pictures).unwrap().contains("here: adapter, tokenizer"));
    }
}

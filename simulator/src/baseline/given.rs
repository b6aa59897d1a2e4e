//! What a policy is given besides its description: values for what may be tuned.

use std::collections::BTreeMap;

/// Values by name; what is not there is as the description says.
pub type Given = BTreeMap<String, f64>;

/// A value, or what the description says.
pub(super) fn value(given: &Given, name: &str, described: f64) -> f64 {
    given.get(name).copied().unwrap_or(described)
}

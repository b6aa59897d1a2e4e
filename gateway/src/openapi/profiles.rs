//! Profiles as files.

use super::schemas::reference;
use super::{Doc, query_parameter};
use serde_json::json;

pub(crate) fn export() -> Doc {
    let text = json!({"type": "string"});
    Doc::new("exportProfiles", "models", "Profiles in full")
        .describe(
            "Everything that was measured, with what it takes to know a variant again at another server.",
        )
        .parameters(vec![
            query_parameter("task", "Only those of this task.", &text),
            query_parameter("variant", "Only those of this variant.", &text),
            query_parameter("device_class", "Only those of this device class.", &text),
        ])
        .answers(200, "By task, variant and device class.", &reference("ProfileFile"))
        .errors(&[400, 404, 429])
}

pub(crate) fn import() -> Doc {
    let listed = json!({"type": "array", "items": {"type": "object"}});
    let schema = json!({"type": "object", "properties": {"imported": listed, "left_out": listed}});
    let replace = query_parameter(
        "replace",
        "Also where this server has measured the variant on that device class.",
        &json!({"type": "boolean"}),
    );
    Doc::new("importProfiles", "models", "Take in profiles")
        .describe(
            "A profile is taken in where this server has a variant of that name with the same artefact, run in the same way. \
             What is left out is told with the reason.",
        )
        .parameter(replace)
        .json_body(true, &reference("ProfileFile"))
        .answers(200, "What was taken in and what was not.", &schema)
        .errors(&[400, 413, 415, 503])
}

//! Pictures inside JSON: base64, bare or in a `data:` URL.

use crate::{InputError, Limits};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::borrow::Cow;

/// Padding may be there or not; some clients leave it out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Decodes a picture from base64 (standard alphabet; line breaks and padding as you like) or from a
/// `data:...;base64,` URL. What the URL says of the media type is not believed: the bytes decide.
pub fn decode_base64_input(text: &str, limits: &Limits) -> Result<Vec<u8>, InputError> {
    let text = text.trim_ascii();
    let figures = match text.get(..5).map(str::to_ascii_lowercase).as_deref() {
        Some("data:") => match text.split_once(',') {
            Some((head, figures)) if head.to_ascii_lowercase().ends_with(";base64") => figures,
            Some(_) | None => {
                return bad("a data: URL has to be `data:image/...;base64,` and then the base64");
            }
        },
        Some("http:" | "https") => {
            return bad("URLs are not fetched: send the picture itself, as raw bytes or base64");
        }
        Some(_) | None => text,
    };
    let figures: Cow<'_, [u8]> = if figures.bytes().any(|b| b.is_ascii_whitespace()) {
        figures.bytes().filter(|b| !b.is_ascii_whitespace()).collect::<Vec<_>>().into()
    } else {
        figures.as_bytes().into()
    };
    let bytes = figures.len() / 4 * 3;
    if bytes > limits.max_bytes {
        return Err(InputError::TooManyBytes { bytes, limit: limits.max_bytes });
    }
    BASE64.decode(figures).or_else(|error| bad(&error.to_string()))
}

/// The same for a JSON value that has to be a string.
pub(crate) fn decode_json_string(value: &[u8], limits: &Limits) -> Result<Vec<u8>, InputError> {
    // Base64 has nothing that JSON escapes (but for `\/`), so the string is nearly always borrowed as it stands.
    #[derive(serde::Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    match serde_json::from_slice::<Text<'_>>(value) {
        Ok(Text(text)) => decode_base64_input(&text, limits),
        Err(error) => Err(InputError::BadJson {
            why: format!("{error}; expected a string with a JPEG or PNG in base64"),
        }),
    }
}

fn bad(why: &str) -> Result<Vec<u8>, InputError> {
    Err(InputError::BadBase64 { why: why.to_owned() })
}

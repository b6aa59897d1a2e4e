//! Keys that do not exist: told with those that do, so that whoever shows it can say which was meant.

use crate::Error;

/// What a reader of TOML said, taken apart where a key is unknown.
pub(super) fn explained(text: &str) -> Error {
    let text = text.trim_end().to_owned();
    let Some((_, rest)) = text.split_once("unknown field `").or_else(|| text.split_once("unknown variant `"))
    else {
        return Error::Scenario(text);
    };
    let mut quoted = rest.split('`');
    let key = quoted.next().unwrap_or_default().to_owned();
    // What stands between the other pairs of quotes are the names that exist.
    let known = quoted.skip(1).step_by(2).map(str::to_owned).collect();
    Error::UnknownKey { text, key, known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_told_with_those_that_exist() {
        let error = explained("line 3\nunknown field `lanez`, expected one of `name`, `lanes`, `zone`\n");
        let Error::UnknownKey { key, known, .. } = error else { panic!("{error:?}") };
        assert_eq!((key.as_str(), known.len()), ("lanez", 3));
        assert_eq!(known[1], "lanes");
        assert!(matches!(explained("expected a number"), Error::Scenario(_)));
    }
}

//! "Did you mean": the nearest known name to one that is not known.

use modelless_store::without_keys;

/// A clause to end an error with: the nearest name if one is near, else all of them.
pub(crate) fn suggest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 8;
    let known: Vec<&str> = known.into_iter().collect();
    // Names are short; a long one is no misspelling, and measuring it would be somebody's lever.
    if given.len() <= 64 {
        let given = given.to_lowercase().replace('-', "_");
        let near = known.iter().map(|name| (distance(&given, &name.to_lowercase().replace('-', "_")), *name));
        if let Some((_, name)) = near.min().filter(|(steps, name)| *steps <= 1 + name.len() / 4) {
            return format!("; did you mean {name:?}?");
        }
    }
    match known.len() {
        0 => "; there are none yet".to_owned(),
        n if n > SHOWN => format!("; there are {} and {} more", known[..SHOWN].join(", "), n - SHOWN),
        _ => format!("; there are {}", known.join(", ")),
    }
}

/// What a client sent, short enough to be shown again, and without keys: errors end up in logs of others.
pub(crate) fn excerpt(text: &str) -> String {
    const SHOWN: usize = 60;
    let text = &*without_keys(text);
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{:?}...", &text[..at]),
        None => format!("{text:?}"),
    }
}

/// The same for the audit log, where names stand as they are as long as nothing else can be read into them.
pub(crate) fn noted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.is_empty() && name.len() <= 60 && name.chars().all(plain) {
        name.to_owned()
    } else {
        excerpt(name)
    }
}

/// Letters to change, add or take away.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut above_left = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = above_left + usize::from(x != *y);
            above_left = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood_and_a_stranger_gets_the_list() {
        let known = ["accuracy", "latency_ms", "max_cost"];
        for (given, meant) in [("acuracy", "accuracy"), ("latency-ms", "latency_ms"), ("Maxcost", "max_cost")]
        {
            assert_eq!(suggest(given, known), format!("; did you mean {meant:?}?"));
        }
        assert_eq!(suggest("colour", known), "; there are accuracy, latency_ms, max_cost");
        assert_eq!(suggest("x", []), "; there are none yet");
        assert!(suggest(&"a".repeat(1_000_000), known).contains("there are"));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(excerpt("ab"), "\"ab\"");
        assert!(excerpt(&"é".repeat(500)).len() < 200);
    }
}

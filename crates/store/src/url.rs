//! Database addresses without their secrets.

/// A database address as it may be shown: the password and all parameters (one may be a password too) are
/// blanked. Errs on the side of blanking too much. A path is returned as it is.
pub fn redact(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        return address.to_owned();
    };
    if scheme.eq_ignore_ascii_case("sqlite") {
        return address.to_owned();
    }
    let (place, parameters) = rest.split_once('?').map_or((rest, None), |(place, p)| (place, Some(p)));
    if parameters.is_some_and(|p| p.contains('@')) {
        // Either a parameter holds an `@` or an unescaped password a `?`: which is which cannot be told.
        return format!("{scheme}://***");
    }
    let after = if parameters.is_some() { "?***" } else { "" };
    // An unescaped `@` may be part of a password, so everything up to the last one is credentials.
    match place.rsplit_once('@') {
        Some((credentials, place)) => match credentials.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:***@{place}{after}"),
            None => format!("{scheme}://{credentials}@{place}{after}"),
        },
        None => format!("{scheme}://{place}{after}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_left_in_an_address_that_is_shown() {
        for (address, shown) in [
            ("postgres://me:geheim@db:5432/x", "postgres://me:***@db:5432/x"),
            ("postgres://me:ge@he/im@db/x", "postgres://me:***@db/x"),
            ("postgres://me:ge@heim?@db/x", "postgres://***"),
            ("postgres://me:geheim@db/x?sslmode=require&password=geheim", "postgres://me:***@db/x?***"),
            ("postgresql://db/x?password=geheim", "postgresql://db/x?***"),
            ("postgres://db/x?user=a&password=ge@heim", "postgres://***"),
            ("postgres://me@db/x", "postgres://me@db/x"),
            ("postgres://db", "postgres://db"),
            ("/var/lib/some:file@place?", "/var/lib/some:file@place?"),
        ] {
            assert_eq!(redact(address), shown);
            assert!(!redact(address).contains("heim"));
        }
    }
}

//! Waiting for something that nobody tells: looking, again and again, for so long.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Between two looks: short beside what is waited for, long beside what a look costs.
const LOOK: Duration = Duration::from_millis(20);

/// Looks until it is there. What is not there yet says what was seen instead, for the message in case it never comes.
pub fn until<T>(within: Duration, mut look: impl FnMut() -> Result<Result<T, String>>) -> Result<T> {
    let end = Instant::now() + within;
    loop {
        match look()? {
            Ok(there) => return Ok(there),
            Err(seen) if Instant::now() >= end => {
                bail!("it did not come about within {within:?}; last seen: {seen}")
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_returned_and_what_does_not_is_told_with_what_was_seen() {
        let mut looks = 0;
        let found = until(Duration::from_mins(1), || {
            looks += 1;
            Ok(if looks == 3 { Ok(looks) } else { Err("too early".to_owned()) })
        });
        assert_eq!(found.unwrap(), 3);
        let never = until::<()>(Duration::ZERO, || Ok(Err("nothing".to_owned()))).unwrap_err();
        assert!(never.to_string().contains("last seen: nothing"), "{never}");
        assert!(
            until::<()>(Duration::from_mins(1), || bail!("broken")).is_err(),
            "an error is no reason to wait"
        );
    }
}

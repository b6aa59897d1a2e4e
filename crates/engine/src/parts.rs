//! A batch in parts: items of like length together, so that short ones are not filled up to the longest of all.

/// Parts of one batch.
pub const MAX_PARTS: usize = 4;

/// Some rows of a batch, one after another, whose items have one length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// How many there are.
    pub rows: u32,
    /// How long their items are; 0 for the longest.
    pub length: u32,
}

/// A batch from its first row to its last: usually one part. Parts are run one after another, each as long as its own
/// items are, so that short items are not filled up to the longest of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    all: [Part; MAX_PARTS],
    count: usize,
}

impl Parts {
    pub(crate) fn one(rows: u32, length: u32) -> Self {
        Self { all: [Part { rows, length }, Part::default(), Part::default(), Part::default()], count: 1 }
    }

    /// `None` for none, for too many, and where one of several has no rows or the greatest length left unsaid.
    pub(crate) fn of(parts: &[Part]) -> Option<Self> {
        if let [only] = parts {
            return Some(Self::one(only.rows, only.length));
        }
        let sound = parts.iter().all(|part| part.rows > 0 && part.length > 0);
        let mut all = [Part::default(); MAX_PARTS];
        all.get_mut(..parts.len()).filter(|_| sound && !parts.is_empty())?.copy_from_slice(parts);
        Some(Self { all, count: parts.len() })
    }

    pub(crate) fn all(&self) -> &[Part] {
        &self.all[..self.count]
    }

    pub(crate) fn rows(&self) -> u32 {
        self.all().iter().fold(0, |rows, part| rows.saturating_add(part.rows))
    }

    pub(crate) fn longest(&self) -> u32 {
        self.all().iter().map(|part| part.length).max().unwrap_or(0)
    }

    /// The last one: what is said of a batch that was run in parts is said of it.
    pub(crate) fn last(&self) -> Part {
        self.all[self.count - 1]
    }

    /// With rows that only fill up behind the batch, for artefacts that take exactly so many.
    pub(crate) fn filled_up(&self, rows: u32) -> Self {
        if self.count == 1 { Self::one(rows, self.all[0].length) } else { *self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(rows: u32, length: u32) -> Part {
        Part { rows, length }
    }

    #[test]
    fn parts_have_rows_and_lengths_and_there_are_few() {
        let parts = Parts::of(&[part(2, 8), part(3, 24)]).unwrap();
        assert_eq!((parts.rows(), parts.longest(), parts.last()), (5, 24, part(3, 24)));
        assert_eq!(Parts::of(&[part(4, 0)]), Some(Parts::one(4, 0)));
        for wrong in [&[][..], &[part(1, 8), part(0, 8)], &[part(1, 0), part(1, 8)], &[part(1, 8); 5]] {
            assert_eq!(Parts::of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn only_a_batch_of_one_part_is_filled_up() {
        assert_eq!(Parts::one(3, 8).filled_up(4), Parts::one(4, 8));
        let cut = Parts::of(&[part(2, 8), part(3, 24)]).unwrap();
        assert_eq!(cut.filled_up(8), cut);
    }
}

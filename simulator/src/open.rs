//! What is open, by a key that rises: nearly all keys between the oldest and the newest are, so they stand in a row.

use modelless_types::QueryKey;
use std::collections::VecDeque;

/// Values by key. Each key is entered once, above all that were entered before.
#[derive(Clone, Debug)]
pub(crate) struct Open<T> {
    /// The key of the first place.
    first: u64,
    places: VecDeque<Option<T>>,
    len: usize,
}

impl<T> Default for Open<T> {
    fn default() -> Self {
        Self { first: 0, places: VecDeque::new(), len: 0 }
    }
}

impl<T> Open<T> {
    fn place(&self, key: QueryKey) -> Option<usize> {
        usize::try_from(key.0.checked_sub(self.first)?).ok()
    }

    pub(crate) fn insert(&mut self, key: QueryKey, value: T) {
        if self.places.is_empty() {
            self.first = key.0;
        }
        let Some(place) = self.place(key) else { return };
        while self.places.len() <= place {
            self.places.push_back(None);
        }
        self.len += usize::from(self.places[place].replace(value).is_none());
    }

    pub(crate) fn get(&self, key: QueryKey) -> Option<&T> {
        self.places.get(self.place(key)?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: QueryKey) -> Option<&mut T> {
        let place = self.place(key)?;
        self.places.get_mut(place)?.as_mut()
    }

    pub(crate) fn remove(&mut self, key: QueryKey) -> Option<T> {
        let place = self.place(key)?;
        let value = self.places.get_mut(place)?.take()?;
        self.len -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All, by rising key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (QueryKey, &T)> {
        let keys = (self.first..).map(QueryKey);
        keys.zip(&self.places).filter_map(|(key, value)| Some((key, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_left_is_gone_whatever_the_order_and_the_rest_is_found() {
        let mut open = Open::default();
        (3..9).for_each(|key| open.insert(QueryKey(key), key));
        for key in [5, 3, 8, 4] {
            assert_eq!((open.remove(QueryKey(key)), open.remove(QueryKey(key))), (Some(key), None));
        }
        assert_eq!(open.iter().map(|(key, value)| (key.0, *value)).collect::<Vec<_>>(), [(6, 6), (7, 7)]);
        assert_eq!((open.len(), open.get(QueryKey(7)), open.get(QueryKey(2))), (2, Some(&7), None));
        open.insert(QueryKey(20), 20);
        assert_eq!((open.remove(QueryKey(6)), open.remove(QueryKey(7)), open.len()), (Some(6), Some(7), 1));
        assert_eq!(open.remove(QueryKey(20)), Some(20));
        open.insert(QueryKey(1_000_000_000), 1);
        assert_eq!((open.len(), open.places.len()), (1, 1), "nothing is kept of those that left");
    }
}

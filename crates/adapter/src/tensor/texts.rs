//! A JSON list of strings into the bytes of a tensor: a length of four bytes before each.
//!
//! Read as a stream: neither a tree of values nor a string that is not kept is ever held, and more elements or bytes
//! than there may be end it at once.

use super::numbers::{MAX_DEPTH, same_shape};
use crate::TensorFault;
use modelless_types::TensorSpec;
use modelless_types::tensor::strings;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use std::fmt;

/// Appends the strings of `json` to `data`, which may become `limit` bytes long. On an error `data` holds some of them.
pub(super) fn read(
    json: &str,
    spec: &TensorSpec,
    data: &mut Vec<u8>,
    limit: usize,
) -> Result<(), TensorFault> {
    let mut walk = Walk {
        data,
        limit,
        expected: spec.elements().unwrap_or(usize::MAX),
        depth: (spec.shape.len() + 1).clamp(2, MAX_DEPTH),
        got: 0,
        lengths: [None; MAX_DEPTH],
        leaves: None,
        fault: None,
    };
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let walked = Level { walk: &mut walk, level: 0 }.deserialize(&mut deserializer);
    let Walk { got, lengths, leaves, fault, expected, .. } = walk;
    if let Err(error) = walked {
        return Err(fault.unwrap_or_else(|| TensorFault::Form { why: error.to_string() }));
    }
    let axes = leaves.unwrap_or_else(|| lengths.iter().take_while(|length| length.is_some()).count());
    let shape: Vec<u64> = lengths[..axes].iter().map(|length| length.unwrap_or(0)).collect();
    if got != expected {
        return Err(TensorFault::Count { got, expected, shape: spec.shape.clone() });
    }
    let flat = matches!(shape[..], [_] | [1, _]);
    if !flat && !same_shape(&shape, &spec.shape) {
        return Err(TensorFault::Shape { got: shape, expected: spec.shape.clone() });
    }
    Ok(())
}

struct Walk<'a> {
    data: &'a mut Vec<u8>,
    limit: usize,
    expected: usize,
    depth: usize,
    /// Elements so far.
    got: usize,
    /// Of a finished list, by level.
    lengths: [Option<u64>; MAX_DEPTH],
    /// On which level elements stand.
    leaves: Option<usize>,
    /// What ended it.
    fault: Option<TensorFault>,
}

impl Walk<'_> {
    fn end<E: Error>(&mut self, fault: TensorFault) -> E {
        self.fault.get_or_insert(fault);
        E::custom("its tensor is wrong")
    }

    fn push<E: Error>(&mut self, level: usize, text: &str) -> Result<(), E> {
        if *self.leaves.get_or_insert(level) != level {
            return Err(self.end(TensorFault::Ragged { index: self.got }));
        }
        if self.got < self.expected {
            let length = self.data.len().saturating_add(strings::LENGTH).saturating_add(text.len());
            if length > self.limit || strings::push(text.as_bytes(), self.data).is_none() {
                return Err(self.end(TensorFault::TooLong { limit: self.limit }));
            }
        }
        self.got += 1;
        Ok(())
    }

    fn wrong<E: Error>(&mut self, found: impl Into<String>) -> E {
        let fault = TensorFault::Element {
            index: self.got,
            found: found.into(),
            dtype: modelless_types::DType::Bytes,
        };
        self.end(fault)
    }
}

/// A list or an element, inside of so many lists.
struct Level<'a, 'b> {
    walk: &'a mut Walk<'b>,
    level: usize,
}

impl<'de> DeserializeSeed<'de> for Level<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.walk.push(self.level, text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { walk, level } = self;
        if level == walk.depth {
            let limit = walk.depth;
            return Err(walk.end(TensorFault::TooDeep { limit }));
        }
        if walk.leaves.is_some_and(|leaves| level >= leaves) {
            let index = walk.got;
            return Err(walk.end(TensorFault::Ragged { index }));
        }
        let mut count = 0_u64;
        while list.next_element_seed(Level { walk, level: level + 1 })?.is_some() {
            count += 1;
        }
        if *walk.lengths[level].get_or_insert(count) != count {
            let index = walk.got;
            return Err(walk.end(TensorFault::Ragged { index }));
        }
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        Err(self.walk.wrong(format!("`{value}`")))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        Err(self.walk.wrong(format!("`{value}`")))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        Err(self.walk.wrong(format!("`{value}`")))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        Err(self.walk.wrong(format!("`{value}`")))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(self.walk.wrong("`null`"))
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Err(self.walk.wrong("an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use modelless_types::DType;

    fn texts(json: &str, shape: &[u32]) -> Result<Vec<String>, TensorFault> {
        let spec = TensorSpec { name: "x".to_owned(), dtype: DType::Bytes, shape: shape.to_vec() };
        let mut data = Vec::new();
        read(json, &spec, &mut data, 100)?;
        Ok(strings::each(&data).map(|text| String::from_utf8_lossy(text).into_owned()).collect())
    }

    #[test]
    fn nesting_may_be_flat_exact_or_with_a_batch_of_one() {
        for json in [
            r#"[["a,]", "\u00fc"], ["", "d"]]"#,
            r#"[[["a,]","ü"],["","d"]]]"#,
            r#"["a,]","ü","","d"]"#,
            r#"[["a,]","ü","","d"]]"#,
        ] {
            assert_eq!(texts(json, &[2, 2]), Ok(["a,]", "ü", "", "d"].map(str::to_owned).into()), "{json}");
        }
        assert_eq!(texts(r#""alone""#, &[]), Ok(vec!["alone".to_owned()]));
        assert_eq!(texts(r#"["alone"]"#, &[]), Ok(vec!["alone".to_owned()]));
    }

    #[test]
    fn what_is_wrong_with_a_list_is_said() {
        for json in [r#"[["a","b"],["c"]]"#, r#"[["a","b"],"c","d"]"#, r#"["a",["b","c"],"d"]"#] {
            assert!(matches!(texts(json, &[2, 2]), Err(TensorFault::Ragged { .. })), "{json}");
        }
        assert_eq!(texts(r#"["a"]"#, &[2]), Err(TensorFault::Count { got: 1, expected: 2, shape: vec![2] }));
        assert_eq!(
            texts(r#"["a","b","c"]"#, &[2]),
            Err(TensorFault::Count { got: 3, expected: 2, shape: vec![2] })
        );
        assert_eq!(
            texts(r#"[["a"],["b"]]"#, &[1, 2]),
            Err(TensorFault::Shape { got: vec![2, 1], expected: vec![1, 2] })
        );
        assert_eq!(texts("[[[[\"a\"]]]]", &[1]), Err(TensorFault::TooDeep { limit: 2 }));
        let long = format!("[{:?}]", "x".repeat(97));
        assert_eq!(texts(&long, &[1]), Err(TensorFault::TooLong { limit: 100 }));
        for (json, found) in
            [("[7]", "`7`"), ("[null]", "`null`"), ("[true]", "`true`"), ("[{\"a\":1}]", "an object")]
        {
            let fault = TensorFault::Element { index: 0, found: found.to_owned(), dtype: DType::Bytes };
            assert_eq!(texts(json, &[1]), Err(fault), "{json}");
        }
        // A half of a pair that stands for one character is no text.
        assert!(matches!(texts(r#"["\ud800"]"#, &[1]), Err(TensorFault::Form { .. })));
    }
}

//! Elements of a tensor as JSON, read into the bytes of the tensor and written from them.
//!
//! Read as a stream: no tree of values is built, and more than is wanted ends it at once. Lists may be nested as they like, since
//! the shape stands beside them; only how deep is bounded.

use half::f16;
use modelless_types::DType;
use modelless_types::tensor::strings;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;

/// Lists inside of lists.
const DEPTH_MAX: usize = 32;

/// Appends the elements of a JSON value to `into`, which may become `limit` bytes long. Gives how many they were.
pub fn read(dtype: DType, json: &str, into: &mut Vec<u8>, limit: usize) -> Result<usize, String> {
    let mut walk = Walk { dtype, into, limit, count: 0 };
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let read = Level { walk: &mut walk, depth: 0 }.deserialize(&mut deserializer);
    let count = walk.count;
    read.and_then(|()| deserializer.end()).map(|()| count).map_err(|error| error.to_string())
}

struct Walk<'a> {
    dtype: DType,
    into: &'a mut Vec<u8>,
    limit: usize,
    count: usize,
}

impl Walk<'_> {
    fn push<E: Error>(&mut self, bytes: &[u8]) -> Result<(), E> {
        if self.into.len().saturating_add(bytes.len()) > self.limit {
            return Err(E::custom("there is more than its shape says or than is taken"));
        }
        self.into.extend_from_slice(bytes);
        self.count += 1;
        Ok(())
    }

    fn wrong<E: Error>(&self, found: impl fmt::Display) -> E {
        E::custom(format!("element {} is {found}, which is no {}", self.count, self.dtype.name()))
    }

    fn whole<E: Error>(&mut self, value: i128) -> Result<(), E> {
        // Whole numbers are numbers of every kind; a float takes the nearest.
        #[expect(
            clippy::cast_precision_loss,
            reason = "what JSON writes without a point is meant as a float here"
        )]
        let float = value as f64;
        let wrong = |walk: &Self| walk.wrong(value);
        match self.dtype {
            DType::Uint8 => {
                let value = u8::try_from(value).map_err(|_| wrong(self))?;
                self.push(&value.to_le_bytes())
            }
            DType::Int8 => {
                let value = i8::try_from(value).map_err(|_| wrong(self))?;
                self.push(&value.to_le_bytes())
            }
            DType::Int32 => {
                let value = i32::try_from(value).map_err(|_| wrong(self))?;
                self.push(&value.to_le_bytes())
            }
            DType::Int64 => {
                let value = i64::try_from(value).map_err(|_| wrong(self))?;
                self.push(&value.to_le_bytes())
            }
            DType::Bool if value == 0 || value == 1 => self.push(&[u8::from(value == 1)]),
            DType::Fp16 | DType::Fp32 | DType::Fp64 => self.float(float),
            DType::Bool | DType::Bytes => Err(wrong(self)),
        }
    }

    fn float<E: Error>(&mut self, value: f64) -> Result<(), E> {
        #[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is the point")]
        let single = value as f32;
        let half = f16::from_f64(value);
        match self.dtype {
            DType::Fp16 if half.is_finite() => self.push(&half.to_le_bytes()),
            DType::Fp32 if single.is_finite() => self.push(&single.to_le_bytes()),
            DType::Fp64 => self.push(&value.to_le_bytes()),
            DType::Fp16
            | DType::Fp32
            | DType::Bool
            | DType::Uint8
            | DType::Int8
            | DType::Int32
            | DType::Int64
            | DType::Bytes => Err(self.wrong(value)),
        }
    }
}

struct Level<'a, 'b> {
    walk: &'a mut Walk<'b>,
    depth: usize,
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
        write!(f, "a list of {}", self.walk.dtype.name())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { walk, depth } = self;
        if depth == DEPTH_MAX {
            return Err(A::Error::custom("its lists are nested too deep"));
        }
        while list.next_element_seed(Level { walk, depth: depth + 1 })?.is_some() {}
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        if self.walk.dtype != DType::Bytes {
            return Err(self.walk.wrong("a string"));
        }
        let room = self.walk.limit.saturating_sub(self.walk.into.len());
        if text.len().saturating_add(strings::LENGTH) > room
            || strings::push(text.as_bytes(), self.walk.into).is_none()
        {
            return Err(E::custom("there is more than its shape says or than is taken"));
        }
        self.walk.count += 1;
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self.walk.dtype {
            DType::Bool => self.walk.push(&[u8::from(value)]),
            DType::Uint8
            | DType::Int8
            | DType::Int32
            | DType::Int64
            | DType::Fp16
            | DType::Fp32
            | DType::Fp64
            | DType::Bytes => Err(self.walk.wrong(value)),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.walk.whole(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.walk.whole(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.walk.float(value)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(self.walk.wrong("null"))
    }
}

/// Appends the elements as a flat JSON list. What JSON cannot say (a float that is not finite, a string that is no text) is an
/// error, and the list is left cut short.
pub fn write(dtype: DType, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    fn all<const N: usize, T: serde::Serialize>(
        bytes: &[u8],
        out: &mut Vec<u8>,
        value: impl Fn([u8; N]) -> Option<T>,
    ) -> Result<(), String> {
        for (at, cell) in bytes.as_chunks::<N>().0.iter().enumerate() {
            let value = value(*cell).ok_or_else(|| format!("element {at} is not finite"))?;
            put(at, &value, out);
        }
        Ok(())
    }
    out.push(b'[');
    match dtype {
        DType::Bool => all(bytes, out, |[byte]| Some(byte != 0)),
        DType::Uint8 => all(bytes, out, |b| Some(u8::from_le_bytes(b))),
        DType::Int8 => all(bytes, out, |b| Some(i8::from_le_bytes(b))),
        DType::Int32 => all(bytes, out, |b| Some(i32::from_le_bytes(b))),
        DType::Int64 => all(bytes, out, |b| Some(i64::from_le_bytes(b))),
        DType::Fp16 => {
            all(bytes, out, |b| Some(f16::from_le_bytes(b).to_f32()).filter(|value| value.is_finite()))
        }
        DType::Fp32 => all(bytes, out, |b| Some(f32::from_le_bytes(b)).filter(|value| value.is_finite())),
        DType::Fp64 => all(bytes, out, |b| Some(f64::from_le_bytes(b)).filter(|value| value.is_finite())),
        DType::Bytes => strings::each(bytes).enumerate().try_for_each(|(at, string)| {
            let text = std::str::from_utf8(string).map_err(|_| format!("string {at} is no UTF-8"))?;
            put(at, text, out);
            Ok(())
        }),
    }?;
    out.push(b']');
    Ok(())
}

/// Floats of any width as numbers to be compared; of other types there are none.
pub fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::Fp16 => bytes.as_chunks().0.iter().map(|cell| f16::from_le_bytes(*cell).to_f32()).collect(),
        DType::Fp32 => bytes.as_chunks().0.iter().map(|cell| f32::from_le_bytes(*cell)).collect(),
        #[expect(clippy::cast_possible_truncation, reason = "the nearest float is near enough to compare")]
        DType::Fp64 => bytes.as_chunks().0.iter().map(|cell| f64::from_le_bytes(*cell) as f32).collect(),
        DType::Bool | DType::Uint8 | DType::Int8 | DType::Int32 | DType::Int64 | DType::Bytes => Vec::new(),
    }
}

fn put<T: serde::Serialize + ?Sized>(at: usize, value: &T, out: &mut Vec<u8>) {
    if at > 0 {
        out.push(b',');
    }
    serde_json::to_writer(out, value)
        .expect("numbers and strings always become JSON in memory; this is a bug");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(dtype: DType, json: &str) -> Result<(Vec<u8>, usize), String> {
        let mut into = Vec::new();
        let count = read(dtype, json, &mut into, 64)?;
        Ok((into, count))
    }

    #[test]
    fn what_is_read_is_written_again() {
        for (dtype, json, flat) in [
            (DType::Fp32, "[[1.5,-2],[0.1,3e2]]", "[1.5,-2.0,0.1,300.0]"),
            (DType::Fp64, "[0.1]", "[0.1]"),
            (DType::Fp16, "[[0.5]]", "[0.5]"),
            (DType::Int64, "[-9223372036854775808, 7]", "[-9223372036854775808,7]"),
            (DType::Int32, "[]", "[]"),
            (DType::Uint8, "[[[255]]]", "[255]"),
            (DType::Int8, "[-128]", "[-128]"),
            (DType::Bool, "[true, 0, 1]", "[true,false,true]"),
            (DType::Bytes, r#"["a\u00fc", ["", "]"]]"#, r#"["aü","","]"]"#),
        ] {
            let (read, _) = bytes(dtype, json).unwrap();
            let mut out = Vec::new();
            write(dtype, &read, &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), flat);
        }
        assert_eq!(bytes(DType::Fp32, "[1,[2,3]]").unwrap().1, 3);
    }

    #[test]
    fn what_does_not_fit_its_type_is_named_with_its_place() {
        for (dtype, json, said) in [
            (DType::Uint8, "[1, 256]", "element 1 is 256, which is no UINT8"),
            (DType::Int64, "[9223372036854775808]", "no INT64"),
            (DType::Int32, "[1.0]", "no INT32"),
            (DType::Fp32, "[1e39]", "no FP32"),
            (DType::Fp32, r#"["1"]"#, "a string, which is no FP32"),
            (DType::Fp32, "[null]", "null"),
            (DType::Bytes, "[7]", "no BYTES"),
            (DType::Bool, "[2]", "no BOOL"),
            (DType::Bool, "[{}]", "map"),
            (DType::Fp64, "[1] 2", "trailing"),
            (DType::Fp64, "[1,2,3,4,5,6,7,8,9]", "more than its shape"),
        ] {
            let error = bytes(dtype, json).unwrap_err();
            assert!(error.contains(said), "{json}: {error}");
        }
        let deep = "[".repeat(DEPTH_MAX + 2);
        assert!(bytes(DType::Fp32, &deep).unwrap_err().contains("too deep"));
        let long = format!("[{:?}]", "x".repeat(61));
        assert!(bytes(DType::Bytes, &long).is_err(), "a length of four bytes counts too");
    }

    #[test]
    fn floats_of_every_width_are_numbers() {
        for dtype in [DType::Fp16, DType::Fp32, DType::Fp64] {
            let (read, _) = bytes(dtype, "[0.5, -2]").unwrap();
            assert_eq!(floats(dtype, &read), [0.5, -2.0]);
        }
        assert!(floats(DType::Int32, &[0; 4]).is_empty());
    }

    #[test]
    fn what_json_cannot_say_is_an_error() {
        let mut out = Vec::new();
        assert!(write(DType::Fp32, &f32::NAN.to_le_bytes(), &mut out).is_err());
        assert!(write(DType::Bytes, &[1, 0, 0, 0, 0xff], &mut out).is_err());
    }
}

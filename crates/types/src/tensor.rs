//! What a tensor looks like, without its bytes.

use crate::units::Bytes;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Element types, named as the Open Inference Protocol names them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, one byte.
    Uint8,
    /// Signed, one byte.
    Int8,
    /// Signed, four bytes.
    Int32,
    /// Signed, eight bytes.
    Int64,
    /// IEEE half precision.
    Fp16,
    /// IEEE single precision.
    Fp32,
    /// IEEE double precision.
    Fp64,
    /// Strings of bytes, each as long as it likes. Laid out one after another, a length of four bytes (little-endian)
    /// before each, they get a room of fixed size for each item: see [`TensorSpec::room`].
    Bytes,
}

impl DType {
    /// Every type.
    pub const ALL: [Self; 9] = [
        Self::Bool,
        Self::Uint8,
        Self::Int8,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// Bytes per element; `None` for [`DType::Bytes`].
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Fp16 => Some(2),
            Self::Int32 | Self::Fp32 => Some(4),
            Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }

    /// As the Open Inference Protocol writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Int8 => "INT8",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }

    /// From that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

/// A named input or output of **one item**: the batch axis is the platform's and never stands in `shape`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The name the model gives it.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extent of each axis of one item, outermost first.
    pub shape: Vec<u32>,
}

impl TensorSpec {
    /// Elements of one item; `None` when that overflows.
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1_usize, |n, axis| n.checked_mul(usize::try_from(*axis).ok()?))
    }

    /// Bytes of one item; `None` for [`DType::Bytes`] or when that overflows.
    pub fn item_bytes(&self) -> Option<usize> {
        self.elements()?.checked_mul(self.dtype.size()?)
    }

    /// The fewest bytes that one item can be laid out in: all of them, or as many as its strings take where they are
    /// empty. `None` when that overflows.
    pub fn least_bytes(&self) -> Option<usize> {
        self.elements()?.checked_mul(self.dtype.size().unwrap_or(strings::LENGTH))
    }

    /// The room for one item in a batch: its bytes, or `strings` for [`DType::Bytes`]. `None` where that is too little
    /// for even empty strings, or overflows.
    pub fn room(&self, strings: Bytes) -> Option<usize> {
        let least = self.least_bytes()?;
        match self.dtype.size() {
            Some(_) => Some(least),
            None => usize::try_from(strings.0).ok().filter(|room| *room >= least),
        }
    }
}

/// Strings laid out one after another, as the Open Inference Protocol does it: a length of four bytes, little-endian,
/// before each.
pub mod strings {
    use alloc::vec::Vec;

    /// Bytes of a length.
    pub const LENGTH: usize = 4;

    /// The next string, and what follows it. `None` where the bytes end before it does.
    pub fn next(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
        rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
    }

    /// So many strings, and what follows them. `None` where the bytes end before they do.
    pub fn take(bytes: &[u8], count: usize) -> Option<(&[u8], &[u8])> {
        let mut rest = bytes;
        for _ in 0..count {
            rest = next(rest)?.1;
        }
        bytes.split_at_checked(bytes.len() - rest.len())
    }

    /// Each string of what [`take`] found.
    pub fn each(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut rest = bytes;
        core::iter::from_fn(move || {
            let (string, after) = next(rest)?;
            rest = after;
            Some(string)
        })
    }

    /// Appends one. `None`, and nothing appended, where it is longer than a length can say.
    pub fn push(string: &[u8], into: &mut Vec<u8>) -> Option<()> {
        let length = u32::try_from(string.len()).ok()?;
        into.extend_from_slice(&length.to_le_bytes());
        into.extend_from_slice(string);
        Some(())
    }
}

/// Tensors laid out one after another, as nodes answer with them: of each how many axes it has, their extents, how many bytes its
/// elements take, and these. Every number is little-endian, and has four bytes but for that of the bytes, which has eight.
pub mod packed {
    use alloc::vec::Vec;

    /// One of them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Packed<'a> {
        shape: &'a [[u8; 4]],
        /// Its elements, row by row; before each string its length.
        pub data: &'a [u8],
    }

    impl Packed<'_> {
        /// The extent of each axis, outermost first.
        pub fn shape(&self) -> impl Iterator<Item = u32> {
            self.shape.iter().map(|axis| u32::from_le_bytes(*axis))
        }
    }

    /// Appends one.
    pub fn push(shape: &[u32], data: &[u8], into: &mut Vec<u8>) {
        let axes = u32::try_from(shape.len()).expect("fewer axes than 2^32; this is a bug");
        into.reserve(12 + 4 * shape.len() + data.len());
        into.extend_from_slice(&axes.to_le_bytes());
        for axis in shape {
            into.extend_from_slice(&axis.to_le_bytes());
        }
        into.extend_from_slice(&(data.len() as u64).to_le_bytes());
        into.extend_from_slice(data);
    }

    /// The next, and what follows it. `None` where the bytes end before it does.
    fn next(bytes: &[u8]) -> Option<(Packed<'_>, &[u8])> {
        let (axes, rest) = bytes.split_first_chunk::<4>()?;
        let axes = usize::try_from(u32::from_le_bytes(*axes)).ok()?;
        let (shape, rest) = rest.split_at_checked(axes.checked_mul(4)?)?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (data, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        Some((Packed { shape: shape.as_chunks().0, data }, rest))
    }

    /// All of them. `None` where the bytes end in the middle of one.
    pub fn all(bytes: &[u8]) -> Option<Vec<Packed<'_>>> {
        let (mut all, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let (tensor, after) = next(rest)?;
            all.push(tensor);
            rest = after;
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn tensors_are_found_again_and_what_is_cut_short_is_none() {
        let mut bytes = Vec::new();
        packed::push(&[2, 3], &[7; 6], &mut bytes);
        packed::push(&[], &[], &mut bytes);
        let all = packed::all(&bytes).expect("two tensors");
        let shapes: Vec<Vec<u32>> = all.iter().map(|tensor| tensor.shape().collect()).collect();
        assert_eq!((shapes, all[0].data, all[1].data), (vec![vec![2, 3], vec![]], &[7; 6][..], &[][..]));
        assert_eq!(packed::all(&[]), Some(Vec::new()));
        for cut in (1..bytes.len()).filter(|cut| *cut != 26) {
            assert_eq!(packed::all(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(packed::all(&[0xff; 16]), None);
    }

    #[test]
    fn strings_are_found_again_and_what_is_cut_short_is_none() {
        let mut bytes = Vec::new();
        for string in [&b"one"[..], b"", b"\xff\0"] {
            strings::push(string, &mut bytes);
        }
        assert_eq!(bytes[..8], [3, 0, 0, 0, b'o', b'n', b'e', 0]);
        let padded = [&bytes[..], &[0; 9]].concat();
        assert_eq!(strings::take(&padded, 3), Some((&bytes[..], &[0; 9][..])));
        assert_eq!(strings::each(&bytes).collect::<Vec<_>>(), [&b"one"[..], b"", b"\xff\0"]);
        for cut in [1, 6, bytes.len() - 1] {
            assert_eq!(strings::take(&bytes[..cut], 3), None, "{cut}");
        }
        assert_eq!(strings::take(&[0xff; 8], 1), None);
    }

    #[test]
    fn strings_get_the_room_that_is_set_if_empty_ones_fit() {
        let spec = |dtype, shape: &[u32]| TensorSpec { name: "x".into(), dtype, shape: shape.to_vec() };
        assert_eq!(spec(DType::Bytes, &[2]).room(Bytes(100)), Some(100));
        assert_eq!(spec(DType::Bytes, &[26]).room(Bytes(100)), None);
        assert_eq!(spec(DType::Bytes, &[u32::MAX, u32::MAX, 9]).room(Bytes(100)), None);
        assert_eq!(spec(DType::Int32, &[2]).room(Bytes(1)), Some(8));
    }
}

//! What a tensor looks like, without its bytes.

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
    /// Strings of bytes; has no fixed size, so it never crosses into shared memory.
    Bytes,
}

impl DType {
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
        const ALL: [DType; 9] = [
            DType::Bool,
            DType::Uint8,
            DType::Int8,
            DType::Int32,
            DType::Int64,
            DType::Fp16,
            DType::Fp32,
            DType::Fp64,
            DType::Bytes,
        ];
        ALL.into_iter().find(|dtype| dtype.name() == name)
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
}

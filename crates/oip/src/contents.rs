//! Elements as the protocol's messages carry them by type, to the bytes of a tensor and back.

use crate::messages::Contents;
use modelless_types::DType;
use modelless_types::tensor::strings;
use prost::bytes::Bytes;

/// The bytes of elements that came by type.
pub fn to_bytes(dtype: DType, contents: &Contents) -> Result<Vec<u8>, String> {
    fn small<T: Copy, U: TryFrom<T>>(all: &[T]) -> Result<Vec<U>, String> {
        let one = |value: &T| U::try_from(*value).map_err(|_| "a number does not fit its type".to_owned());
        all.iter().map(one).collect()
    }
    let bytes = match dtype {
        DType::Bool => contents.bools.iter().map(|truth| u8::from(*truth)).collect(),
        DType::Uint8 => small(&contents.unsigned)?,
        DType::Int8 => small::<_, i8>(&contents.ints)?.into_iter().flat_map(i8::to_le_bytes).collect(),
        DType::Int32 => contents.ints.iter().flat_map(|number| number.to_le_bytes()).collect(),
        DType::Int64 => contents.longs.iter().flat_map(|number| number.to_le_bytes()).collect(),
        DType::Fp32 => contents.floats.iter().flat_map(|number| number.to_le_bytes()).collect(),
        DType::Fp64 => contents.doubles.iter().flat_map(|number| number.to_le_bytes()).collect(),
        DType::Bytes => {
            let mut bytes = Vec::new();
            for string in &contents.strings {
                strings::push(string, &mut bytes).ok_or("a string is too long")?;
            }
            bytes
        }
        DType::Fp16 => return Err("FP16 has no form but the raw one".to_owned()),
    };
    Ok(bytes)
}

/// Elements by type. `None` for FP16, which has no such form.
pub fn of_bytes(dtype: DType, bytes: &[u8]) -> Option<Contents> {
    fn all<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks::<N>().0.iter().map(|cell| read(*cell)).collect()
    }
    let mut contents = Contents::default();
    match dtype {
        DType::Bool => contents.bools = all(bytes, |[byte]| byte != 0),
        DType::Uint8 => contents.unsigned = all(bytes, |[byte]| u32::from(byte)),
        DType::Int8 => contents.ints = all(bytes, |[byte]| i32::from(byte.cast_signed())),
        DType::Int32 => contents.ints = all(bytes, i32::from_le_bytes),
        DType::Int64 => contents.longs = all(bytes, i64::from_le_bytes),
        DType::Fp32 => contents.floats = all(bytes, f32::from_le_bytes),
        DType::Fp64 => contents.doubles = all(bytes, f64::from_le_bytes),
        DType::Bytes => contents.strings = strings::each(bytes).map(Bytes::copy_from_slice).collect(),
        DType::Fp16 => return None,
    }
    Some(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_back_as_they_were() {
        for (dtype, bytes) in [
            (DType::Bool, &[0, 1][..]),
            (DType::Uint8, &[0, 255]),
            (DType::Int8, &[0x80, 0x7f]),
            (DType::Int32, &(-7_i32).to_le_bytes()),
            (DType::Int64, &i64::MIN.to_le_bytes()),
            (DType::Fp32, &1.5_f32.to_le_bytes()),
            (DType::Fp64, &0.1_f64.to_le_bytes()),
            (DType::Bytes, &[1, 0, 0, 0, 0xff, 0, 0, 0, 0]),
        ] {
            let contents = of_bytes(dtype, bytes).unwrap();
            assert_eq!(to_bytes(dtype, &contents).unwrap(), bytes, "{}", dtype.name());
        }
        assert!(of_bytes(DType::Fp16, &[0, 0]).is_none());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let contents = Contents { ints: vec![200], unsigned: vec![256], ..Contents::default() };
        assert!(to_bytes(DType::Int8, &contents).is_err());
        assert!(to_bytes(DType::Uint8, &contents).is_err());
        assert!(to_bytes(DType::Fp16, &contents).is_err());
    }
}

//! Tensors of strings. ONNX Runtime keeps each string by itself, so here, and only here, inputs are copied. The
//! binding takes and gives text without NUL; strings of a query are any bytes, so its C interface is asked.
#![expect(unsafe_code, reason = "a C interface")]

use modelless_types::TensorSpec;
use modelless_types::tensor::strings;
use ort::AsPointer;
use ort::session::SessionInputValue;
use ort::value::{DynValue, Shape, Tensor};
use std::ptr;

/// A tensor of `rows` items, whose strings lie in `packed`.
pub(super) fn tensor(spec: &TensorSpec, rows: u32, packed: &[u8]) -> ort::Result<SessionInputValue<'static>> {
    let axes: Vec<i64> = std::iter::once(rows).chain(spec.shape.iter().copied()).map(i64::from).collect();
    let all: Vec<&[u8]> = strings::each(packed).collect();
    let mut tensor = Tensor::from_string_array((Shape::new(axes), vec![""; all.len()].as_slice()))?;
    for (index, string) in all.into_iter().enumerate() {
        let mut into = ptr::null_mut();
        // SAFETY: the tensor lives and has this many strings (checked when it was made); the library makes the one at
        // `index` as long as it is told and says where its bytes lie, which nobody else knows yet.
        unsafe {
            let resize = ort::api().GetResizedStringTensorElementBuffer;
            ort::Error::result_from_status(resize(tensor.ptr_mut(), index, string.len(), &raw mut into))?;
            if !string.is_empty() && !into.is_null() {
                ptr::copy_nonoverlapping(string.as_ptr(), into.cast::<u8>(), string.len());
            }
        }
    }
    Ok(tensor.into())
}

/// The strings of a tensor, laid out one after another.
pub(super) fn packed(value: &DynValue, count: usize) -> ort::Result<Vec<u8>> {
    let (mut len, mut starts) = (0, vec![0; count]);
    // SAFETY: `value` lives and is a tensor of so many strings; the library is given as much room as it asks for, and
    // told how much that is.
    let all = unsafe {
        ort::Error::result_from_status((ort::api().GetStringTensorDataLength)(value.ptr(), &raw mut len))?;
        let mut all = vec![0_u8; len];
        let content = ort::api().GetStringTensorContent;
        let (into, at) = (all.as_mut_ptr().cast(), starts.as_mut_ptr());
        ort::Error::result_from_status(content(value.ptr(), into, len, at, count))?;
        all
    };
    let mut packed = Vec::with_capacity(len + count * strings::LENGTH);
    let ends = starts.iter().skip(1).copied().chain([len]);
    for (start, end) in starts.iter().copied().zip(ends) {
        let string = all.get(start..end).ok_or_else(|| ort::Error::new("its strings overlap"))?;
        strings::push(string, &mut packed)
            .ok_or_else(|| ort::Error::new("one of its strings is too long"))?;
    }
    Ok(packed)
}

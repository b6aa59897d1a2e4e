//! IDX, the format MNIST and Fashion-MNIST come in: unsigned bytes with their extents before them, often gzipped.

use flate2::read::GzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// Larger files are refused rather than read into memory.
const MAX_BYTES: u64 = 1 << 30;

/// The extents and bytes of a file with `axes` axes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Idx {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

/// Reads a file, gzipped if its name ends in `.gz`. The error says what is wrong with it.
pub(crate) fn read_file(path: &Path, axes: usize) -> Result<Idx, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let file = BufReader::new(file);
    if path.extension().is_some_and(|end| end == "gz") {
        read(GzDecoder::new(file), axes)
    } else {
        read(file, axes)
    }
}

fn read(mut from: impl Read, axes: usize) -> Result<Idx, String> {
    let short = |error: io::Error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            "it ends before it is complete".to_owned()
        } else {
            error.to_string()
        }
    };
    let mut magic = [0; 4];
    from.read_exact(&mut magic).map_err(short)?;
    let expected = [0, 0, 8, u8::try_from(axes).unwrap_or(u8::MAX)];
    if magic != expected {
        return Err(format!(
            "it does not begin like an IDX file of unsigned bytes with {axes} axes ({magic:02x?} instead of \
             {expected:02x?})"
        ));
    }
    let mut shape = Vec::with_capacity(axes);
    for _ in 0..axes {
        let mut extent = [0; 4];
        from.read_exact(&mut extent).map_err(short)?;
        shape.push(u32::from_be_bytes(extent) as usize);
    }
    let bytes = shape.iter().try_fold(1_u64, |product, extent| product.checked_mul(*extent as u64));
    let bytes = bytes.filter(|bytes| *bytes <= MAX_BYTES).ok_or_else(|| {
        format!("it says to hold {shape:?} bytes, which is more than the {MAX_BYTES} that are read")
    })?;
    // Grows with what really comes: the extents may lie.
    let mut data = Vec::new();
    from.by_ref().take(bytes).read_to_end(&mut data).map_err(short)?;
    if data.len() as u64 != bytes {
        return Err(format!(
            "it holds {} bytes of the {bytes} that its extents {shape:?} ask for",
            data.len()
        ));
    }
    if from.read(&mut [0]).map_err(short)? != 0 {
        return Err(format!("it holds more than the {bytes} bytes of its extents {shape:?}"));
    }
    Ok(Idx { shape, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(magic: [u8; 4], extents: &[u32], data: &[u8]) -> Vec<u8> {
        let extents = extents.iter().flat_map(|extent| extent.to_be_bytes());
        magic.into_iter().chain(extents).chain(data.iter().copied()).collect()
    }

    #[test]
    fn reads_images_and_labels() {
        let images = read(file([0, 0, 8, 3], &[2, 1, 2], &[1, 2, 3, 4]).as_slice(), 3).unwrap();
        assert_eq!((images.shape, images.data), (vec![2, 1, 2], vec![1, 2, 3, 4]));
        let labels = read(file([0, 0, 8, 1], &[3], &[0, 9, 5]).as_slice(), 1).unwrap();
        assert_eq!(labels.data, [0, 9, 5]);
    }

    #[test]
    fn says_what_is_wrong_with_a_file() {
        let check = |bytes: Vec<u8>, axes: usize, said: &str| {
            let error = read(bytes.as_slice(), axes).unwrap_err();
            assert!(error.contains(said), "{error:?} does not say {said:?}");
        };
        check(Vec::new(), 1, "ends before it is complete");
        check(file([0, 0, 8, 1], &[1], &[1]), 3, "3 axes");
        check(file([0, 0, 13, 1], &[1], &[1]), 1, "unsigned bytes");
        check(file([0, 0, 8, 3], &[2], &[]), 3, "ends before it is complete");
        check(file([0, 0, 8, 1], &[3], &[1, 2]), 1, "2 bytes of the 3");
        check(file([0, 0, 8, 1], &[1], &[1, 2]), 1, "more than the 1 bytes");
        check(file([0, 0, 8, 3], &[u32::MAX, u32::MAX, u32::MAX], &[]), 3, "more than the");
        check(file([0, 0, 8, 1], &[1 << 29], &[7]), 1, "1 bytes of the");
    }
}

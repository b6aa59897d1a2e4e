//! Pictures: JPEG and PNG to grey or colour pixels of one byte, and those into a model's input.
//!
//! The rules, so that one picture means the same to every model and every client:
//!
//! * **What counts is what the file is**, by its first bytes, whatever the content type or name says.
//! * **Alpha is laid over white.** Pictures with transparency are mostly drawn for a white page; dropping the
//!   alpha instead would show colours that nobody has ever seen. Mixed as stored, without gamma.
//! * **EXIF orientation is applied**, from a JPEG's APP1 or a PNG's eXIf. A value that is none is ignored.
//! * **16 bits become 8** by their high byte; 1, 2 and 4 bits are spread over the whole range.
//! * **Grey becomes colour** by repeating it; **colour becomes grey** by BT.601 luma (0.299, 0.587, 0.114),
//!   rounded, after alpha.
//! * **CMYK and YCCK** JPEGs become RGB as the `image` crate does it. Colour profiles, gamma and resolution are
//!   not looked at.
//! * **Of an animation** the one picture counts that readers without animation show.
//! * **A file that is cut off is refused**, even where a decoder would fill in the rest with grey. What follows
//!   the end of a file is ignored.
//!
//! Sizes, scans and memory are read from the file's structure (`scan`) and compared with
//! [`Limits`](crate::Limits) before a decoder is started.

mod bound;
mod decode;
mod fit;
mod resize;
mod scan;
mod write;

pub(crate) use bound::BoundImage;
pub(crate) use decode::decode;
pub use resize::Scratch;

use crate::spec::Colour;

/// A decoded picture in its own size, upright.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Picture {
    width: u32,
    height: u32,
    colour: Colour,
    pixels: Vec<u8>,
}

impl Picture {
    /// From pixels row by row; `None` unless there are exactly as many as that takes, and at least one.
    pub fn new(width: u32, height: u32, colour: Colour, pixels: Vec<u8>) -> Option<Self> {
        let count = usize::try_from(width).ok()?.checked_mul(usize::try_from(height).ok()?)?;
        let right = count > 0 && count.checked_mul(colour.channels()) == Some(pixels.len());
        right.then_some(Self { width, height, colour, pixels })
    }

    /// Pixels in a row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// What a pixel is.
    pub fn colour(&self) -> Colour {
        self.colour
    }

    /// Pixels row by row, one byte a channel.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }
}

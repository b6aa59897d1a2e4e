//! Resizing a part of a picture, one direction after the other.
//!
//! `fast_image_resize` does both directions in one call as well, but then works out how wide its own buffer has to
//! be from the first and the last column, and for a part from inside a picture that is too narrow where a filter is
//! zero just there (3 x 1 to the middle 2 x 9 of 27 x 9 with a cubic filter): it reads, without checks, past the end.
//! With one direction a call it has no buffer, and reads nothing but what lies inside the source.

use super::Picture;
use super::fit::{Fit, within};
use crate::PrepareError;
use crate::spec::Filter;
use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use std::fmt;

/// A scratch holds no more than this in each of its buffers between two pictures.
const KEPT_BYTES: usize = 16 << 20;

/// Memory for resizing, used again and again. One per thread.
#[derive(Default)]
pub struct Scratch {
    resizer: Resizer,
    /// Resized across only.
    rows: Vec<u8>,
    /// Resized.
    pixels: Vec<u8>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.rows.capacity() + self.pixels.capacity();
        let bytes = own + self.resizer.size_of_internal_buffers();
        f.debug_struct("Scratch").field("bytes", &bytes).finish_non_exhaustive()
    }
}

impl Scratch {
    /// Resizes a part of a picture; what comes of it stays until the next.
    pub(super) fn resize(
        &mut self,
        picture: &Picture,
        fit: &Fit,
        filter: Filter,
    ) -> Result<&[u8], PrepareError> {
        let [left, top, across, down] = fit.from;
        let (wide, high) = fit.size;
        let size = (picture.width(), picture.height());
        let pass = Pass {
            filter,
            kind: if picture.colour().channels() == 1 { PixelType::U8 } else { PixelType::U8x3 },
        };
        if changes(left, across, wide) && changes(top, down, high) {
            // Across first, as Pillow does: bytes are rounded and held within 0 to 255 between the two, so at hard edges the
            // order shows. Only rows that the second pass may look at.
            let reach = support(filter) * (down / f64::from(high)).max(1.0) + 2.0;
            let first = (top - reach).floor().max(0.0);
            let end = (top + down + reach).ceil().min(f64::from(size.1));
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "within 0 and the height"
            )]
            let count = (end - first) as u32;
            let part = [left, first, across, f64::from(count)];
            pass.run(&mut self.resizer, picture.pixels(), size, part, &mut self.rows, (wide, count))?;
            let start = top - first;
            let part = [0.0, start, f64::from(wide), within(start, down, count)];
            pass.run(&mut self.resizer, &self.rows, (wide, count), part, &mut self.pixels, fit.size)?;
        } else {
            pass.run(&mut self.resizer, picture.pixels(), size, fit.from, &mut self.pixels, fit.size)?;
        }
        Ok(&self.pixels)
    }

    /// One very large picture shall not hold its memory for ever.
    pub(super) fn trim(&mut self) {
        for buffer in [&mut self.rows, &mut self.pixels] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}

/// Whether one direction is resampled rather than copied.
fn changes(start: f64, length: f64, to: u32) -> bool {
    start.fract() != 0.0 || (length - f64::from(to)).abs() > 0.0
}

/// How far a filter reaches to each side, in pixels of the smaller picture.
fn support(filter: Filter) -> f64 {
    match filter {
        Filter::Area => 0.5,
        Filter::Bilinear => 1.0,
        Filter::Bicubic => 2.0,
        Filter::Lanczos => 3.0,
    }
}

#[derive(Clone, Copy)]
struct Pass {
    filter: Filter,
    kind: PixelType,
}

impl Pass {
    fn run(
        self,
        resizer: &mut Resizer,
        from: &[u8],
        size: (u32, u32),
        [left, top, across, down]: [f64; 4],
        to: &mut Vec<u8>,
        (wide, high): (u32, u32),
    ) -> Result<(), PrepareError> {
        let broken = |error: &dyn fmt::Display| PrepareError::Resize(error.to_string());
        let filter = match self.filter {
            Filter::Bilinear => FilterType::Bilinear,
            Filter::Bicubic => FilterType::CatmullRom,
            Filter::Lanczos => FilterType::Lanczos3,
            Filter::Area => FilterType::Box,
        };
        let options =
            ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).crop(left, top, across, down);
        to.resize(wide as usize * high as usize * self.kind.size(), 0);
        let from = ImageRef::new(size.0, size.1, from, self.kind).map_err(|e| broken(&e))?;
        let mut to = Image::from_slice_u8(wide, high, to, self.kind).map_err(|e| broken(&e))?;
        resizer.resize(&from, &mut to, &options).map_err(|e| broken(&e))
    }
}

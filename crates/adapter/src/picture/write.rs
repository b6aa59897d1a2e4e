//! Pixels into a model's input: normalise, order the channels, lay out the axes, in one pass.
//!
//! A pixel has 256 values, so what each becomes in each channel is worked out once, when an adapter is bound, in
//! double precision; writing is then a look-up, the same to the bit for every type and layout.

use crate::spec::{Channels, ImageSpec, InputType, Layout};
use half::f16;

/// What each pixel value becomes, for each channel in the model's order, as little-endian bytes.
#[derive(Clone, Debug)]
pub(crate) enum Tables {
    One(Vec<[[u8; 1]; 256]>),
    Two(Vec<[[u8; 2]; 256]>),
    Four(Vec<[[u8; 4]; 256]>),
}

/// Pixels to be written: row by row, and where they go.
#[derive(Clone, Copy)]
pub(crate) struct Patch<'a> {
    pub(crate) pixels: &'a [u8],
    pub(crate) size: (u32, u32),
    pub(crate) at: (u32, u32),
}

impl Tables {
    pub(crate) fn new(spec: &ImageSpec) -> Self {
        match spec.dtype {
            InputType::Fp32 => Self::Four(tables(spec, |v| single(v).to_le_bytes())),
            InputType::Fp16 => Self::Two(tables(spec, |v| f16::from_f64(v).to_le_bytes())),
            InputType::Uint8 => Self::One(tables(spec, |v| [byte(v)])),
        }
    }

    /// Fills all of `row`, which must have exactly the size of the input. Where the patch does not reach, the
    /// spec's fill goes.
    pub(crate) fn write(&self, spec: &ImageSpec, patch: Patch<'_>, row: &mut [u8]) {
        match self {
            Self::One(tables) => write(tables, spec, patch, row),
            Self::Two(tables) => write(tables, spec, patch, row),
            Self::Four(tables) => write(tables, spec, patch, row),
        }
    }
}

fn tables<const N: usize>(spec: &ImageSpec, cell: fn(f64) -> [u8; N]) -> Vec<[[u8; N]; 256]> {
    (0..spec.channels.count())
        .map(|channel| {
            let (scale, mean, std) = (spec.scale_of(channel), spec.mean.of(channel), spec.std.of(channel));
            let mut pixel = 0.0;
            [(); 256].map(|()| {
                let value = (pixel * scale - mean) / std;
                pixel += 1.0;
                cell(value)
            })
        })
        .collect()
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to single precision is the point")]
fn single(value: f64) -> f32 {
    value as f32
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "held within a byte")]
fn byte(value: f64) -> u8 {
    value.round().clamp(0.0, 255.0) as u8
}

fn write<const N: usize>(tables: &[[[u8; N]; 256]], spec: &ImageSpec, patch: Patch<'_>, row: &mut [u8]) {
    let (width, height) = (spec.width as usize, spec.height as usize);
    let (cells, _) = row.as_chunks_mut::<N>();
    if patch.size != (spec.width, spec.height) {
        fill(tables, spec, cells);
    }
    let (wide, left, top) = (patch.size.0 as usize, patch.at.0 as usize, patch.at.1 as usize);
    let lines = |channels: usize| patch.pixels.chunks_exact(wide * channels).zip(top..);
    match (spec.layout, spec.channels) {
        (_, Channels::Grey) => {
            for (line, y) in lines(1) {
                let to = &mut cells[y * width + left..][..wide];
                for (cell, pixel) in to.iter_mut().zip(line) {
                    *cell = tables[0][usize::from(*pixel)];
                }
            }
        }
        (Layout::Nchw, order @ (Channels::Rgb | Channels::Bgr)) => {
            for (channel, (plane, table)) in cells.chunks_exact_mut(width * height).zip(tables).enumerate() {
                let source = if order == Channels::Rgb { channel } else { 2 - channel };
                for (line, y) in lines(3) {
                    let to = &mut plane[y * width + left..][..wide];
                    for (cell, pixel) in to.iter_mut().zip(line.as_chunks::<3>().0) {
                        *cell = table[usize::from(pixel[source])];
                    }
                }
            }
        }
        (Layout::Nhwc, order @ (Channels::Rgb | Channels::Bgr)) => {
            for (line, y) in lines(3) {
                let to = &mut cells[(y * width + left) * 3..][..wide * 3];
                for (cell, pixel) in to.as_chunks_mut::<3>().0.iter_mut().zip(line.as_chunks::<3>().0) {
                    let [r, g, b] = *pixel;
                    let ordered = if order == Channels::Rgb { [r, g, b] } else { [b, g, r] };
                    for (channel, value) in ordered.into_iter().enumerate() {
                        cell[channel] = tables[channel][usize::from(value)];
                    }
                }
            }
        }
    }
}

fn fill<const N: usize>(tables: &[[[u8; N]; 256]], spec: &ImageSpec, cells: &mut [[u8; N]]) {
    let values = tables.iter().map(|table| table[usize::from(spec.resize.fill)]);
    match spec.layout {
        Layout::Nchw => {
            let plane = spec.width as usize * spec.height as usize;
            for (plane, value) in cells.chunks_exact_mut(plane).zip(values) {
                plane.fill(value);
            }
        }
        Layout::Nhwc => {
            for (cell, value) in cells.iter_mut().zip(values.cycle()) {
                *cell = value;
            }
        }
    }
}

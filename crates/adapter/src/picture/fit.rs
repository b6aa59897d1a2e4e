//! Which part of a picture goes where in a model's input.
//!
//! The arithmetic is that of the libraries models are trained with (torchvision's `Resize` and `CenterCrop`), so
//! that a model sees here what it saw there. A crop is not made after resizing the whole: only the part of the
//! source that it comes from is resized, with the same weights, which gives the same pixels for less work.

use crate::spec::{ImageSpec, Mode};

/// A part of the source, what size it becomes and where it goes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Fit {
    /// Left, top, width, height in the source.
    pub(crate) from: [f64; 4],
    /// Width and height it is resized to.
    pub(crate) size: (u32, u32),
    /// Column and row of the input where it goes.
    pub(crate) at: (u32, u32),
}

impl Fit {
    /// Whether it is the whole of a source of this size, which keeps its size.
    pub(crate) fn copies(&self, width: u32, height: u32) -> bool {
        // Compared by bits: what is meant is exactly the whole, which `fit` writes as exactly these.
        let whole = [0.0, 0.0, f64::from(width), f64::from(height)];
        self.size == (width, height) && self.from.map(f64::to_bits) == whole.map(f64::to_bits)
    }
}

pub(crate) fn fit(width: u32, height: u32, spec: &ImageSpec) -> Fit {
    let whole = [0.0, 0.0, f64::from(width), f64::from(height)];
    let target = (spec.width, spec.height);
    match spec.resize.mode {
        Mode::Stretch => Fit { from: whole, size: target, at: (0, 0) },
        Mode::ShorterSide => {
            let short = spec.shorter_side();
            let (wide, high) = if width <= height {
                (u64::from(short), scaled(height, short, width))
            } else {
                (scaled(width, short, height), u64::from(short))
            };
            let (left, across) = middle(width, wide, target.0);
            let (top, down) = middle(height, high, target.1);
            Fit { from: [left, top, across, down], size: target, at: (0, 0) }
        }
        Mode::Letterbox => {
            let factor =
                (f64::from(target.0) / f64::from(width)).min(f64::from(target.1) / f64::from(height));
            let size = (shrunk(width, factor, target.0), shrunk(height, factor, target.1));
            Fit { from: whole, size, at: ((target.0 - size.0) / 2, (target.1 - size.1) / 2) }
        }
    }
}

/// `side * to / from`, cut to a whole number, as torchvision does; at least `to` because `side >= from`.
fn scaled(side: u32, to: u32, from: u32) -> u64 {
    u64::from(side) * u64::from(to) / u64::from(from.max(1))
}

/// Where in a source of `side` the middle `part` of `resized` comes from: start and length.
#[expect(clippy::cast_precision_loss, reason = "sides are far below 2^53")]
fn middle(side: u32, resized: u64, part: u32) -> (f64, f64) {
    let excess = resized.saturating_sub(u64::from(part));
    // Python's round(): a half goes to the even neighbour.
    let offset = match (excess % 2, excess / 2) {
        (1, half) => half + half % 2,
        (_, half) => half,
    };
    let step = f64::from(side) / resized as f64;
    let start = if resized == u64::from(side) { offset as f64 } else { offset as f64 * step };
    let length = if resized == u64::from(side) { f64::from(part) } else { f64::from(part) * step };
    (start, within(start, length, side))
}

/// The length, shortened by as little as makes it end inside `side` in floating point too.
pub(super) fn within(start: f64, mut length: f64, side: u32) -> f64 {
    while start + length > f64::from(side) && length > 0.0 {
        length = length.next_down().min(f64::from(side) - start);
    }
    length
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "held within 1 and `limit`")]
fn shrunk(side: u32, factor: f64, limit: u32) -> u32 {
    (f64::from(side) * factor).round().clamp(1.0, f64::from(limit)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AdapterSpec;

    fn check(mode: &str, picture: (u32, u32), expected: Fit) {
        let json = format!(
            r#"{{"kind":"image-classification","width":224,"height":224,"channels":"rgb","resize":{mode}}}"#
        );
        let Ok(AdapterSpec::ImageClassification(spec)) = AdapterSpec::parse(&json) else { panic!("{json}") };
        assert_eq!(fit(picture.0, picture.1, &spec), expected, "{mode} {picture:?}");
    }

    #[test]
    fn parts_are_where_the_training_libraries_put_them() {
        let whole = |w, h| [0.0, 0.0, w, h];
        check("{}", (640, 480), Fit { from: whole(640.0, 480.0), size: (224, 224), at: (0, 0) });
        // 640x480 -> 341x256; the crop starts at round(58.5) = 58 and 16.
        check(
            r#"{"mode":"shorter-side","size":256}"#,
            (640, 480),
            Fit {
                from: [58.0 * 640.0 / 341.0, 30.0, 224.0 * 640.0 / 341.0, 420.0],
                size: (224, 224),
                at: (0, 0),
            },
        );
        check(
            r#"{"mode":"shorter-side"}"#,
            (224, 300),
            Fit { from: [0.0, 38.0, 224.0, 224.0], size: (224, 224), at: (0, 0) },
        );
        check(
            r#"{"mode":"letterbox"}"#,
            (640, 480),
            Fit { from: whole(640.0, 480.0), size: (224, 168), at: (0, 28) },
        );
        check(
            r#"{"mode":"letterbox"}"#,
            (1, 30_000),
            Fit { from: whole(1.0, 30_000.0), size: (1, 224), at: (111, 0) },
        );
    }
}

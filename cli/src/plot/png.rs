//! The picture as a PNG, on white: drawn larger than it is and scaled down, so that edges are smooth.

use super::letters::{ADVANCE, BASE, strokes};
use super::{Anchor, Known, LETTER, SIZE, Shape};
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// Points that are drawn for each unit, across; so many of them become one point of the picture.
const DRAWN: f64 = 4.0;
const FINER: usize = 2;
/// The width and the height, in points that are drawn.
const COLUMNS: usize = 3_600;
const ROWS: usize = 2_080;

type Colour = [u8; 3];
const PAPER: Colour = [255; 3];
const INK: Colour = [0x22; 3];
const FAINT: Colour = [0x66; 3];
const GRID: Colour = [0xe4; 3];
const MARK: Colour = [0x17, 0x69, 0xaa];
/// Half of how wide lines are, in units.
const THIN: f64 = 0.5;
const THICK: f64 = 1.0;

pub(super) fn picture(shapes: &[Shape]) -> anyhow::Result<Vec<u8>> {
    let mut canvas = Canvas { points: vec![PAPER; COLUMNS * ROWS] };
    for shape in shapes {
        canvas.shape(shape);
    }
    let (columns, rows) = (COLUMNS / FINER, ROWS / FINER);
    let mut file = Vec::new();
    PngEncoder::new(&mut file).write_image(
        &canvas.smooth(),
        u32::try_from(columns)?,
        u32::try_from(rows)?,
        ExtendedColorType::Rgb8,
    )?;
    Ok(file)
}

struct Canvas {
    points: Vec<Colour>,
}

/// Within how far of what it is to be coloured.
type Inside<'a> = &'a dyn Fn(f64, f64) -> bool;

impl Canvas {
    /// Colours what is inside, looked for between two corners.
    fn fill(
        &mut self,
        (left, top): (f64, f64),
        (right, bottom): (f64, f64),
        inside: Inside<'_>,
        colour: Colour,
    ) {
        for row in span(top, bottom, ROWS) {
            for column in span(left, right, COLUMNS) {
                if inside(middle(column), middle(row)) {
                    self.points[row * COLUMNS + column] = colour;
                }
            }
        }
    }

    /// A line with round ends, so wide to either side.
    fn stroke(&mut self, from: (f64, f64), to: (f64, f64), half: f64, colour: Colour) {
        let (low, high) = ((from.0.min(to.0), from.1.min(to.1)), (from.0.max(to.0), from.1.max(to.1)));
        let near = |x: f64, y: f64| apart((x, y), from, to) <= half;
        self.fill((low.0 - half, low.1 - half), (high.0 + half, high.1 + half), &near, colour);
    }

    fn lines(&mut self, corners: &[(f64, f64)], half: f64, colour: Colour) {
        for pair in corners.windows(2) {
            self.stroke(pair[0], pair[1], half, colour);
        }
    }

    fn shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Grid { from, to } => self.stroke(*from, *to, THIN, GRID),
            Shape::Frontier(corners) => self.lines(corners, THICK, MARK),
            Shape::Text { at, anchor, size, faint, words } => {
                let colour = if *faint { FAINT } else { INK };
                self.words((*at, *anchor), *size, colour, words, &|x, y| (x, y));
            }
            Shape::Upright { at, words } => {
                // Right becomes up, and down becomes right.
                let turn = |x: f64, y: f64| (at.0 + (y - at.1), at.1 - (x - at.0));
                self.words((*at, Anchor::Middle), SIZE, INK, words, &turn);
            }
            Shape::Mark { at, known, on, .. } => self.mark(*at, *known, *on),
        }
    }

    fn words(
        &mut self,
        ((x, y), anchor): ((f64, f64), Anchor),
        size: f64,
        colour: Colour,
        words: &str,
        turn: &dyn Fn(f64, f64) -> (f64, f64),
    ) {
        // Letters are as far from each other as their labels were kept apart for.
        let point = LETTER.0 / ADVANCE * size / SIZE;
        #[expect(clippy::cast_precision_loss, reason = "a line of words")]
        let width = words.chars().count() as f64 * ADVANCE * point;
        let mut left = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        for letter in words.chars() {
            let place = |(column, row): (f64, f64)| turn(left + column * point, y + (row - BASE) * point);
            for [from, to] in strokes(letter) {
                self.stroke(place(from), place(to), point * 0.5, colour);
            }
            left += ADVANCE * point;
        }
    }

    fn mark(&mut self, (x, y): (f64, f64), known: Known, on: bool) {
        let (low, high) = ((x - 7.0, y - 7.0), (x + 7.0, y + 7.0));
        let inside = |by: f64| {
            move |px: f64, py: f64| {
                let (right, down) = (px - x, py - y);
                match known {
                    Known::Well => right.hypot(down) <= 4.5 + by,
                    Known::Coarsely => right.abs() <= 4.2 + by && down.abs() <= 4.2 + by,
                    // The flanks fall by 10 while they go out by 5.5.
                    Known::Estimated => {
                        down <= 4.5 + by && right.abs() <= (down + 5.5 + 2.0 * by) * 0.55 + 0.2 * by
                    }
                }
            }
        };
        self.fill(low, high, &inside(0.7), MARK);
        if !on {
            self.fill(low, high, &inside(-0.7), PAPER);
        }
    }

    /// Every point the mean of those it was drawn with.
    fn smooth(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.points.len() * 3 / (FINER * FINER));
        for row in (0..ROWS).step_by(FINER) {
            for column in (0..COLUMNS).step_by(FINER) {
                for part in 0..3 {
                    let finer = (0..FINER * FINER).map(|at| {
                        let (down, right) = (at / FINER, at % FINER);
                        u32::from(self.points[(row + down) * COLUMNS + column + right][part])
                    });
                    let sum: u32 = finer.sum();
                    out.push(u8::try_from(sum / 4).unwrap_or(u8::MAX));
                }
            }
        }
        out
    }
}

/// Where a drawn point has its middle, in units.
#[expect(clippy::cast_precision_loss, reason = "a few thousand")]
fn middle(at: usize) -> f64 {
    (at as f64 + 0.5) / DRAWN
}

/// Drawn points between two places.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded before")]
fn span(from: f64, to: f64, most: usize) -> std::ops::Range<usize> {
    let bounded = |at: f64| at.clamp(0.0, 4_000.0) as usize;
    bounded((from * DRAWN).floor()).min(most)..bounded((to * DRAWN).ceil() + 1.0).min(most)
}

/// How far a point is from a line that ends.
fn apart((x, y): (f64, f64), from: (f64, f64), to: (f64, f64)) -> f64 {
    let (right, down) = (to.0 - from.0, to.1 - from.1);
    let long = right.mul_add(right, down * down);
    let along = if long > 0.0 { ((x - from.0) * right + (y - from.1) * down) / long } else { 0.0 };
    let along = along.clamp(0.0, 1.0);
    (x - from.0 - along * right).hypot(y - from.1 - along * down)
}

#[cfg(test)]
mod tests {
    use super::super::{HEIGHT, WIDTH};
    use super::*;

    fn drawn(shapes: &[Shape]) -> image::RgbImage {
        let file = picture(shapes).unwrap();
        image::load_from_memory_with_format(&file, image::ImageFormat::Png).unwrap().to_rgb8()
    }

    fn at(picture: &image::RgbImage, x: u32, y: u32) -> Colour {
        picture.get_pixel(2 * x, 2 * y).0
    }

    #[test]
    fn it_is_twice_as_large_as_the_svg_and_has_its_marks_and_lines_where_they_belong() {
        assert!((middle(COLUMNS) - WIDTH).abs() < 0.5 && (middle(ROWS) - HEIGHT).abs() < 0.5);
        let mark = |x, known, on| Shape::Mark { at: (x, 100.0), known, on, about: String::new() };
        let picture = drawn(&[
            mark(100.0, Known::Well, true),
            mark(200.0, Known::Coarsely, false),
            mark(300.0, Known::Estimated, true),
            Shape::Frontier(vec![(400.0, 300.0), (500.0, 200.0)]),
            Shape::Grid { from: (0.0, 400.0), to: (900.0, 400.0) },
        ]);
        assert_eq!(picture.dimensions(), (1_800, 1_040));
        assert_eq!((at(&picture, 100, 100), at(&picture, 200, 100)), (MARK, PAPER), "filled, and not");
        assert_eq!((at(&picture, 204, 104), at(&picture, 104, 104)), (MARK, PAPER), "a square has corners");
        assert_eq!((at(&picture, 304, 104), at(&picture, 304, 97)), (MARK, PAPER), "a triangle has a tip");
        assert_eq!((at(&picture, 450, 250), at(&picture, 450, 260)), (MARK, PAPER));
        assert_eq!((at(&picture, 700, 400), at(&picture, 700, 390)), (GRID, PAPER));
    }

    #[test]
    fn words_stand_where_they_are_anchored_and_some_are_turned() {
        let ink = |shape: Shape| {
            let picture = drawn(&[shape]);
            let dark = picture.enumerate_pixels().filter(|(.., pixel)| pixel.0[0] < 128);
            let (mut low, mut high) = ((u32::MAX, u32::MAX), (0, 0));
            for (x, y, _) in dark {
                low = (low.0.min(x / 2), low.1.min(y / 2));
                high = (high.0.max(x / 2), high.1.max(y / 2));
            }
            (low, high)
        };
        let text = |anchor| Shape::Text {
            at: (300.0, 200.0),
            anchor,
            size: SIZE,
            faint: false,
            words: "HHHHH".to_owned(),
        };
        let (start, end) = (ink(text(Anchor::Start)), ink(text(Anchor::End)));
        assert!(start.0.0 >= 299 && start.1.0 > 320 && start.1.1 <= 201, "{start:?}");
        assert!(end.1.0 <= 300 && end.0.0 < 280, "{end:?}");
        let (low, high) = ink(Shape::Upright { at: (300.0, 200.0), words: "HHHHH".to_owned() });
        assert!(high.1 - low.1 > 25 && high.0 - low.0 < 12 && high.0 <= 301, "{low:?} {high:?}");
        let (low, high) = ink(Shape::Text {
            at: (-50.0, 600.0),
            anchor: Anchor::Start,
            size: 16.0,
            faint: true,
            words: "out of it".to_owned(),
        });
        assert!(low.0 > high.0, "nothing is drawn outside, and nothing breaks");
    }
}

//! The accuracy/latency frontier of a task as a picture: an SVG for light and dark pages, or a PNG.
//!
//! Whether a variant is beaten is told by its filling, how well it is known by its shape, so neither needs a colour. Here is what
//! stands where; how that is written down is left to the two forms.

mod letters;
mod png;
mod svg;

use anyhow::Context;
use modelless_decision::frontier as decision;
use modelless_types::{Accuracy, Bytes, CostPer1k, Profile};
use std::fs;
use std::path::{Path, PathBuf};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 92.0;
/// Size of a letter of a label, near enough to keep labels apart.
const LETTER: (f64, f64) = (6.6, 13.0);

/// A variant.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Point {
    pub(crate) name: String,
    pub(crate) accuracy: f64,
    pub(crate) latency_ms: f64,
    pub(crate) known: Known,
}

/// How well it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// Measured.
    Well,
    /// Measured in too short a time.
    Coarsely,
    /// Worked out from another device class.
    Estimated,
}

impl Point {
    /// One item alone.
    pub(crate) fn of(name: String, profile: &Profile) -> Option<Self> {
        let known = match (profile.is_estimated(), profile.detail.coarse) {
            (true, _) => Known::Estimated,
            (false, true) => Known::Coarsely,
            (false, false) => Known::Well,
        };
        let latency_ms = profile.latency.first()?.mean_us / 1_000.0;
        Some(Self { name, accuracy: profile.accuracy.value.as_f64(), latency_ms, known })
    }
}

/// Which points no other equals or beats on these two axes, fastest first: by the rule that decides what is worth having, where
/// memory, price and what a batch gains count as well.
pub(crate) fn frontier(points: &[Point]) -> Vec<&Point> {
    let on_two_axes = |point: &Point| decision::Point {
        accuracy: parts(point.accuracy, 1e6)
            .try_into()
            .ok()
            .and_then(Accuracy::from_ppm)
            .unwrap_or(Accuracy::ONE),
        latency: parts(point.latency_ms, 1e6),
        cost: CostPer1k(0),
        work: 0,
        memory: Bytes(0),
    };
    let known: Vec<_> = points.iter().map(on_two_axes).collect();
    let on = decision::frontier(&known);
    let mut best: Vec<&Point> = points.iter().zip(on).filter_map(|(point, on)| on.then_some(point)).collect();
    best.sort_by(|a, b| a.latency_ms.total_cmp(&b.latency_ms));
    best
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn parts(value: f64, of: f64) -> u64 {
    (value * of).round() as u64
}

/// Where a text stands to its point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// Size of letters where nothing else is said.
const SIZE: f64 = 12.0;

/// Something to be drawn.
#[derive(Clone, PartialEq, Debug)]
enum Shape {
    Grid {
        from: (f64, f64),
        to: (f64, f64),
    },
    Text {
        at: (f64, f64),
        anchor: Anchor,
        size: f64,
        faint: bool,
        words: String,
    },
    /// Turned to be read from below.
    Upright {
        at: (f64, f64),
        words: String,
    },
    Frontier(Vec<(f64, f64)>),
    Mark {
        at: (f64, f64),
        known: Known,
        on: bool,
        about: String,
    },
}

fn text(at: (f64, f64), anchor: Anchor, words: &str) -> Shape {
    Shape::Text { at, anchor, size: SIZE, faint: false, words: words.to_owned() }
}

/// A file that a picture may be written to.
pub(crate) fn path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase()) {
        Some(end) if end != "svg" && end != "png" => {
            Err(format!("pictures are SVG or PNG, and .{end} is neither; write FILE.svg or FILE.png"))
        }
        Some(_) | None => Ok(path),
    }
}

/// Writes a picture: a PNG where the file is called so, and otherwise an SVG.
pub(crate) fn write(path: &Path, title: &str, note: &str, points: &[Point]) -> anyhow::Result<()> {
    let is_png = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("png"));
    let shapes = shapes(title, note, points);
    let file = if is_png { png::picture(&shapes)? } else { svg::picture(&shapes).into_bytes() };
    fs::write(path, file).with_context(|| format!("cannot write {}", path.display()))
}

/// What is to be drawn. Points without a positive latency cannot stand on a logarithmic axis and are left out.
fn shapes(title: &str, note: &str, points: &[Point]) -> Vec<Shape> {
    let shown =
        |point: &&Point| point.latency_ms > 0.0 && point.latency_ms.is_finite() && point.accuracy.is_finite();
    let points: Vec<Point> = points.iter().filter(shown).cloned().collect();
    let axes = Axes::around(&points);
    let best = frontier(&points);
    let sized = |at, size, faint, words: &str| Shape::Text {
        at,
        anchor: Anchor::Middle,
        size,
        faint,
        words: words.to_owned(),
    };
    let mut out = vec![
        sized((WIDTH / 2.0, 26.0), 16.0, false, title),
        sized((WIDTH / 2.0, HEIGHT - 10.0), 11.0, true, note),
    ];
    for (value, label) in axes.latency_ticks() {
        let x = axes.x(value);
        out.push(Shape::Grid { from: (x, TOP), to: (x, HEIGHT - BOTTOM) });
        out.push(text((x, HEIGHT - BOTTOM + 18.0), Anchor::Middle, &label));
    }
    for value in axes.accuracy_ticks() {
        let y = axes.y(value);
        out.push(Shape::Grid { from: (LEFT, y), to: (WIDTH - RIGHT, y) });
        out.push(text((LEFT - 8.0, y + 4.0), Anchor::End, &format!("{:.1} %", value * 100.0)));
    }
    let below = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - BOTTOM + 38.0);
    out.push(text(below, Anchor::Middle, "latency of one item in ms (mean, batch 1), logarithmic"));
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    out.push(Shape::Upright { at: (20.0, middle), words: "accuracy".to_owned() });

    let place = |point: &Point| (axes.x(point.latency_ms), axes.y(point.accuracy));
    out.push(Shape::Frontier(best.iter().map(|point| place(point)).collect()));
    let mut taken: Vec<Box2> = Vec::new();
    for point in &points {
        let (x, y) = place(point);
        let on = best.iter().any(|known| known.name == point.name);
        let about = format!("{}: {:.2} %, {:.3} ms", point.name, point.accuracy * 100.0, point.latency_ms);
        out.push(Shape::Mark { at: (x, y), known: point.known, on, about });
        taken.push(Box2 { left: x - 5.0, top: y - 5.0, right: x + 5.0, bottom: y + 5.0 });
    }
    for point in &points {
        let (x, y) = place(point);
        let place = label_place(x, y, &point.name, &taken);
        out.push(text((place.left, place.bottom - 3.0), Anchor::Start, &point.name));
        taken.push(place);
    }
    legend(&points, &best, &mut out);
    out
}

/// What the marks mean: only those that are there.
fn legend(points: &[Point], best: &[&Point], out: &mut Vec<Shape>) {
    let is_on = |point: &Point| best.iter().any(|known| known.name == point.name);
    let kinds = [
        (Known::Well, true, "on these two axes no other is as good"),
        (Known::Well, false, "on these two axes another is as good"),
        (Known::Coarsely, true, "coarse"),
        (Known::Coarsely, false, "coarse, beaten"),
        (Known::Estimated, true, "estimated"),
        (Known::Estimated, false, "estimated, beaten"),
    ];
    let mut x = LEFT;
    for (known, on, words) in kinds {
        if !points.iter().any(|point| point.known == known && is_on(point) == on) {
            continue;
        }
        let y = HEIGHT - 34.0;
        out.push(Shape::Mark { at: (x, y), known, on, about: words.to_owned() });
        let at = (x + 10.0, y + 4.0);
        let words = words.to_owned();
        #[expect(clippy::cast_precision_loss, reason = "a few words")]
        let width = words.len() as f64 * LETTER.0;
        out.push(Shape::Text { at, anchor: Anchor::Start, size: 11.0, faint: true, words });
        x += width + 30.0;
    }
}

#[derive(Clone, Copy, Debug)]
struct Box2 {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Box2 {
    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

/// The nearest free place for a label: right of the point, left of it, then further up and down.
#[expect(clippy::cast_precision_loss, reason = "names are short")]
fn label_place(x: f64, y: f64, name: &str, taken: &[Box2]) -> Box2 {
    let width = name.chars().count() as f64 * LETTER.0;
    let at = |left: f64, middle: f64| Box2 {
        left,
        top: middle - LETTER.1 / 2.0,
        right: left + width,
        bottom: middle + LETTER.1 / 2.0,
    };
    let fits = |place: &Box2| {
        place.left >= LEFT
            && place.right <= WIDTH - RIGHT + 10.0
            && place.top >= TOP - 10.0
            && place.bottom <= HEIGHT - BOTTOM
            && !taken.iter().any(|other| place.overlaps(other))
    };
    let offsets = [0.0, -9.0, 9.0, -16.0, 16.0, -24.0, 24.0, -34.0, 34.0, -46.0, 46.0];
    let places = offsets.iter().flat_map(|offset| {
        [at(x + 9.0, y + offset), at(x - 9.0 - width, y + offset), at(x - width / 2.0, y + offset)]
    });
    places.into_iter().find(fits).unwrap_or_else(|| at(x + 9.0, y))
}

struct Axes {
    latency: (f64, f64),
    accuracy: (f64, f64),
}

impl Axes {
    fn around(points: &[Point]) -> Self {
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold(None, |range: Option<(f64, f64)>, v| {
                Some(range.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
            })
        };
        let latency = range(&mut points.iter().map(|point| point.latency_ms)).unwrap_or((0.1, 10.0));
        let accuracy = range(&mut points.iter().map(|point| point.accuracy)).unwrap_or((0.0, 1.0));
        let margin = (accuracy.1 - accuracy.0).max(0.01) * 0.12;
        Self {
            latency: (latency.0 / 1.5, latency.1 * 2.0),
            accuracy: ((accuracy.0 - margin).max(0.0), (accuracy.1 + margin).min(1.0)),
        }
    }

    fn x(&self, latency: f64) -> f64 {
        let (low, high) = (self.latency.0.ln(), self.latency.1.ln());
        LEFT + (latency.ln() - low) / (high - low) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, accuracy: f64) -> f64 {
        let (low, high) = self.accuracy;
        HEIGHT - BOTTOM - (accuracy - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
    }

    /// 1, 2 and 5 times powers of ten.
    fn latency_ticks(&self) -> Vec<(f64, String)> {
        let decades = (-6..7).flat_map(|decade: i32| [1.0, 2.0, 5.0].map(|digit| (digit, decade)));
        let value = |(digit, decade): (f64, i32)| digit * 10_f64.powi(decade);
        let inside = |(tick, _): &(f64, String)| (self.latency.0..=self.latency.1).contains(tick);
        let label = |(digit, decade): (f64, i32)| {
            let digits = usize::try_from(-decade).unwrap_or(0);
            format!("{:.digits$}", value((digit, decade)))
        };
        decades.map(|tick| (value(tick), label(tick))).filter(inside).collect()
    }

    fn accuracy_ticks(&self) -> Vec<f64> {
        let (low, high) = self.accuracy;
        let step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2];
        let step = step.into_iter().find(|step| (high - low) / step <= 9.0).unwrap_or(0.5);
        let mut ticks = Vec::new();
        let mut tick = (low / step).ceil() * step;
        while tick <= high + 1e-9 {
            ticks.push(tick);
            tick += step;
        }
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &str, accuracy: f64, latency_ms: f64) -> Point {
        Point { name: name.to_owned(), accuracy, latency_ms, known: Known::Well }
    }

    fn svg(title: &str, note: &str, points: &[Point]) -> String {
        svg::picture(&shapes(title, note, points))
    }

    #[test]
    fn a_file_is_what_its_name_says_or_refused_before_anything_is_measured() {
        let folder = modelless_testkit::temp_dir("plot").unwrap();
        let begins = |name: &str| {
            let path = folder.path().join(name);
            write(&path, "t", "n", &[point("one", 0.9, 1.0)]).unwrap();
            fs::read(&path).unwrap()[..4].to_vec()
        };
        assert_eq!(begins("a.png"), b"\x89PNG");
        assert_eq!(begins("a.PNG"), b"\x89PNG");
        assert_eq!((begins("a.svg"), begins("a")), (b"<svg".to_vec(), b"<svg".to_vec()));
        assert!(path("x.pdf").unwrap_err().contains("FILE.png"));
        assert!(path("x.Png").is_ok() && path("x.svg").is_ok() && path("x").is_ok());
    }

    #[test]
    fn the_frontier_leaves_out_what_is_beaten_on_both_axes_or_equal_as_far_as_one_can_tell() {
        let points = [
            point("slow", 0.9, 2.0),
            point("fast", 0.8, 0.1),
            point("beaten", 0.85, 3.0),
            point("mid", 0.85, 0.5),
        ];
        let names: Vec<&str> = frontier(&points).iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names, ["fast", "mid", "slow"]);
        let near = [point("a", 0.9191, 0.0440), point("b", 0.9180, 0.0435), point("c", 0.9134, 0.0406)];
        let names: Vec<&str> = frontier(&near).iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names, ["c", "a"], "a hundredth less time is none");
    }

    #[test]
    fn every_variant_is_shown_and_names_are_escaped() {
        let points = [point("a<b>&c", 0.9, 1.0), point("cnn_m-int8", 0.85, 0.1), point("broken", 0.5, 0.0)];
        let picture = svg("fashion", "measured here", &points);
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        assert!(picture.contains("a&lt;b&gt;&amp;c") && picture.contains(">cnn_m-int8<"));
        assert!(!picture.contains("broken") && !picture.contains("NaN") && !picture.contains("inf"));
        // And two in the legend: both are on the frontier, so one kind.
        assert_eq!(picture.matches("<circle").count(), 3);
    }

    #[test]
    fn what_is_beaten_estimated_or_coarse_is_marked_and_explained_in_light_and_dark() {
        let mut points = [point("best", 0.9, 1.0), point("beaten", 0.85, 2.0), point("guess", 0.95, 3.0)];
        points[2].known = Known::Estimated;
        let mut all = points.to_vec();
        all.push(Point { known: Known::Coarsely, ..point("rough", 0.8, 0.5) });
        let picture = svg("t", "", &all);
        for words in [
            "on these two axes another is as good",
            ">estimated<",
            ">coarse<",
            "on these two axes no other is as good",
        ] {
            assert!(picture.contains(words), "{words}");
        }
        assert!(!picture.contains("estimated, beaten"), "only what is there is explained");
        assert!(picture.contains("class=\"on estimated\"") && picture.contains("class=\"beaten\""));
        assert!(picture.contains("prefers-color-scheme:dark"));
        assert!(!picture.contains("fill=\"#"), "colours stand in the style alone");
    }

    #[test]
    fn few_points_are_no_trouble() {
        for points in [&[][..], &[point("one", 1.0, 5.0)][..]] {
            let picture = svg("t", "", points);
            assert!(picture.contains("polyline") && !picture.contains("NaN"), "{picture}");
        }
    }

    #[test]
    fn faster_is_further_left_and_better_further_up() {
        let axes = Axes::around(&[point("a", 0.8, 0.01), point("b", 0.9, 1.0)]);
        assert!(axes.x(0.01) < axes.x(0.1) && axes.y(0.9) < axes.y(0.8));
        assert!(axes.latency_ticks().iter().any(|(_, label)| label == "0.05"));
        assert!((4..=10).contains(&axes.accuracy_ticks().len()));
    }

    #[test]
    fn labels_of_near_points_do_not_overlap() {
        let first = label_place(400.0, 200.0, "cnn_m-fp32", &[]);
        let second = label_place(402.0, 201.0, "cnn_m-int8", &[first]);
        assert!(!first.overlaps(&second));
    }
}

//! The accuracy/latency frontier of a task as an SVG picture, for light and dark pages.
//!
//! Whether a variant is beaten is told by its filling, how well it is known by its shape, so neither needs a colour.

use modelless_types::Profile;
use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 92.0;
/// Colours by what they are for. A picture that is part of a page takes the page's scheme, one that is opened the system's.
const STYLE: &str = "<style>\
    svg{--ink:#222;--faint:#666;--grid:#e4e4e4;--paper:#fff;--mark:#1769aa}\
    @media(prefers-color-scheme:dark){svg{--ink:#e6e6e6;--faint:#a0a0a0;--grid:#3a3a3a;--paper:#161616;--mark:#6cb8f0}}\
    text{fill:var(--ink)}.faint{fill:var(--faint)}.paper{fill:var(--paper)}.grid{stroke:var(--grid)}\
    .frontier{fill:none;stroke:var(--mark);stroke-width:2}\
    .on{fill:var(--mark);stroke:var(--mark)}.beaten{fill:var(--paper);stroke:var(--mark);stroke-width:1.4}\
    .estimated{stroke-dasharray:2 2}</style>\n";
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

/// Which points no other beats on both axes, fastest first.
pub(crate) fn frontier(points: &[Point]) -> Vec<&Point> {
    let beats = |a: &Point, b: &Point| {
        a.accuracy >= b.accuracy
            && a.latency_ms <= b.latency_ms
            && (a.accuracy > b.accuracy || a.latency_ms < b.latency_ms)
    };
    let mut best: Vec<&Point> =
        points.iter().filter(|point| !points.iter().any(|other| beats(other, point))).collect();
    best.sort_by(|a, b| a.latency_ms.total_cmp(&b.latency_ms));
    best
}

/// The picture. Points without a positive latency cannot stand on a logarithmic axis and are left out.
pub(crate) fn svg(title: &str, note: &str, points: &[Point]) -> String {
    let shown =
        |point: &&Point| point.latency_ms > 0.0 && point.latency_ms.is_finite() && point.accuracy.is_finite();
    let points: Vec<Point> = points.iter().filter(shown).cloned().collect();
    let axes = Axes::around(&points);
    let best = frontier(&points);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n{STYLE}\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n"
    );
    let mut add = |line: String| {
        out.push_str(&line);
        out.push('\n');
    };
    add(text(WIDTH / 2.0, 26.0, "middle", "font-size=\"16\"", title));
    add(text(WIDTH / 2.0, HEIGHT - 10.0, "middle", "class=\"faint\" font-size=\"11\"", note));
    for (value, label) in axes.latency_ticks() {
        let x = axes.x(value);
        add(line((x, TOP), (x, HEIGHT - BOTTOM)));
        add(text(x, HEIGHT - BOTTOM + 18.0, "middle", "", &label));
    }
    for value in axes.accuracy_ticks() {
        let y = axes.y(value);
        add(line((LEFT, y), (WIDTH - RIGHT, y)));
        add(text(LEFT - 8.0, y + 4.0, "end", "", &format!("{:.1} %", value * 100.0)));
    }
    add(text(
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - BOTTOM + 38.0,
        "middle",
        "",
        "latency of one item in ms (mean, batch 1), logarithmic",
    ));
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    add(text(20.0, middle, "middle", &format!("transform=\"rotate(-90 20 {middle})\""), "accuracy"));

    let corners: Vec<String> = best
        .iter()
        .map(|point| format!("{:.1},{:.1}", axes.x(point.latency_ms), axes.y(point.accuracy)))
        .collect();
    add(format!("<polyline class=\"frontier\" points=\"{}\"/>", corners.join(" ")));
    let mut taken: Vec<Box2> = Vec::new();
    for point in &points {
        let (x, y) = (axes.x(point.latency_ms), axes.y(point.accuracy));
        let on = best.iter().any(|known| known.name == point.name);
        let about = format!("{}: {:.2} %, {:.3} ms", point.name, point.accuracy * 100.0, point.latency_ms);
        add(mark((x, y), point.known, on, &about));
        taken.push(Box2 { left: x - 5.0, top: y - 5.0, right: x + 5.0, bottom: y + 5.0 });
    }
    for point in &points {
        let place = label_place(axes.x(point.latency_ms), axes.y(point.accuracy), &point.name, &taken);
        add(text(place.left, place.bottom - 3.0, "start", "", &point.name));
        taken.push(place);
    }
    out.push_str(&legend(&points, &best));
    out.push_str("</svg>\n");
    out
}

/// A circle is known well, a square coarsely, a triangle is an estimate; filled are those that nothing beats.
fn mark((x, y): (f64, f64), known: Known, on: bool, about: &str) -> String {
    let class = if on { "on" } else { "beaten" };
    let about = escaped(about);
    match known {
        Known::Well => {
            format!(
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>{about}</title></circle>"
            )
        }
        Known::Coarsely => format!(
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"8.4\" height=\"8.4\"><title>{about}</title></rect>",
            x - 4.2,
            y - 4.2
        ),
        Known::Estimated => format!(
            "<polygon class=\"{class} estimated\" points=\"{x:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\">\
             <title>{about}</title></polygon>",
            y - 5.5,
            x - 5.5,
            y + 4.5,
            x + 5.5,
            y + 4.5
        ),
    }
}

/// What the marks mean: only those that are there.
fn legend(points: &[Point], best: &[&Point]) -> String {
    let is_on = |point: &Point| best.iter().any(|known| known.name == point.name);
    let kinds = [
        (Known::Well, true, "no other is better and quicker"),
        (Known::Well, false, "beaten by another"),
        (Known::Coarsely, true, "coarse"),
        (Known::Coarsely, false, "coarse, beaten"),
        (Known::Estimated, true, "estimated"),
        (Known::Estimated, false, "estimated, beaten"),
    ];
    let (mut out, mut x) = (String::new(), LEFT);
    for (known, on, words) in kinds {
        if !points.iter().any(|point| point.known == known && is_on(point) == on) {
            continue;
        }
        let y = HEIGHT - 34.0;
        let _ = writeln!(out, "{}", mark((x, y), known, on, words));
        let _ =
            writeln!(out, "{}", text(x + 10.0, y + 4.0, "start", "class=\"faint\" font-size=\"11\"", words));
        #[expect(clippy::cast_precision_loss, reason = "a few words")]
        let width = words.len() as f64 * LETTER.0;
        x += width + 30.0;
    }
    out
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

fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> String {
    format!("<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>")
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

fn text(x: f64, y: f64, anchor: &str, more: &str, text: &str) -> String {
    let escaped = escaped(text);
    let mut line = String::new();
    let space = if more.is_empty() { "" } else { " " };
    let _ = write!(
        line,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{space}{more}>{escaped}</text>"
    );
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &str, accuracy: f64, latency_ms: f64) -> Point {
        Point { name: name.to_owned(), accuracy, latency_ms, known: Known::Well }
    }

    #[test]
    fn the_frontier_leaves_out_what_is_beaten_on_both_axes() {
        let points = [
            point("slow", 0.9, 2.0),
            point("fast", 0.8, 0.1),
            point("beaten", 0.85, 3.0),
            point("mid", 0.85, 0.5),
        ];
        let names: Vec<&str> = frontier(&points).iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names, ["fast", "mid", "slow"]);
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
        for words in ["beaten by another", ">estimated<", ">coarse<", "no other is better and quicker"] {
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

//! Lines over time as an SVG picture, for light and dark pages.
//!
//! Lines are told apart by their dashes as well as by their colours. A missing value is a gap, not a zero.

use std::fmt::Write;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 84.0;
const STYLE: &str = "<style>\
    svg{--ink:#222;--faint:#666;--grid:#e4e4e4;--paper:#fff}\
    @media(prefers-color-scheme:dark){svg{--ink:#e6e6e6;--faint:#a0a0a0;--grid:#3a3a3a;--paper:#161616}}\
    text{fill:var(--ink)}.faint{fill:var(--faint)}.paper{fill:var(--paper)}.grid{stroke:var(--grid)}\
    polyline{fill:none;stroke-width:1.6}</style>\n";
const COLOURS: [&str; 8] =
    ["#1769aa", "#c2571a", "#3d8f5f", "#9c4fa8", "#b8860b", "#607080", "#c03060", "#20a0a0"];
const DASHES: [&str; 3] = ["none", "7 3", "2 3"];
/// More lines than this nobody tells apart.
const MOST: usize = 24;

/// A line: its name, and a value for each place on the axis below.
pub struct Line {
    /// For the legend.
    pub name: String,
    /// Gaps are `None`.
    pub values: Vec<Option<f64>>,
}

/// What stands around the lines.
pub struct Frame<'a> {
    /// Above.
    pub title: &'a str,
    /// Along the axis below.
    pub below: &'a str,
    /// Along the axis beside.
    pub beside: &'a str,
    /// The places on the axis below.
    pub at: &'a [f64],
}

/// The picture.
pub fn svg(frame: &Frame<'_>, lines: &[Line]) -> String {
    let lines = &lines[..lines.len().min(MOST)];
    let values = lines.iter().flat_map(|line| line.values.iter().flatten().copied());
    let (low, high) =
        values.filter(|v| v.is_finite()).fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
    // From zero, unless all is far from it.
    let low = if high <= low || low < 0.6 * high { low.min(0.0) } else { low - 0.1 * (high - low) };
    let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
    let (first, last) = (frame.at.first().copied().unwrap_or(0.0), frame.at.last().copied().unwrap_or(1.0));
    let last = if last > first { last } else { first + 1.0 };
    let x = |at: f64| LEFT + (at - first) / (last - first) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n{STYLE}\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n"
    );
    let _ = writeln!(out, "{}", text((WIDTH / 2.0, 24.0), "middle", "font-size=\"15\"", frame.title));
    for tick in ticks(low, high) {
        let _ = writeln!(out, "{}", grid((LEFT, y(tick)), (WIDTH - RIGHT, y(tick))));
        let _ = writeln!(out, "{}", text((LEFT - 8.0, y(tick) + 4.0), "end", "", &short(tick)));
    }
    for tick in ticks(first, last) {
        let _ = writeln!(out, "{}", grid((x(tick), TOP), (x(tick), HEIGHT - BOTTOM)));
        let _ = writeln!(out, "{}", text((x(tick), HEIGHT - BOTTOM + 16.0), "middle", "", &short(tick)));
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let _ =
        writeln!(out, "{}", text((middle, HEIGHT - BOTTOM + 34.0), "middle", "class=\"faint\"", frame.below));
    let beside = (TOP + HEIGHT - BOTTOM) / 2.0;
    let turned = format!("class=\"faint\" transform=\"rotate(-90 18 {beside})\"");
    let _ = writeln!(out, "{}", text((18.0, beside), "middle", &turned, frame.beside));
    for (number, line) in lines.iter().enumerate() {
        for part in unbroken(frame.at, &line.values) {
            let points: Vec<String> =
                part.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
            let _ = writeln!(out, "<polyline {} points=\"{}\"/>", stroke(number), points.join(" "));
        }
    }
    legend(&mut out, lines);
    out.push_str("</svg>\n");
    out
}

/// Runs of values without a gap. One value alone is drawn as a short dash.
fn unbroken(at: &[f64], values: &[Option<f64>]) -> Vec<Vec<(f64, f64)>> {
    let mut parts = vec![Vec::new()];
    for (at, value) in at.iter().zip(values) {
        match value {
            Some(value) if value.is_finite() => {
                parts.last_mut().expect("never empty").push((*at, *value));
            }
            Some(_) | None => parts.push(Vec::new()),
        }
    }
    for part in &mut parts {
        if let [only] = part[..] {
            part.push(only);
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

fn stroke(number: usize) -> String {
    let (colour, dash) = (COLOURS[number % COLOURS.len()], DASHES[number / COLOURS.len() % DASHES.len()]);
    format!("stroke=\"{colour}\" stroke-dasharray=\"{dash}\"")
}

#[expect(clippy::cast_precision_loss, reason = "a few words")]
fn legend(out: &mut String, lines: &[Line]) {
    let (mut left, mut top) = (LEFT, HEIGHT - 34.0);
    for (number, line) in lines.iter().enumerate() {
        let width = 34.0 + 6.4 * line.name.chars().count() as f64;
        if left + width > WIDTH - RIGHT && left > LEFT {
            (left, top) = (LEFT, top + 14.0);
        }
        let _ = writeln!(
            out,
            "<line {} stroke-width=\"2\" x1=\"{left:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            stroke(number),
            top - 4.0,
            left + 20.0,
            top - 4.0
        );
        let _ = writeln!(
            out,
            "{}",
            text((left + 25.0, top), "start", "class=\"faint\" font-size=\"11\"", &line.name)
        );
        left += width;
    }
}

fn text((x, y): (f64, f64), anchor: &str, more: &str, what: &str) -> String {
    let what = what.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{what}</text>")
}

fn grid((x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> String {
    format!("<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>")
}

/// Round values inside, four to nine of them.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decade).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let mut ticks = Vec::new();
    let mut tick = (low / step).ceil() * step;
    while tick <= high + step * 1e-9 && ticks.len() < 20 {
        ticks.push(tick);
        tick += step;
    }
    ticks
}

fn short(value: f64) -> String {
    let size = value.abs();
    let digits = if !(1e-9..100.0).contains(&size) {
        0
    } else if size >= 1.0 {
        2
    } else {
        4
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, values: &[Option<f64>]) -> Line {
        Line { name: name.into(), values: values.to_vec() }
    }

    #[test]
    fn a_missing_value_breaks_a_line_and_names_are_written_as_text() {
        let frame = Frame { title: "a < b", below: "s", beside: "%", at: &[0.0, 1.0, 2.0, 3.0] };
        let picture = svg(&frame, &[line("x&y", &[Some(1.0), Some(2.0), None, Some(4.0)])]);
        assert_eq!(picture.matches("<polyline").count(), 2, "{picture}");
        assert!(picture.contains("a &lt; b") && picture.contains("x&amp;y"), "{picture}");
    }

    #[test]
    fn lines_without_values_or_all_alike_give_a_picture_with_numbers_in_it() {
        let frame = Frame { title: "t", below: "s", beside: "%", at: &[0.0, 1.0] };
        for values in [vec![None, None], vec![Some(0.0), Some(0.0)], vec![Some(f64::NAN), Some(5.0)]] {
            let picture = svg(&frame, &[line("l", &values)]);
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }

    #[test]
    fn ticks_are_round() {
        let shown: Vec<String> = ticks(0.0, 1.0).into_iter().map(short).collect();
        assert_eq!(shown, ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(short(1200.0), "1200");
    }
}

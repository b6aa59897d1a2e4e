//! The picture as SVG: colours follow the page that it stands on, or the system.

use super::{Anchor, HEIGHT, Known, SIZE, Shape, WIDTH};
use std::fmt::Write as _;

/// Colours by what they are for. A picture that is part of a page takes the page's scheme, one that is opened the system's.
const STYLE: &str = "<style>\
    svg{--ink:#222;--faint:#666;--grid:#e4e4e4;--paper:#fff;--mark:#1769aa}\
    @media(prefers-color-scheme:dark){svg{--ink:#e6e6e6;--faint:#a0a0a0;--grid:#3a3a3a;--paper:#161616;--mark:#6cb8f0}}\
    text{fill:var(--ink)}.faint{fill:var(--faint)}.paper{fill:var(--paper)}.grid{stroke:var(--grid)}\
    .frontier{fill:none;stroke:var(--mark);stroke-width:2}\
    .on{fill:var(--mark);stroke:var(--mark)}.beaten{fill:var(--paper);stroke:var(--mark);stroke-width:1.4}\
    .estimated{stroke-dasharray:2 2}</style>\n";

pub(super) fn picture(shapes: &[Shape]) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"{SIZE}\">\n{STYLE}\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n"
    );
    for shape in shapes {
        out.push_str(&self::shape(shape));
        out.push('\n');
    }
    out.push_str("</svg>\n");
    out
}

fn shape(shape: &Shape) -> String {
    match shape {
        Shape::Grid { from: (x1, y1), to: (x2, y2) } => {
            format!("<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>")
        }
        Shape::Text { at, anchor, size, faint, words } => {
            let mut more = String::new();
            if *faint {
                more.push_str(" class=\"faint\"");
            }
            if (*size - SIZE).abs() > f64::EPSILON {
                let _ = write!(more, " font-size=\"{size}\"");
            }
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            text(*at, anchor, &more, words)
        }
        Shape::Upright { at: (x, y), words } => {
            text((*x, *y), "middle", &format!(" transform=\"rotate(-90 {x} {y})\""), words)
        }
        Shape::Frontier(corners) => {
            let corners: Vec<String> = corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            format!("<polyline class=\"frontier\" points=\"{}\"/>", corners.join(" "))
        }
        Shape::Mark { at, known, on, about } => mark(*at, *known, *on, about),
    }
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

fn text((x, y): (f64, f64), anchor: &str, more: &str, words: &str) -> String {
    let escaped = escaped(words);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{escaped}</text>")
}

//! Colours, sizes and patterns of the picture: a CSS style sheet and hatch patterns, which `draw.rs` writes
//! at the beginning of the document.
//!
//! `draw.rs`, `paint.rs` and `strips.rs` name the classes; the classes of memory kinds come from `kind.rs`.
//! No test detects a class without a style; the elements of such a class are drawn in black.

use super::kind::Kind;
use super::svg::escaped;
use std::fmt::Write;

/// Opacities of the levels of fault density.
pub const DARKNESS: [f64; 5] = [0.20, 0.36, 0.52, 0.70, 0.90];

/// Returns the style sheet.
pub fn style() -> String {
    let mut style = "text{fill:#222}.title{font-size:20px;font-weight:bold}.small{font-size:12px}\
        .axis{font-size:11px;fill:#555}.caption{font-size:11px;stroke:#fff;stroke-width:3px;stroke-linejoin:round;paint-order:stroke}.address{font-size:9.5px;fill:#666;text-anchor:end}\
        .end{text-anchor:end}.mid{text-anchor:middle}\
        .name{font-size:10.5px;fill:#111;stroke:#fff;stroke-opacity:.75;stroke-width:3px;stroke-linejoin:round;paint-order:stroke}\
        .page{fill:#fff}.lane{fill:#fff;stroke:#c8c8c8;stroke-width:.6}\
        .grid{stroke:#e4e4e4;fill:none}.line{stroke:#555;fill:none}.mark{stroke:#999;fill:none}\
        .rate,.others{fill:#5a6b7b;shape-rendering:crispEdges}\
        .halo{stroke:#fff;stroke-width:2.4;fill:none;opacity:.55}.branch{stroke:#222;stroke-width:.9;fill:none}\
        .dot{stroke:#111;stroke-width:5;stroke-linecap:round;fill:none}"
        .to_owned();
    for kind in Kind::ALL {
        let (class, colour) = (kind.class(), kind.colour());
        write!(style, ".{class}{{fill:{colour};shape-rendering:crispEdges}}")
            .expect("writing to a String cannot fail");
        if kind.hatch().is_some() {
            write!(style, ".x{class}{{fill:url(#x{class})}}").expect("writing to a String cannot fail");
        }
    }
    for (level, opacity) in DARKNESS.iter().enumerate() {
        write!(style, ".d{level}{{fill:#0b1a30;fill-opacity:{opacity};shape-rendering:crispEdges}}")
            .expect("writing to a String cannot fail");
    }
    style
}

/// Returns the hatch patterns, which mark kinds in addition to colours.
pub fn patterns() -> String {
    let mut defs = "<defs>".to_owned();
    for kind in Kind::ALL {
        if let Some(lines) = kind.hatch() {
            write!(
                defs,
                "<pattern id=\"x{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><path d=\"{}\" \
                 stroke=\"#fff\" stroke-opacity=\".55\" stroke-width=\"1.2\" fill=\"none\"/></pattern>",
                kind.class(),
                escaped(lines)
            )
            .expect("writing to a String cannot fail");
        }
    }
    defs + "</defs>"
}

//! Writes scalable vector graphics, as far as the picture needs them.
//!
//! [`Svg`] is a text under construction: `draw.rs`, `paint.rs` and `strips.rs` append elements, and
//! [`Svg::finish`] closes the document. Positions are in pixels of the picture, from the upper left. Texts
//! are escaped here, so a name in a recording cannot break the document. [`Svg::raw`] does not escape, so its
//! callers must pass only text of their own or the result of [`escaped`].

use std::fmt::Write;

/// A document under construction.
pub struct Svg {
    /// The document so far.
    text: String,
}

impl Svg {
    /// Starts a document of this size, with a style sheet.
    pub fn new(width: f64, height: f64, style: &str) -> Svg {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\">\n<style>{style}</style>\n"
        );
        Svg { text }
    }

    /// Appends an element whose text is already escaped.
    pub fn raw(&mut self, element: &str) {
        self.text.push_str(element);
        self.text.push('\n');
    }

    /// Adds a text at a position.
    pub fn words(&mut self, class: &str, x: f64, y: f64, words: &str) {
        writeln!(self.text, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(words))
            .expect("writing to a String cannot fail");
    }

    /// Adds a path, unless it has no data.
    pub fn path(&mut self, class: &str, data: &str) {
        if !data.is_empty() {
            writeln!(self.text, "<path class=\"{class}\" d=\"{data}\"/>")
                .expect("writing to a String cannot fail");
        }
    }

    /// Adds a rectangle, given as position and size.
    pub fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4]) {
        writeln!(
            self.text,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        )
        .expect("writing to a String cannot fail");
    }

    /// Closes the document and returns its text.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Estimates the width of a text in a sans-serif font of this size.
pub fn width(words: &str, size: f64) -> f64 {
    let letter = |letter: char| match letter {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ' ' | '\'' => 0.32,
        'f' | 't' | 'r' | '(' | ')' | '-' | '/' => 0.40,
        'm' | 'w' | 'M' | 'W' => 0.90,
        _ => 0.62,
    };
    words.chars().map(letter).sum::<f64>() * size
}

/// Escapes the special characters of XML. Replaces control characters, which XML forbids.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                safe.push('\u{fffd}')
            }
            letter => safe.push(letter),
        }
    }
    safe
}

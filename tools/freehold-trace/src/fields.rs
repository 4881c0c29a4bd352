//! The fields of a line: numbers and words, each separated by a single blank.
//!
//! [`Fields`] is a cursor over one line. Each function takes the next field and advances. A function that
//! fails returns the text of the expected field and the offset; the reader turns these two values into an
//! error with file, line and column. The readers of events, snapshots, limits and strace output use
//! [`Fields`]. Its functions allocate nothing, and must not panic on any bytes (`tests/mutations.rs`).

use crate::error::Bad;

/// A line that is parsed from left to right.
pub(crate) struct Fields<'a> {
    /// The whole line.
    line: &'a [u8],
    /// Offset of the next byte.
    at: usize,
}

impl<'a> Fields<'a> {
    /// Starts at the beginning of the line.
    pub(crate) fn new(line: &'a [u8]) -> Self {
        Fields { line, at: 0 }
    }

    /// Returns the next byte.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.line.get(self.at).copied()
    }

    /// Returns true if the end of the line is reached.
    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.line.len()
    }

    /// Returns the offset of the next byte.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Returns the error that `what` is expected here.
    pub(crate) fn expected<T>(&self, what: &'static str) -> Result<T, Bad> {
        Err(Bad::Expected(what, self.at))
    }

    /// Skips the next byte if it is `byte`. Returns true if the byte was skipped.
    pub(crate) fn eat(&mut self, byte: u8) -> bool {
        let eaten = self.peek() == Some(byte);
        self.at += usize::from(eaten);
        eaten
    }

    /// Skips `text` if the rest of the line begins with it. Returns true if `text` was skipped.
    pub(crate) fn eat_text(&mut self, text: &[u8]) -> bool {
        let eaten = self.line[self.at..].starts_with(text);
        if eaten {
            self.at += text.len();
        }
        eaten
    }

    /// Skips one blank. If the next byte is not a blank, fails with the error that `what` is missing.
    pub(crate) fn blank(&mut self, what: &'static str) -> Result<(), Bad> {
        if self.eat(b' ') { Ok(()) } else { self.expected(what) }
    }

    /// Fails if the end of the line is not reached.
    pub(crate) fn end(&self) -> Result<(), Bad> {
        if self.is_empty() { Ok(()) } else { self.expected("the end of the line") }
    }

    /// Parses a decimal number of 64 bits. `what` describes the number, here and in the functions below.
    pub(crate) fn decimal(&mut self, what: &'static str) -> Result<u64, Bad> {
        let begin = self.at;
        let mut value = 0_u64;
        while let Some(digit) = self.peek().map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            let longer = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit)));
            value = longer.ok_or(Bad::Expected(what, begin))?;
            self.at += 1;
        }
        if self.at == begin { self.expected(what) } else { Ok(value) }
    }

    /// Parses a decimal number below 2^32.
    pub(crate) fn decimal_u32(&mut self, what: &'static str) -> Result<u32, Bad> {
        let begin = self.at;
        u32::try_from(self.decimal(what)?).map_err(|_| Bad::Expected(what, begin))
    }

    /// Parses a hexadecimal number without a prefix, in lower case.
    pub(crate) fn hex(&mut self, what: &'static str) -> Result<u64, Bad> {
        let begin = self.at;
        let mut value = 0_u64;
        while let Some(digit) = self.peek().and_then(hex_digit) {
            if value >> 60 != 0 {
                return Err(Bad::Expected(what, begin));
            }
            value = value << 4 | u64::from(digit);
            self.at += 1;
        }
        if self.at == begin { self.expected(what) } else { Ok(value) }
    }

    /// Parses a hexadecimal number below 2^32.
    pub(crate) fn hex_u32(&mut self, what: &'static str) -> Result<u32, Bad> {
        let begin = self.at;
        u32::try_from(self.hex(what)?).map_err(|_| Bad::Expected(what, begin))
    }

    /// Returns the bytes before the next `stop`, or before the end of the line.
    pub(crate) fn until(&mut self, stop: u8) -> &'a [u8] {
        self.take_while(|byte| byte != stop)
    }

    /// Returns the bytes before the next byte that `belongs` rejects, or before the end of the line.
    pub(crate) fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.line[self.at..];
        let length = rest.iter().position(|byte| !belongs(*byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Returns the rest of the line.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.line[self.at..];
        self.at = self.line.len();
        rest
    }

    /// Returns the rest of the line as text.
    pub(crate) fn rest_text(&mut self) -> Result<&'a str, Bad> {
        let at = self.at;
        text(self.rest(), at)
    }
}

/// Returns `bytes`, which begin at offset `at` of the line, as text.
pub(crate) fn text(bytes: &[u8], at: usize) -> Result<&str, Bad> {
    str::from_utf8(bytes).map_err(|error| Bad::Expected("text in UTF-8", at + error.valid_up_to()))
}

/// Returns the value of a digit, in lower case only.
fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

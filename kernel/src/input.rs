//! The input of the console: turns bytes from a keyboard or a stream into the bytes that programs read. A
//! terminal edits a line before programs may read it; a stream only removes escapes.
//!
//! This file has no lock and touches no device, so its tests run on any machine. `files/console.rs` polls the
//! serial port and guards the [`Input`] with a lock. `PROTOCOL.md` describes the two kinds of console.
//! `cargo test --package freehold-kernel` runs the tests below.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bit of `c_iflag`: a carriage return ends a line.
const ICRNL: u32 = 0o400;
/// Bits of `c_lflag`: a line is edited before it is read; typed characters are printed.
const ICANON: u32 = 2;
const ECHO: u32 = 8;

/// A byte that ends the input, or submits a line without a newline.
const END: u8 = 0x04;
/// A byte of a stream that escapes the next byte: the next byte has no special meaning.
const AS_IT_IS: u8 = 0x10;
/// Bytes that erase a character (DEL and backspace), and the byte that erases the line.
const ERASE: [u8; 2] = [0x7f, 0x08];
const KILL: u8 = 0x15;

/// Size of the system calls' `struct termios`: four words of flags, and further fields that are stored
/// without effect.
pub const TERMIOS: usize = 36;

/// The source of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A stream of bytes with escapes.
    Stream,
    /// A keyboard.
    Terminal,
}

/// Input that has arrived and that no program has read yet.
pub struct Input {
    /// The source of the bytes.
    source: Source,
    /// The settings of the terminal, as programs set them; not used for a stream.
    termios: [u8; TERMIOS],
    /// Bytes that may be read.
    ready: VecDeque<u8>,
    /// The line that is being typed.
    line: Vec<u8>,
    /// True if the input has ended and no read has reported the end yet. A stream stays ended.
    ended: bool,
    /// True if the last byte of the stream was an escape.
    escaped: bool,
}

impl Input {
    /// Returns an empty input.
    pub const fn new(source: Source) -> Self {
        let mut termios = [0; TERMIOS];
        // The four words of flags. Input: ICRNL, IXON. Output: OPOST, ONLCR. Control: 38400 baud, 8 bits,
        // receiver on. Local: ISIG, ICANON, ECHO, ECHOE, IEXTEN.
        let words = [0x0500_u32, 5, 0x0bf, 0x801b];
        let mut word = 0;
        while word < words.len() {
            let bytes = words[word].to_le_bytes();
            let mut byte = 0;
            while byte < 4 {
                termios[4 * word + byte] = bytes[byte];
                byte += 1;
            }
            word += 1;
        }
        Self { source, termios, ready: VecDeque::new(), line: Vec::new(), ended: false, escaped: false }
    }

    /// Sets the source, which decides how later bytes are interpreted.
    pub fn set_source(&mut self, source: Source) {
        self.source = source;
    }

    /// Returns the terminal's settings, or `None` for a stream.
    pub fn termios(&mut self) -> Option<&mut [u8; TERMIOS]> {
        (self.source == Source::Terminal).then_some(&mut self.termios)
    }

    /// Returns true if a read returns at once: with bytes, or with the end of input.
    pub fn is_ready(&self) -> bool {
        self.ended || !self.ready.is_empty()
    }

    /// Returns a word of the settings: 0 for `c_iflag`, 3 for `c_lflag`.
    fn flags(&self, word: usize) -> u32 {
        u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.termios[4 * word + byte]))
    }

    /// Takes a byte of input. Calls `echo` with the text that the terminal shows for this byte.
    pub fn take(&mut self, byte: u8, echo: &mut dyn FnMut(&[u8])) {
        match self.source {
            Source::Stream => self.take_sent(byte),
            Source::Terminal => self.take_typed(byte, echo),
        }
    }

    /// Takes a byte of a stream: removes escapes, and notices the end.
    fn take_sent(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => {
                self.escaped = false;
                self.ready.push_back(byte);
            }
            END => self.ended = true,
            AS_IT_IS => self.escaped = true,
            _ => self.ready.push_back(byte),
        }
    }

    /// Takes a byte of a keyboard: edits the line, and makes it readable when it is complete.
    fn take_typed(&mut self, byte: u8, echo: &mut dyn FnMut(&[u8])) {
        let byte = if byte == b'\r' && self.flags(0) & ICRNL != 0 { b'\n' } else { byte };
        let mut shown = |text: &[u8]| {
            if self.flags(3) & ECHO != 0 {
                echo(text);
            }
        };
        if self.flags(3) & ICANON == 0 {
            shown(&[byte]);
            self.ready.push_back(byte);
            return;
        }
        match byte {
            END if self.line.is_empty() => self.ended = true,
            END => self.ready.extend(self.line.drain(..)),
            KILL => {
                self.line.iter().for_each(|_| shown(b"\x08 \x08"));
                self.line.clear();
            }
            _ if ERASE.contains(&byte) => {
                if !self.line.is_empty() {
                    shown(b"\x08 \x08");
                    self.line.pop();
                }
            }
            _ => {
                shown(&[byte]);
                self.line.push(byte);
                if byte == b'\n' {
                    self.ready.extend(self.line.drain(..));
                }
            }
        }
    }

    /// Moves readable bytes to `out`, at most one line of a terminal. Returns `None` if there is no input
    /// yet, and 0 at the end of input. A terminal accepts more input after an end of input.
    pub fn read(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.ready.is_empty() {
            let ended = self.ended;
            self.ended &= self.source == Source::Stream;
            return ended.then_some(0);
        }
        let lines = self.source == Source::Terminal && self.flags(3) & ICANON != 0;
        let line = self.ready.iter().position(|byte| lines && *byte == b'\n');
        let len = line.map_or(self.ready.len(), |at| at + 1).min(out.len());
        self.ready.drain(..len).zip(out).for_each(|(from, to)| *to = from);
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(input: &mut Input, text: &[u8]) -> Vec<u8> {
        let mut echo = Vec::new();
        text.iter().for_each(|byte| input.take(*byte, &mut |text| echo.extend_from_slice(text)));
        echo
    }

    fn read(input: &mut Input) -> Option<Vec<u8>> {
        let mut out = [0; 16];
        input.read(&mut out).map(|len| out[..len].to_vec())
    }

    #[test]
    fn stream_passes_bytes_and_honours_escapes() {
        let mut input = Input::new(Source::Stream);
        assert_eq!(typed(&mut input, b"ab\n\x7f\x10\x04\x10\x10c"), b"");
        assert_eq!(read(&mut input).as_deref(), Some(&b"ab\n\x7f\x04\x10c"[..]));
        assert_eq!(read(&mut input), None);
        typed(&mut input, b"d\x04");
        assert_eq!(read(&mut input).as_deref(), Some(&b"d"[..]));
        assert_eq!(read(&mut input).as_deref(), Some(&b""[..]));
        assert_eq!(read(&mut input).as_deref(), Some(&b""[..]));
        assert!(input.termios().is_none());
    }

    #[test]
    fn terminal_lines_are_edited() {
        let mut input = Input::new(Source::Terminal);
        assert_eq!(typed(&mut input, b"ax\x7fb"), b"ax\x08 \x08b");
        assert_eq!(read(&mut input), None);
        assert_eq!(typed(&mut input, b"\rcd\n"), b"\ncd\n");
        assert_eq!(read(&mut input).as_deref(), Some(&b"ab\n"[..]));
        assert_eq!(read(&mut input).as_deref(), Some(&b"cd\n"[..]));
        typed(&mut input, b"wrong\x15half\x04\x04");
        assert_eq!(read(&mut input).as_deref(), Some(&b"half"[..]));
        assert_eq!(read(&mut input).as_deref(), Some(&b""[..]));
        assert_eq!(read(&mut input), None);
    }

    #[test]
    fn raw_keys_are_read_at_once() {
        let mut input = Input::new(Source::Terminal);
        let flags = input.termios().expect("a terminal");
        flags[0..4].fill(0);
        flags[12..16].fill(0);
        assert_eq!(typed(&mut input, b"\r\x04"), b"");
        assert_eq!(read(&mut input).as_deref(), Some(&b"\r\x04"[..]));
    }
}

//! Opens a file, and decompresses it if it is compressed. The first bytes of the file determine the
//! compression; the name of the file has no effect.
//!
//! `recording.rs` opens events and snapshots through [`open`] and gets [`Lines`]; decompression runs on a
//! thread of its own (`ahead.rs`) with limited memory. The second half of this file handles the names of a
//! recording's files: it finds the snapshot file in the folder of `NAME.trace`, and `NAME.trace` in the
//! folder of the snapshot file. A new compression needs its first bytes in `unpack` and its suffix in
//! [`SUFFIXES`]. The tests are in `recording_tests.rs`.

use crate::ahead::Ahead;
use crate::error::ReadError;
use crate::lines::Lines;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Suffixes of uncompressed and compressed files.
pub(crate) const SUFFIXES: [&str; 3] = ["", ".xz", ".zst"];
/// Maximum memory in bytes that decompression may use.
const MAX_MEMORY: u64 = 256 << 20;
/// Base-2 logarithm of the largest window that a zstd stream may use: 128 MiB.
const LONGEST_WINDOW: u32 = 27;
/// Number of bytes that are read from a file at a time, before decompression.
const CHUNK: usize = 64 << 10;

/// An input that may be compressed.
type Packed = Box<dyn BufRead + Send>;

const XZ: &[u8] = b"\xfd7zXZ\0";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// Returns the lines of the file `path`.
pub(crate) fn open(path: &Path) -> Result<Lines, ReadError> {
    let file = File::open(path).map(|file| Box::new(BufReader::with_capacity(CHUNK, file)) as Packed);
    lines(path, file)
}

/// Returns the lines of `packed`. Messages use the name `path`.
pub(crate) fn lines(path: &Path, packed: io::Result<Packed>) -> Result<Lines, ReadError> {
    match packed.and_then(unpack) {
        Ok(input) => Ok(Lines::new(input, path)),
        Err(source) => Err(ReadError::Open { file: path.to_owned(), source }),
    }
}

/// Returns the uncompressed contents of `packed`.
fn unpack(mut packed: Packed) -> io::Result<Box<dyn Read + Send>> {
    let head = packed.fill_buf()?;
    if head.starts_with(XZ) {
        let stream = Stream::new_stream_decoder(MAX_MEMORY, CONCATENATED)?;
        return Ok(Box::new(Ahead::of(Box::new(XzDecoder::new_stream(packed, stream)))?));
    }
    if head.starts_with(ZSTD) {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
        decoder.window_log_max(LONGEST_WINDOW)?;
        return Ok(Box::new(Ahead::of(Box::new(decoder))?));
    }
    Ok(Box::new(packed))
}

/// Returns the path that the files of a recording have in common: `path` without the suffix of a recording's
/// file (`.trace`, `.snap`, `.strace`), and without `.xz` or `.zst`.
pub fn without_suffix(path: &Path) -> PathBuf {
    stem(path).0
}

/// Returns `path` without the suffixes of a recording's file and of a compressed file, and the suffix of the
/// compressed file.
pub(crate) fn stem(path: &Path) -> (PathBuf, &'static str) {
    let mut stem = path.to_owned();
    let packed = SUFFIXES[1..].iter().find(|suffix| stem.extension().is_some_and(|own| own == &suffix[1..]));
    if packed.is_some() {
        stem.set_extension("");
    }
    if stem.extension().is_some_and(|own| own == "trace" || own == "strace" || own == "snap") {
        stem.set_extension("");
    }
    (stem, packed.unwrap_or(&""))
}

/// Returns the snapshot file in the folder of the recording `path`, preferably with the same compression.
pub(crate) fn snapshots_beside(path: &Path) -> Option<PathBuf> {
    beside(path, ".snap")
}

/// Returns the recording in the folder of the snapshot file `path`, preferably with the same compression.
pub(crate) fn recording_beside(path: &Path) -> Option<PathBuf> {
    beside(path, ".trace")
}

/// Returns the existing file with suffix `kind` that belongs to the same recording as `path`.
fn beside(path: &Path, kind: &str) -> Option<PathBuf> {
    let (stem, own) = stem(path);
    let beside = |suffix: &str| {
        let mut name = stem.clone().into_os_string();
        name.push(kind);
        name.push(suffix);
        PathBuf::from(name)
    };
    std::iter::once(own).chain(SUFFIXES).map(beside).find(|path| path.exists())
}

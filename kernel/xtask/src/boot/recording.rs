//! Makes a recording (`docs/reference/trace-format.md`) from the lines that the kernel wrote to its recording
//! port (`kernel/PROTOCOL.md`). `kernel/src/record.rs` writes the lines, and `freehold replay` reads the
//! files. This file only distributes lines to the two files and adds their first lines; it does not parse
//! events. The tests `recorded-shell` and `recorded-threads` replay such files.

use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

/// Prefix of the lines of snapshots.
const OF_SNAPSHOT: &[u8] = b"s ";

/// Writes `NAME.trace` and `NAME.snap` from the lines that the port delivered.
///
/// # Errors
///
/// Fails if a file cannot be read or written, or if there are no lines.
pub fn write(raw: &Path, name: &Path) -> Result<(), String> {
    let said = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let called =
        name.file_name().ok_or_else(|| format!("{} is not a file name", name.display()))?.to_string_lossy();
    let with = |ending: &str| PathBuf::from(format!("{}.{ending}", name.display()));
    let from = File::open(raw).map_err(|error| said(raw, error))?;
    let create = |path: &Path| File::create(path).map(BufWriter::new).map_err(|error| said(path, error));
    let (trace, snap) = (with("trace"), with("snap"));
    let (mut trace_file, mut snap_file) = (create(&trace)?, create(&snap)?);
    let lines = split(BufReader::new(from), &called, &mut trace_file, &mut snap_file);
    let lines = lines.map_err(|error| said(&trace, error))?;
    if lines == 0 { Err("the kernel recorded nothing".into()) } else { Ok(()) }
}

/// Distributes the lines to the two files. Returns the number of lines. An incomplete last line, which a
/// killed machine leaves, is dropped.
fn split(
    mut from: BufReader<impl Read>,
    name: &str,
    trace: &mut impl Write,
    snap: &mut impl Write,
) -> std::io::Result<usize> {
    writeln!(trace, "# fhtrace 2 {name}")?;
    writeln!(snap, "# fhsnap 1 {name}")?;
    let (mut line, mut count) = (Vec::new(), 0);
    while from.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        match line.strip_prefix(OF_SNAPSHOT) {
            Some(rest) => snap.write_all(rest)?,
            None => trace.write_all(&line)?,
        }
        line.clear();
        count += 1;
    }
    trace.flush()?;
    snap.flush()?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_lines_are_separated_from_trace_lines() {
        let text: &[u8] =
            b"# machine min-addr 4096\ns @ 0 exec 1 5 5 1 a | /a | \n5 0 1 E 0\n6 0 1 X g\n7 0 1 F 1";
        let (mut trace, mut snap) = (Vec::new(), Vec::new());
        assert_eq!(split(BufReader::new(text), "a b", &mut trace, &mut snap).expect("read"), 4);
        let text = |bytes| String::from_utf8(bytes).expect("text");
        assert_eq!(text(trace), "# fhtrace 2 a b\n# machine min-addr 4096\n5 0 1 E 0\n6 0 1 X g\n");
        assert_eq!(text(snap), "# fhsnap 1 a b\n@ 0 exec 1 5 5 1 a | /a | \n");
    }
}

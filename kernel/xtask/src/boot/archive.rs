//! Writes a tree as a cpio archive of the format `newc`. The kernel reads the archive (`kernel/src/cpio.rs`).
//!
//! The manual page cpio(5) describes the format. Each node has a header of fourteen fields in hexadecimal
//! digits, its name and its bytes. Name and bytes are padded to a multiple of four bytes. Inode numbers are
//! unique and owners are 0, as `kernel/PROTOCOL.md` demands. The entry `TRAILER!!!` ends the archive. The
//! test below reads an archive back.

use std::{
    fs,
    io::{self, Write},
};

use super::tree::{Content, Node, Tree, archive_name};

/// Types of nodes, as in `st_mode`.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const DEVICE: u32 = 0o020_000;

/// The fields of a header that vary.
#[derive(Default)]
struct Header {
    inode: u32,
    mode: u32,
    links: u32,
    time: u32,
    size: u32,
    device: (u32, u32),
}

/// Writes the archive of a tree.
///
/// # Errors
///
/// Fails if a file of this machine cannot be read or the archive cannot be written.
pub fn write(tree: &Tree, to: &mut impl Write) -> Result<(), String> {
    for (number, (path, node)) in (1..).zip(tree.nodes()) {
        let said = |error: io::Error| format!("cannot pack {}: {error}", path.display());
        let mut header = Header { inode: number, links: 1, ..Header::default() };
        let bytes = match node {
            Node::Folder(mode) => {
                (header.mode, header.links) = (FOLDER | mode, 2);
                Vec::new()
            }
            Node::File(mode, time, content) => {
                (header.mode, header.time) = (FILE | mode, u32::try_from(*time).unwrap_or(u32::MAX));
                match content {
                    Content::Bytes(bytes) => bytes.clone(),
                    Content::Host(host) => fs::read(host).map_err(said)?,
                }
            }
            Node::Link(target) => {
                header.mode = LINK | 0o777;
                target.as_os_str().as_encoded_bytes().to_vec()
            }
            Node::Device(mode, major, minor) => {
                (header.mode, header.device) = (DEVICE | mode, (*major, *minor));
                Vec::new()
            }
        };
        header.size = u32::try_from(bytes.len()).map_err(|_| said(io::ErrorKind::FileTooLarge.into()))?;
        entry(to, &header, &archive_name(path), &bytes).map_err(said)?;
    }
    let last = Header { links: 1, ..Header::default() };
    entry(to, &last, b"TRAILER!!!", &[]).map_err(|error| format!("cannot write the archive: {error}"))
}

/// Writes one node: its header, name and bytes, with padding.
fn entry(to: &mut impl Write, header: &Header, name: &[u8], bytes: &[u8]) -> io::Result<()> {
    let Header { inode, mode, links, time, size, device } = header;
    let name_size = name.len() as u32 + 1;
    write!(to, "070701")?;
    // The owner, the group, the device of the archive and the checksum are 0. This format has no checksum.
    let fields = [*inode, *mode, 0, 0, *links, *time, *size, 0, 0, device.0, device.1, name_size, 0];
    for field in fields {
        write!(to, "{field:08x}")?;
    }
    to.write_all(name)?;
    // The header is two bytes longer than a multiple of four. A zero byte ends the name.
    to.write_all(&[0; 4][..1 + filling(110 + name_size)])?;
    to.write_all(bytes)?;
    to.write_all(&[0; 4][..filling(*size)])
}

/// Returns the number of padding bytes up to a multiple of four.
fn filling(size: u32) -> usize {
    (size.wrapping_neg() % 4) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn node(path: &str, node: Node) -> (String, Node) {
        (path.into(), node)
    }

    /// Reads an archive: names, modes, bytes.
    fn read(mut rest: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        loop {
            assert_eq!(&rest[..6], b"070701");
            let field = |n: usize| {
                let digits = std::str::from_utf8(&rest[6 + 8 * n..][..8]).expect("digits");
                u32::from_str_radix(digits, 16).expect("a number")
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(rest[110..][..name_size - 1].to_vec()).expect("text");
            assert_eq!(rest[110 + name_size - 1], 0);
            let data = (110 + name_size).next_multiple_of(4);
            let bytes = rest[data..][..size].to_vec();
            rest = &rest[(data + size).next_multiple_of(4)..];
            if name == "TRAILER!!!" {
                assert!(rest.is_empty());
                return found;
            }
            found.push((name, mode, bytes));
        }
    }

    #[test]
    fn written_archive_reads_back() {
        let mut tree = Tree::default();
        let file = Node::File(0o755, 7, Content::Bytes(b"12345".to_vec()));
        let nodes = [
            node("/dev", Node::Folder(0o755)),
            node("/dev/null", Node::Device(0o666, 1, 3)),
            node("/a/program", file),
            node("/a/link", Node::Link("program".into())),
        ];
        for (path, node) in nodes {
            tree.put(Path::new(&path), node).expect("room");
        }
        let mut archive = Vec::new();
        write(&tree, &mut archive).expect("written");
        let expected = [
            ("a", 0o040_755, ""),
            ("a/link", 0o120_777, "program"),
            ("a/program", 0o100_755, "12345"),
            ("dev", 0o040_755, ""),
            ("dev/null", 0o020_666, ""),
        ];
        let expected = expected.map(|(name, mode, bytes)| (name.to_owned(), mode, bytes.into()));
        assert_eq!(read(&archive), expected);
    }

    #[test]
    fn unreadable_file_is_named_in_the_error() {
        let mut tree = Tree::default();
        let gone = Node::File(0o644, 0, Content::Host("/no/such/file".into()));
        tree.put(Path::new("/x"), gone).expect("room");
        let why = write(&tree, &mut Vec::new()).expect_err("the file is missing");
        assert!(why.starts_with("cannot pack /x: "), "{why}");
    }
}

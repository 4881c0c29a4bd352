//! The contents of the root file system at the start: an archive (`cpio.rs`) or a single program. `start.rs`
//! calls [`unpack`]. All tests of the kernel begin with it.

use crate::arch::report::say;
use crate::files::tree::{self, Node};
use crate::files::{DIRECTORY, LINK, REGULAR};
use alloc::sync::Arc;
use freehold::error::Errno;
use freehold_kernel::cpio;

/// A name in the root directory, and the function that makes the directory.
pub type Mount = (&'static [u8], fn() -> Arc<Node>);

/// Makes the root file system from an archive, or from a single program, which becomes `/program`. The
/// directories in `mounts` are added before the entries of the archive. Called once, at boot.
pub fn unpack(module: &'static [u8], mounts: &[Mount]) {
    let root = Node::directory(0o755);
    tree::set_root(root.clone());
    if module.starts_with(b"\x7fELF") {
        let program = Node::archived(0o755, module).expect("memory for the first program");
        root.insert(b"program", program).expect("an empty directory");
    }
    root.insert(b"tmp", Node::directory(0o1777)).expect("a root without /tmp");
    for (name, make) in mounts {
        root.insert(name, make()).expect("names that differ");
    }
    for entry in cpio::entries(module) {
        if let Err(error) = add(&root, &entry) {
            let name = core::str::from_utf8(entry.name).unwrap_or("?");
            say!("cannot unpack {name} from the initial file system: {error:?}");
        }
    }
}

/// Adds the node of an entry of the archive.
fn add(root: &Arc<Node>, entry: &cpio::Entry<'static>) -> Result<(), Errno> {
    let (directory, name) = tree::lookup_parent(root, entry.name, false)?;
    // The archive may list a directory that exists already.
    let Some(name) = name.filter(|name| directory.child(name).is_err()) else { return Ok(()) };
    let node = match entry.mode & 0o170_000 {
        DIRECTORY => Node::directory(entry.mode),
        LINK => Node::link(entry.contents),
        REGULAR => Node::archived(entry.mode, entry.contents)?,
        // Only the kernel makes devices.
        _ => return Ok(()),
    };
    directory.insert(&name, node)
}

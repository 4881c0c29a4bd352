//! Writers and executions of regular files: a file that runs as a program cannot be opened for writing, and a
//! file that is open for writing cannot be executed (ETXTBSY).
//!
//! Each node has one count. An open file that may write has a [`Writing`], and so do the mappings that were made
//! of this open file. A process has a [`Running`] for the file of its program, and an exec has one for each file
//! that it reads. Both values end their use of the file when they are dropped; the drop of a [`Writing`] takes no
//! lock and may therefore occur in an interrupt. A file that memfd_create made does not count as open for
//! writing, as on Linux.
//!
//! `calls/files.rs` and `process/exec.rs` make the values. The program `processes.c` of the tests checks them.

use crate::errno;
use crate::files::tree::Node;
use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::{AtomicI64, Ordering::Relaxed};
use freehold::error::Errno;

/// The uses of a node that exclude each other.
///
/// | value | meaning |
/// | --- | --- |
/// | n > 0 | the file is open for writing n times |
/// | 0 | neither |
/// | -n < 0 | the file is executed n times |
///
/// Relaxed: the count publishes no other memory.
#[derive(Default)]
pub struct Uses(AtomicI64);

impl Uses {
    /// Counts a use with this sign.
    ///
    /// # Errors
    ///
    /// ETXTBSY if the file is in use in the other way.
    fn begin(&self, sign: i64) -> Result<(), Errno> {
        let step = |count: i64| if count * sign < 0 { None } else { Some(count + sign) };
        self.0.fetch_update(Relaxed, Relaxed, step).map(|_| ()).map_err(|_| errno::ETXTBSY)
    }

    /// Uncounts a use with this sign.
    fn end(&self, sign: i64) {
        self.0.fetch_sub(sign, Relaxed);
    }
}

/// A file that is open for writing.
pub struct Writing(Arc<Uses>);

impl Writing {
    /// Counts the node as open for writing.
    ///
    /// # Errors
    ///
    /// ETXTBSY if the file is executed.
    pub fn begin(node: &Node) -> Result<Arc<Self>, Errno> {
        node.uses.begin(1)?;
        Ok(Arc::new(Writing(node.uses.clone())))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.end(1);
    }
}

/// A file that is executed.
pub struct Running(Arc<Node>);

impl Running {
    /// Counts the node as executed.
    ///
    /// # Errors
    ///
    /// ETXTBSY if the file is open for writing.
    pub fn begin(node: Arc<Node>) -> Result<Self, Errno> {
        node.uses.begin(-1)?;
        Ok(Running(node))
    }
}

impl Deref for Running {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.uses.end(-1);
    }
}

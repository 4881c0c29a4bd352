//! Files that are written are not run, and the other way around.

use super::tree::{Kind, Node};
use crate::calls::errno::ETXTBSY;
use alloc::sync::Arc;
use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;
use freehold::error::Errno;

/// A program that runs.
pub struct Running(Arc<Node>);

impl Running {
    /// # Errors
    ///
    /// ETXTBSY: somebody may write it.
    pub fn new(node: Arc<Node>) -> Result<Self, Errno> {
        // Relaxed: the number says nothing of other memory.
        let step = |count: i32| (count <= 0).then(|| count - 1);
        node.writers.fetch_update(Relaxed, Relaxed, step).map_err(|_| ETXTBSY)?;
        Ok(Running(node))
    }
}

impl Clone for Running {
    fn clone(&self) -> Self {
        self.0.writers.fetch_sub(1, Relaxed);
        Running(self.0.clone())
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
        self.0.writers.fetch_add(1, Relaxed);
    }
}

/// A regular file has one more that may write it, until [`written`].
///
/// # Errors
///
/// ETXTBSY: it runs.
pub fn writes(node: &Node) -> Result<(), Errno> {
    let step = |count: i32| (count >= 0).then(|| count + 1);
    match node.kind {
        Kind::Regular(_) => {
            node.writers.fetch_update(Relaxed, Relaxed, step).map(|_| ()).map_err(|_| ETXTBSY)
        }
        _ => Ok(()),
    }
}

pub fn written(node: &Node) {
    if matches!(node.kind, Kind::Regular(_)) {
        node.writers.fetch_sub(1, Relaxed);
    }
}

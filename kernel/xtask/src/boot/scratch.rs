//! A folder that lasts as long as its value.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Folders made by this process; only tells them apart.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A folder for what one run needs. It is removed with the value.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// A new one among the machine's temporary files, with `name` in its name.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn new(name: &str) -> Result<Self, String> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("freehold-{name}-{}-{number}", process::id()));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed stays among the temporary files, and nothing is wrong.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

//! A temporary folder that is removed when its value is dropped. Each run of a machine has such a folder, for
//! the archive, the report and the sockets. A killed run leaves its folder behind.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Number of folders that this process made; makes their names unique.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A temporary folder for one run. Removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// Makes a folder among the machine's temporary files, with `name` in its name.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be created.
    pub fn new(name: &str) -> Result<Self, String> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("freehold-{name}-{}-{number}", process::id()));
        fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that cannot be removed stays among the temporary files; that is not an error.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

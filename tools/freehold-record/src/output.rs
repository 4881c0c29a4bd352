//! Files that are written completely or not at all.
//!
//! 1. [`Output::new`] checks at the start, before the command runs, that the file can be written.
//! 2. [`Output::write`] writes a temporary file in the same folder, and renames it over the old file.
//!
//! [`Output::write_together`] does this for several files of one recording, and renames the files only when
//! all of them are complete. An error while writing leaves the old files unchanged. Pipes and terminals are
//! written in place. The recorder and `freehold-cli` write all their files in this way. The tests are in
//! `output_tests.rs`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file to be written later. The constructor has checked that it can be written.
#[derive(Debug)]
pub struct Output {
    /// The path of the file after links are resolved.
    path: PathBuf,
    /// True if the path is not an ordinary file (a pipe or a terminal). Such a file cannot be replaced, only
    /// written.
    in_place: bool,
}

impl Output {
    /// Checks that `path` can be written, without changing anything.
    ///
    /// # Errors
    ///
    /// Fails with the system's error if the file cannot be written.
    pub fn new(path: &Path) -> io::Result<Output> {
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error),
        };
        let found = fs::metadata(&path).ok();
        if found.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let output = Output { path, in_place: found.is_some_and(|found| !found.is_file()) };
        if output.in_place {
            OpenOptions::new().write(true).open(&output.path)?;
        } else {
            File::create(output.beside())?;
            fs::remove_file(output.beside())?;
        }
        Ok(output)
    }

    /// Writes all of `contents`.
    ///
    /// # Errors
    ///
    /// Fails with the system's error, and leaves the file unchanged.
    pub fn write(&self, contents: impl AsRef<[u8]>) -> io::Result<()> {
        Output::write_together(&[(self, contents.as_ref())])
    }

    /// Writes several files with their contents. Replaces no file before all contents are written to
    /// temporary files.
    ///
    /// # Errors
    ///
    /// Fails with the system's error. Leaves all files unchanged if a temporary file cannot be written. If a
    /// rename fails, the earlier files in the list are already replaced.
    pub fn write_together(files: &[(&Output, &[u8])]) -> io::Result<()> {
        let prepared = files.iter().try_for_each(|(output, contents)| output.prepare(contents));
        let written = prepared.and_then(|()| files.iter().try_for_each(|(output, _)| output.commit()));
        if written.is_err() {
            // Errors are ignored: some temporary files may not exist, and an error of the removal has no
            // remedy.
            files.iter().for_each(|(output, _)| _ = fs::remove_file(output.beside()));
        }
        written
    }

    /// Writes the contents to the temporary file.
    fn prepare(&self, contents: &[u8]) -> io::Result<()> {
        match self.in_place {
            true => OpenOptions::new().write(true).open(&self.path)?.write_all(contents),
            false => File::create(self.beside())?.write_all(contents),
        }
    }

    /// Renames the temporary file over the file.
    fn commit(&self) -> io::Result<()> {
        if self.in_place { Ok(()) } else { fs::rename(self.beside(), &self.path) }
    }

    /// Returns the path of the temporary file. It is in the same folder, so that it can be renamed
    /// atomically.
    fn beside(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{}", std::process::id()))
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;

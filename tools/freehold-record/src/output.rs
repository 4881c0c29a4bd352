//! Files that are written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file to be written later, for which there is room and leave now.
#[derive(Debug)]
pub struct Output {
    /// Where it comes to lie, behind links.
    path: PathBuf,
    /// What is there is no ordinary file (a pipe, a terminal): it cannot be replaced, only written.
    in_place: bool,
}

impl Output {
    /// Makes sure that `path` can be written, and leaves everything as it is.
    ///
    /// # Errors
    ///
    /// What the system says to a try.
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
    /// What the system says; the file is then as it was.
    pub fn write(&self, contents: impl AsRef<[u8]>) -> io::Result<()> {
        Output::write_together(&[(self, contents.as_ref())])
    }

    /// Writes several files with their contents. None is replaced before there is room for all of them.
    ///
    /// # Errors
    ///
    /// Fails with the error of the system, and leaves the files as they were.
    pub fn write_together(files: &[(&Output, &[u8])]) -> io::Result<()> {
        let prepared = files.iter().try_for_each(|(output, contents)| output.prepare(contents));
        let written = prepared.and_then(|()| files.iter().try_for_each(|(output, _)| output.commit()));
        if written.is_err() {
            // They may not exist; there is nothing to be done when they stay.
            files.iter().for_each(|(output, _)| _ = fs::remove_file(output.beside()));
        }
        written
    }

    fn prepare(&self, contents: &[u8]) -> io::Result<()> {
        match self.in_place {
            true => OpenOptions::new().write(true).open(&self.path)?.write_all(contents),
            false => File::create(self.beside())?.write_all(contents),
        }
    }

    fn commit(&self) -> io::Result<()> {
        if self.in_place { Ok(()) } else { fs::rename(self.beside(), &self.path) }
    }

    /// Where the text is put together: in the same folder, so that it can be moved in one step.
    fn beside(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{}", std::process::id()))
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;

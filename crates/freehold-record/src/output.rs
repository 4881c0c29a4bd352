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
        let contents = contents.as_ref();
        if self.in_place {
            return OpenOptions::new().write(true).open(&self.path)?.write_all(contents);
        }
        let beside = self.beside();
        let written = File::create(&beside)
            .and_then(|mut file| file.write_all(contents))
            .and_then(|()| fs::rename(&beside, &self.path));
        if written.is_err() {
            // It may not exist; there is nothing to be done when it stays.
            let _ = fs::remove_file(&beside);
        }
        written
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

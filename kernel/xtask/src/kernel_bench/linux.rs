//! Debian's kernel for clouds, which the same program runs on: its package, its image, its machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The packages that name the newest kernel, the first that there is: of the version that the figures to reach
/// were taken from, and of the system's own.
const PACKAGES: [&str; 2] = ["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"];
const FOLDER: &str = "target/linux";
const IMAGE: &str = "vmlinuz-";

/// A kernel of Linux.
#[derive(Debug, Clone)]
pub struct Linux {
    /// Its image.
    pub image: PathBuf,
    /// As its file is called.
    pub version: String,
}

/// The kernel's command line: the program is the first, and only, process. Memory is in pages of 4 KiB, as on
/// the other side.
#[must_use]
pub fn command_line(program: &str, arguments: &str) -> String {
    format!("console=ttyS0 quiet panic=-1 transparent_hugepage=never rdinit={program} -- {arguments}")
}

impl Linux {
    /// The one that was fetched before, or else the package's.
    ///
    /// # Errors
    ///
    /// There is none, or it cannot be fetched.
    pub fn find() -> Result<Self, String> {
        let folder = xtask::root().join(FOLDER);
        if let Some(found) = Self::within(&folder.join("boot")) {
            return Ok(found);
        }
        let said = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(said)?;
        let none = "no package of Linux's kernel for clouds is known: apt-get update";
        let package = PACKAGES.iter().find_map(|package| depends(package)).ok_or(none)?;
        eprintln!("xtask: fetching {package}");
        run(&folder, &format!("apt-get download {package}"))?;
        run(
            &folder,
            &format!("dpkg-deb --fsys-tarfile {package}_*.deb | tar -x --wildcards './boot/vmlinuz-*'"),
        )?;
        run(&folder, &format!("rm {package}_*.deb"))?;
        Self::within(&folder.join("boot")).ok_or_else(|| format!("{package} has no kernel"))
    }

    fn within(folder: &Path) -> Option<Self> {
        let entries = fs::read_dir(folder).ok()?.flatten();
        let mut images: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        images.sort();
        images.into_iter().rev().find_map(|image| {
            let version = image.file_name()?.to_str()?.strip_prefix(IMAGE)?.to_owned();
            Some(Self { image, version })
        })
    }

    /// Its name in a table.
    #[must_use]
    pub fn name(&self) -> String {
        let number = |c: char| c.is_ascii_digit() || c == '.';
        format!(
            "Linux {}",
            self.version.trim_start_matches("linux-").split(|c| !number(c)).next().unwrap_or("")
        )
    }
}

/// What a package without contents depends on: the kernel of today.
fn depends(package: &str) -> Option<String> {
    let said = Command::new("apt-cache").args(["depends", package]).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let first = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "))?;
    Some(first.to_owned())
}

fn run(folder: &Path, command: &str) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    let ran = shell.output().map_err(|error| format!("sh: {error}"))?;
    let why = String::from_utf8_lossy(&ran.stderr).into_owned();
    if ran.status.success() { Ok(()) } else { Err(format!("{command}: {}", why.trim())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_becomes_a_name() {
        let linux = Linux { image: PathBuf::new(), version: "6.12.117+deb12-cloud-amd64".into() };
        assert_eq!(linux.name(), "Linux 6.12.117");
    }
}

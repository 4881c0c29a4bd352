//! Debian's cloud kernel, with which `--linux` compares this project's kernel. This file downloads the cloud
//! kernel's package once, unpacks its image, and composes its command line. `kernel_bench/mod.rs` runs the
//! same program on both kernels. Without a network or Debian's apt the comparison fails with a message; the
//! kernel's own figures do not need this file. Another version of Linux needs a line in `PACKAGES`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Packages that depend on the newest kernel. The first available package is used. The targets were set with
/// the version of the first package; the second package depends on the current kernel of the host's own
/// Debian release.
const PACKAGES: [&str; 2] = ["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"];
/// The folder of the downloaded kernel, from the repository's root.
const FOLDER: &str = "target/linux";
/// The beginning of the names of images.
const IMAGE: &str = "vmlinuz-";

/// A Linux kernel.
#[derive(Debug, Clone)]
pub struct Linux {
    /// The image.
    pub image: PathBuf,
    /// The version, from the file's name.
    pub version: String,
}

/// Returns the kernel's command line. The program is the first and only process. Transparent huge pages are
/// off, so memory has only 4 KiB pages, as on the kernel of this project.
#[must_use]
pub fn command_line(program: &str, arguments: &str) -> String {
    format!("console=ttyS0 quiet panic=-1 transparent_hugepage=never rdinit={program} -- {arguments}")
}

impl Linux {
    /// Returns the kernel that was downloaded before, or downloads one.
    ///
    /// # Errors
    ///
    /// Fails if there is no package or it cannot be downloaded.
    pub fn find() -> Result<Self, String> {
        let folder = xtask::root().join(FOLDER);
        if let Some(found) = Self::within(&folder.join("boot")) {
            return Ok(found);
        }
        let said = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(said)?;
        let none = "no package of a Linux cloud kernel is known: run apt-get update";
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

    /// Returns the newest kernel in a folder.
    fn within(folder: &Path) -> Option<Self> {
        let entries = fs::read_dir(folder).ok()?.flatten();
        let mut images: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        images.sort();
        images.into_iter().rev().find_map(|image| {
            let version = image.file_name()?.to_str()?.strip_prefix(IMAGE)?.to_owned();
            Some(Self { image, version })
        })
    }

    /// Returns the kernel's name in a table.
    #[must_use]
    pub fn name(&self) -> String {
        let number = |c: char| c.is_ascii_digit() || c == '.';
        format!(
            "Linux {}",
            self.version.trim_start_matches("linux-").split(|c| !number(c)).next().unwrap_or("")
        )
    }
}

/// Returns the first dependency of a package. If a package only names the current kernel, its first
/// dependency is the package of that kernel.
fn depends(package: &str) -> Option<String> {
    let said = Command::new("apt-cache").args(["depends", package]).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let first = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "))?;
    Some(first.to_owned())
}

/// Runs a shell command in a folder. Fails with the command's errors.
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
    fn name_is_the_version_without_its_suffix() {
        let linux = Linux { image: PathBuf::new(), version: "6.12.117+deb12-cloud-amd64".into() };
        assert_eq!(linux.name(), "Linux 6.12.117");
    }
}

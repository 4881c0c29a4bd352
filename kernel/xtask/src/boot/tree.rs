//! A file tree in memory: the root file system of the booted kernel. `pack.rs` fills it, `archive.rs` writes
//! it, and `kernel_tests/on_linux.rs` unpacks it.
//!
//! Paths in the tree are absolute. A path is resolved with the links *of the tree*, so `/bin/x` is stored
//! below `/usr/bin`. For a file of this machine, the tree has only the file's path until the archive is
//! written. Owners are not kept: everything belongs to root. The tests are in `tree_tests.rs`.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Component, Path, PathBuf},
};

/// Maximum number of links in one path. With more links, the path counts as a cycle.
const MAX_LINKS: usize = 40;

/// The source of a file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Bytes in memory.
    Bytes(Vec<u8>),
    /// A file of this machine, which is read when the archive is written.
    Host(PathBuf),
}

/// A node at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A folder, with its permissions.
    Folder(u32),
    /// A file: permissions, time of the last change in seconds, contents. Python compares the times of its
    /// sources and compiled files.
    File(u32, u64, Content),
    /// A symbolic link.
    Link(PathBuf),
    /// A character device: permissions, major and minor number.
    Device(u32, u32, u32),
}

/// The tree. The root itself is not a node.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
}

impl Tree {
    /// Returns a tree with the folders and files that programs expect. Programs and libraries are below
    /// `/usr`, as on current distributions, and the old folders are links.
    ///
    /// # Panics
    ///
    /// Never panics, because an empty tree accepts all these nodes.
    #[must_use]
    pub fn with_skeleton() -> Self {
        let mut tree = Self::default();
        let mut put = |path: &str, node| tree.put(Path::new(path), node).expect("the path is free");
        for path in ["/dev", "/etc", "/proc", "/root", "/run", "/sys", "/usr/bin", "/usr/lib", "/var"] {
            put(path, Node::Folder(0o755));
        }
        for path in ["/tmp", "/dev/shm", "/var/tmp"] {
            put(path, Node::Folder(0o1777));
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            put(&format!("/usr/{name}"), Node::Folder(0o755));
            put(&format!("/{name}"), Node::Link(format!("usr/{name}").into()));
        }
        let text = |text: &str| Node::File(0o644, 0, Content::Bytes(text.into()));
        put("/etc/passwd", text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"));
        put("/etc/group", text("root:x:0:\nnogroup:x:65534:\n"));
        tree
    }

    /// Returns all nodes with their paths, parents first.
    pub fn nodes(&self) -> impl Iterator<Item = (&Path, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_path(), node))
    }

    /// Returns the node at a path, with links followed.
    #[must_use]
    pub fn look(&self, path: &Path) -> Option<&Node> {
        self.nodes.get(&self.resolve(path)?)
    }

    /// Follows every link in a path. Returns `None` if the links form a cycle. Keeps the parts of the path
    /// that are not in the tree.
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let mut rest = names(path);
        let mut at = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name.as_os_str() == ".." {
                at.pop();
                continue;
            }
            at.push(&name);
            if let Some(Node::Link(target)) = self.nodes.get(&at) {
                links += 1;
                if links > MAX_LINKS {
                    return None;
                }
                at = if target.is_absolute() { "/".into() } else { parent(&at) };
                for name in names(target).into_iter().rev() {
                    rest.push_front(name);
                }
            }
        }
        Some(at)
    }

    /// Puts a node at a path, and makes the folders on the path. Links in the parent's path are followed. A
    /// file replaces an existing file of that path; an existing folder, or a link to a folder, stays.
    ///
    /// # Errors
    ///
    /// Fails if the path has a node of another kind.
    pub fn put(&mut self, path: &Path, node: Node) -> Result<(), String> {
        let circle = || format!("cannot add {}: its links form a cycle", path.display());
        let Some(name) = path.file_name() else { return Ok(()) };
        let folder = self.resolve(&parent(path)).ok_or_else(circle)?;
        for part in folder.ancestors().filter(|part| part.parent().is_some()) {
            match self.nodes.get(part) {
                None => drop(self.nodes.insert(part.into(), Node::Folder(0o755))),
                Some(Node::Folder(_)) => {}
                Some(_) => {
                    return Err(format!("cannot add {}: {} is not a folder", path.display(), part.display()));
                }
            }
        }
        let at = folder.join(name);
        let is_folder = |node: Option<&Node>| matches!(node, Some(Node::Folder(_)));
        match (self.nodes.get(&at), &node) {
            (Some(Node::Folder(_) | Node::Link(_)), Node::Folder(_)) if is_folder(self.look(&at)) => {}
            // A link in the source does not replace a folder of the tree.
            (Some(Node::Folder(_)), Node::Link(_)) => {}
            (Some(Node::Folder(_)), _) => {
                return Err(format!("cannot add {}: it is a folder", path.display()));
            }
            _ => drop(self.nodes.insert(at, node)),
        }
        Ok(())
    }

    /// Writes text or bytes to a file.
    ///
    /// # Errors
    ///
    /// Fails if the path has a node of another kind.
    pub fn write(&mut self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) -> Result<(), String> {
        self.put(Path::new(path), Node::File(mode, 0, Content::Bytes(bytes.into())))
    }

    /// Copies a file of this machine, or a folder with everything in it, to the same path. Also copies every
    /// link on the path. Returns the path without links.
    ///
    /// # Errors
    ///
    /// Fails if the source cannot be read, or a path has a node of another kind.
    pub fn take(&mut self, path: &Path) -> Result<PathBuf, String> {
        let path =
            std::path::absolute(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let mut rest = names(&path);
        let mut at = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name.as_os_str() == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            match self.take_one(&next, &next)? {
                Node::Link(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(format!("cannot read {}: its links form a cycle", path.display()));
                    }
                    at = if target.is_absolute() { "/".into() } else { at };
                    for name in names(&target).into_iter().rev() {
                        rest.push_front(name);
                    }
                }
                _ => at = next,
            }
        }
        if at.is_dir() {
            self.take_all(&at.clone(), &at)?;
        }
        Ok(at)
    }

    /// Copies everything in the folder `from` of this machine to the folder `to`.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be read, or a path has a node of another kind.
    pub fn take_all(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        let said = |error| format!("cannot read {}: {error}", from.display());
        for entry in fs::read_dir(from).map_err(said)? {
            let name = entry.map_err(said)?.file_name();
            let (from, to) = (from.join(&name), to.join(&name));
            if let Node::Folder(_) = self.take_one(&from, &to)? {
                self.take_all(&from, &to)?;
            }
        }
        Ok(())
    }

    /// Copies one node, without its contents or its target. Skips sockets, pipes and block devices.
    fn take_one(&mut self, from: &Path, to: &Path) -> Result<Node, String> {
        let said = |error| format!("cannot read {}: {error}", from.display());
        let meta = fs::symlink_metadata(from).map_err(said)?;
        let mode = meta.permissions().mode() & 0o7777;
        let kind = meta.file_type();
        let node = if kind.is_symlink() {
            Node::Link(fs::read_link(from).map_err(said)?)
        } else if kind.is_dir() {
            Node::Folder(mode)
        } else if kind.is_char_device() {
            let device = meta.rdev();
            Node::Device(mode, (device >> 8 & 0xfff) as u32, (device & 0xff) as u32)
        } else {
            let content = Content::Host(from.into());
            Node::File(mode, meta.mtime().try_into().unwrap_or(0), content)
        };
        if kind.is_socket() || kind.is_fifo() || kind.is_block_device() {
            return Ok(node);
        }
        self.put(to, node.clone())?;
        Ok(node)
    }
}

/// Returns the path of the parent folder.
fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).into()
}

/// Returns the names in a path, including `..`.
fn names(path: &Path) -> VecDeque<PathBuf> {
    let named = |part: &Component| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(named).map(|part| PathBuf::from(part.as_os_str())).collect()
}

/// Returns the path in the form of an archive: without the leading slash.
#[must_use]
pub fn archive_name(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().iter().copied().skip_while(|byte| *byte == b'/').collect()
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;

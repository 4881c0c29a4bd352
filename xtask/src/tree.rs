//! The copy of the repository in which mutations are made, below `target/mutants`. `mutants.rs` creates the
//! copy once and makes one mutation after another ([`Tree::with`]).
//!
//! The original files are never changed. Files of the copy that are already equal are not written again,
//! because cargo would rebuild everything that depends on them. After each mutation the copy equals the
//! repository again, even if an edit of the mutation did not apply.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::mutation::Mutation;

/// A copy of the repository.
pub struct Tree {
    /// The folder of the copy.
    pub folder: PathBuf,
}

impl Tree {
    /// Copies the current files of the repository at `root` to `folder`: those that git tracks, and new files
    /// that git does not ignore. Does not write files that are already equal, so that their build results
    /// stay valid.
    pub fn copy(root: &Path, folder: &Path) -> Result<Self, String> {
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| format!("cannot start git: {error}"))?;
        if !listed.status.success() {
            return Err(format!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr).trim()));
        }
        let names = String::from_utf8(listed.stdout).map_err(|error| error.to_string())?;
        let names: BTreeSet<&str> = names.split('\0').filter(|name| !name.is_empty()).collect();
        let said = |error: io::Error| format!("cannot copy the tree: {error}");
        fs::create_dir_all(folder).map_err(said)?;
        remove_all_but(folder, folder, &names).map_err(said)?;
        for name in names {
            renew(&root.join(name), &folder.join(name)).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(Self { folder: folder.to_path_buf() })
    }

    /// Makes the mutation, runs `then`, and restores the files even if the mutation or `then` fails.
    pub fn with<T>(
        &self,
        mutation: &Mutation,
        then: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let mut kept: Vec<(PathBuf, String)> = Vec::new();
        let made = mutation.edit.iter().try_for_each(|edit| {
            let path = self.folder.join(&edit.file);
            let said = |error: io::Error| format!("{}: {error}", edit.file);
            let text = fs::read_to_string(&path).map_err(said)?;
            let changed = edit.apply(&text)?;
            kept.push((path.clone(), text));
            fs::write(path, changed).map_err(said)
        });
        let outcome = made.and_then(|()| then());
        // Two edits may change one file, so the files are restored in reverse order and the oldest text is
        // written last.
        for (path, text) in kept.into_iter().rev() {
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        outcome
    }
}

/// Makes `to` equal to `from`. Removes `to` if `from` does not exist.
fn renew(from: &Path, to: &Path) -> io::Result<()> {
    let text = match fs::read(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return remove(to),
        text => text?,
    };
    if fs::read(to).is_ok_and(|there| there == text) {
        return Ok(());
    }
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::write(to, text)
}

/// Removes a file, if it exists.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes all files below `folder` except those in `names`, which are paths relative to `root`.
fn remove_all_but(root: &Path, folder: &Path, names: &BTreeSet<&str>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_all_but(root, &path, names)?;
        } else if !path.strip_prefix(root).is_ok_and(|name| names.contains(&*name.to_string_lossy())) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Edit;

    fn edit(before: &str, after: &str) -> Edit {
        Edit { file: "a".to_owned(), before: before.to_owned(), after: after.to_owned() }
    }

    fn mutation(edit: Vec<Edit>) -> Mutation {
        Mutation { name: String::new(), what: String::new(), edit, caught: None, argued: None }
    }

    #[test]
    fn with_restores_the_changed_files() {
        let folder = std::env::temp_dir().join(format!("freehold-tree-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("a");
        fs::write(&file, "one two").expect("a file");
        let tree = Tree { folder: folder.clone() };
        let now = || Ok(fs::read_to_string(&file).expect("the file"));
        let both = mutation(vec![edit("one", "three"), edit("two", "four")]);
        assert_eq!(tree.with(&both, now).as_deref(), Ok("three four"));
        assert_eq!(now().as_deref(), Ok("one two"));
        let half = mutation(vec![edit("one", "three"), edit("five", "four")]);
        assert!(tree.with(&half, now).is_err());
        assert_eq!(now().as_deref(), Ok("one two"));
        fs::remove_dir_all(&folder).expect("the folder is removed");
    }

    #[test]
    fn renew_does_not_write_equal_files() {
        let folder = std::env::temp_dir().join(format!("freehold-renew-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (from, to) = (folder.join("from"), folder.join("deep/to"));
        fs::write(&from, "text").expect("a file");
        renew(&from, &to).expect("copied");
        let written = || fs::metadata(&to).and_then(|it| it.modified()).expect("it is there");
        let first = written();
        renew(&from, &to).expect("looked at");
        assert_eq!(written(), first);
        remove_all_but(&folder, &folder, &BTreeSet::from(["from"])).expect("cleaned");
        assert!(from.exists() && !to.exists());
        fs::remove_dir_all(&folder).expect("the folder is removed");
    }
}

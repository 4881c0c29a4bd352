//! Which mounted tmpfs files lie in, and where those have huge pages.

use freehold_trace::TmpfsHuge;
use std::collections::BTreeSet;
use std::fs;

/// The mounts that recorded processes have seen.
#[derive(Debug, Default)]
pub struct Mounts {
    /// What `/proc/PID/mountinfo` said, each once.
    lists: BTreeSet<String>,
}

impl Mounts {
    /// Notes those that `process` sees now. One that is gone tells nothing.
    pub fn note(&mut self, process: i32) {
        if let Ok(list) = fs::read_to_string(format!("/proc/{process}/mountinfo")) {
            self.lists.insert(list);
        }
    }

    /// Where the file at `path` has huge pages, if it lies in a tmpfs, of whose mounts all lists say the
    /// same. None of a file that had no name, and of one that is no ordinary file.
    pub fn tmpfs(&self, path: &str) -> Option<TmpfsHuge> {
        let ordinary = path.starts_with('/') && !path.ends_with(" (deleted)");
        let mut found = self.lists.iter().filter(|_| ordinary).map(|list| tmpfs_of(list, path));
        let first = found.next()??;
        let same = found.all(|other| other == Some(first));
        (same && fs::metadata(path).map_or(true, |file| file.is_file())).then_some(first)
    }
}

/// The same by one list: what is mounted next above the file, and last there.
fn tmpfs_of(list: &str, path: &str) -> Option<TmpfsHuge> {
    let above = list.lines().filter_map(Mount::of).filter(|mount| mount.holds(path));
    let mount = above.max_by_key(|mount| mount.point.len())?;
    if mount.kind != "tmpfs" {
        return None;
    }
    let option = mount.options.split(',').find_map(|option| option.strip_prefix("huge="));
    option.map_or(Some(TmpfsHuge::Never), TmpfsHuge::of_name)
}

/// A line of the list: `ID PARENT DEVICE ROOT POINT OPTIONS TAG... - KIND SOURCE OPTIONS`.
struct Mount<'l> {
    point: String,
    kind: &'l str,
    /// Of the file system.
    options: &'l str,
}

impl Mount<'_> {
    fn of(line: &str) -> Option<Mount<'_>> {
        let (own, of_system) = line.split_once(" - ")?;
        let mut words = of_system.split(' ');
        let (kind, options) = (words.next()?, words.nth(1)?);
        Some(Mount { point: unescaped(own.split(' ').nth(4)?), kind, options })
    }

    fn holds(&self, path: &str) -> bool {
        let point = self.point.trim_end_matches('/');
        path.strip_prefix(point).is_some_and(|rest| rest.starts_with('/'))
    }
}

/// A path in which blanks and the like stand as `\\040`.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 1 0:21 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw,size=65536k,inode64
23 1 0:22 / /a\\040b rw - tmpfs none rw,huge=within_size,size=4k
24 1 0:23 / /tmp rw - tmpfs tmp rw,huge=advise
25 24 8:1 /x /tmp/bound rw - ext4 /dev/sda1 rw
26 1 0:24 / /tmp/over rw - tmpfs one rw
27 1 0:25 / /tmp/over rw - tmpfs two rw,huge=always
";

    #[test]
    fn the_nearest_mount_decides() {
        for (path, huge) in [
            ("/dev/shm/x", Some(TmpfsHuge::Never)),
            ("/dev/shmx", None),
            ("/a b/x", Some(TmpfsHuge::WithinSize)),
            ("/tmp/x", Some(TmpfsHuge::Advise)),
            ("/tmp/bound/x", None),
            ("/tmp/over/x/y", Some(TmpfsHuge::Always)),
            ("/etc/x", None),
        ] {
            assert_eq!(tmpfs_of(LIST, path), huge, "{path}");
        }
    }

    #[test]
    fn lists_must_agree_and_files_have_names() {
        let mut mounts = Mounts::default();
        assert_eq!(mounts.tmpfs("/tmp/none/x"), None);
        mounts.lists.insert(LIST.to_owned());
        assert_eq!(mounts.tmpfs("/tmp/none/x"), Some(TmpfsHuge::Advise));
        assert_eq!(mounts.tmpfs("/tmp/none/x (deleted)"), None);
        assert_eq!(mounts.tmpfs("[heap]"), None);
        mounts.lists.insert(LIST.replace("huge=advise", "huge=never"));
        assert_eq!(mounts.tmpfs("/tmp/none/x"), None);
    }
}

//! The machine's settings that affect how memory is mapped.
//!
//! Settings: transparent huge pages (global and for each size), the pools of huge pages, and some sysctls of
//! memory. [`settings`] reads them before and after a run, and [`unchanged`] keeps those that did not change,
//! for the head of the recording (lines `# machine`). [`Watch`] finds writes in between (inotify), because a
//! setting may change and change back. A file that cannot be read is left out; nothing here fails. `lib.rs`
//! calls these functions, and `Recording::machine` of `freehold-trace` reads the settings by their names. A
//! new setting needs its file in a list below, and also in [`files`] if the list is new.

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Folder of the settings of transparent huge pages.
const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// Folder of the pools of huge pages, one folder for each size.
const POOLS: &str = "/sys/kernel/mm/hugepages";
/// Folder of the machine's nodes. Each node has its part of the pools.
const NODES: &str = "/sys/devices/system/node";
/// Folder of the sysctls of memory.
const SYSCTLS: &str = "/proc/sys/vm";
/// Files that change the size of a pool.
const SIZES: [&str; 3] = ["nr_hugepages", "nr_hugepages_mempolicy", "nr_overcommit_hugepages"];

/// Names of settings of transparent huge pages, each with its file. The first two also exist for each size.
const SETTINGS_OF_THP: [(&str, &str); 3] =
    [("thp", "enabled"), ("thp-shmem", "shmem_enabled"), ("thp-defrag", "defrag")];
/// Names of settings that are sysctls, each with its file.
const SYSCTL_SETTINGS: [(&str, &str); 3] =
    [("overcommit", "overcommit_memory"), ("min-addr", "mmap_min_addr"), ("max-maps", "max_map_count")];

/// Settings by name, as in the recording.
pub type Settings = Vec<(String, String)>;

/// Returns the current settings.
pub fn settings() -> Settings {
    let mut found = Settings::new();
    let mut note =
        |name: &str, value: Option<String>| found.extend(value.map(|value| (name.to_owned(), value)));
    note("kernel", read("/proc/sys/kernel/osrelease"));
    for (name, file) in SETTINGS_OF_THP {
        note(name, read(&format!("{THP}/{file}")).and_then(|all| chosen(&all)));
    }
    for size in folders(THP) {
        for (name, file) in &SETTINGS_OF_THP[..2] {
            let value = read(&format!("{THP}/hugepages-{size}/{file}")).and_then(|all| chosen(&all));
            note(&format!("{name}-{size}"), value);
        }
    }
    for size in folders(POOLS) {
        note(&format!("pool-{size}"), pool(&format!("{POOLS}/hugepages-{size}")));
    }
    for (name, file) in SYSCTL_SETTINGS {
        note(name, read(&format!("{SYSCTLS}/{file}")));
    }
    found
}

/// Returns the settings that were the same before and after the run and whose files were not `written` during
/// it. If a setting changed, its value is unknown for the whole run.
pub fn unchanged(before: Settings, after: &Settings, written: &[String]) -> Settings {
    let same = |setting: &(String, String)| after.contains(setting) && !written.contains(&setting.0);
    before.into_iter().filter(same).collect()
}

/// Detects writes to the files of settings. Equal values before and after a run do not exclude such writes.
pub struct Watch {
    /// The inotify queue.
    queue: OwnedFd,
    /// Numbers of the watches, each with the name of the setting of its file.
    watches: Vec<(i32, String)>,
    /// The watched files. They stay open: if no process has a file of /proc open, the kernel may drop the
    /// file together with its watch.
    _open: Vec<File>,
}

impl Watch {
    /// Starts to watch all settings. Returns `None` if the system does not permit it.
    pub fn new() -> Option<Watch> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let mut watch = Watch { queue, watches: Vec::new(), _open: Vec::new() };
        files().iter().for_each(|(name, path)| watch.add(name, path));
        Some(watch)
    }

    /// Watches the file `path` of the setting `name`. Does nothing if it cannot be watched.
    fn add(&mut self, name: &str, path: &Path) {
        let Ok(file) = File::open(path) else { return };
        if let Ok(number) = inotify::add_watch(&self.queue, path, WatchFlags::MODIFY) {
            self.watches.push((number, name.to_owned()));
            self._open.push(file);
        }
    }

    /// Returns the settings whose files were written so far.
    pub fn written(self) -> Vec<String> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.queue, &mut buffer);
        let mut written = Vec::new();
        while let Ok(event) = reader.next() {
            let all = event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            let names = self.watches.iter().filter(|(number, _)| all || *number == event.wd());
            written.extend(names.map(|(_, name)| name.clone()));
        }
        written
    }
}

/// Returns the files that change settings, each with the name of its setting.
fn files() -> Vec<(String, PathBuf)> {
    let mut files = Vec::new();
    let mut add = |name: &str, folder: &Path, file: &str| files.push((name.to_owned(), folder.join(file)));
    let (thp, sysctls) = (Path::new(THP), Path::new(SYSCTLS));
    SETTINGS_OF_THP.iter().for_each(|(name, file)| add(name, thp, file));
    SYSCTL_SETTINGS.iter().for_each(|(name, file)| add(name, sysctls, file));
    for size in folders(THP) {
        let folder = thp.join(format!("hugepages-{size}"));
        SETTINGS_OF_THP[..2].iter().for_each(|(name, file)| add(&format!("{name}-{size}"), &folder, file));
    }
    let nodes = fs::read_dir(NODES).into_iter().flatten().flatten().map(|node| node.path().join("hugepages"));
    let parents: Vec<PathBuf> = nodes.chain([PathBuf::from(POOLS)]).collect();
    for size in folders(POOLS) {
        // The sysctls change the pool of the machine's default size, which is not known here. A write to them
        // therefore counts for every size.
        let folders = parents.iter().map(|parent| parent.join(format!("hugepages-{size}")));
        for folder in folders.chain([sysctls.to_owned()]) {
            SIZES.iter().for_each(|file| add(&format!("pool-{size}"), &folder, file));
        }
    }
    files
}

/// Returns two numbers as text: the huge pages of a pool that are neither in use nor reserved, and the huge
/// pages that may be allocated in addition.
fn pool(folder: &str) -> Option<String> {
    let number = |file: &str| read(&format!("{folder}/{file}"))?.parse::<u64>().ok();
    let free = number("free_hugepages")?.saturating_sub(number("resv_hugepages")?);
    Some(format!("{free} {}", number("nr_overcommit_hugepages")?))
}

/// Returns the sizes in the names of the folders `hugepages-SIZE` in `parent`, such as `2048kB`, sorted.
fn folders(parent: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(parent)).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_prefix("hugepages-")?.to_owned());
    let mut found: Vec<String> = entries.filter_map(name).collect();
    found.sort();
    found
}

/// Returns the word in brackets, for example of `always [madvise] never`.
fn chosen(all: &str) -> Option<String> {
    Some(all.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_value_is_the_word_in_brackets() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("nothing"), None);
    }

    /// The test writes the current value of a setting to its file. Only the watch can detect this write.
    #[test]
    fn write_to_a_setting_is_detected() {
        let Some(watch) = Watch::new() else { return };
        let path = format!("{SYSCTLS}/overcommit_memory");
        let wrote = fs::read(&path).and_then(|value| fs::write(&path, value)).is_ok();
        let written = watch.written();
        assert_eq!(written.contains(&"overcommit".to_owned()), wrote, "{written:?}");
    }

    #[test]
    fn changed_settings_are_not_recorded() {
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let before = vec![setting("thp", "always"), setting("pool-2048kB", "0 0")];
        let after = vec![setting("thp", "always"), setting("pool-2048kB", "4 0")];
        assert_eq!(unchanged(before.clone(), &after, &[]), [setting("thp", "always")]);
        let written = ["thp".to_owned()];
        assert_eq!(unchanged(before.clone(), &before, &written), [setting("pool-2048kB", "0 0")]);
    }
}

//! What of the machine's settings decides how memory is mapped.

use std::fs;
use std::path::Path;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const POOLS: &str = "/sys/kernel/mm/hugepages";

/// Settings by name, as the recording has them.
pub type Settings = Vec<(String, String)>;

/// The settings at this moment.
pub fn settings() -> Settings {
    let mut found = Settings::new();
    let mut note =
        |name: &str, value: Option<String>| found.extend(value.map(|value| (name.to_owned(), value)));
    note("kernel", read("/proc/sys/kernel/osrelease"));
    for (name, file) in [("thp", "enabled"), ("thp-shmem", "shmem_enabled"), ("thp-defrag", "defrag")] {
        note(name, read(&format!("{THP}/{file}")).and_then(|all| chosen(&all)));
    }
    for size in folders(THP) {
        for (name, file) in [("thp", "enabled"), ("thp-shmem", "shmem_enabled")] {
            let value = read(&format!("{THP}/hugepages-{size}/{file}")).and_then(|all| chosen(&all));
            note(&format!("{name}-{size}"), value);
        }
    }
    for size in folders(POOLS) {
        note(&format!("pool-{size}"), pool(&format!("{POOLS}/hugepages-{size}")));
    }
    for (name, file) in
        [("overcommit", "overcommit_memory"), ("min-addr", "mmap_min_addr"), ("max-maps", "max_map_count")]
    {
        note(name, read(&format!("/proc/sys/vm/{file}")));
    }
    found
}

/// Those that were the same before and after; what changed meanwhile says nothing about any moment.
pub fn unchanged(before: Settings, after: &Settings) -> Settings {
    before.into_iter().filter(|setting| after.contains(setting)).collect()
}

/// Huge pages that nobody has or was promised, and how many more there may be.
fn pool(folder: &str) -> Option<String> {
    let number = |file: &str| read(&format!("{folder}/{file}"))?.parse::<u64>().ok();
    let free = number("free_hugepages")?.saturating_sub(number("resv_hugepages")?);
    Some(format!("{free} {}", number("nr_overcommit_hugepages")?))
}

/// `2048kB` of each folder `hugepages-2048kB`, in order.
fn folders(parent: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(parent)).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_prefix("hugepages-")?.to_owned());
    let mut found: Vec<String> = entries.filter_map(name).collect();
    found.sort();
    found
}

/// The word in brackets of `always [madvise] never`.
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
    fn what_is_chosen_stands_in_brackets() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("nothing"), None);
    }

    #[test]
    fn what_changed_is_not_recorded() {
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let before = vec![setting("thp", "always"), setting("pool-2048kB", "0 0")];
        let after = vec![setting("thp", "always"), setting("pool-2048kB", "4 0")];
        assert_eq!(unchanged(before, &after), [setting("thp", "always")]);
    }
}

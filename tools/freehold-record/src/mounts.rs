//! The tmpfs mounts of recorded processes, with their settings of huge pages.
//!
//! The huge-page policy of a tmpfs decides whether the kernel uses huge pages for the files of the tmpfs, and
//! only the list of mounts shows the policy. `follow.rs` notes the mounts of each process while the process
//! is stopped, because a process may have a mount namespace of its own; `write.rs` asks for the policy of
//! each recorded file by its device. If lists of mounts disagree, the policy is left out instead of guessed.
//! `freehold-cli/tests/mounts.rs` records a program on a mount of its own. A new value of the option `huge`
//! needs a variant of `TmpfsHuge` in `freehold-trace/src/tmpfs.rs`.

use freehold_trace::TmpfsHuge;
use std::collections::BTreeMap;
use std::fs;

/// Major and minor number of a device.
pub type Device = (u32, u32);

/// Each tmpfs that recorded processes have seen, by the device of its files. `None` if the lists of mounts
/// did not agree.
#[derive(Debug, Default)]
pub struct Mounts {
    /// The huge-page policy by device.
    tmpfs: BTreeMap<Device, Option<TmpfsHuge>>,
}

impl Mounts {
    /// Records the mounts that `process` sees now. Does nothing if the process does not exist any more.
    pub fn note(&mut self, process: i32) {
        let list = fs::read_to_string(format!("/proc/{process}/mountinfo"));
        list.unwrap_or_default().lines().filter_map(tmpfs).for_each(|(device, huge)| self.tell(device, huge));
    }

    /// Adds the policy that one list of mounts gives for a device. If lists disagree, the policy is unknown.
    fn tell(&mut self, device: Device, huge: Option<TmpfsHuge>) {
        let known = self.tmpfs.entry(device).or_insert(huge);
        *known = known.filter(|known| Some(*known) == huge);
    }

    /// Returns the huge-page policy of a file on this device, if the file is in a mounted tmpfs. A file
    /// without a name (a memfd, or System V memory) is in a tmpfs that the kernel has not mounted.
    pub fn of_file(&self, device: Device, path: &str) -> Option<TmpfsHuge> {
        let named = !path.ends_with(" (deleted)");
        self.tmpfs.get(&device).copied().flatten().filter(|_| named)
    }
}

/// Parses a line `ID PARENT DEVICE ROOT POINT OPTIONS TAG... - KIND SOURCE OPTIONS`. Returns `None` if the
/// file system is no tmpfs. Otherwise returns the device, and the huge-page policy if it is known.
fn tmpfs(line: &str) -> Option<(Device, Option<TmpfsHuge>)> {
    let (own, of_system) = line.split_once(" - ")?;
    let (major, minor) = own.split(' ').nth(2)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let mut words = of_system.split(' ');
    let options = words.next().filter(|kind| *kind == "tmpfs").and_then(|_| words.nth(1))?;
    let huge = options.split(',').find_map(|option| option.strip_prefix("huge="));
    Some((device, huge.map_or(Some(TmpfsHuge::Never), TmpfsHuge::of_name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_is_found_by_its_device() {
        let list = [
            "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,huge=always",
            "22 1 0:21 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw,size=65536k,inode64",
            "23 1 0:22 / /a\\040b rw - tmpfs none rw,huge=within_size,size=4k",
            "24 1 0:23 / /tmp rw - tmpfs tmp rw,huge=advise",
            "25 1 0:24 / /new rw - tmpfs new rw,huge=sometimes",
        ];
        let mut mounts = Mounts::default();
        list.into_iter().filter_map(tmpfs).for_each(|(device, huge)| mounts.tell(device, huge));
        let huge = [(8, 1), (0, 21), (0, 22), (0, 23), (0, 24)].map(|device| mounts.of_file(device, "/x"));
        let (never, within) = (Some(TmpfsHuge::Never), Some(TmpfsHuge::WithinSize));
        assert_eq!(huge, [None, never, within, Some(TmpfsHuge::Advise), None]);
        assert_eq!(mounts.of_file((0, 22), "/x (deleted)"), None);
        // Later another tmpfs gets the same device number, or the tmpfs is mounted again with another option.
        mounts.tell((0, 22), never);
        mounts.tell((0, 22), within);
        mounts.tell((0, 21), never);
        assert_eq!([(0, 22), (0, 21)].map(|device| mounts.of_file(device, "/x")), [None, never]);
    }
}

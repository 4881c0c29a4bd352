//! How long files are, as far as calls that change it are recorded, and the order that this forces, also
//! between address spaces: a step that faults in a file, or compares what is there, and one that makes the
//! file shorter or longer keep their order.

use super::order::Stamp;
use rustc_hash::FxHashMap as HashMap;

/// The files whose length is, or was, known.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    files: HashMap<u32, Length>,
}

#[derive(Debug, Default)]
struct Length {
    /// In bytes; nothing when something that is not recorded has changed it.
    bytes: Option<u64>,
    /// The last step that changed it.
    changed: Stamp,
    /// The last step of each task since then that depends on it.
    users: HashMap<u32, u32>,
    /// A memfd: no other name leads to it.
    memfd: bool,
    /// Something may have changed it that is not recorded.
    stale: bool,
    /// Several files go by this number.
    blurred: bool,
    /// A segment that was removed, which goes with the last who has it: all who depend on it keep their
    /// order.
    in_order: bool,
}

impl Lengths {
    /// A memfd begins, with no bytes.
    pub(super) fn begin(&mut self, file: u32) {
        self.files.insert(file, Length { bytes: Some(0), memfd: true, ..Length::default() });
    }

    /// Several files go by this number: the length of none is known.
    pub(super) fn blur(&mut self, file: u32) {
        self.files.insert(file, Length { blurred: true, ..Length::default() });
    }

    /// Whether several files go by this number.
    pub(super) fn is_blurred(&self, file: u32) -> bool {
        self.files.get(&file).is_some_and(|length| length.blurred)
    }

    /// From now on the order of steps that depend on the file is kept. Its length is not known.
    pub(super) fn follow(&mut self, file: u32) {
        self.files.entry(file).or_default();
    }

    /// From now on they keep it among each other, too.
    pub(super) fn keep_order(&mut self, file: u32) {
        self.files.entry(file).or_default().in_order = true;
    }

    /// What is known may be wrong: of all files, or of those that others may reach by their path.
    pub(super) fn doubt(&mut self, all: bool) {
        self.files.values_mut().filter(|length| all || !length.memfd).for_each(|length| length.stale = true);
    }

    /// What is known of this file may be wrong.
    pub(super) fn doubt_one(&mut self, file: u32) {
        self.files.entry(file).or_default().stale = true;
    }

    /// Whether the length that is known of the file may be wrong.
    pub(super) fn is_stale(&self, file: u32) -> bool {
        self.files.get(&file).is_some_and(|length| length.stale && length.bytes.is_some())
    }

    /// It was made by a memfd_create that is recorded.
    pub(super) fn is_of_memfd(&self, file: u32) -> bool {
        self.files.get(&file).is_some_and(|length| length.memfd)
    }

    /// No file's length was ever known.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Of this file it is, or was.
    pub(super) fn follows(&self, file: u32) -> bool {
        self.files.contains_key(&file)
    }

    /// The length of a file in bytes, if known.
    pub(super) fn get(&self, file: u32) -> Option<u64> {
        self.files.get(&file)?.bytes
    }

    /// The step `stamp` depends on the file's length; what it must wait for goes into `waits`.
    pub(super) fn uses(&mut self, file: u32, stamp: Stamp, waits: &mut Vec<Stamp>) {
        let Some(length) = self.files.get_mut(&file) else { return };
        waits.push(length.changed);
        if length.in_order {
            length.changed = stamp;
        } else {
            length.users.insert(stamp.task, stamp.index);
        }
    }

    /// The step `stamp` changes the file's length.
    pub(super) fn changes(&mut self, file: u32, bytes: Option<u64>, stamp: Stamp, waits: &mut Vec<Stamp>) {
        let length = self.files.entry(file).or_default();
        waits.push(length.changed);
        waits.extend(length.users.drain().map(|(task, index)| Stamp { task, index }));
        (length.bytes, length.changed, length.stale) = (bytes, stamp, false);
    }

    /// Nobody has to wait for what happened until now.
    pub(super) fn forget_order(&mut self) {
        for length in self.files.values_mut() {
            length.changed = Stamp::START;
            length.users = HashMap::default();
        }
    }
}

//! The lengths of files, as far as the recording contains the calls that change them, and the resulting order
//! of steps.
//!
//! [`Lengths`] is a part of [`Files`](super::files::Files). The order holds between address spaces, too: a
//! step that faults in a file or compares its contents keeps its order with a step that changes the file's
//! length. Callers pass each step to [`Lengths::uses`] or [`Lengths::changes`], which also gather the waits
//! of the step. A length is *stale* (doubtful) if something unrecorded may have changed it; `file_calls.rs`
//! decides when. System V segments use the same table for the order of their removals (`removed.rs`).
//! `truncation_and_faults_of_other_address_spaces_keep_their_order` (`tests.rs`) checks the order.

use super::order::Stamp;
use rustc_hash::FxHashMap as HashMap;

/// The *followed* files: those whose length is or was known, and those whose steps must keep their order.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    /// The followed files, by their number in the plan.
    files: HashMap<u32, Length>,
}

/// The length of a followed file, and the steps that depend on it.
#[derive(Debug, Default)]
struct Length {
    /// Length in bytes. `None` if something unrecorded has changed it.
    bytes: Option<u64>,
    /// The last step that changed the length.
    changed: Stamp,
    /// For each task, the number of its last step that depends on the length. Contains only steps that are
    /// later than `changed`.
    users: HashMap<u32, u32>,
    /// True for a memfd. A call that names a path cannot change the length of a memfd.
    memfd: bool,
    /// True if something unrecorded may have changed the length.
    stale: bool,
    /// True if several files share this number in the plan.
    blurred: bool,
    /// True for a removed System V segment, which is freed with its last mapping. All steps that depend on
    /// such a segment keep their order with each other.
    in_order: bool,
}

impl Lengths {
    /// Adds a memfd with no bytes.
    pub(super) fn begin(&mut self, file: u32) {
        self.files.insert(file, Length { bytes: Some(0), memfd: true, ..Length::default() });
    }

    /// Marks a number as belonging to several files. The length of each of these files is then unknown.
    pub(super) fn blur(&mut self, file: u32) {
        self.files.insert(file, Length { blurred: true, ..Length::default() });
    }

    /// Returns true if several files have this number.
    pub(super) fn is_blurred(&self, file: u32) -> bool {
        self.files.get(&file).is_some_and(|length| length.blurred)
    }

    /// Follows a file of unknown length: from now on, steps that depend on the length keep their order with
    /// steps that change the length.
    pub(super) fn follow(&mut self, file: u32) {
        self.files.entry(file).or_default();
    }

    /// Keeps the recorded order among the steps that depend on the file, even if no step changes the length.
    pub(super) fn keep_order(&mut self, file: u32) {
        self.files.entry(file).or_default().in_order = true;
    }

    /// Marks lengths as stale: those of all files, or only those of files that a path may reach.
    pub(super) fn doubt(&mut self, all: bool) {
        self.files.values_mut().filter(|length| all || !length.memfd).for_each(|length| length.stale = true);
    }

    /// Marks the length of this file as stale.
    pub(super) fn doubt_one(&mut self, file: u32) {
        self.files.entry(file).or_default().stale = true;
    }

    /// Returns true if the file's known length may be wrong.
    pub(super) fn is_stale(&self, file: u32) -> bool {
        self.files.get(&file).is_some_and(|length| length.stale && length.bytes.is_some())
    }

    /// Returns true if a recorded memfd_create created the file.
    pub(super) fn is_of_memfd(&self, file: u32) -> bool {
        self.files.get(&file).is_some_and(|length| length.memfd)
    }

    /// Returns true if there is no followed file.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns true if the file is one of the followed files.
    pub(super) fn follows(&self, file: u32) -> bool {
        self.files.contains_key(&file)
    }

    /// Returns the length of a file in bytes, if known.
    pub(super) fn get(&self, file: u32) -> Option<u64> {
        self.files.get(&file)?.bytes
    }

    /// Notes that step `stamp` depends on the file's length, and appends to `waits` the steps for which this
    /// step waits.
    pub(super) fn uses(&mut self, file: u32, stamp: Stamp, waits: &mut Vec<Stamp>) {
        let Some(length) = self.files.get_mut(&file) else { return };
        waits.push(length.changed);
        if length.in_order {
            length.changed = stamp;
        } else {
            length.users.insert(stamp.task, stamp.index);
        }
    }

    /// Notes that step `stamp` changes the file's length to `bytes` (`None`: unknown), and appends to `waits`
    /// the steps for which this step waits.
    pub(super) fn changes(&mut self, file: u32, bytes: Option<u64>, stamp: Stamp, waits: &mut Vec<Stamp>) {
        let length = self.files.entry(file).or_default();
        waits.push(length.changed);
        waits.extend(length.users.drain().map(|(task, index)| Stamp { task, index }));
        (length.bytes, length.changed, length.stale) = (bytes, stamp, false);
    }

    /// Forgets the steps so far: later steps do not wait for them.
    pub(super) fn forget_order(&mut self) {
        for length in self.files.values_mut() {
            length.changed = Stamp::START;
            length.users = HashMap::default();
        }
    }
}

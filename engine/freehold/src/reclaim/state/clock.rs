//! The clock algorithm, the baseline to which the other policies are compared. All pages have one age.

use super::policy::{Accessed, Age, PageKind, Policy, Step, Tested, Verdict};

/// Policy that evicts each page that was not accessed since its last test.
#[derive(Debug, Default)]
pub(super) struct Clock;

impl Policy for Clock {
    fn step(&self, _: PageKind, _: Age, _: &Tested) -> Step {
        Step::Test
    }

    fn tested(&self, _: PageKind, age: Age, accessed: Accessed) -> Verdict {
        if accessed.is_any() { Verdict::Keep(age) } else { Verdict::Evict(age) }
    }
}

//! The clock algorithm, the baseline to which the other policies are compared. All pages have one age.

use super::policy::{Age, PageKind, Policy, Step, Tested, Verdict};

/// Policy that evicts each page that was not accessed since its last test.
#[derive(Debug, Default)]
pub(super) struct Clock;

impl Policy for Clock {
    fn step(&self, _: PageKind, _: Age, _: &Tested) -> Step {
        Step::Test
    }

    fn tested(&self, _: PageKind, age: Age, accessed: bool) -> Verdict {
        if accessed { Verdict::Keep(age) } else { Verdict::Evict }
    }
}

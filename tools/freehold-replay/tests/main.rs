//! Tests that replay recordings, in one program. Linux's recorded answers decide: a correct recording must be
//! replayed without a difference, and a changed answer must be reported as a difference.
//!
//! | module | recordings |
//! | --- | --- |
//! | `analysis` | the sums of analyses of several recordings |
//! | `corpus` | files directly in `recordings`, and in `../shared/traces` if it exists, on all lock designs |
//! | `suites` | subfolders of `recordings`: test suites, causes of earlier differences, real programs |
//! | `small`, `untold`, `limits`, `mounts`, `places` | a few lines, which a test contains; each recording tests one rule of the comparison |
//! | `short` | a few hundred faults, in less memory than their pages need |
//! | `strace` | strace output |
//! | `waits` | the waits of replays of several recordings |
//! | `hostile` | well-formed but meaningless recordings, to test robustness |
//!
//! A new rule of the comparison needs two cases: a recording that matches Linux, and a changed recording
//! whose difference the replay must find. `docs/reference/trace-format.md` describes the lines of a
//! recording.

mod analysis;
mod corpus;
mod hostile;
mod limits;
mod mounts;
mod places;
mod short;
mod small;
mod strace;
mod suites;
mod untold;
mod waits;

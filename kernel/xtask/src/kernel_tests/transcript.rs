//! Finds the first wrong call of a test that runs `transcript`, an example of `freehold-model` that makes
//! random memory calls. The example prints a line with a hash after a fixed number of calls. The hash shows
//! only whether all calls so far are right. If such a test fails, `mod.rs` calls [`narrow`]: the part that
//! ends with the first wrong line runs again on Linux and on the kernel, with every call shown.

use std::time::Duration;

use super::{
    on_linux,
    verdict::{Seen, difference},
};
use crate::boot::pack::Program;

/// Finds the first call with a different answer and describes the difference. Returns `None` if the two runs
/// agree this time.
pub fn narrow(
    program: &Program,
    linux: &Seen,
    seen: &Seen,
    limit: Duration,
    boot: impl Fn(&Program) -> Result<Seen, String>,
) -> Option<String> {
    let (from, to) = part(&linux.output, &seen.output)?;
    let mut program = program.clone();
    program.args.extend(["--show".into(), format!("{from}..{to}")]);
    program.finish().ok()?;
    let right = on_linux::run(&program, limit).ok()?;
    let wrong = match boot(&program) {
        Ok(wrong) => wrong,
        Err(why) => return Some(format!("calls {from} to {to}: {why}")),
    };
    let what = difference(&right.output, &wrong.output)?;
    Some(format!("calls {from} to {to} of the transcript differ; {what}"))
}

/// Returns the range of calls between the last equal line and the first different one. Each line begins with
/// the number of calls so far.
fn part(right: &str, wrong: &str) -> Option<(u64, u64)> {
    let calls = |line: &str| line.split(' ').next()?.parse().ok();
    let mut from = 0;
    for (right, wrong) in right.lines().zip(wrong.lines()) {
        let to = calls(right)?;
        if right != wrong {
            return Some((from, to));
        }
        from = to;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_before_the_first_wrong_hash_is_found() {
        let right = "1000 aa\n2000 bb\n3000 cc\n";
        assert_eq!(part(right, "1000 aa\n2000 xx\n3000 yy\n"), Some((1000, 2000)));
        assert_eq!(part(right, "1000 xx\n"), Some((0, 1000)));
        assert_eq!(part(right, "1000 aa\n"), None);
        assert_eq!(part("cannot", "1000 aa"), None);
    }
}

//! Times in strace output: seconds with a fraction, as nanoseconds.
//!
//! `head.rs` reads the time of a line, and `text.rs` the duration of a call. A fraction has at most nine
//! digits; longer fractions are refused instead of rounded. `tests.rs` has the tests.

use crate::fields::Fields;

/// Nanoseconds per second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// Parses `.` and up to nine digits, and returns nanoseconds.
pub(super) fn fraction(fields: &mut Fields) -> Option<u64> {
    if !fields.eat(b'.') {
        return None;
    }
    let begin = fields.position();
    let value = fields.decimal("").ok()?;
    let digits = fields.position() - begin;
    let scale = 9_u32.checked_sub(u32::try_from(digits).ok()?)?;
    value.checked_mul(10_u64.pow(scale))
}

/// Parses seconds with a fraction, such as `0.000013`, and returns nanoseconds.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    let mut fields = Fields::new(text);
    let whole = fields.decimal("").ok()?.checked_mul(SECOND)?;
    let time = whole.checked_add(fraction(&mut fields)?)?;
    fields.is_empty().then_some(time)
}

//! Times as a text writes them: seconds with a fraction.

use crate::fields::Fields;

/// Nanoseconds of a second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// `.` and up to nine digits, in nanoseconds.
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

/// Seconds with a fraction, in nanoseconds: `0.000013`.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    let mut fields = Fields::new(text);
    let whole = fields.decimal("").ok()?.checked_mul(SECOND)?;
    let time = whole.checked_add(fraction(&mut fields)?)?;
    fields.is_empty().then_some(time)
}

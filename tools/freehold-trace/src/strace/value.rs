//! The values of arguments in strace output.
//!
//! Input: an argument as strace wrote it (`text.rs`). Output: the number that the program passed, the bytes
//! of a string, or the members of a structure. Names of constants are in `symbols.rs`. An argument with an
//! unknown name is an error, because a wrong number would make the replay wrong. Among flags, an unknown name
//! is left out instead (`known_part`). The test is `arguments_are_read_as_numbers` (`tests.rs`).

use super::symbols;
use super::text::{Arg, args, is_note};
use crate::error::Bad;
use crate::fields::Fields;

/// The value of an argument that is an address, if strace shows the bytes at that address instead. Any value
/// except null would do.
pub(super) const SHOWN: u64 = 1;

/// Returns an argument as the number that was passed: an address, a length, flags, a descriptor. Returns
/// [`SHOWN`] for a string, a list or a structure.
pub(super) fn number(arg: Arg<'_>) -> Result<u64, Bad> {
    if matches!(arg.text.first(), Some(b'"' | b'[' | b'{' | b'~')) {
        return Ok(SHOWN);
    }
    let mut fields = Fields::new(arg.text);
    let mut sum = 0;
    loop {
        let begin = fields.position();
        let term = term(&mut fields);
        sum |=
            term.ok_or(Bad::Expected("a number, or a constant that this program knows", arg.at + begin))?;
        remark(&mut fields);
        if !fields.eat(b'|') {
            break;
        }
    }
    // A note on a descriptor may follow the number.
    let at = fields.position();
    if fields.is_empty() || is_note(arg.text, at) {
        Ok(sum)
    } else {
        Err(Bad::Expected("the end of the argument", arg.at + at))
    }
}

/// Returns the known part of flags that contain an unknown name. Returns `None` if no flag is known.
pub(super) fn known_part(arg: Arg<'_>) -> Option<u64> {
    let parts = arg.text.split(|byte| *byte == b'|');
    let known: Vec<u64> = parts.clone().filter_map(|text| number(Arg { text, at: 0 }).ok()).collect();
    let named = |text: &[u8]| text.first().is_some_and(u8::is_ascii_uppercase);
    let all_are_flags = parts.clone().all(|text| named(text) || number(Arg { text, at: 0 }).is_ok());
    let some = all_are_flags && !known.is_empty();
    some.then(|| known.into_iter().fold(0, |sum, flag| sum | flag))
}

/// Skips the comment that strace adds to a value without a name: `0x8 /* MAP_??? */`.
fn remark(fields: &mut Fields<'_>) {
    if fields.eat_text(b" /*") {
        while !fields.is_empty() && !fields.eat_text(b"*/") {
            let byte = fields.peek();
            byte.map(|byte| fields.eat(byte));
        }
    }
}

/// Returns the bytes of a string. Returns `None` if the argument is not a string. strace shows only the
/// beginning of a long string.
pub(super) fn string(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.strip_prefix(b"\"")?.iter().copied().peekable();
    loop {
        match rest.next()? {
            b'"' => return Some(bytes),
            b'\\' => bytes.push(escaped(&mut rest)?),
            byte => bytes.push(byte),
        }
    }
}

/// Returns the members of a structure. Returns no members if strace shows only its address.
pub(super) fn members(arg: Arg<'_>) -> Result<Vec<Arg<'_>>, Bad> {
    let Some(inside) = arg.text.strip_prefix(b"{") else { return Ok(Vec::new()) };
    let (mut members, _) = args(inside, 0)?;
    for member in &mut members {
        member.at += arg.at + 1;
    }
    Ok(members)
}

/// Returns the value of the argument or member `name`, as in `flags=CLONE_VM`.
pub(super) fn named<'a>(args: &[Arg<'a>], name: &str) -> Option<Arg<'a>> {
    args.iter().find_map(|arg| {
        let value = arg.text.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(Arg { text: value, at: arg.at + arg.text.len() - value.len() })
    })
}

/// Parses a constant or number, or two constants or numbers with `<<` or `*` between them.
fn term(fields: &mut Fields<'_>) -> Option<u64> {
    let value = atom(fields)?;
    if fields.eat(b'*') {
        return value.checked_mul(atom(fields)?);
    }
    if !fields.eat_text(b"<<") {
        return Some(value);
    }
    let shift = u32::try_from(atom(fields)?).ok()?;
    value.checked_shl(shift)
}

/// Parses one constant or number.
fn atom(fields: &mut Fields<'_>) -> Option<u64> {
    match fields.peek()? {
        b'-' => {
            fields.eat(b'-');
            Some(fields.decimal("").ok()?.wrapping_neg())
        }
        b'0' => {
            if fields.eat_text(b"0x") {
                return fields.hex("").ok();
            }
            octal(fields)
        }
        b'1'..=b'9' => fields.decimal("").ok(),
        _ => symbols::value(word(fields)?),
    }
}

/// Parses the digits of an octal number.
fn octal(fields: &mut Fields<'_>) -> Option<u64> {
    let mut value = 0_u64;
    while let Some(digit @ b'0'..=b'7') = fields.peek() {
        fields.eat(digit);
        value = value.checked_mul(8)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some(value)
}

/// Parses the name of a constant.
fn word<'a>(fields: &mut Fields<'a>) -> Option<&'a str> {
    let word = fields.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    str::from_utf8(word).ok().filter(|word| !word.is_empty())
}

/// Returns the byte of an escape sequence, without its backslash.
fn escaped(rest: &mut std::iter::Peekable<impl Iterator<Item = u8>>) -> Option<u8> {
    Some(match rest.next()? {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'v' => 0x0b,
        b'f' => 0x0c,
        b'x' => digits(rest, 16, 2, 0)?,
        digit @ b'0'..=b'7' => digits(rest, 8, 2, digit - b'0')?,
        byte => byte,
    })
}

/// Parses up to `most` more digits after the digits of `value`.
fn digits(
    rest: &mut std::iter::Peekable<impl Iterator<Item = u8>>,
    base: u32,
    most: u32,
    value: u8,
) -> Option<u8> {
    let mut value = u32::from(value);
    for _ in 0..most {
        let Some(digit) = rest.peek().and_then(|byte| char::from(*byte).to_digit(base)) else { break };
        rest.next();
        value = value * base + digit;
    }
    u8::try_from(value).ok()
}

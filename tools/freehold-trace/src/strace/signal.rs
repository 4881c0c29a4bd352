//! Signals that concern memory.
//!
//! `mod.rs` passes the text between the dashes of `--- SIGSEGV {...} ---`. Only SIGSEGV and SIGBUS become
//! events (`Kind::Signal`). strace gives the code by name or as a number. An unknown name makes the line
//! unreadable. A new code needs a line in [`CODES`].

use super::text::args;
use super::value::named;
use crate::Kind;
use crate::error::Bad;
use crate::fields::Fields;

/// Parses `SIGSEGV {si_signo=SIGSEGV, si_code=SEGV_MAPERR, si_addr=0x10}`. Returns `None` for any other
/// signal.
pub(super) fn kind(text: &[u8]) -> Result<Option<Kind>, Bad> {
    let (signal, rest) = if let Some(rest) = text.strip_prefix(b"SIGSEGV {") {
        (11, rest)
    } else if let Some(rest) = text.strip_prefix(b"SIGBUS {") {
        (7, rest)
    } else {
        return Ok(None);
    };
    let missing = Bad::Expected("si_code=CODE in a SIGSEGV or SIGBUS", 0);
    let (members, _) = args(rest, 0)?;
    let code = named(&members, "si_code").and_then(|code| code_of(code.text)).ok_or(missing)?;
    Ok(Some(Kind::Signal { signal, code }))
}

/// Parses the value of `si_code`.
fn code_of(text: &[u8]) -> Option<i32> {
    let known = CODES.iter().find(|(name, _)| name.as_bytes() == text);
    if let Some((_, code)) = known {
        return Some(*code);
    }
    let mut fields = Fields::new(text);
    let negative = fields.eat(b'-');
    let value = if fields.eat_text(b"0x") { fields.hex("") } else { fields.decimal("") };
    let value = i32::try_from(value.ok()?).ok()?;
    Some(if negative { -value } else { value })
}

/// Codes of SIGSEGV and SIGBUS by name.
const CODES: &[(&str, i32)] = &[
    ("SEGV_MAPERR", 1),
    ("SEGV_ACCERR", 2),
    ("SEGV_BNDERR", 3),
    ("SEGV_PKUERR", 4),
    ("SEGV_ACCADI", 5),
    ("SEGV_ADIDERR", 6),
    ("SEGV_ADIPERR", 7),
    ("SEGV_MTEAERR", 8),
    ("SEGV_MTESERR", 9),
    ("SEGV_CPERR", 10),
    ("BUS_ADRALN", 1),
    ("BUS_ADRERR", 2),
    ("BUS_OBJERR", 3),
    ("BUS_MCEERR_AR", 4),
    ("BUS_MCEERR_AO", 5),
    ("SI_USER", 0),
    ("SI_KERNEL", 0x80),
    ("SI_QUEUE", -1),
    ("SI_TIMER", -2),
    ("SI_MESGQ", -3),
    ("SI_ASYNCIO", -4),
    ("SI_SIGIO", -5),
    ("SI_TKILL", -6),
    ("SI_DETHREAD", -7),
    ("SI_ASYNCNL", -60),
];

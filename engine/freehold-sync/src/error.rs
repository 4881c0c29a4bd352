//! Errors whose messages are the documentation of their variants: the macro
//! [`error_enum!`](crate::error_enum).
//!
//! The engine's crates define their error enums with this macro. So the first paragraph of a variant is text
//! that users read and that some tests compare. The build fails if that paragraph is not one sentence. The
//! tests in `freehold/tests/every_call/messages.rs` fail if two variants of an enum have the same message, or
//! if an error type is missing in the list there.

use core::fmt;

/// Defines an error enum whose `Display` prints the documentation of its variants, so that message and
/// documentation cannot differ.
///
/// The first paragraph of each variant's documentation is its message: one sentence, without links. If the
/// paragraph has another form, the build fails. Further paragraphs appear in the documentation only.
///
/// ```
/// freehold_sync::error_enum! {
///     /// Reasons why a door stays closed.
///     pub enum DoorError {
///         /// The door is locked.
///         ///
///         /// Keys are in the [shed](https://example.com).
///         Locked,
///     }
/// }
///
/// assert_eq!(DoorError::Locked.to_string(), "the door is locked");
/// ```
#[macro_export]
macro_rules! error_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[doc = $doc:literal])+ $variant:ident,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            /// All variants, in the order of their definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
        }

        $(const _: () = assert!(
            $crate::error::is_message(concat!($($doc, "\n",)+)),
            concat!(stringify!($name), "::", stringify!($variant), " is not documented by one sentence"),
        );)+

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $crate::error::write_message(f, match self { $(Self::$variant => concat!($($doc, "\n",)+),)+ })
            }
        }

        impl ::core::error::Error for $name {}
    };
}

/// Returns true if the first paragraph of `documentation`, whose lines end with newlines, is one sentence of
/// several words without links.
#[doc(hidden)]
pub const fn is_message(documentation: &str) -> bool {
    let text = documentation.as_bytes();
    let (mut at, mut spaces) = (0, 0);
    while at + 1 < text.len() && !(text[at] == b'\n' && text[at + 1] == b'\n') {
        let ends_early = text[at] == b'.' && text[at + 1] == b' ';
        if ends_early || text[at] == b'[' || text[at] == b'`' {
            return false;
        }
        spaces += (text[at] == b' ') as usize;
        at += 1;
    }
    // The first space is the space after the slashes.
    spaces > 1 && text[at] == b'\n' && text[at - 1] == b'.'
}

/// Writes the first paragraph of `documentation` as an error message: in one line, without its full stop, and
/// with a lower-case first letter unless the first word is a name such as SIGBUS.
#[doc(hidden)]
pub fn write_message(f: &mut fmt::Formatter<'_>, documentation: &str) -> fmt::Result {
    let mut lines = documentation.lines().map(str::trim).take_while(|line| !line.is_empty()).peekable();
    let first = lines.peek().copied().unwrap_or_default();
    let mut letters = first.chars();
    let (begin, next) = (letters.next(), letters.next());
    let is_name = next.is_some_and(|next| !next.is_lowercase() && next != ' ');
    let mut skip = 0;
    if let Some(begin) = begin.filter(|_| !is_name) {
        write_small(f, begin)?;
        skip = begin.len_utf8();
    }
    while let Some(line) = lines.next() {
        let line = &line[core::mem::take(&mut skip)..];
        match lines.peek() {
            Some(_) => write!(f, "{line} ")?,
            None => f.write_str(line.strip_suffix('.').unwrap_or(line))?,
        }
    }
    Ok(())
}

fn write_small(f: &mut fmt::Formatter<'_>, letter: char) -> fmt::Result {
    letter.to_lowercase().try_for_each(|letter| fmt::Write::write_char(f, letter))
}

#[cfg(all(test, not(any(loom, shuttle, sim))))]
mod tests {
    use super::is_message;
    use std::string::ToString;

    error_enum! {
        /// Causes of failure.
        enum Wrong {
            /// The range is empty, or goes over more lines than one.
            ///
            /// The second paragraph is not part of the message.
            Long,
            /// A hole is in the range.
            Article,
            /// SIGBUS ends the program.
            Name,
        }
    }

    #[test]
    fn messages_are_the_first_paragraph_in_one_line() {
        let messages: std::vec::Vec<_> = Wrong::ALL.iter().map(ToString::to_string).collect();
        let wanted = [
            "the range is empty, or goes over more lines than one",
            "a hole is in the range",
            "SIGBUS ends the program",
        ];
        assert_eq!(messages, wanted);
    }

    #[test]
    fn one_sentence_of_words_is_a_message() {
        assert!(is_message(" The range is empty.\n"));
        assert!(is_message(" The range is empty.\n\n See [this](there). And that.\n"));
        for wrong in [
            "",
            "\n",
            " Never.\n",
            " No full stop\n",
            " One. Two.\n",
            " See [this](there).\n",
            " No `code` here.\n",
        ] {
            assert!(!is_message(wrong), "{wrong:?}");
        }
    }
}

//! Kinds of memory and how each is shown.

use freehold_trace::plan::{Purpose, Vma};

/// What memory is, as far as the picture tells kinds apart; also the order of the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    Heap,
    Anonymous,
    Stack,
    PrivateFile,
    SharedFile,
    Special,
    /// Of any kind, without a right to it: room kept for later, guards.
    Reserved,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Heap,
        Kind::Anonymous,
        Kind::Stack,
        Kind::PrivateFile,
        Kind::SharedFile,
        Kind::Special,
        Kind::Reserved,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Heap => "heap",
            Kind::Anonymous => "anonymous",
            Kind::Stack => "stack",
            Kind::PrivateFile => "file, private",
            Kind::SharedFile => "shared",
            Kind::Special => "special",
            Kind::Reserved => "no access",
        }
    }

    /// A name of one or two letters for CSS.
    pub fn class(self) -> char {
        match self {
            Kind::Heap => 'h',
            Kind::Anonymous => 'a',
            Kind::Stack => 's',
            Kind::PrivateFile => 'f',
            Kind::SharedFile => 'm',
            Kind::Special => 'v',
            Kind::Reserved => 'r',
        }
    }

    /// After the palette of Okabe and Ito, which people see apart who see few colours; made lighter, so that
    /// faults stand out, each with a lightness of its own, so that they differ in grey too.
    pub fn colour(self) -> &'static str {
        match self {
            Kind::Heap => "#e09a1a",
            Kind::Anonymous => "#8ecbee",
            Kind::Stack => "#e2733d",
            Kind::PrivateFile => "#bfe3c4",
            Kind::SharedFile => "#c58bb5",
            Kind::Special => "#6b6b6b",
            Kind::Reserved => "#ececec",
        }
    }

    /// Lines across it, as a second mark besides the colour: their pattern's path in a tile of 6 by 6.
    pub fn hatch(self) -> Option<&'static str> {
        match self {
            Kind::SharedFile => Some("M-1 5l6 -6M1 7l6 -6"),
            Kind::Stack => Some("M-1 1l6 6M1 -1l6 6"),
            _ => None,
        }
    }
}

/// A range's kind, and whether it may be touched at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub kind: Kind,
    pub reserved: bool,
}

impl Memory {
    /// What is drawn.
    pub fn shown(self) -> Kind {
        if self.reserved { Kind::Reserved } else { self.kind }
    }

    /// What a VMA is.
    pub fn of(vma: &Vma) -> Memory {
        let kind = match vma.purpose {
            Purpose::Heap => Kind::Heap,
            Purpose::Stack => Kind::Stack,
            _ if vma.shared => Kind::SharedFile,
            Purpose::Special => Kind::Special,
            Purpose::Any if vma.file => Kind::PrivateFile,
            Purpose::Any => Kind::Anonymous,
        };
        Memory { kind, reserved: vma.prot == 0 }
    }
}

//! Kinds of memory and their appearance.
//!
//! `life.rs` classifies each VMA with [`Memory::of`], and `panel.rs`, `paint.rs` and the legend (`strips.rs`)
//! draw the kinds. Each kind has a colour, a hatch and a CSS class; the style sheet is in `style.rs`. A new
//! kind needs an entry in every function here. [`Memory::of`] decides which VMAs have the new kind.

use freehold_trace::plan::{Purpose, Vma};

/// Kind of memory, as far as the picture distinguishes kinds. The order is that of the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The heap of brk.
    Heap,
    /// Private anonymous memory.
    Anonymous,
    /// Stacks of threads.
    Stack,
    /// Private mappings of files.
    PrivateFile,
    /// Shared mappings of files, and shared memory.
    SharedFile,
    /// Memory that the kernel maps, such as the vDSO.
    Special,
    /// Memory of any kind without access rights: reserved ranges and guards.
    Reserved,
}

impl Kind {
    /// All kinds, in the order of the legend.
    pub const ALL: [Kind; 7] = [
        Kind::Heap,
        Kind::Anonymous,
        Kind::Stack,
        Kind::PrivateFile,
        Kind::SharedFile,
        Kind::Special,
        Kind::Reserved,
    ];

    /// Returns the name in the legend.
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

    /// Returns the name of the kind's CSS class.
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

    /// Returns the colour. The colours derive from the palette of Okabe and Ito, which is made for people
    /// with colour blindness. The colours here are lighter, so that faults stand out, and differ in
    /// lightness, so that the kinds are distinct in grey.
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

    /// Returns the hatch that marks the kind in addition to its colour: the path of a pattern in a tile of 6
    /// by 6.
    pub fn hatch(self) -> Option<&'static str> {
        match self {
            Kind::SharedFile => Some("M-1 5l6 -6M1 7l6 -6"),
            Kind::Stack => Some("M-1 1l6 6M1 -1l6 6"),
            _ => None,
        }
    }
}

/// Kind of a range, and whether the range has no access rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The kind, without regard to access rights.
    pub kind: Kind,
    /// True if the range has no access rights.
    pub reserved: bool,
}

impl Memory {
    /// Returns the kind that is drawn.
    pub fn shown(self) -> Kind {
        if self.reserved { Kind::Reserved } else { self.kind }
    }

    /// Returns the memory kind of a VMA.
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

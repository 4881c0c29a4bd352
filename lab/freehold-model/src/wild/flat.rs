//! Wild calls without an MMU: mappings and queries of a [`NoMmuSpace`], and the creation of spaces. Other
//! files of this folder make the calls with an MMU; `mod.rs` explains wild calls. Spaces without an MMU and
//! spaces with an MMU share the files of the [`Stage`]. A new public function of [`NoMmuSpace`] gets an arm
//! here.

use super::{stage::Stage, values::Values};
use freehold::{
    nommu::NoMmuSpace,
    space::{MapFlags, Prot},
};

/// Makes a call. Returns true if the call succeeded.
pub(super) fn call(stage: &mut Stage, v: &mut Values<'_>) -> bool {
    let space = stage.flat[v.below(stage.flat.len() as u64) as usize].clone();
    let file = stage.file(v);
    let mut mapped = Vec::new();
    space.for_each(|mapping| mapped.push(mapping.range));
    let known = mapped.get(v.below(8) as usize).cloned();
    match v.below(10) {
        0..=3 => {
            let flags =
                MapFlags::from_bits_retain(v.of(&[1, 2, 0x22, 0x21, 0x32]) | (v.flags(0xff_ff00) & !0xf));
            let prot = Prot::from_bits_retain(v.flags(7));
            space.mmap(v.addr(), v.len(), prot, flags, v.bit().then_some(&file), v.offset()).is_ok()
        }
        4..=6 => match known {
            Some(range) if v.bit() => {
                let start = range.start.wrapping_add(v.len());
                space.munmap(start, v.len()).is_ok()
            }
            Some(range) => space.munmap(range.start, range.end - range.start).is_ok(),
            None => space.munmap(v.wild(), v.wild()).is_ok(),
        },
        7 => space.find(v.wild()).is_some() || space.pages() > 0,
        8 if v.below(4) == 0 => {
            space.clear();
            space.map_count() == 0
        }
        _ => {
            let made = NoMmuSpace::new(&stage.regions);
            if stage.flat.len() >= 3 {
                stage.flat.remove(0);
            }
            made.map(|made| stage.flat.push(made)).is_ok() && stage.regions.counts().regions > 0
        }
    }
}

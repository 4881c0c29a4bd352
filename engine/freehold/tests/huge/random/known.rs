//! Model of the memory of the processes in `random.rs`: for each process a map from page numbers to bytes,
//! rights and guards. The model has no huge pages, because programs must not see a difference. `compare`
//! checks one page of a process against the model. A new property of a page that programs can see is a field
//! of [`Page`] and a check in `compare`.

use super::*;
use std::{collections::BTreeMap, rc::Rc};

/// Expected contents of a page. `None` in `bytes` stands for zeroes.
#[derive(Clone)]
pub struct Page {
    pub prot: Prot,
    pub guard: bool,
    pub bytes: Option<Rc<[u8; PAGE as usize]>>,
}

impl Page {
    pub fn fresh(prot: Prot) -> Self {
        Page { prot, guard: false, bytes: None }
    }

    pub fn empty(&mut self) {
        *self = Page { guard: self.guard, ..Page::fresh(self.prot) };
    }

    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let bytes = self.bytes.get_or_insert_with(|| Rc::new([0; PAGE as usize]));
        Rc::make_mut(bytes)[offset..offset + data.len()].copy_from_slice(data);
    }
}

/// Expected memory of a process: the mapped pages by number.
pub type Known = BTreeMap<u64, Page>;

pub fn at(page: u64) -> u64 {
    BASE + page * PAGE
}

/// Writes to the modelled pages up to the first one for which `may` is false. Returns the number of bytes
/// written.
pub fn note(known: &mut Known, addr: u64, data: &[u8], may: impl Fn(&Page) -> bool) -> usize {
    let mut done = 0;
    while done < data.len() {
        let at = addr - BASE + done as u64;
        let Some(page) = known.get_mut(&(at / PAGE)).filter(|page| may(page)) else { break };
        let offset = (at % PAGE) as usize;
        let len = (data.len() - done).min(PAGE as usize - offset);
        page.write(offset, &data[done..done + len]);
        done += len;
    }
    done
}

/// Checks that a program finds the expected contents in a page.
pub fn compare(process: &Process, known: &Known, cpu: &mut Vcpu, page: u64) {
    let mut found = [0; PAGE as usize];
    let read = process.read(cpu, at(page), &mut found);
    let expected = known.get(&page).filter(|page| page.prot != Prot::empty() && !page.guard);
    assert_eq!(read.is_ok(), expected.is_some(), "a read of page {page}: {read:?}");
    if let Some(expected) = expected {
        match &expected.bytes {
            Some(bytes) => assert!(found == **bytes, "page {page} has unexpected contents"),
            None => assert!(found == [0; PAGE as usize], "page {page} is not zero"),
        }
    }
}

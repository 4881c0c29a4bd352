//! The extended attributes of a node: pairs of a name and a value (xattr(7)). `calls/attributes.rs` has the
//! calls and decides which names are allowed.
//!
//! A spin lock guards the attributes of a node. One node has fewer than [`MAX_BYTES`] / [`OVERHEAD`]
//! attributes, so every loop here is short. The program `names.c` of the tests checks attributes.

use crate::arch::lock::SpinLock;
use crate::errno;
use crate::sched::charge::{self, Charge};
use alloc::vec::Vec;
use freehold::error::Errno;

/// Maximum size of the attributes of a node, in bytes.
const MAX_BYTES: usize = 1 << 17;
/// Bytes that an attribute takes besides its name and its value.
const OVERHEAD: usize = 64;

/// The condition under which a value is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    None,
    /// The name has no value yet (XATTR_CREATE).
    Absent,
    /// The name has a value (XATTR_REPLACE).
    Present,
}

/// A name and its value.
struct Attribute {
    name: Vec<u8>,
    value: Vec<u8>,
    _charge: Charge,
}

impl Attribute {
    /// Returns the size of the attribute in bytes.
    fn bytes(&self) -> usize {
        OVERHEAD + self.name.len() + self.value.len()
    }
}

/// The attributes of a node.
#[derive(Default)]
pub struct Attributes(SpinLock<Vec<Attribute>>);

/// Returns a copy of the bytes.
///
/// # Errors
///
/// ENOMEM.
fn copy(bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut copy = Vec::new();
    charge::reserve(&mut copy, bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

impl Attributes {
    /// Sets the value of a name.
    ///
    /// # Errors
    ///
    /// EEXIST or ENODATA if the condition does not hold; ENOSPC if the node has too many attributes; ENOMEM.
    pub fn set(&self, name: &[u8], value: &[u8], condition: Condition) -> Result<(), Errno> {
        charge::admit_to_files()?;
        let charge = Charge::of_files(size_of::<Attribute>() + name.len() + value.len());
        let new = Attribute { name: copy(name)?, value: copy(value)?, _charge: charge };
        let mut all = self.0.lock();
        let at = all.iter().position(|attribute| attribute.name == name);
        match (at, condition) {
            (Some(_), Condition::Absent) => return Err(Errno::EEXIST),
            (None, Condition::Present) => return Err(errno::ENODATA),
            _ => {}
        }
        let others = all.iter().filter(|attribute| attribute.name != name);
        let bytes: usize = others.map(Attribute::bytes).sum();
        if bytes + new.bytes() > MAX_BYTES {
            return Err(Errno::ENOSPC);
        }
        match at {
            Some(at) => all[at] = new,
            None => {
                charge::reserve(&mut all, 1)?;
                all.push(new);
            }
        }
        Ok(())
    }

    /// Returns the value of a name.
    ///
    /// # Errors
    ///
    /// ENODATA if the name has no value; ENOMEM.
    pub fn get(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let all = self.0.lock();
        let found = all.iter().find(|attribute| attribute.name == name).ok_or(errno::ENODATA)?;
        copy(&found.value)
    }

    /// Removes a name and its value.
    ///
    /// # Errors
    ///
    /// ENODATA if the name has no value.
    pub fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        let mut all = self.0.lock();
        let at = all.iter().position(|attribute| attribute.name == name).ok_or(errno::ENODATA)?;
        all.remove(at);
        Ok(())
    }

    /// Returns the names, each with a zero byte at its end.
    ///
    /// # Errors
    ///
    /// ENOMEM.
    pub fn names(&self) -> Result<Vec<u8>, Errno> {
        let all = self.0.lock();
        let mut names = Vec::new();
        let bytes = all.iter().map(|attribute| attribute.name.len() + 1).sum();
        charge::reserve(&mut names, bytes)?;
        for attribute in all.iter() {
            names.extend_from_slice(&attribute.name);
            names.push(0);
        }
        Ok(names)
    }
}

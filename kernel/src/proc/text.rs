//! Text files of /proc and /sys. A read of the beginning of an open file generates the text. The open file
//! keeps the text until the beginning is read again, so consecutive reads return parts of one text.
//!
//! The other files of this folder supply the functions that generate texts and take written texts. These
//! functions run on the calling thread without a lock, and may sleep. A written text has at most 256 bytes.
//!
//! [`text`] makes a file that cannot be written, and [`setting`] makes a file that can be written. A test of
//! a text belongs in `corners.c` (`kernel/tests/programs`), or in `usage.c` if the text is about memory.

use crate::arch::lock::SpinLock;
use crate::files::{DIRECTORY, File, LINK, REGULAR, Stat, buffer::UserBuffer, tree::Node};
use crate::sched::charge::{self, Charge};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use freehold::error::Errno;

/// `d_type` of a directory.
pub const FOLDER: u8 = (DIRECTORY >> 12) as u8;
/// `d_type` of a symbolic link.
pub const LINKED: u8 = (LINK >> 12) as u8;
/// `d_type` of a regular file.
pub const PLAIN: u8 = (REGULAR >> 12) as u8;

/// A function that decides whether the file can be opened.
type Admit = Arc<dyn Fn() -> Result<(), Errno> + Send + Sync>;
/// A function that generates the text.
type Make = Arc<dyn Fn() -> Result<Vec<u8>, Errno> + Send + Sync>;
/// A function that takes a written text.
type Take = Arc<dyn Fn(&[u8]) -> Result<(), Errno> + Send + Sync>;

/// An open text file. The lock guards only the reference to the text, so no lock is held while a text is
/// generated or copied.
struct Text {
    make: Make,
    take: Option<Take>,
    text: SpinLock<Option<Arc<Kept>>>,
}

/// A generated text. Its process is charged, because a program may keep many files open.
struct Kept {
    text: Vec<u8>,
    _charge: Charge,
}

/// Makes a text file.
pub fn text(make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static) -> Arc<Node> {
    text_if(|| Ok(()), make)
}

/// Makes a text file that can be opened only if `admit` succeeds.
pub fn text_if(
    admit: impl Fn() -> Result<(), Errno> + Send + Sync + 'static,
    make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static,
) -> Arc<Node> {
    file(0o444, Arc::new(admit), Arc::new(make), None)
}

/// Makes a text file that passes written text to `take`.
pub fn setting(
    make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static,
    take: impl Fn(&[u8]) -> Result<(), Errno> + Send + Sync + 'static,
) -> Arc<Node> {
    file(0o644, Arc::new(|| Ok(())), Arc::new(make), Some(Arc::new(take)))
}

/// Makes the node of a text file.
fn file(mode: u32, admit: Admit, make: Make, take: Option<Take>) -> Arc<Node> {
    let maker = move || {
        admit()?;
        let (make, take) = (make.clone(), take.clone());
        Ok(Arc::new(Text { make, take, text: SpinLock::new(None) }) as Arc<dyn File>)
    };
    Node::made(mode, Box::new(maker))
}

impl Text {
    /// Returns the text, which is generated if there is none or if `from_start` is set.
    fn text(&self, from_start: bool) -> Result<Arc<Kept>, Errno> {
        let kept = self.text.lock().clone();
        match kept {
            Some(text) if !from_start => Ok(text),
            _ => {
                charge::admit()?;
                let text = (self.make)()?;
                let text = Arc::new(Kept { _charge: Charge::new(text.capacity()), text });
                let before = self.text.lock().replace(text.clone());
                drop(before);
                Ok(text)
            }
        }
    }
}

impl File for Text {
    fn read(&self, at: u64, to: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let text = self.text(at == 0)?;
        match text.text.get(at as usize..) {
            Some(rest) if !rest.is_empty() => to.put(rest),
            _ => Ok(0),
        }
    }

    fn write(&self, _: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let take = self.take.as_ref().ok_or(Errno::EACCES)?;
        let mut bytes = [0; 256];
        let taken = from.get(&mut bytes)?;
        // Some programs write the zero byte at the end of their text.
        take(bytes[..taken].split(|byte| *byte == 0).next().unwrap_or_default())?;
        Ok(taken)
    }

    fn stat(&self) -> Stat {
        Stat { inode: 1, mode: REGULAR | 0o444, links: 1, ..Stat::default() }
    }

    fn can_seek(&self) -> bool {
        true
    }
}

/// Parses a text as a number, without the white space around it.
///
/// # Errors
///
/// EINVAL if the text is not a number.
pub fn number(text: &[u8]) -> Result<i64, Errno> {
    let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    text.trim().parse().map_err(|_| Errno::EINVAL)
}

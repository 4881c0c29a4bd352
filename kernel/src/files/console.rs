//! The console: descriptors 0 to 2 of the first program, and the devices `console`, `tty` and `ttyS0` of
//! /dev.
//!
//! Bytes of the serial port (`arch/serial.rs`) pass through an [`Input`], which edits lines or removes
//! escapes; `PROTOCOL.md` describes both kinds of console. Input raises no interrupt, so a reading thread
//! polls the port periodically. A spin lock guards the [`Input`]; echoed bytes are sent under this lock.
//! There is one console and one foreground group, and no key sends a signal. A new request of ioctl needs an
//! arm in `Console::ioctl`. The unit tests of `input.rs` check how lines are edited.

use crate::arch::{clock, lock::SpinLock, serial};
use crate::errno;
use crate::files::{CHARACTER, File, READABLE, Stat, WRITABLE, buffer::UserBuffer};
use crate::platform::user::{UserPtr, copy_in, copy_out};
use crate::sched::wait::{self, Key, Sleep, Woken};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use freehold::error::Errno;
use freehold_kernel::input::{Input, Source, TERMIOS};

/// The file of the console. All its state is in statics.
pub struct Console;

/// Maximum number of bytes that a write or read copies in one step.
const PART: usize = 512;
/// Nanoseconds between two polls for input.
const LOOK: u64 = 1_000_000;

const TCGETS: u64 = 0x5401;
const TCSETS: u64 = 0x5402;
const TCSETSF: u64 = 0x5404;
const TIOCSCTTY: u64 = 0x540e;
const TIOCGPGRP: u64 = 0x540f;
const TIOCSPGRP: u64 = 0x5410;
const TIOCGWINSZ: u64 = 0x5413;
/// Rows and columns; the sizes in pixels are 0.
const WINDOW: [u8; 8] = [24, 0, 80, 0, 0, 0, 0, 0];

/// The foreground process group, set by TIOCSPGRP. Relaxed: the number publishes no other memory.
static GROUP: AtomicU32 = AtomicU32::new(1);
/// The input of the console.
static INPUT: SpinLock<Input> = SpinLock::new(Input::new(Source::Stream));

/// Makes the console a terminal, with input from a keyboard.
pub fn is_terminal() {
    INPUT.lock().set_source(Source::Terminal);
}

/// Takes the input that arrived and moves the readable part to `part`, like [`Input::read`].
fn read_part(part: &mut [u8]) -> Option<usize> {
    let mut input = INPUT.lock();
    while let Some(byte) = serial::read() {
        input.take(byte, &mut serial::write);
    }
    input.read(part)
}

impl File for Console {
    fn read(&self, _: u64, to: &mut UserBuffer<'_>, nonblock: bool) -> Result<usize, Errno> {
        let mut part = [0; PART];
        let wanted = to.len().min(PART);
        if wanted == 0 {
            return Ok(0);
        }
        loop {
            match read_part(&mut part[..wanted]) {
                Some(0) => return Ok(0),
                Some(bytes) => return to.put(&part[..bytes]),
                None if nonblock => return Err(Errno::EAGAIN),
                None => {}
            }
            let waiting = wait::enqueue(Key::kernel(&raw const INPUT as u64), u32::MAX);
            if waiting.sleep(Sleep::Interruptible, clock::now_ns() + LOOK) == Woken::Signal {
                return Err(Errno::EINTR);
            }
        }
    }

    fn ioctl(&self, request: u64, argument: u64) -> Result<u64, Errno> {
        let mut termios = *INPUT.lock().termios().ok_or(errno::ENOTTY)?;
        match request {
            TCGETS => copy_out(argument, &termios)?,
            TCSETS..=TCSETSF => {
                copy_in(argument, &mut termios[..TERMIOS])?;
                if let Some(kept) = INPUT.lock().termios() {
                    *kept = termios;
                }
            }
            TIOCSCTTY => {}
            TIOCGPGRP => UserPtr::<u32>::new(argument).write(&GROUP.load(Relaxed))?,
            TIOCSPGRP => GROUP.store(UserPtr::<u32>::new(argument).read()?, Relaxed),
            TIOCGWINSZ => copy_out(argument, &WINDOW)?,
            _ => return Err(errno::ENOTTY),
        }
        Ok(0)
    }

    fn write(&self, _: u64, from: &mut UserBuffer<'_>, _: bool) -> Result<usize, Errno> {
        let mut part = [0; PART];
        let mut done = 0;
        while from.len() > 0 {
            match from.get(&mut part) {
                Ok(0) => break,
                Ok(bytes) => {
                    serial::write(&part[..bytes]);
                    done += bytes;
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn ready(&self) -> u32 {
        let mut input = INPUT.lock();
        while let Some(byte) = serial::read() {
            input.take(byte, &mut serial::write);
        }
        WRITABLE | if input.is_ready() { READABLE } else { 0 }
    }

    fn ready_at(&self) -> u64 {
        clock::now_ns() + LOOK
    }

    fn stat(&self) -> Stat {
        Stat { inode: 1, mode: CHARACTER | 0o620, links: 1, device: 5 << 8 | 1, ..Stat::default() }
    }
}

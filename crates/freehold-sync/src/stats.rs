//! What a lock's users cost each other.
use crate::host::Host;
use crate::percpu::PerCpu;
pub(crate) enum Mode {
    Read,
    Write,
    Downgraded,
}
/// Statistics.
pub struct LockStats<H: Host> {
    _cells: PerCpu<u8, H>,
}
pub(crate) struct Hold;
impl Hold {
    #[inline]
    pub fn begin<H: Host>(_: Option<&LockStats<H>>) -> Hold {
        Hold
    }
    #[inline]
    pub fn acquired<H: Host>(self, _: Option<&LockStats<H>>, _: Mode, _: bool) -> Hold {
        Hold
    }
    #[inline]
    pub fn end<H: Host>(&self, _: Option<&LockStats<H>>) -> Hold {
        Hold
    }
    #[inline]
    pub fn record<H: Host>(self, _: Option<&LockStats<H>>, _: Option<Mode>) -> Hold {
        Hold
    }
}

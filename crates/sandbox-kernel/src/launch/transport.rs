//! The selection of the transport between the host and kernels.

use std::sync::atomic::{AtomicBool, Ordering};

use jupyter_protocol::Transport;

/// Selects the transport of the kernels of one sandbox.
///
/// The default is Unix sockets. A kernel that ends when it should listen on Unix sockets, because it does not support
/// them or their paths are too long for it, is started once more with TCP. If that works, TCP is used from then on. A
/// requested transport is never changed.
#[derive(Debug, Default)]
pub struct TransportSelector {
    requested: Option<Transport>,
    use_tcp: AtomicBool,
}

impl TransportSelector {
    /// Creates a selector, with the requested transport if there is one.
    #[must_use]
    pub fn new(requested: Option<Transport>) -> Self {
        Self { requested, ..Self::default() }
    }

    pub(super) fn current(&self) -> Transport {
        let found =
            if self.use_tcp.load(Ordering::Relaxed) { Transport::Tcp } else { Transport::Ipc };
        self.requested.unwrap_or(found)
    }

    pub(super) fn can_switch(&self) -> bool {
        self.requested.is_none()
    }

    pub(super) fn switch_to_tcp(&self) {
        self.use_tcp.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_transport_is_kept_and_another_is_switched() {
        let selector = TransportSelector::new(Some(Transport::Ipc));
        selector.switch_to_tcp();
        assert_eq!((selector.current(), selector.can_switch()), (Transport::Ipc, false));
        let selector = TransportSelector::default();
        assert_eq!((selector.current(), selector.can_switch()), (Transport::Ipc, true));
        selector.switch_to_tcp();
        assert_eq!(selector.current(), Transport::Tcp);
    }
}

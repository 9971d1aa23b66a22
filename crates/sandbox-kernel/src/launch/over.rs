//! Over what kernels are talked to.

use std::sync::atomic::{AtomicBool, Ordering};

use jupyter_protocol::Transport;

/// The transport of the kernels of one sandbox.
///
/// Unless one was asked for, it is Unix sockets. A kernel that ends when it is told to listen on those, because it does not
/// know them or their paths are too long for it, is started once more to be talked to over TCP. If that works, it is TCP
/// from then on.
#[derive(Debug, Default)]
pub struct Over {
    asked: Option<Transport>,
    speaks_tcp: AtomicBool,
}

impl Over {
    /// What was asked for, if anything.
    #[must_use]
    pub fn new(asked: Option<Transport>) -> Self {
        Self { asked, ..Self::default() }
    }

    pub(super) fn now(&self) -> Transport {
        let found =
            if self.speaks_tcp.load(Ordering::Relaxed) { Transport::Tcp } else { Transport::Ipc };
        self.asked.unwrap_or(found)
    }

    pub(super) fn is_changeable(&self) -> bool {
        self.asked.is_none()
    }

    pub(super) fn found_tcp(&self) {
        self.speaks_tcp.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_stays_and_the_rest_is_found_out() {
        let over = Over::new(Some(Transport::Ipc));
        over.found_tcp();
        assert_eq!((over.now(), over.is_changeable()), (Transport::Ipc, false));
        let over = Over::default();
        assert_eq!((over.now(), over.is_changeable()), (Transport::Ipc, true));
        over.found_tcp();
        assert_eq!(over.now(), Transport::Tcp);
    }
}

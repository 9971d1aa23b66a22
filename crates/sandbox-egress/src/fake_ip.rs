//! Fake addresses that stand for allowed names inside a sandbox.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// A range that no network uses (RFC 2544), with 131,072 addresses.
const RANGE: (Ipv4Addr, u32) = (Ipv4Addr::new(198, 18, 0, 0), 15);

/// Offset of the first fake address. The two before it are the network's and the gate's.
const FIRST: u32 = 2;

/// Names and their fake addresses. An address is never reassigned.
#[derive(Debug)]
pub(crate) struct FakeIpPool {
    by_name: HashMap<Arc<str>, Ipv4Addr>,
    by_address: Vec<Arc<str>>,
    max: usize,
}

impl FakeIpPool {
    pub(crate) fn new(max: usize) -> Self {
        const CAPACITY: usize = (1 << (32 - RANGE.1)) - 4;
        Self { by_name: HashMap::new(), by_address: Vec::new(), max: max.min(CAPACITY) }
    }

    /// Returns the address of a name, assigning one if needed; `None` when the pool is full.
    pub(crate) fn address(&mut self, name: &str) -> Option<Ipv4Addr> {
        if let Some(known) = self.by_name.get(name) {
            return Some(*known);
        }
        if self.by_address.len() >= self.max {
            return None;
        }
        let index = u32::try_from(self.by_address.len()).ok()?;
        let address = Ipv4Addr::from_bits(RANGE.0.to_bits() + FIRST + index);
        let name: Arc<str> = name.into();
        self.by_address.push(Arc::clone(&name));
        self.by_name.insert(name, address);
        Some(address)
    }

    /// Returns the name that an address stands for.
    pub(crate) fn name(&self, address: Ipv4Addr) -> Option<Arc<str>> {
        let index = address.to_bits().checked_sub(RANGE.0.to_bits() + FIRST)?;
        self.by_address.get(usize::try_from(index).ok()?).cloned()
    }
}

/// Returns true for an address in the fake range.
pub(crate) fn is_fake(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => (v4.to_bits() ^ RANGE.0.to_bits()) >> (32 - RANGE.1) == 0,
        IpAddr::V6(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_address_of_its_own() {
        let mut pool = FakeIpPool::new(2);
        let a = pool.address("a.example").unwrap();
        let b = pool.address("b.example").unwrap();
        assert_eq!((a, b), (Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 18, 0, 3)));
        assert_eq!(pool.address("a.example"), Some(a));
        assert_eq!(pool.address("c.example"), None);
        assert_eq!(pool.name(b).as_deref(), Some("b.example"));
        for other in ["198.18.0.1", "198.18.0.4", "198.19.255.255", "1.1.1.1", "255.255.255.255"] {
            assert_eq!(pool.name(other.parse().unwrap()), None);
        }
        assert!(is_fake(IpAddr::V4(a)));
        assert!(is_fake("198.19.255.255".parse().unwrap()));
        assert!(!is_fake("198.20.0.1".parse().unwrap()));
    }
}

//! The routes and rules of a cell with a gate, as netlink messages.
//!
//! They correspond to these commands of `ip` and `nft` inside the cell:
//!
//! ```text
//! ip address add 198.18.0.1/32 dev lo
//! ip route add local 0.0.0.0/0 dev lo src 198.18.0.1
//! table ip gate {
//!     chain in {
//!         type filter hook prerouting priority mangle
//!         ip daddr != 127.0.0.0/8 meta l4proto tcp tproxy to 198.18.0.1:1
//!     }
//!     chain out {
//!         type filter hook output priority filter
//!         ip daddr != 127.0.0.0/8 meta l4proto != tcp drop
//!     }
//! }
//! ```
//!
//! So every IPv4 address is local, every connection but those on the cell's own loopback arrives at one socket, and
//! only TCP passes.

use crate::protocol::{GATE_ADDRESS, GATE_PORT};

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const EXCL: u16 = 0x200;
const CREATE: u16 = 0x400;
const AF_INET: u8 = 2;
/// The loopback interface of every network namespace.
const LOOPBACK: u32 = 1;
/// The first byte of the addresses that stay on the cell's own loopback.
const OWN: u8 = 127;
const TCP: u8 = 6;

const TABLE: &str = "gate";
const IN: &str = "in";
const OUT: &str = "out";

/// Returns messages for the gate's address, and for the route that makes every other address local too.
pub(crate) fn routes() -> Vec<u8> {
    const NEW_ADDRESS: u16 = 20;
    const NEW_ROUTE: u16 = 24;
    const HOST_BITS: u8 = 32;
    const MAIN_TABLE: u8 = 254;
    const STATIC: u8 = 4;
    const SCOPE_HOST: u8 = 254;
    const LOCAL: u8 = 2;
    let mut out = Messages::default();
    out.message(NEW_ADDRESS, CREATE | EXCL | ACK, |body| {
        body.raw(&[AF_INET, HOST_BITS, 0, 0]).raw(&LOOPBACK.to_ne_bytes());
        body.attribute(2, &GATE_ADDRESS).attribute(1, &GATE_ADDRESS);
    });
    out.message(NEW_ROUTE, CREATE | EXCL | ACK, |body| {
        body.raw(&[AF_INET, 0, 0, 0, MAIN_TABLE, STATIC, SCOPE_HOST, LOCAL]).raw(&[0; 4]);
        body.attribute(4, &LOOPBACK.to_ne_bytes()).attribute(7, &GATE_ADDRESS);
    });
    out.bytes
}

/// Returns one transaction with a table of two chains of one rule each.
pub(crate) fn rules() -> Vec<u8> {
    const BATCH_BEGIN: u16 = 0x10;
    const BATCH_END: u16 = 0x11;
    const NEW_TABLE: u16 = 0;
    let mut out = Messages::default();
    out.message(BATCH_BEGIN, 0, batch);
    out.nftables(NEW_TABLE, |body| {
        body.text(1, TABLE);
    });
    const PREROUTING: u32 = 0;
    const LOCAL_OUT: u32 = 3;
    const MANGLE: i32 = -150;
    const FILTER: i32 = 0;
    out.chain(IN, PREROUTING, MANGLE);
    out.chain(OUT, LOCAL_OUT, FILTER);
    out.rule(IN, |rule| {
        rule.leaves_the_cell().protocol(EQUAL, TCP).divert();
    });
    out.rule(OUT, |rule| {
        rule.leaves_the_cell().protocol(NOT_EQUAL, TCP).drop();
    });
    out.message(BATCH_END, 0, batch);
    out.bytes
}

const NFTABLES: u16 = 10;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const NESTED: u16 = 0x8000;

fn batch(body: &mut Body<'_>) {
    body.raw(&[0, 0]).raw(&NFTABLES.to_be_bytes());
}

/// Consecutive messages, each padded to four bytes.
#[derive(Default)]
struct Messages {
    bytes: Vec<u8>,
    count: u32,
}

impl Messages {
    fn message(&mut self, kind: u16, flags: u16, write: impl FnOnce(&mut Body<'_>)) {
        self.count += 1;
        let at = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        self.bytes.extend(self.count.to_ne_bytes());
        self.bytes.extend([0; 4]);
        write(&mut Body(&mut self.bytes));
        let length = crate::wire::length(self.bytes.len() - at);
        self.bytes[at..at + 4].copy_from_slice(&length.to_ne_bytes());
    }

    fn nftables(&mut self, kind: u16, write: impl FnOnce(&mut Body<'_>)) {
        self.message(NFTABLES << 8 | kind, CREATE | ACK, |body| {
            body.raw(&[AF_INET, 0, 0, 0]);
            write(body);
        });
    }

    fn chain(&mut self, name: &str, hook: u32, priority: i32) {
        const NEW_CHAIN: u16 = 3;
        self.nftables(NEW_CHAIN, |body| {
            body.text(1, TABLE).text(3, name);
            body.nested(4, |place| {
                place.number(1, hook).attribute(2, &priority.to_be_bytes());
            });
            body.text(7, "filter");
        });
    }

    fn rule(&mut self, chain: &str, write: impl FnOnce(&mut Rule<'_>)) {
        const NEW_RULE: u16 = 6;
        const APPEND: u16 = 0x800;
        self.message(NFTABLES << 8 | NEW_RULE, CREATE | APPEND | ACK, |body| {
            body.raw(&[AF_INET, 0, 0, 0]);
            body.text(1, TABLE).text(2, chain);
            body.nested(4, |expressions| write(&mut Rule(Body(expressions.0))));
        });
    }
}

/// The body of a message or of a nested attribute.
struct Body<'a>(&'a mut Vec<u8>);

impl Body<'_> {
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend(bytes);
        self
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.nested_as(kind, |body| {
            body.raw(value);
        })
    }

    /// Appends a number: those of nf_tables are big-endian.
    fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.nested_as(kind, |body| {
            body.raw(value.as_bytes()).raw(&[0]);
        })
    }

    fn nested(&mut self, kind: u16, write: impl FnOnce(&mut Body<'_>)) -> &mut Self {
        self.nested_as(kind | NESTED, write)
    }

    fn nested_as(&mut self, kind: u16, write: impl FnOnce(&mut Body<'_>)) -> &mut Self {
        let at = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        write(&mut Body(self.0));
        let length = u16::try_from(self.0.len() - at).unwrap_or(u16::MAX);
        self.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// The expressions of a rule. Register 1 holds the compared value, register 2 the value to pass on.
struct Rule<'a>(Body<'a>);

impl Rule<'_> {
    fn expression(&mut self, name: &str, write: impl FnOnce(&mut Body<'_>)) -> &mut Self {
        const ELEMENT: u16 = 1;
        self.0.nested(ELEMENT, |element| {
            element.text(1, name).nested(2, write);
        });
        self
    }

    fn compare(&mut self, how: u32, value: &[u8]) -> &mut Self {
        self.expression("cmp", |body| {
            body.number(1, 1).number(2, how).nested(3, |data| {
                data.attribute(1, value);
            });
        })
    }

    fn load(&mut self, register: u32, value: &[u8]) -> &mut Self {
        self.expression("immediate", |body| {
            body.number(1, register).nested(2, |data| {
                data.attribute(1, value);
            });
        })
    }

    /// Matches destinations outside of the cell's own loopback.
    fn leaves_the_cell(&mut self) -> &mut Self {
        const NETWORK_HEADER: u32 = 1;
        const DESTINATION: u32 = 16;
        self.expression("payload", |body| {
            body.number(1, 1).number(2, NETWORK_HEADER).number(3, DESTINATION).number(4, 1);
        });
        self.compare(NOT_EQUAL, &[OWN])
    }

    fn protocol(&mut self, how: u32, protocol: u8) -> &mut Self {
        const L4_PROTOCOL: u32 = 16;
        self.expression("meta", |body| {
            body.number(2, L4_PROTOCOL).number(1, 1);
        });
        self.compare(how, &[protocol])
    }

    fn divert(&mut self) -> &mut Self {
        self.load(1, &GATE_ADDRESS).load(2, &GATE_PORT.to_be_bytes());
        self.expression("tproxy", |body| {
            body.number(1, u32::from(AF_INET)).number(2, 1).number(3, 2);
        })
    }

    fn drop(&mut self) -> &mut Self {
        const VERDICT: u32 = 0;
        const DROP: u32 = 0;
        self.expression("immediate", |body| {
            body.number(1, VERDICT).nested(2, |data| {
                data.nested(2, |verdict| {
                    verdict.number(1, DROP);
                });
            });
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the kinds of some messages, after checking that their lengths add up.
    fn kinds(mut bytes: &[u8]) -> Vec<u16> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let length = u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize;
            assert!(length >= 16 && length.is_multiple_of(4) && length <= bytes.len());
            found.push(u16::from_ne_bytes(bytes[4..6].try_into().unwrap()));
            bytes = &bytes[length..];
        }
        found
    }

    #[test]
    fn messages_are_whole_and_in_order() {
        assert_eq!(kinds(&routes()), [20, 24]);
        assert_eq!(kinds(&rules()), [0x10, 0xa00, 0xa03, 0xa03, 0xa06, 0xa06, 0x11]);
    }
}

//! Tells public internet addresses from private and special ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 ranges that are private, local to a host, shared, reserved or for documentation.
const SPECIAL_V4: [(Ipv4Addr, u32); 17] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    // Carriers, overlay networks, and the metadata service of one cloud.
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // Link-local, and the metadata service of most clouds.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    // A public address that is the host itself in one cloud.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 31, 196, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The only IPv6 range that is assigned to the public internet.
const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Special ranges inside [`GLOBAL_V6`]. Some of them embed an IPv4 address that a relay would unwrap.
const SPECIAL_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Returns true for an address of the public internet. An IPv4 address inside an IPv6 one counts as IPv4.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let within = |(network, bits): &(Ipv4Addr, u32)| {
                (v4.to_bits() ^ network.to_bits()) >> (32 - bits) == 0
            };
            !SPECIAL_V4.iter().any(within)
        }
        IpAddr::V6(v6) => {
            let within = |(network, bits): &(Ipv6Addr, u32)| {
                (v6.to_bits() ^ network.to_bits()) >> (128 - bits) == 0
            };
            within(&GLOBAL_V6) && !SPECIAL_V6.iter().any(within)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_is_public() {
        let public = ["1.1.1.1", "151.101.0.223", "172.15.0.1", "172.32.0.1", "100.128.0.1"];
        for address in public.into_iter().chain(["2606:4700::1111", "2a00::1", "::ffff:1.1.1.1"]) {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        let special_v4 = [
            "0.0.0.0",
            "10.1.2.3",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "203.0.113.5",
            "224.0.0.1",
            "255.255.255.255",
        ];
        let special_v6 = [
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2001:0:1::1",
            "2001:db8::1",
            "::127.0.0.1",
            "fec0::1",
        ];
        for address in special_v4.into_iter().chain(special_v6) {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }
}

//! The READY command, which carries the socket type of the other side.

/// Returns a property of a READY command, or `None` if the command is another one or truncated, or lacks the property.
pub(crate) fn property<'a>(command: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    let (name, mut rest) = short(command)?;
    if name != b"READY" {
        return None;
    }
    let mut found = None;
    while !rest.is_empty() {
        let (key, after) = short(rest)?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, after) = after.split_at_checked(length)?;
        // Property names are ASCII, and case does not matter.
        if std::str::from_utf8(key).ok()?.eq_ignore_ascii_case(wanted) {
            found = Some(value);
        }
        rest = after;
    }
    found
}

/// Splits off a field with a length of one byte. Returns the field and the rest.
fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_found_by_name() {
        let command = b"\x05READY\x01a\0\0\0\x01x\x0bSocket-Type\0\0\0\x06ROUTER";
        assert_eq!(property(command, "socket-type"), Some(&b"ROUTER"[..]));
        assert_eq!(property(command, "Identity"), None);
        for cut in 0..command.len() {
            assert_eq!(property(&command[..cut], "Socket-Type"), None, "{cut}");
        }
        assert_eq!(property(b"\x05ERROR\x01a\0\0\0\x01x", "a"), None);
    }
}

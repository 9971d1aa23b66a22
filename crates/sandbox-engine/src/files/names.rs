//! Names of files as text. The kernel has bytes, the interface has text, and no name may be lost between them.
//!
//! A byte that is not part of UTF-8 is shown as one private character, U+10FE00 plus its value. Such a character in a
//! real name is shown as its own bytes, each in the same way. So every name has exactly one text and comes back from it.

const BASE: u32 = 0x10_FE00;

fn is_stand_in(character: char) -> bool {
    (BASE + 0x80..=BASE + 0xFF).contains(&u32::from(character))
}

fn push_stand_in(text: &mut String, byte: u8) {
    text.extend(char::from_u32(BASE + u32::from(byte)));
}

/// Returns the text of a name.
pub fn to_text(name: &[u8]) -> String {
    if let Ok(plain) = std::str::from_utf8(name)
        && !plain.contains(is_stand_in)
    {
        return plain.to_owned();
    }
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_stand_in(character) {
                let mut bytes = [0; 4];
                let bytes = character.encode_utf8(&mut bytes).bytes();
                bytes.for_each(|byte| push_stand_in(&mut text, byte));
            } else {
                text.push(character);
            }
        }
        chunk.invalid().iter().for_each(|byte| push_stand_in(&mut text, *byte));
    }
    text
}

/// Returns the name that a text stands for.
pub fn to_bytes(text: &str) -> Vec<u8> {
    if !text.contains(is_stand_in) {
        return text.as_bytes().to_vec();
    }
    let mut name = Vec::with_capacity(text.len());
    for character in text.chars() {
        if is_stand_in(character) {
            name.push((u32::from(character) - BASE) as u8);
        } else {
            name.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_names_are_themselves() {
        for name in ["a", "é", "e\u{301}", "a\nb", "🦀", "\\xff", "\u{f7ff}"] {
            assert_eq!(to_text(name.as_bytes()), name);
        }
        assert_eq!(to_text(b"a\xff"), "a\u{10feff}");
        assert_ne!(to_text("\u{10feff}".as_bytes()), "\u{10feff}");
    }

    proptest! {
        #[test]
        fn no_name_gets_lost(name: Vec<u8>) {
            prop_assert_eq!(to_bytes(&to_text(&name)), name);
        }

        #[test]
        fn no_two_names_look_alike(one: Vec<u8>, other: Vec<u8>) {
            prop_assert_eq!(to_text(&one) == to_text(&other), one == other);
        }
    }
}

//! Formatting and parsing of numbers and short texts, without an allocator.

use core::ffi::CStr;

/// A line under construction. Text beyond the capacity is cut; callers choose a sufficient size.
pub struct Line<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Line<N> {
    pub fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    pub fn text(&mut self, text: &[u8]) -> &mut Self {
        // One byte stays zero, so that the line is also a C string.
        let count = text.len().min(N - 1 - self.length);
        self.bytes[self.length..self.length + count].copy_from_slice(&text[..count]);
        self.length += count;
        self
    }

    pub fn number(&mut self, mut value: u64) -> &mut Self {
        let mut digits = [0_u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return self.text(&digits[at..]);
            }
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub fn c_text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

/// Parses a decimal number.
pub fn number(digits: &[u8]) -> Option<u64> {
    parse(digits, 10)
}

/// Parses a hexadecimal number.
pub fn hexadecimal(digits: &[u8]) -> Option<u64> {
    parse(digits, 16)
}

fn parse(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, digit| {
        let digit = char::from(*digit).to_digit(radix)?;
        value.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
    })
}

/// Returns the first word after a label in a file of `Label: word` lines.
pub fn field<'a>(file: &'a [u8], label: &[u8]) -> Option<&'a [u8]> {
    let line = file.split(|byte| *byte == b'\n').find(|line| line.starts_with(label))?;
    line[label.len()..].split(u8::is_ascii_whitespace).find(|word| !word.is_empty())
}

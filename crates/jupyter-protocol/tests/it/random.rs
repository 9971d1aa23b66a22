//! Random values, reproducible by their seed.

use serde_json::{Map, Number, Value, json};

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// Returns a few bytes, and rarely up to `max`.
    pub(crate) fn bytes(&mut self, max: usize) -> Vec<u8> {
        let length = if self.below(8) == 0 { self.below(max + 1) } else { self.below(20.min(max)) };
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// Returns text, with troublesome characters among it.
    pub(crate) fn text(&mut self) -> String {
        const PARTS: [&str; 16] = [
            "a",
            "x = 1\n",
            "é",
            "🐱",
            "\u{2028}",
            "\"",
            "\\",
            "\\u0041",
            "\0",
            "\u{7f}",
            "\u{feff}",
            "<IDS|MSG>",
            "\r\n",
            "{}",
            "e\u{301}",
            "\u{10ffff}",
        ];
        (0..self.below(6)).map(|_| PARTS[self.below(PARTS.len())]).collect()
    }

    fn number(&mut self) -> Number {
        match self.below(6) {
            0 => 0.into(),
            1 => i64::MIN.into(),
            2 => u64::MAX.into(),
            3 => self.next().cast_signed().into(),
            _ => {
                let float = f64::from_bits(self.next());
                Number::from_f64(float).unwrap_or_else(|| Number::from_f64(0.1).unwrap())
            }
        }
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 4 } else { 6 }) {
            0 => Value::Null,
            1 => Value::Bool(self.below(2) == 0),
            2 => self.number().into(),
            3 => self.text().into(),
            4 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => self.object(depth - 1),
        }
    }

    pub(crate) fn object(&mut self, depth: usize) -> Value {
        let entries = (0..self.below(5)).map(|_| (self.text(), self.value(depth)));
        Value::Object(entries.collect::<Map<_, _>>())
    }

    /// Returns a header as kernels and clients write it, with extra fields.
    pub(crate) fn header(&mut self, msg_type: &str) -> Value {
        let mut header = json!({"msg_id": self.text(), "session": self.text(), "username": self.text(),
            "date": "2026-01-01T00:00:00.123456Z", "msg_type": msg_type, "version": "5.4"});
        match self.below(3) {
            0 => header["subshell_id"] = self.text().into(),
            1 => header["vendor"] = self.object(2),
            _ => {}
        }
        header
    }
}

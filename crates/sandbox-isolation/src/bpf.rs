//! Programs of the kernel's packet filter, limited to what system call filters need.
//!
//! Existing libraries have one answer for all calls of a filter, and allow the second numbering that a 64-bit x86
//! kernel may have (x32). A deny list needs several answers, and has to refuse that numbering.

/// One instruction, as the kernel defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jump_true: u8,
    pub(crate) jump_false: u8,
    pub(crate) value: u32,
}

pub(crate) const LOAD: u16 = 0x20;
pub(crate) const JUMP: u16 = 0x05;
pub(crate) const IF_EQUAL: u16 = 0x15;
pub(crate) const IF_GREATER: u16 = 0x25;
pub(crate) const IF_ANY_BIT: u16 = 0x45;
pub(crate) const AND: u16 = 0x54;
pub(crate) const RETURN: u16 = 0x06;

/// Return values of a filter.
pub(crate) const ALLOW: u32 = 0x7fff_0000;
pub(crate) const KILL_PROCESS: u32 = 0x8000_0000;
/// With the error number in the lower half.
pub(crate) const ERROR: u32 = 0x0005_0000;

/// Offset of the system call number in the data of a filter.
pub(crate) const NUMBER_AT: u32 = 0;
/// Offset of the architecture.
pub(crate) const ARCHITECTURE_AT: u32 = 4;

/// Returns the offset of the lower half of an argument. All inspected arguments are 32 bits wide in the kernel.
pub(crate) const fn argument_at(index: u8) -> u32 {
    16 + 8 * index as u32
}

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct Program(pub(crate) Vec<Instruction>);

impl Program {
    pub(crate) fn load(&mut self, at: u32) {
        self.push(LOAD, 0, 0, at);
    }

    /// Masks the loaded value with `bits`.
    pub(crate) fn keep_bits(&mut self, bits: u32) {
        self.push(AND, 0, 0, bits);
    }

    pub(crate) fn answer(&mut self, value: u32) {
        self.push(RETURN, 0, 0, value);
    }

    /// Skips `jump_true` or `jump_false` instructions.
    pub(crate) fn test(&mut self, code: u16, value: u32, jump_true: u8, jump_false: u8) {
        self.push(code, jump_true, jump_false, value);
    }

    /// Runs `body` when the loaded value is equal, and skips it otherwise.
    pub(crate) fn when_equal(&mut self, value: u32, body: Self) {
        self.test(IF_EQUAL, value, 1, 0);
        self.push(JUMP, 0, 0, crate::wire::length(body.0.len()));
        self.0.extend(body.0);
    }

    /// Returns `answer` for any of these values, and continues for others.
    pub(crate) fn answer_any(&mut self, values: &[u32], answer: u32) {
        // A jump skips 255 instructions at most.
        for part in values.chunks(200) {
            for (at, value) in part.iter().enumerate() {
                let to_answer = part.len() - 1 - at;
                let last = u8::from(to_answer == 0);
                self.test(IF_EQUAL, *value, u8::try_from(to_answer).unwrap_or(0), last);
            }
            self.answer(answer);
        }
    }

    /// Returns `answer` for anything but these values, at most 200.
    pub(crate) fn answer_others(&mut self, values: &[u32], answer: u32) {
        for (at, value) in values.iter().enumerate() {
            let past_answer = values.len() - at;
            self.test(IF_EQUAL, *value, u8::try_from(past_answer).unwrap_or(0), 0);
        }
        self.answer(answer);
    }

    fn push(&mut self, code: u16, jump_true: u8, jump_false: u8, value: u32) {
        self.0.push(Instruction { code, jump_true, jump_false, value });
    }

    /// Encodes the program as the kernel expects it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() * 8);
        for Instruction { code, jump_true, jump_false, value } in &self.0 {
            bytes.extend(code.to_ne_bytes());
            bytes.extend([*jump_true, *jump_false]);
            bytes.extend(value.to_ne_bytes());
        }
        bytes
    }
}

/// Evaluates a program as the kernel would. `None` when it does not return, or reads outside of the data.
#[cfg(test)]
pub(crate) fn evaluate(program: &[Instruction], data: &[u8; 64]) -> Option<u32> {
    let mut at = 0;
    let mut loaded = 0;
    loop {
        let Instruction { code, jump_true, jump_false, value } = *program.get(at)?;
        at += 1;
        let holds = match code {
            LOAD => {
                let word = data.get(value as usize..)?.first_chunk::<4>()?;
                loaded = u32::from_ne_bytes(*word);
                continue;
            }
            AND => {
                loaded &= value;
                continue;
            }
            RETURN => return Some(value),
            JUMP => {
                at += value as usize;
                continue;
            }
            IF_EQUAL => loaded == value,
            IF_GREATER => loaded > value,
            IF_ANY_BIT => loaded & value != 0,
            _ => return None,
        };
        at += usize::from(if holds { jump_true } else { jump_false });
    }
}

//! The limits that a kernel needs to start. With less, it fails at some point of its start, or never answers.

use sandbox_core::{ByteSize, CreateSpec, Error, Result};

/// Minimum number of threads and processes of an IPython kernel: a dozen from its start, and some for those of code.
const MIN_PROCESSES: u32 = 16;

/// Minimum memory of an IPython kernel, with the reservations of its threads.
const MIN_MEMORY: ByteSize = ByteSize::mib(128);

/// The limits of a sandbox that concern a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelLimits {
    processes: Option<u32>,
    memory: Option<ByteSize>,
}

impl KernelLimits {
    /// Returns the limits of a specification.
    #[must_use]
    pub fn from_spec(spec: &CreateSpec) -> Self {
        Self { processes: spec.processes, memory: spec.memory }
    }

    /// Rejects limits with which no IPython kernel starts.
    ///
    /// # Errors
    /// `InvalidArgument` with the minimum.
    pub(super) fn check(self) -> Result<()> {
        if let Some(processes) = self.processes.filter(|processes| *processes < MIN_PROCESSES) {
            let message = format!(
                "is {processes}, and the kernel needs about {MIN_PROCESSES} processes and threads"
            );
            return Err(Error::invalid("processes", message)
                .with_hint("allow more with `.processes(..)` (local-eval runs code with 4)"));
        }
        if let Some(memory) = self.memory.filter(|memory| *memory < MIN_MEMORY) {
            let message = format!("is {memory}, and the kernel needs about {MIN_MEMORY}");
            return Err(Error::invalid("memory", message)
                .with_hint("allow more with `.memory(..)` (local-eval runs code with 16 MiB)"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_no_kernel_can_start_with_is_rejected() {
        let message = |limits: KernelLimits| limits.check().unwrap_err().to_string();
        let few = KernelLimits { processes: Some(8), memory: None };
        assert_eq!(
            message(few),
            "`processes` is 8, and the kernel needs about 16 processes and threads"
        );
        let little = KernelLimits { processes: Some(16), memory: Some(ByteSize::mib(64)) };
        assert!(message(little).contains("the kernel needs about 128"), "{}", message(little));
        KernelLimits { processes: Some(16), memory: Some(MIN_MEMORY) }.check().unwrap();
        KernelLimits::default().check().unwrap();
    }
}

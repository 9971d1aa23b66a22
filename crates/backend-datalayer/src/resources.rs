//! What an environment gives a sandbox, from the notation of the service.

use std::fmt;

use sandbox_core::{ByteSize, CreateSpec, ResourceConfig};
use serde_json::Value;

use crate::environment::is_any;
use crate::wire::Environment;

/// What a sandbox of that environment has. `asked` is the GPU type that was asked for, which counts where the service does
/// not say otherwise and is not claimed there.
pub(crate) fn of(environment: &Environment, asked: Option<&str>) -> ResourceConfig {
    let had = Size::had(environment);
    let told = environment.gpu().map(|gpu| gpu.as_str().to_owned());
    let certain =
        |own: &String| asked.is_none_or(|asked| asked.eq_ignore_ascii_case(own) || is_any(asked));
    ResourceConfig {
        cpu: had.cpu,
        memory: had.memory.map(|memory| memory.as_u64() >> 20),
        gpu: told.filter(certain),
        gpu_count: environment.gpus(),
        disk: had.disk.map(|disk| disk.as_u64() as f64 / f64::from(1 << 30)),
    }
}

/// How much a sandbox has. Environments say that, and the service has no request for another amount.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Size {
    /// Cores.
    pub(crate) cpu: Option<f64>,
    pub(crate) memory: Option<ByteSize>,
    pub(crate) disk: Option<ByteSize>,
}

impl Size {
    /// What is asked for.
    pub(crate) fn asked(spec: &CreateSpec) -> Self {
        Self { cpu: spec.cpu, memory: spec.memory, disk: spec.disk }
    }

    /// What sandboxes of that environment have, as far as the service tells.
    pub(crate) fn had(environment: &Environment) -> Self {
        let amount = |name: &str| environment.resources.get(name).and_then(amount);
        let bytes = |name| amount(name).map(|bytes| ByteSize::bytes(bytes as u64));
        Self { cpu: amount("cpu"), memory: bytes("memory"), disk: bytes("ephemeral-storage") }
    }

    /// Whether sandboxes of that environment have what is asked for, no more and no less.
    pub(crate) fn is_that_of(self, environment: &Environment) -> bool {
        let had = Self::had(environment);
        (self.cpu.is_none() || self.cpu == had.cpu)
            && (self.memory.is_none() || self.memory == had.memory)
            && (self.disk.is_none() || self.disk == had.disk)
    }

    /// The first that is asked for, as the builder calls it.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self { cpu: Some(_), .. } => "cpu",
            Self { memory: Some(_), .. } => "memory",
            _ => "disk",
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.cpu.map(|cpu| format!("{cpu} cores"));
        let memory = self.memory.map(|memory| format!("{memory} of memory"));
        let disk = self.disk.map(|disk| format!("{disk} of disk"));
        let amounts: Vec<_> = [cpu, memory, disk].into_iter().flatten().collect();
        match amounts.as_slice() {
            [] => f.write_str("no size that is told"),
            told => f.write_str(&told.join(" and ")),
        }
    }
}

/// A number with a unit: `1500m`, `16Gi`, `8000Mi`, `2`.
fn amount(value: &Value) -> Option<f64> {
    let Some(text) = value.as_str() else { return value.as_f64() };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1.0,
        "m" => 1e-3,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        "Ti" => 1_099_511_627_776.0,
        _ => return None,
    };
    let number: f64 = digits.parse().ok()?;
    Some(number * unit).filter(|number| number.is_finite() && *number >= 0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn units_are_those_of_kubernetes() {
        for (text, expected) in
            [("1500m", 1.5), ("2", 2.0), ("16Gi", 17_179_869_184.0), ("8M", 8e6), ("1Ki", 1024.0)]
        {
            assert_eq!(amount(&json!(text)), Some(expected), "{text}");
        }
        assert_eq!(amount(&json!(3)), Some(3.0));
        for bad in ["", "Gi", "1Xi", "-1", "nan", "inf"] {
            assert_eq!(amount(&json!(bad)), None, "{bad}");
        }
    }
}

//! CPU, memory, disk and GPUs of an environment, from the notation of the service.

use std::fmt;

use sandbox_core::{ByteSize, CreateSpec, GpuType, ResourceConfig};
use serde_json::Value;

use crate::wire::Environment;

/// Names for a GPU of any type.
const ANY_GPU: [&str; 2] = ["any", "gpu"];

/// Returns true for a request that takes a GPU of any type.
pub(crate) fn is_any_gpu(gpu: &str) -> bool {
    ANY_GPU.iter().any(|name| gpu.eq_ignore_ascii_case(name))
}

impl Environment {
    /// Returns the number of GPUs.
    pub(crate) fn gpus(&self) -> u32 {
        let count =
            |value: &Value| value.as_str().map_or_else(|| value.as_u64(), |text| text.parse().ok());
        let gpus = self.resources.get("nvidia.com/gpu").and_then(count).unwrap_or_default();
        u32::try_from(gpus).unwrap_or(u32::MAX)
    }

    /// Returns the one GPU type that the texts name. `None` where they name none or several.
    pub(crate) fn gpu(&self) -> Option<GpuType> {
        if self.gpus() == 0 {
            return None;
        }
        let texts = [Some(&self.name), self.title.as_ref(), self.description.as_ref()];
        let words: Vec<&str> = texts.into_iter().flatten().flat_map(|text| words(text)).collect();
        let is_named =
            |gpu: &GpuType| words.iter().any(|word| word.eq_ignore_ascii_case(gpu.as_str()));
        let mut found = GpuType::ALL.into_iter().filter(is_named);
        found.next().filter(|_| found.next().is_none())
    }
}

/// Splits a text into words, with the signs that names of GPUs have.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '-'))
}

/// Returns the resources of a sandbox of that environment. A GPU type that differs from the one `asked` for is left out: the
/// service does not always tell the type.
pub(crate) fn from_environment(environment: &Environment, asked: Option<&str>) -> ResourceConfig {
    let size = Size::from_environment(environment);
    let gpu = environment.gpu().map(|gpu| gpu.as_str().to_owned());
    let is_asked = |own: &String| {
        asked.is_none_or(|asked| asked.eq_ignore_ascii_case(own) || is_any_gpu(asked))
    };
    ResourceConfig {
        cpu: size.cpu,
        memory: size.memory.map(|memory| memory.as_u64() >> 20),
        gpu: gpu.filter(is_asked),
        gpu_count: environment.gpus(),
        disk: size.disk.map(|disk| disk.as_u64() as f64 / f64::from(1 << 30)),
    }
}

/// CPU, memory and disk. They come with an environment; the service has no request for another amount.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Size {
    /// Cores.
    pub(crate) cpu: Option<f64>,
    pub(crate) memory: Option<ByteSize>,
    pub(crate) disk: Option<ByteSize>,
}

impl Size {
    /// Returns the size that a create asks for.
    pub(crate) fn from_spec(spec: &CreateSpec) -> Self {
        Self { cpu: spec.cpu, memory: spec.memory, disk: spec.disk }
    }

    /// Returns the size of an environment, as far as the service tells it.
    pub(crate) fn from_environment(environment: &Environment) -> Self {
        let amount = |name: &str| environment.resources.get(name).and_then(amount);
        let bytes = |name| amount(name).map(|bytes| ByteSize::bytes(bytes as u64));
        Self { cpu: amount("cpu"), memory: bytes("memory"), disk: bytes("ephemeral-storage") }
    }

    /// Returns true for an environment of exactly this size.
    pub(crate) fn matches(self, environment: &Environment) -> bool {
        let size = Self::from_environment(environment);
        (self.cpu.is_none() || self.cpu == size.cpu)
            && (self.memory.is_none() || self.memory == size.memory)
            && (self.disk.is_none() || self.disk == size.disk)
    }

    /// Returns the first field that is set, as the builder calls it.
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
            [] => f.write_str("an unknown size"),
            known => f.write_str(&known.join(" and ")),
        }
    }
}

/// Reads a number with a unit: `1500m`, `16Gi`, `8000Mi`, `2`.
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

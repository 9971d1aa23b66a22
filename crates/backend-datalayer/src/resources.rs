//! What an environment gives a sandbox, from the notation of the service.

use sandbox_core::ResourceConfig;
use serde_json::Value;

use crate::wire::Environment;

/// What a sandbox of that environment has. `asked` is the GPU type that was asked for, which counts where the service does
/// not say otherwise and is not claimed there.
pub(crate) fn of(environment: &Environment, asked: Option<&str>) -> ResourceConfig {
    let amount = |name: &str| environment.resources.get(name).and_then(amount);
    let told = environment.gpu().map(|gpu| gpu.as_str().to_owned());
    let certain =
        |own: &String| asked.is_none_or(|asked| asked.eq_ignore_ascii_case(own) || asked == "any");
    ResourceConfig {
        cpu: amount("cpu"),
        memory: amount("memory").map(|bytes| (bytes / f64::from(1 << 20)) as u64),
        gpu: told.filter(certain),
        gpu_count: environment.gpus(),
        disk: amount("ephemeral-storage").map(|bytes| bytes / f64::from(1 << 30)),
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

//! Sizes and times with their checks in one place.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A number of bytes. Parses `512`, `512b`, `64k`, `256m`, `2g` (powers of 1024, any case, `i`/`b` optional).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Makes a size of bytes.
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Makes a size of KiB.
    pub const fn kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// Makes a size of MiB.
    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// Makes a size of GiB.
    pub const fn gib(gib: u64) -> Self {
        Self(gib.saturating_mul(1 << 30))
    }

    /// The number of bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        for (unit, name) in UNITS {
            if self.0 >= unit {
                return if self.0.is_multiple_of(unit) {
                    write!(f, "{} {name}", self.0 / unit)
                } else {
                    write!(f, "{:.1} {name}", self.0 as f64 / unit as f64)
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(
                "size",
                format!("`{text}` is not a size such as 512m, 2g or a number of bytes"),
            )
        };
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &lower[digits.len()..] {
            "" | "b" => 1,
            "k" | "kb" | "ki" | "kib" => 1 << 10,
            "m" | "mb" | "mi" | "mib" => 1 << 20,
            "g" | "gb" | "gi" | "gib" => 1 << 30,
            "t" | "tb" | "ti" | "tib" => 1u64 << 40,
            _ => return Err(wrong()),
        };
        let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
        match number.checked_mul(unit) {
            Some(bytes) if bytes > 0 => Ok(Self(bytes)),
            _ => Err(wrong()),
        }
    }
}

/// Names a size: a [`ByteSize`], or text such as `"512m"` or `"2g"`.
pub trait IntoByteSize {
    /// Gives the size. `field` names it in the error.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind) for text that is not a size.
    fn into_byte_size(self, field: &'static str) -> Result<ByteSize>;
}

impl IntoByteSize for ByteSize {
    fn into_byte_size(self, _: &'static str) -> Result<ByteSize> {
        Ok(self)
    }
}

impl IntoByteSize for &str {
    fn into_byte_size(self, field: &'static str) -> Result<ByteSize> {
        self.parse().map_err(|_| {
            let problem = "must be a size such as 512m, 2g or a number of bytes, got";
            Error::invalid(field, format!("{problem} {self:?}"))
        })
    }
}

impl IntoByteSize for String {
    fn into_byte_size(self, field: &'static str) -> Result<ByteSize> {
        self.as_str().into_byte_size(field)
    }
}

/// Names a duration: a [`Duration`], or text such as `"90s"`, `"1.5h"` or `"250ms"`.
pub trait IntoDuration {
    /// Gives the duration. `field` names it in the error.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind) for text that is not a duration.
    fn into_duration(self, field: &'static str) -> Result<Duration>;
}

impl IntoDuration for Duration {
    fn into_duration(self, _: &'static str) -> Result<Duration> {
        Ok(self)
    }
}

impl IntoDuration for &str {
    fn into_duration(self, field: &'static str) -> Result<Duration> {
        parse_duration(field, self)
    }
}

impl IntoDuration for String {
    fn into_duration(self, field: &'static str) -> Result<Duration> {
        parse_duration(field, &self)
    }
}

/// Parses a duration: a number and one of `ms`, `s`, `m`, `h` and `d`. Without a unit the number is in seconds. `field`
/// names it in the error.
///
/// ```
/// use std::time::Duration;
///
/// # fn main() -> sandbox_core::Result<()> {
/// assert_eq!(sandbox_core::parse_duration("timeout", "90s")?, Duration::from_secs(90));
/// assert_eq!(sandbox_core::parse_duration("timeout", "1.5h")?, Duration::from_secs(5400));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind) for other text, for zero, and for more than 365 days.
pub fn parse_duration(field: &'static str, text: &str) -> Result<Duration> {
    let wrong = || {
        let problem = "must be a duration such as 90s, 1.5h, 250ms or a number of seconds, got";
        Error::invalid(field, format!("{problem} {text:?}"))
    };
    let trimmed = text.trim();
    let number = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &trimmed[number.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    seconds(field, number * unit)
}

/// The longest time accepted anywhere: 365 days. Longer ones overflow timers somewhere.
pub const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// Checks a number of seconds that came from outside. `field` names it in the error.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind) for NaN, infinite, zero, negative or more than 365 days.
pub fn seconds(field: &'static str, value: f64) -> Result<Duration> {
    if !value.is_finite() {
        return Err(Error::invalid(
            field,
            format!("must be a finite number of seconds, got {value}"),
        ));
    }
    if value <= 0.0 || value > MAX_DURATION.as_secs_f64() {
        return Err(out_of_range(field, value));
    }
    check_duration(field, Duration::from_secs_f64(value))
}

/// Checks a duration: more than zero, at most 365 days.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind), naming `field`.
pub fn check_duration(field: &'static str, value: Duration) -> Result<Duration> {
    if value.is_zero() || value > MAX_DURATION {
        return Err(out_of_range(field, value.as_secs_f64()));
    }
    Ok(value)
}

/// A duration as users are told it: `1 second`, `0.5 seconds`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let unit = if duration == Duration::from_secs(1) { "second" } else { "seconds" };
    format!("{seconds} {unit}")
}

/// The shortest life of a sandbox, used or not. It could not even be created in less.
const LEAST_LIFE: Duration = Duration::from_millis(100);

/// Checks how long a sandbox may live or be unused: at least 0.1 seconds, at most 365 days.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind), naming `field`.
pub fn check_lifetime(field: &'static str, value: Duration) -> Result<Duration> {
    if value < LEAST_LIFE || value > MAX_DURATION {
        return Err(Error::invalid(
            field,
            format!(
                "must be from {} to {} seconds (365 days), got {}",
                LEAST_LIFE.as_secs_f64(),
                MAX_DURATION.as_secs(),
                value.as_secs_f64()
            ),
        ));
    }
    Ok(value)
}

fn out_of_range(field: &'static str, value: f64) -> Error {
    Error::invalid(
        field,
        format!(
            "must be more than 0 and at most {} seconds (365 days), got {value}",
            MAX_DURATION.as_secs()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print() {
        for (text, bytes) in [
            ("512", 512),
            ("64k", 65_536),
            ("256M", 256 << 20),
            ("2GiB", 2 << 30),
            (" 1 g ", 1 << 30),
        ] {
            assert_eq!(text.parse::<ByteSize>().unwrap().as_u64(), bytes, "{text}");
        }
        for text in ["", "0", "-1", "1.5g", "nan", "9999999999999t", "12x", "m"] {
            text.parse::<ByteSize>().unwrap_err();
        }
        assert_eq!(ByteSize::mib(512).to_string(), "512 MiB");
        assert_eq!(ByteSize::bytes(1536).to_string(), "1.5 KiB");
    }

    #[test]
    fn durations_parse() {
        for (text, milliseconds) in [
            ("90", 90_000),
            ("90s", 90_000),
            ("250ms", 250),
            ("1.5h", 5_400_000),
            (" 2 m ", 120_000),
            ("1d", 86_400_000),
        ] {
            let parsed = parse_duration("timeout", text).unwrap();
            assert_eq!(parsed, Duration::from_millis(milliseconds), "{text}");
        }
        for text in ["", "0", "-1s", "s", "1w", "nan", "inf", "1e9d", "1.5.2s"] {
            let error = parse_duration("timeout", text).unwrap_err().to_string();
            assert!(error.starts_with("`timeout` must be "), "{text}: {error}");
        }
    }

    #[test]
    fn times_are_checked() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e18, 1e-12] {
            let error = seconds("timeout", bad).unwrap_err();
            assert!(error.to_string().contains("`timeout`"), "{error}");
        }
        for bad in
            [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(99), Duration::MAX]
        {
            let error = check_lifetime("lifetime", bad).unwrap_err().to_string();
            assert!(
                error.starts_with("`lifetime` must be from 0.1 to 31536000 seconds"),
                "{error}"
            );
        }
        check_lifetime("lifetime", Duration::from_millis(100)).unwrap();
        check_lifetime("lifetime", MAX_DURATION).unwrap();
        assert_eq!(seconds("timeout", 0.5).unwrap(), Duration::from_millis(500));
        let words =
            [0.5, 1.0, 1.5, 120.0].map(|seconds| format_duration(Duration::from_secs_f64(seconds)));
        assert_eq!(words, ["0.5 seconds", "1 second", "1.5 seconds", "120 seconds"]);
    }
}

//! Durations on the command line: seconds, or numbers with units.

const UNITS: [(&str, f64); 5] =
    [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// Parses a duration such as `90`, `1.5`, `90s`, `5m` or `1h30m` as seconds. The core checks the value.
///
/// # Errors
/// For another form, with examples.
pub(crate) fn parse(text: &str) -> Result<f64, String> {
    let text = text.trim();
    text.parse().ok().or_else(|| with_units(text)).ok_or_else(|| {
        "a time is a number of seconds, or one such as 500ms, 90s, 5m, 1h30m or 2d".to_owned()
    })
}

/// As [`parse`], for the time limit of a run, whose short flag is that of a terminal in other programs.
///
/// # Errors
/// For another form, with examples and the flag for a terminal.
pub(crate) fn parse_limit(text: &str) -> Result<f64, String> {
    parse(text)
        .map_err(|problem| format!("{problem}; -t is the time limit, and --tty the terminal"))
}

fn with_units(text: &str) -> Option<f64> {
    let (mut rest, mut sum) = (text, 0.0);
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let after = &rest[number..];
        let unit = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (_, seconds) = UNITS.iter().find(|(name, _)| *name == &after[..unit])?;
        sum += rest[..number].parse::<f64>().ok()? * seconds;
        rest = &after[unit..];
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_have_units() {
        for (text, seconds) in [
            ("90", 90.0),
            ("0.5", 0.5),
            ("-1", -1.0),
            ("90s", 90.0),
            ("500ms", 0.5),
            ("5m", 300.0),
            ("1.5h", 5400.0),
            ("1h30m", 5400.0),
            ("2d", 172_800.0),
        ] {
            assert_eq!(parse(text), Ok(seconds), "{text}");
        }
        for text in ["", "5x", "m", "5m3", "1h-5m", "5 m", "box", "1.2.3s"] {
            assert!(parse(text).unwrap_err().contains("1h30m"), "{text}");
        }
        assert!(parse("inf").is_ok_and(f64::is_infinite));
        assert!(parse_limit("box").unwrap_err().contains("--tty"));
    }
}

//! Samples, medians, and comparisons in which both sides take turns.

use std::time::{Duration, Instant};

use crate::row::{Bar, Row};

/// What a measurement gives; errors are shown in its row.
pub(crate) type Measured<T = f64> = Result<T, String>;

/// The middle of the samples.
pub(crate) fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    match samples.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => samples[n / 2],
        n => f64::midpoint(samples[n / 2 - 1], samples[n / 2]),
    }
}

/// Milliseconds.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Times one thing, in milliseconds.
pub(crate) async fn timed<T, E: ToString>(work: impl Future<Output = Result<T, E>>) -> Measured {
    let began = Instant::now();
    work.await.map_err(|error| error.to_string())?;
    Ok(milliseconds(began.elapsed()))
}

/// Ours against a yardstick: samples take turns, each round gives a ratio of medians, the best round counts.
pub(crate) async fn compare(
    (samples, rounds): (usize, usize),
    mut ours: impl AsyncFnMut() -> Measured,
    mut yardstick: impl AsyncFnMut() -> Measured,
) -> Measured<(f64, f64, f64)> {
    let mut best: Option<(f64, f64, f64)> = None;
    for _ in 0..rounds {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for _ in 0..samples {
            here.push(ours().await?);
            there.push(yardstick().await?);
        }
        let (here, there) = (median(&mut here), median(&mut there));
        let ratio = here / there;
        if best.is_none_or(|(_, _, least)| ratio < least) {
            best = Some((here, there, ratio));
        }
    }
    best.ok_or_else(|| "no samples".to_owned())
}

/// The row of a comparison in milliseconds.
pub(crate) fn compared(
    name: &str,
    yardstick: &'static str,
    measured: Measured<(f64, f64, f64)>,
    bar: Bar,
) -> Row {
    match measured {
        Ok((here, there, ratio)) => Row {
            name: name.to_owned(),
            unit: "ms",
            value: Ok(here),
            yardstick: Some((yardstick, there, ratio)),
            bar,
        },
        Err(why) => Row::plain(name, "ms", Err(why), bar),
    }
}

/// The median of samples of one thing, best of the rounds.
pub(crate) async fn alone(
    (samples, rounds): (usize, usize),
    mut work: impl AsyncFnMut() -> Measured,
) -> Measured {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let mut found = Vec::new();
        for _ in 0..samples {
            found.push(work().await?);
        }
        best = best.min(median(&mut found));
    }
    Ok(best)
}

/// Runs a program to its end and times it as a whole.
pub(crate) async fn program(command: &mut tokio::process::Command) -> Measured {
    let began = Instant::now();
    let output = command.stdin(std::process::Stdio::null()).output();
    let output = output.await.map_err(|error| error.to_string())?;
    let took = milliseconds(began.elapsed());
    if output.status.success() {
        return Ok(took);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("it failed").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
    }
}

//! Samples, medians, and comparisons in which both sides take turns.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::row::Yardstick;

/// What a measurement gives; errors are shown in its row.
pub(crate) type Measured<T = f64> = Result<T, String>;

/// How long what ended may go on ending before the next sample. It is also the time in which a program that makes one
/// sandbox after the other would use the last one.
const SETTLE: Duration = Duration::from_millis(10);

/// An error as the text of a row.
pub(crate) fn text(error: impl ToString) -> String {
    error.to_string()
}

/// The middle of the samples.
pub(crate) fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    match samples.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => samples[n / 2],
        n => f64::midpoint(samples[n / 2 - 1], samples[n / 2]),
    }
}

/// Milliseconds since then.
pub(crate) fn since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// Waits until the processes of the sample before are gone, so that none is measured with the rest of another.
pub(crate) async fn settle() {
    tokio::time::sleep(SETTLE).await;
}

/// Two figures of one measurement, each as one of its own.
pub(crate) fn apart<T, U>(measured: Measured<(T, U)>) -> (Measured<T>, Measured<U>) {
    match measured {
        Ok((one, other)) => (Ok(one), Ok(other)),
        Err(why) => (Err(why.clone()), Err(why)),
    }
}

/// Ours against a yardstick: samples take turns, each round gives a ratio of medians, the best round counts.
pub(crate) async fn compare(
    how_often: (usize, usize),
    yardstick_name: &'static str,
    ours: impl AsyncFnMut() -> Measured,
    yardstick: impl AsyncFnMut() -> Measured,
) -> Measured<(f64, Yardstick)> {
    compare_above(how_often, yardstick_name, ours, yardstick, async || Ok(0.0)).await
}

/// The same, of the time that each takes above a floor, which takes turns with them.
pub(crate) async fn compare_above(
    (samples, rounds): (usize, usize),
    yardstick_name: &'static str,
    mut ours: impl AsyncFnMut() -> Measured,
    mut yardstick: impl AsyncFnMut() -> Measured,
    mut floor: impl AsyncFnMut() -> Measured,
) -> Measured<(f64, Yardstick)> {
    // The first of each pays for what all others find done.
    ours().await?;
    yardstick().await?;
    floor().await?;
    let mut best: Option<(f64, Yardstick)> = None;
    for _ in 0..rounds {
        let (mut here, mut there, mut below) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..samples {
            here.push(ours().await?);
            there.push(yardstick().await?);
            below.push(floor().await?);
        }
        let below = median(&mut below);
        let (here, value) = (median(&mut here) - below, median(&mut there) - below);
        if value <= 0.0 {
            return Err(format!("{yardstick_name} takes nothing above {below:.3} ms"));
        }
        let ratio = here / value;
        if best.is_none_or(|(_, before)| ratio < before.ratio) {
            best = Some((here, Yardstick { name: yardstick_name, value, ratio }));
        }
    }
    best.ok_or_else(|| "no samples".to_owned())
}

/// The median of samples of one thing, best of the rounds.
pub(crate) async fn alone(
    (samples, rounds): (usize, usize),
    mut work: impl AsyncFnMut() -> Measured,
) -> Measured {
    work().await?;
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

/// Runs a program to its end, its output read through pipes; the milliseconds of all of it.
///
/// It blocks: nothing of an event loop is in the figure.
pub(crate) fn whole(command: &mut Command) -> Measured {
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output();
    let took = since(began);
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "not installed".to_owned(),
        _ => error.to_string(),
    })?;
    if output.status.success() {
        return Ok(took);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("it failed").to_owned())
}

/// Starts a program and waits for its end, without pipes.
pub(crate) fn bare(command: &mut Command) -> Measured {
    fed(Stdio::null(), command)
}

/// The same, with something to read.
pub(crate) fn fed(input: Stdio, command: &mut Command) -> Measured {
    let command = command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let status = command.status().map_err(text)?;
    let took = since(began);
    if status.success() { Ok(took) } else { Err(format!("it failed: {status}")) }
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

    #[tokio::test]
    async fn the_round_with_the_best_ratio_counts() {
        // One sample before, then three rounds of two.
        let mut ours = [9.0, 4.0, 4.0, 2.0, 2.0, 6.0, 6.0].into_iter();
        let mut turns = 0;
        let next = async || ours.next().ok_or_else(|| "too many".to_owned());
        let other = async || {
            turns += 1;
            Ok(4.0)
        };
        let (value, yardstick) = compare((2, 3), "other", next, other).await.unwrap();
        assert_eq!((value, yardstick.value, yardstick.ratio), (2.0, 4.0, 0.5));
        assert_eq!(turns, 7);
    }

    #[tokio::test]
    async fn both_are_taken_above_the_floor() {
        let measured =
            compare_above((2, 1), "other", async || Ok(3.0), async || Ok(6.0), async || Ok(2.0));
        let (value, yardstick) = measured.await.unwrap();
        assert_eq!((value, yardstick.value, yardstick.ratio), (1.0, 4.0, 0.25));
        let low =
            compare_above((1, 1), "other", async || Ok(3.0), async || Ok(1.0), async || Ok(2.0));
        assert!(low.await.is_err());
    }

    #[test]
    fn programs_that_fail_are_no_figures() {
        assert!(
            whole(Command::new("sh").args(["-c", "echo why >&2; exit 1"])) == Err("why".into())
        );
        assert!(bare(&mut Command::new("false")).is_err());
        assert!(bare(&mut Command::new("true")).is_ok_and(|took| took > 0.0));
        assert!(whole(&mut Command::new("no-such-program-here")) == Err("not installed".into()));
    }
}

//! The table of seconds by stage and test program, and the budget of each crate.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::test_plan::TestPlan;

/// Rows below that are added up in one.
const SMALL: Duration = Duration::from_secs(5);

/// The largest share, in percent, that the crates without a share of their own may have together of the time of all test
/// programs. The others have it in their manifests; see [`TestPlan::share`].
///
/// Shares and not seconds: they are the same on a slow machine.
const OTHERS: u32 = 10;

/// Shares say nothing about runs that are shorter than that.
const LEAST: Duration = Duration::from_secs(300);

/// The time that stages and test programs took.
#[derive(Debug, Default)]
pub(crate) struct Times {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    what: String,
    /// The crate whose budget it counts for.
    package: Option<String>,
    time: Duration,
}

impl Times {
    /// Adds a stage, such as a build.
    pub(crate) fn stage(&mut self, what: &str, time: Duration) {
        self.rows.push(Row { what: what.to_owned(), package: None, time });
    }

    /// Adds a test program of a crate, by its folder.
    pub(crate) fn program(&mut self, what: &str, package: &str, time: Duration) {
        self.rows.push(Row { what: what.to_owned(), package: Some(package.to_owned()), time });
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
    }

    /// Returns the table, slowest first; then the share of each crate.
    pub(crate) fn table(&self) -> String {
        let mut rows: Vec<_> = self.rows.iter().filter(|row| row.time >= SMALL).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.time));
        let mut table = String::new();
        for row in rows {
            let _ = writeln!(table, "{:>6} s  {}", row.time.as_secs(), row.what);
        }
        let small: Duration =
            self.rows.iter().map(|row| row.time).filter(|time| *time < SMALL).sum();
        let _ = writeln!(table, "{:>6} s  everything below {} s", small.as_secs(), SMALL.as_secs());
        for share in self.shares() {
            let _ = writeln!(
                table,
                "{:>6} s  {:>3} % of at most {:>2} %: test programs of {}",
                share.time.as_secs(),
                share.percent,
                share.budget,
                share.package
            );
        }
        table
    }

    /// Returns the crates that took more than their budget.
    pub(crate) fn over_budget(&self) -> Vec<String> {
        let all: Duration = self.shares().iter().map(|share| share.time).sum();
        if all < LEAST {
            return Vec::new();
        }
        let over = self.shares().into_iter().filter(|share| share.percent > share.budget);
        over.map(|share| {
            format!(
                "{} takes {} % of the tests' time, of at most {} %",
                share.package, share.percent, share.budget
            )
        })
        .collect()
    }

    fn shares(&self) -> Vec<Share> {
        let mut packages: BTreeMap<&str, Duration> = BTreeMap::new();
        for row in &self.rows {
            if let Some(package) = &row.package {
                let name = budget(package).map_or("all others", |_| package);
                *packages.entry(name).or_default() += row.time;
            }
        }
        let all: Duration = packages.values().sum();
        let mut shares: Vec<_> = packages
            .into_iter()
            .map(|(package, time)| Share {
                package: package.to_owned(),
                time,
                percent: percent(time, all),
                budget: budget(package).unwrap_or(OTHERS),
            })
            .collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.time));
        shares
    }
}

/// Returns the share of a crate that has one of its own.
fn budget(package: &str) -> Option<u32> {
    TestPlan::get().ok()?.share(package)
}

struct Share {
    package: String,
    time: Duration,
    percent: u32,
    budget: u32,
}

fn percent(part: Duration, all: Duration) -> u32 {
    let all = all.as_millis().max(1);
    u32::try_from(part.as_millis() * 100 / all).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_first_and_the_small_ones_are_one_row() {
        let mut times = Times::default();
        times.stage("clippy", Duration::from_secs(90));
        times.program("cli, it", "cli", Duration::from_secs(200));
        times.program("cli, lib", "cli", Duration::from_secs(2));
        times.program("sandbox-core, lib", "sandbox-core", Duration::from_secs(2));
        assert_eq!(
            times.table(),
            "   200 s  cli, it\n    90 s  clippy\n     4 s  everything below 5 s\n   \
             202 s   99 % of at most 20 %: test programs of cli\n     \
             2 s    0 % of at most 10 %: test programs of all others\n"
        );
    }

    #[test]
    fn a_budget_can_be_overrun_in_a_long_run_alone() {
        let mut times = Times::default();
        times.program("cli, it", "cli", Duration::from_secs(200));
        assert!(times.over_budget().is_empty(), "too short to tell");
        times.program("backend-eval, it", "backend-eval", Duration::from_secs(200));
        let over = times.over_budget();
        assert_eq!(over.len(), 2, "{over:?}");
        assert!(over[0].contains("50 % of the tests' time"), "{over:?}");
    }
}

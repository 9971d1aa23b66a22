//! Rows of the table, and the bars they are held to.

use crate::sample::Measured;

/// What a row is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    /// At most that many times the yardstick.
    Ratio(f64),
    /// The same, and that much besides, in the unit of the row.
    RatioAnd(f64, f64),
    /// Less than that much, in the unit of the row.
    Below(f64),
    /// At least that much, in the unit of the row.
    Least(f64),
    /// Told, and held to nothing.
    Information,
}

/// What a figure is compared with, measured in the same run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yardstick {
    pub(crate) name: &'static str,
    /// In the unit of the row.
    pub(crate) value: f64,
    /// Ours over this, in the best round.
    pub(crate) ratio: f64,
}

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    /// Ours; what went wrong when it could not be measured.
    pub(crate) value: Measured,
    pub(crate) yardstick: Option<Yardstick>,
    pub(crate) bar: Bar,
}

impl Row {
    /// A figure that is compared with nothing.
    pub(crate) fn plain(
        name: impl Into<String>,
        unit: &'static str,
        value: Measured,
        bar: Bar,
    ) -> Self {
        Self { name: name.into(), unit, value, yardstick: None, bar }
    }

    /// Milliseconds, told and held to nothing.
    pub(crate) fn information(name: impl Into<String>, value: Measured) -> Self {
        Self::plain(name, "ms", value, Bar::Information)
    }

    /// Milliseconds beside those of a yardstick.
    pub(crate) fn compared(name: &str, measured: Measured<(f64, Yardstick)>, bar: Bar) -> Self {
        let (value, yardstick) = match measured {
            Ok((value, yardstick)) => (Ok(value), Some(yardstick)),
            Err(why) => (Err(why), None),
        };
        Self { name: name.to_owned(), unit: "ms", value, yardstick, bar }
    }

    /// Whether the bar was met; `None` for information. What could not be measured meets no bar.
    pub(crate) fn meets(&self) -> Option<bool> {
        let value = self.value.as_ref().ok().copied();
        match self.bar {
            Bar::Information => None,
            Bar::Below(most) => Some(value.is_some_and(|value| value < most)),
            Bar::Least(least) => Some(value.is_some_and(|value| value >= least)),
            Bar::Ratio(most) => {
                let ratio = self.yardstick.map(|yardstick| yardstick.ratio);
                Some(value.is_some() && ratio.is_some_and(|ratio| ratio <= most))
            }
            Bar::RatioAnd(most, more) => {
                let most = self.yardstick.map(|yardstick| most * yardstick.value + more);
                Some(value.zip(most).is_some_and(|(value, most)| value <= most))
            }
        }
    }

    /// Whether it was held to something and did not reach it.
    pub(crate) fn misses(&self) -> bool {
        self.meets() == Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_can_be_missed() {
        let row = |value, bar| Row::plain("x", "ms", value, bar);
        assert!(!row(Ok(1.0), Bar::Below(2.0)).misses());
        assert!(row(Ok(2.0), Bar::Below(2.0)).misses());
        assert!(row(Ok(3.0), Bar::Least(4.0)).misses());
        assert!(row(Ok(f64::NAN), Bar::Least(4.0)).misses());
        assert!(row(Err("broken".into()), Bar::Below(2.0)).misses());
        assert!(row(Ok(1.0), Bar::Ratio(2.0)).misses());
        assert!(!row(Err("not installed".into()), Bar::Information).misses());
    }

    #[test]
    fn ratios_are_those_of_the_yardstick() {
        let row = |ratio| {
            let yardstick = Yardstick { name: "y", value: 4.0, ratio };
            Row::compared("x", Ok((1.0, yardstick)), Bar::Ratio(0.5))
        };
        assert!(!row(0.25).misses());
        assert!(row(0.6).misses());
        assert!(Row::compared("x", Err("broken".into()), Bar::Ratio(0.5)).misses());
        let with = |value, more| {
            let yardstick = Yardstick { name: "y", value: 4.0, ratio: 9.0 };
            Row::compared("x", Ok((value, yardstick)), Bar::RatioAnd(1.5, more))
        };
        assert!(!with(6.25, 0.3).misses());
        assert!(with(6.25, 0.2).misses());
    }
}

//! Wall-clock time as the models write it.

use chrono::Utc;

/// Now, in unix seconds.
pub fn unix_now() -> f64 {
    Utc::now().timestamp_micros() as f64 / 1e6
}

//! Wall-clock time as the models write it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::Utc;

/// Now, in unix seconds.
pub fn unix_now() -> f64 {
    Utc::now().timestamp_micros() as f64 / 1e6
}

/// Converts unix seconds. Values that no clock shows, such as NaN, become the epoch.
pub fn system_time(unix_seconds: f64) -> SystemTime {
    let since = Duration::try_from_secs_f64(unix_seconds).unwrap_or_default();
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}

/// Writes times as unix seconds, and reads them, where a model has [`SystemTime`].
pub(crate) mod unix_seconds {
    use std::time::{SystemTime, UNIX_EPOCH};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let seconds = |time: &SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            since.as_micros() as f64 / 1e6
        };
        time.as_ref().map(seconds).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.map(super::system_time))
    }
}

/// Writes durations as seconds, and reads them.
pub(crate) mod duration_seconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }
}

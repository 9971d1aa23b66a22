//! GPU types that providers name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A GPU model. Backends accept other names as free text too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GpuType {
    /// NVIDIA T4
    T4,
    /// NVIDIA L4
    L4,
    /// NVIDIA A10G
    A10G,
    /// NVIDIA A100, 40 GB
    A100,
    /// NVIDIA A100, 80 GB
    #[serde(rename = "A100-80GB")]
    A100_80GB,
    /// NVIDIA H100
    H100,
}

impl GpuType {
    /// Every known type.
    pub const ALL: [Self; 6] =
        [Self::T4, Self::L4, Self::A10G, Self::A100, Self::A100_80GB, Self::H100];

    /// The name providers use, such as `A100-80GB`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::T4 => "T4",
            Self::L4 => "L4",
            Self::A10G => "A10G",
            Self::A100 => "A100",
            Self::A100_80GB => "A100-80GB",
            Self::H100 => "H100",
        }
    }
}

impl fmt::Display for GpuType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<GpuType> for String {
    fn from(gpu: GpuType) -> Self {
        gpu.as_str().to_owned()
    }
}

impl FromStr for GpuType {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        Self::ALL.into_iter().find(|gpu| gpu.as_str().eq_ignore_ascii_case(text.trim())).ok_or_else(
            || {
                let known: Vec<_> = Self::ALL.iter().map(|gpu| gpu.as_str()).collect();
                crate::Error::invalid("gpu", format!("{text:?} is not one of {}", known.join(", ")))
            },
        )
    }
}

//! Paths inside a sandbox, which are text wherever they travel.

use std::path::Path;

use crate::error::{Error, Result};

/// Takes a path of a sandbox as text.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind), naming `field`, for a path that is not UTF-8.
pub(crate) fn sandbox_path(field: &'static str, path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Error::invalid(field, format!("must be a path in UTF-8, got {path:?}")))
}

//! How much a peer may send.

const MIB: usize = 1024 * 1024;

/// Bounds on what is accepted from a peer. They are checked before anything is allocated for it.
///
/// ```
/// use jupyter_protocol::Limits;
///
/// let limits = Limits { message: 16 * 1024 * 1024, ..Limits::default() };
/// assert!(limits.frame > limits.message, "the smaller of the two wins");
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// The longest frame, in bytes. Default: 128 MiB.
    pub frame: usize,
    /// The longest message, all frames together, in bytes. Default: 256 MiB.
    pub message: usize,
    /// The most frames of a message, routing identities and buffers included. Default: 4096.
    pub frames: usize,
    /// The most routing identities of a message. Default: 16.
    pub identities: usize,
    /// The longest header, and the longest parent header, in bytes. Default: 1 MiB.
    pub header: usize,
    /// How deep JSON may be nested. Default, and most that has an effect: 100.
    ///
    /// A content that is nested deeper is given as [`Content::Malformed`](crate::Content::Malformed).
    pub json_depth: usize,
    /// The most JSON values in one content. Default: 2 million.
    ///
    /// Three bytes of JSON can become a hundred bytes of memory. A content with more values is given as
    /// [`Content::Malformed`](crate::Content::Malformed), its text untouched.
    pub json_values: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame: 128 * MIB,
            message: 256 * MIB,
            frames: 4096,
            identities: 16,
            header: MIB,
            json_depth: MAX_JSON_DEPTH,
            json_values: 2_000_000,
        }
    }
}

/// Below the depth at which the JSON parser itself gives up.
pub(crate) const MAX_JSON_DEPTH: usize = 100;

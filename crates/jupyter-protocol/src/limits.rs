//! Limits on what a peer may send.

const MIB: usize = 1024 * 1024;

/// Limits on incoming messages. They are checked before memory is allocated.
///
/// ```
/// use jupyter_protocol::Limits;
///
/// let limits = Limits::default().with_message(16 * 1024 * 1024);
/// assert!(limits.frame > limits.message, "the smaller of the two wins");
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum size of a frame, in bytes. Default: 128 MiB.
    pub frame: usize,
    /// Maximum size of a message with all its frames, in bytes. Default: 256 MiB.
    pub message: usize,
    /// Maximum number of frames of a message, including routing identities and buffers. Default: 4096.
    pub frames: usize,
    /// Maximum number of routing identities of a message. Default: 16.
    pub identities: usize,
    /// Maximum size of a header, and of a parent header, in bytes. Default: 1 MiB.
    pub header: usize,
    /// Maximum depth of JSON. Default: 100, which is also the highest effective value.
    ///
    /// A deeper content becomes [`Content::Malformed`](crate::Content::Malformed).
    pub json_depth: usize,
    /// Maximum number of JSON values in one content; an object counts as seven. Default: 2 million.
    ///
    /// Three bytes of JSON can become a hundred bytes of memory, and an object several hundred. A content with more
    /// values becomes [`Content::Malformed`](crate::Content::Malformed), with its text unchanged.
    pub json_values: usize,
}

impl Limits {
    /// Sets [`frame`](Self::frame).
    #[must_use]
    pub const fn with_frame(mut self, frame: usize) -> Self {
        self.frame = frame;
        self
    }

    /// Sets [`message`](Self::message).
    #[must_use]
    pub const fn with_message(mut self, message: usize) -> Self {
        self.message = message;
        self
    }

    /// Sets [`frames`](Self::frames).
    #[must_use]
    pub const fn with_frames(mut self, frames: usize) -> Self {
        self.frames = frames;
        self
    }

    /// Sets [`identities`](Self::identities).
    #[must_use]
    pub const fn with_identities(mut self, identities: usize) -> Self {
        self.identities = identities;
        self
    }

    /// Sets [`header`](Self::header).
    #[must_use]
    pub const fn with_header(mut self, header: usize) -> Self {
        self.header = header;
        self
    }

    /// Sets [`json_depth`](Self::json_depth).
    #[must_use]
    pub const fn with_json_depth(mut self, json_depth: usize) -> Self {
        self.json_depth = json_depth;
        self
    }

    /// Sets [`json_values`](Self::json_values).
    #[must_use]
    pub const fn with_json_values(mut self, json_values: usize) -> Self {
        self.json_values = json_values;
        self
    }
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

/// Below the recursion limit of the JSON parser.
pub(crate) const MAX_JSON_DEPTH: usize = 100;

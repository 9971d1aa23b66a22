//! How much a peer may send.

const MIB: usize = 1024 * 1024;

/// Bounds on what is accepted from a peer. They are checked before anything is allocated for it.
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
    /// The most JSON values in one content, an object counting as seven. Default: 2 million.
    ///
    /// Three bytes of JSON can become a hundred bytes of memory, and an object some hundreds. A content with more values is
    /// given as [`Content::Malformed`](crate::Content::Malformed), its text untouched.
    pub json_values: usize,
}

impl Limits {
    /// The same with another [`frame`](Self::frame).
    #[must_use]
    pub const fn with_frame(mut self, frame: usize) -> Self {
        self.frame = frame;
        self
    }

    /// The same with another [`message`](Self::message).
    #[must_use]
    pub const fn with_message(mut self, message: usize) -> Self {
        self.message = message;
        self
    }

    /// The same with another [`frames`](Self::frames).
    #[must_use]
    pub const fn with_frames(mut self, frames: usize) -> Self {
        self.frames = frames;
        self
    }

    /// The same with another [`identities`](Self::identities).
    #[must_use]
    pub const fn with_identities(mut self, identities: usize) -> Self {
        self.identities = identities;
        self
    }

    /// The same with another [`header`](Self::header).
    #[must_use]
    pub const fn with_header(mut self, header: usize) -> Self {
        self.header = header;
        self
    }

    /// The same with another [`json_depth`](Self::json_depth).
    #[must_use]
    pub const fn with_json_depth(mut self, json_depth: usize) -> Self {
        self.json_depth = json_depth;
        self
    }

    /// The same with another [`json_values`](Self::json_values).
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

/// Below the depth at which the JSON parser itself gives up.
pub(crate) const MAX_JSON_DEPTH: usize = 100;

//! The outermost layer: the frames of a multipart message.

use bytes::Bytes;
use thiserror::Error;

use crate::header::HeaderError;
use crate::limits::Limits;
use crate::signature::SignatureError;

/// Separates the routing identities from the message.
pub const DELIMITER: &[u8] = b"<IDS|MSG>";

/// Signature, header, parent header, metadata and content.
const MIN_FRAMES_AFTER_DELIMITER: usize = 5;

/// The frames of one message, identified but not parsed.
///
/// On the wire: `[identities.., <IDS|MSG>, signature, header, parent_header, metadata, content, buffers..]`. Splitting
/// and joining returns the same frames.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Frames {
    /// Routing identities, or the topic on IOPub.
    pub identities: Vec<Bytes>,
    /// The signature in hexadecimal. Empty when messages are not signed.
    pub signature: Bytes,
    /// The text of the header.
    pub header: Bytes,
    /// The text of the parent's header. `{}` if there is none.
    pub parent_header: Bytes,
    /// The text of the metadata.
    pub metadata: Bytes,
    /// The text of the content.
    pub content: Bytes,
    /// Raw buffers.
    pub buffers: Vec<Bytes>,
}

/// The reason why frames are not a message.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum FrameError {
    /// There is no delimiter.
    #[error("no delimiter <IDS|MSG>")]
    NoDelimiter,
    /// There are more frames before the delimiter than [`Limits::identities`].
    #[error("{found} routing identities are over the limit of {limit}")]
    TooManyIdentities {
        /// The number of frames before the delimiter.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// Signature, header, parent header, metadata or content is missing.
    #[error("{found} frames after the delimiter, at least {MIN_FRAMES_AFTER_DELIMITER} are needed")]
    TooFewFrames {
        /// The number of frames after the delimiter.
        found: usize,
    },
    /// There are more frames than [`Limits::frames`].
    #[error("{found} frames are over the limit of {limit}")]
    TooManyFrames {
        /// The number of frames.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame is longer than [`Limits::frame`], or the message longer than [`Limits::message`].
    #[error("{length} bytes are over the limit of {limit}")]
    TooLong {
        /// Length in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The signature is missing, invalid or a duplicate.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The header cannot be read.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// Frames that were rejected, with the reason.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{error}")]
pub struct Rejected {
    /// The reason.
    #[source]
    pub error: FrameError,
    /// The frames, unchanged.
    pub frames: Vec<Bytes>,
}

impl Frames {
    /// Splits a multipart message into its parts.
    ///
    /// # Errors
    /// [`Rejected`] with the frames, if there are too many, too few, or too long ones.
    pub fn split(frames: Vec<Bytes>, limits: &Limits) -> Result<Self, Rejected> {
        match find_delimiter(&frames, limits) {
            Ok(at) => Ok(Self::split_at(frames, at)),
            Err(error) => Err(Rejected { error, frames }),
        }
    }

    fn split_at(mut frames: Vec<Bytes>, delimiter: usize) -> Self {
        let mut rest = frames.split_off(delimiter).into_iter();
        let mut next = || rest.next().unwrap_or_default();
        next();
        Self {
            identities: frames,
            signature: next(),
            header: next(),
            parent_header: next(),
            metadata: next(),
            content: next(),
            buffers: rest.collect(),
        }
    }

    /// Returns all frames in their order on the wire.
    #[must_use]
    pub fn join(self) -> Vec<Bytes> {
        let mut frames = self.identities;
        frames.reserve(1 + MIN_FRAMES_AFTER_DELIMITER + self.buffers.len());
        frames.push(Bytes::from_static(DELIMITER));
        frames.extend([
            self.signature,
            self.header,
            self.parent_header,
            self.metadata,
            self.content,
        ]);
        frames.extend(self.buffers);
        frames
    }

    /// Returns the signed parts: header, parent header, metadata, content.
    #[must_use]
    pub fn signed_parts(&self) -> [&[u8]; 4] {
        [&self.header, &self.parent_header, &self.metadata, &self.content]
    }
}

/// Finds the delimiter, in frames that are complete and within the limits.
fn find_delimiter(frames: &[Bytes], limits: &Limits) -> Result<usize, FrameError> {
    if frames.len() > limits.frames {
        return Err(FrameError::TooManyFrames { found: frames.len(), limit: limits.frames });
    }
    let mut total = 0_usize;
    for frame in frames {
        if frame.len() > limits.frame {
            return Err(FrameError::TooLong { length: frame.len(), limit: limits.frame });
        }
        total = total.saturating_add(frame.len());
    }
    if total > limits.message {
        return Err(FrameError::TooLong { length: total, limit: limits.message });
    }
    let at = frames.iter().position(|frame| frame == DELIMITER).ok_or(FrameError::NoDelimiter)?;
    if at > limits.identities {
        return Err(FrameError::TooManyIdentities { found: at, limit: limits.identities });
    }
    let found = frames.len() - at - 1;
    if found < MIN_FRAMES_AFTER_DELIMITER {
        return Err(FrameError::TooFewFrames { found });
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(texts: &[&'static str]) -> Vec<Bytes> {
        texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect()
    }

    fn error(texts: &[&'static str], limits: &Limits) -> FrameError {
        let rejected = Frames::split(frames(texts), limits).unwrap_err();
        assert_eq!(rejected.frames, frames(texts), "nothing is lost");
        rejected.error
    }

    #[test]
    fn frames_are_split_and_joined() {
        let wire = frames(&["a", "b", "<IDS|MSG>", "s", "h", "p", "m", "c", "x", "<IDS|MSG>"]);
        let split = Frames::split(wire.clone(), &Limits::default()).unwrap();
        assert_eq!((split.identities.len(), split.buffers.len()), (2, 2));
        assert_eq!(split.signed_parts(), [b"h", b"p", b"m", b"c"].map(|part| &part[..]));
        assert_eq!(split.join(), wire);
    }

    #[test]
    fn truncated_messages_are_rejected() {
        let limits = Limits::default();
        assert_eq!(error(&[], &limits), FrameError::NoDelimiter);
        assert_eq!(error(&["a", "b"], &limits), FrameError::NoDelimiter);
        for found in 0..5 {
            let mut wire = vec!["<IDS|MSG>"];
            wire.extend(["{}"; 5].iter().take(found));
            assert_eq!(error(&wire, &limits), FrameError::TooFewFrames { found });
        }
    }

    #[test]
    fn limits_hold() {
        let wire = ["i", "i", "<IDS|MSG>", "s", "h", "p", "m", "c", "buffer"];
        let defaults = Limits::default();
        let few = Limits { frames: 8, ..defaults };
        assert_eq!(error(&wire, &few), FrameError::TooManyFrames { found: 9, limit: 8 });
        let short = Limits { frame: 8, ..defaults };
        assert_eq!(error(&wire, &short), FrameError::TooLong { length: 9, limit: 8 });
        let small = Limits { message: 21, ..defaults };
        assert_eq!(error(&wire, &small), FrameError::TooLong { length: 22, limit: 21 });
        let direct = Limits { identities: 1, ..defaults };
        let many = FrameError::TooManyIdentities { found: 2, limit: 1 };
        assert_eq!(error(&wire, &direct), many);
        assert_eq!(many.to_string(), "2 routing identities are over the limit of 1");
        assert!(Frames::split(frames(&wire), &Limits { message: 22, ..defaults }).is_ok());
    }
}

//! Constructors of requests and of the replies of a kernel.

use super::super::*;
use crate::media::MimeBundle;

impl ExecuteReply {
    /// Reports that the code ran and succeeded, with its number. For code that failed, see [`ExecuteReply::failed`].
    #[must_use]
    pub fn new(execution_count: i64) -> Self {
        Self { execution_count: Some(execution_count), ..Self::default() }
    }

    /// Reports that the code did not run, because an earlier request failed.
    #[must_use]
    pub fn aborted() -> Self {
        Self { status: ReplyStatus::Aborted, ..Self::default() }
    }
}

impl InspectRequest {
    /// Asks about the object at a position of the code, in Unicode code points.
    #[must_use]
    pub fn new(code: impl Into<String>, cursor_pos: u64) -> Self {
        Self { code: code.into(), cursor_pos, ..Self::default() }
    }
}

impl InspectReply {
    /// Reports what was found. The default reports that nothing was found.
    #[must_use]
    pub fn new(data: MimeBundle) -> Self {
        Self { found: true, data, ..Self::default() }
    }
}

impl CompleteRequest {
    /// Asks for completions at a position of the code, in Unicode code points.
    #[must_use]
    pub fn new(code: impl Into<String>, cursor_pos: u64) -> Self {
        Self { code: code.into(), cursor_pos, ..Self::default() }
    }

    /// Asks for completions at the end of the code.
    #[must_use]
    pub fn at_end(code: impl Into<String>) -> Self {
        let code = code.into();
        let end = code.chars().count() as u64;
        Self::new(code, end)
    }
}

impl CompleteReply {
    /// Returns completions that replace the given range, in Unicode code points.
    #[must_use]
    pub fn new(
        matches: impl IntoIterator<Item = impl Into<String>>,
        cursor: std::ops::Range<u64>,
    ) -> Self {
        Self {
            matches: matches.into_iter().map(Into::into).collect(),
            cursor_start: cursor.start,
            cursor_end: cursor.end,
            ..Self::default()
        }
    }
}

impl HistoryRequest {
    /// Asks for the last lines, as they were typed.
    #[must_use]
    pub fn tail(lines: i64) -> Self {
        Self { raw: true, n: Some(lines), ..Self::default() }
    }

    /// Asks for the last lines that match a glob pattern, as they were typed.
    #[must_use]
    pub fn search(pattern: impl Into<String>, lines: i64) -> Self {
        let (hist_access_type, pattern) = (HistoryAccess::Search, Some(pattern.into()));
        Self { hist_access_type, pattern, ..Self::tail(lines) }
    }
}

impl IsCompleteRequest {
    /// Asks if this code is complete.
    #[must_use]
    pub fn new(code: impl Into<String>) -> Self {
        Self { code: code.into(), ..Self::default() }
    }
}

impl IsCompleteReply {
    /// Creates an answer.
    #[must_use]
    pub fn new(status: Completeness) -> Self {
        Self { status, ..Self::default() }
    }

    /// Reports that more lines are needed. The next line may start with `indent`.
    #[must_use]
    pub fn incomplete(indent: impl Into<String>) -> Self {
        Self { indent: indent.into(), ..Self::new(Completeness::Incomplete) }
    }
}

impl KernelInfoReply {
    /// Describes a kernel by its name, version and language. It speaks [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION).
    #[must_use]
    pub fn new(
        implementation: impl Into<String>,
        version: impl Into<String>,
        language_info: LanguageInfo,
    ) -> Self {
        Self {
            protocol_version: crate::PROTOCOL_VERSION.to_owned(),
            implementation: implementation.into(),
            implementation_version: version.into(),
            language_info,
            ..Self::default()
        }
    }

    /// Adds a supported feature.
    #[must_use]
    pub fn with_feature(mut self, feature: impl Into<String>) -> Self {
        self.supported_features.push(feature.into());
        self
    }
}

impl LanguageInfo {
    /// Describes a language: its name and version, the MIME type of its source code, and the extension of its files
    /// with the dot.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        version: impl Into<String>,
        mimetype: impl Into<String>,
        file_extension: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            mimetype: mimetype.into(),
            file_extension: file_extension.into(),
            ..Self::default()
        }
    }
}

impl HelpLink {
    /// Creates a link with a title.
    #[must_use]
    pub fn new(text: impl Into<String>, url: impl Into<String>) -> Self {
        Self { text: text.into(), url: url.into(), ..Self::default() }
    }
}

impl ShutdownRequest {
    /// Asks the kernel to end. `restart` announces another start.
    #[must_use]
    pub fn new(restart: bool) -> Self {
        Self { restart, ..Self::default() }
    }
}

impl ShutdownReply {
    /// Confirms the end of the kernel. `restart` is that of the request.
    #[must_use]
    pub fn new(restart: bool) -> Self {
        Self { restart, ..Self::default() }
    }
}

impl CreateSubshellReply {
    /// Returns the id of the new subshell.
    #[must_use]
    pub fn new(subshell_id: impl Into<String>) -> Self {
        Self { subshell_id: subshell_id.into(), ..Self::default() }
    }
}

impl DeleteSubshellRequest {
    /// Ends this subshell.
    #[must_use]
    pub fn new(subshell_id: impl Into<String>) -> Self {
        Self { subshell_id: subshell_id.into(), ..Self::default() }
    }
}

impl ListSubshellReply {
    /// Returns the ids of all subshells.
    #[must_use]
    pub fn new(subshell_ids: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let subshell_id = subshell_ids.into_iter().map(Into::into).collect();
        Self { subshell_id, ..Self::default() }
    }
}

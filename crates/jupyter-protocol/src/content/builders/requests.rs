//! Requests, and the replies of a kernel.

use super::super::*;
use crate::media::MimeBundle;

impl ExecuteReply {
    /// The code ran and succeeded, with this number. Of code that did not: [`ExecuteReply::failed`].
    #[must_use]
    pub fn new(execution_count: i64) -> Self {
        Self { execution_count: Some(execution_count), ..Self::default() }
    }

    /// The code was not run, because an earlier request failed.
    #[must_use]
    pub fn aborted() -> Self {
        Self { status: ReplyStatus::Aborted, ..Self::default() }
    }
}

impl InspectRequest {
    /// Asks about the thing at a place of the code, counted in Unicode code points.
    #[must_use]
    pub fn new(code: impl Into<String>, cursor_pos: u64) -> Self {
        Self { code: code.into(), cursor_pos, ..Self::default() }
    }
}

impl InspectReply {
    /// This was found. If nothing was, the default says so.
    #[must_use]
    pub fn new(data: MimeBundle) -> Self {
        Self { found: true, data, ..Self::default() }
    }
}

impl CompleteRequest {
    /// Asks how the code can go on at a place, counted in Unicode code points.
    #[must_use]
    pub fn new(code: impl Into<String>, cursor_pos: u64) -> Self {
        Self { code: code.into(), cursor_pos, ..Self::default() }
    }

    /// Asks how the code can go on at its end.
    #[must_use]
    pub fn at_end(code: impl Into<String>) -> Self {
        let code = code.into();
        let end = code.chars().count() as u64;
        Self::new(code, end)
    }
}

impl CompleteReply {
    /// What can stand between the two places, counted in Unicode code points.
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

    /// Asks for lines that match a glob pattern, as they were typed: the last of them, and so many at most.
    #[must_use]
    pub fn search(pattern: impl Into<String>, lines: i64) -> Self {
        let (hist_access_type, pattern) = (HistoryAccess::Search, Some(pattern.into()));
        Self { hist_access_type, pattern, ..Self::tail(lines) }
    }
}

impl IsCompleteRequest {
    /// Asks whether this code could be run.
    #[must_use]
    pub fn new(code: impl Into<String>) -> Self {
        Self { code: code.into(), ..Self::default() }
    }
}

impl IsCompleteReply {
    /// Whether it could.
    #[must_use]
    pub fn new(status: Completeness) -> Self {
        Self { status, ..Self::default() }
    }

    /// More lines are needed. The next one may begin with `indent`.
    #[must_use]
    pub fn incomplete(indent: impl Into<String>) -> Self {
        Self { indent: indent.into(), ..Self::new(Completeness::Incomplete) }
    }
}

impl KernelInfoReply {
    /// A kernel of this name and version, for a language, that speaks [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION).
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

    /// The same with something it can do beyond the basics.
    #[must_use]
    pub fn with_feature(mut self, feature: impl Into<String>) -> Self {
        self.supported_features.push(feature.into());
        self
    }
}

impl LanguageInfo {
    /// A language: its name and version, the MIME type of its source code, and the extension of file names with the dot.
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
    /// A link with a text to show.
    #[must_use]
    pub fn new(text: impl Into<String>, url: impl Into<String>) -> Self {
        Self { text: text.into(), url: url.into(), ..Self::default() }
    }
}

impl ShutdownRequest {
    /// Asks the kernel to end, and says whether it will be started again.
    #[must_use]
    pub fn new(restart: bool) -> Self {
        Self { restart, ..Self::default() }
    }
}

impl ShutdownReply {
    /// The kernel ends. `restart` is that of the request.
    #[must_use]
    pub fn new(restart: bool) -> Self {
        Self { restart, ..Self::default() }
    }
}

impl CreateSubshellReply {
    /// The new subshell.
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
    /// The ids of all subshells.
    #[must_use]
    pub fn new(subshell_ids: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let subshell_id = subshell_ids.into_iter().map(Into::into).collect();
        Self { subshell_id, ..Self::default() }
    }
}

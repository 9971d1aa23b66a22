//! Constructors of contents, with the fields that nearly every message of the type sets as arguments.

mod iopub;
mod requests;

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::json::JsonMap;
    use crate::media::MimeBundle;
    use serde_json::{Value, json};

    fn json_of(content: impl Into<Content>) -> Value {
        serde_json::from_slice(&content.into().to_json()).unwrap()
    }

    #[test]
    fn constructors_set_their_fields() {
        let text = || MimeBundle::text("t");
        for (made, expected) in [
            (json_of(Stream::stderr("x")), json!({"name": "stderr", "text": "x"})),
            (
                json_of(DisplayData::new(text()).with_display_id("d")),
                json!({"data": {"text/plain": "t"}, "metadata": {}, "transient": {"display_id": "d"}}),
            ),
            (
                json_of(UpdateDisplayData::new("d", text())),
                json!({"data": {"text/plain": "t"}, "metadata": {}, "transient": {"display_id": "d"}}),
            ),
            (
                json_of(ExecuteResult::new(3, text())),
                json!({"execution_count": 3, "data": {"text/plain": "t"}, "metadata": {}}),
            ),
            (json_of(Status::busy()), json!({"execution_state": "busy"})),
            (
                json_of(CompleteReply::new(["a", "b"], 1..2)),
                json!({"status": "ok", "matches": ["a", "b"], "cursor_start": 1, "cursor_end": 2, "metadata": {}}),
            ),
            (
                json_of(IsCompleteReply::incomplete("  ")),
                json!({"status": "incomplete", "indent": "  "}),
            ),
            (
                json_of(HistoryRequest::search("a*", 5)),
                json!({"hist_access_type": "search", "pattern": "a*", "n": 5, "raw": true, "output": false}),
            ),
            (json_of(InputRequest::new("? ", true)), json!({"prompt": "? ", "password": true})),
            (
                json_of(CommOpen::new("1", "t", JsonMap::new())),
                json!({"comm_id": "1", "target_name": "t", "data": {}}),
            ),
        ] {
            assert_eq!(made, expected);
        }
    }

    #[test]
    fn replies_carry_their_status() {
        let error = ErrorContent::new("E", "v").with_traceback(["line"]);
        let failed = ExecuteReply::failed(error.clone());
        assert_eq!(failed.error(), Some(error.clone()));
        assert_eq!(KernelInfoReply::failed(error.clone()).error(), Some(error));
        assert!(ExecuteReply::aborted().status.is_aborted() && ExecuteReply::new(1).status.is_ok());
        let language = LanguageInfo::new("l", "1", "text/x", ".l");
        let info = KernelInfoReply::new("k", "1", language).with_feature(KernelInfoReply::DEBUGGER);
        assert!(info.supports(KernelInfoReply::DEBUGGER) && info.protocol_version == "5.5");
    }

    #[test]
    fn the_cursor_counts_code_points() {
        assert_eq!(CompleteRequest::at_end("é🦀").cursor_pos, 2);
    }
}

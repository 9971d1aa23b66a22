//! The bytes of every message, and what the decoder makes of bytes that are none.

use proptest::prelude::*;
use sandbox_cells::{Fork, ResourceLimit, Start, ZygoteReply, ZygoteRequest};
use sandbox_engine::{
    Encoding, Frame, FrameReader, MimeData, Reply, Request, Run, RunMode, WireDisplayKind,
    WireError, WireFailureKind,
    wire::{MAX_FRAME, MAX_PACKET},
};

fn run() -> Run {
    Run {
        id: 1,
        mode: RunMode::Script,
        code: "1+1".into(),
        filename: "f".into(),
        cwd: "/w".into(),
        env: vec![("K".into(), "v".into())],
        argv: vec!["a".into(), String::new()],
        has_stdin: true,
    }
}

fn requests() -> Vec<Request> {
    vec![
        Request::Run(run()),
        Request::GetVariable { id: -1, name: "x".into() },
        Request::SetVariables { id: i64::MAX, json: "{}".into() },
        Request::Interrupt { id: 7 },
        Request::ToolResult { id: 1, call: 2, outcome: Ok("[1]".into()) },
        Request::ToolResult { id: 1, call: 3, outcome: Err("no".into()) },
        Request::Checkpoint { id: 1 },
        Request::ExportVariables { id: 1 },
        Request::ImportVariables { id: 1 },
    ]
}

fn replies() -> Vec<Reply> {
    vec![
        Reply::Ready {
            protocol: 1,
            pid: 2,
            python_version: "3.11.7".into(),
            self_check: "NoNewPrivs=1".into(),
        },
        Reply::Refused { step: "limits".into(), message: "no".into() },
        Reply::Display {
            id: 1,
            kind: WireDisplayKind::Update,
            bundle: vec![
                MimeData { mime: "text/plain".into(), encoding: Encoding::Text, data: "é".into() },
                MimeData {
                    mime: "image/png".into(),
                    encoding: Encoding::Base64,
                    data: "AA==".into(),
                },
                MimeData { mime: "a/json".into(), encoding: Encoding::Json, data: "[]".into() },
            ],
            metadata: "{}".into(),
            display_id: "d".into(),
        },
        Reply::Marked { id: 1, stdout: 2, stderr: 0 },
        Reply::ClearOutput { id: 1, wait: true },
        Reply::Error { id: 1, name: "E".into(), value: "v".into(), traceback: "t\n".into() },
        Reply::Exit { id: 1, code: -1 },
        Reply::Done { id: 1, execution_count: 3, interrupted: false, background_threads: 2 },
        Reply::Value { id: 1, json: "null".into() },
        Reply::Failed { id: 1, kind: WireFailureKind::TooLarge, message: "m".into() },
        Reply::ToolCall { id: 1, call: 2, name: "add".into(), arguments: "{}".into() },
        Reply::ListTools { id: 1, call: 3 },
        Reply::CancelTool { id: 1, call: 2 },
        Reply::Acknowledged { id: 1, problem: "p".into(), notes: vec!["n".into()] },
    ]
}

fn zygote_requests() -> Vec<ZygoteRequest> {
    vec![
        ZygoteRequest::Start(Start {
            preimports: vec!["numpy".into()],
            template_imports: vec!["wave".into()],
            warm: true,
            program: vec!["-m".into(), "site".into()],
        }),
        ZygoteRequest::Fork(Fork {
            isolated: true,
            uid: 1000,
            gid: 1001,
            work_dir: "/w".into(),
            env: Vec::new(),
            rlimits: vec![ResourceLimit { resource: 7, soft: Some(9), hard: None }],
            subreaper: false,
            ruleset: true,
            filter: vec![6, 0, 0, 0, 0, 0, 0xff, 0x7f],
            arguments: vec!["-f".into()],
        }),
        ZygoteRequest::Reap { pid: 77 },
    ]
}

fn zygote_replies() -> Vec<ZygoteReply> {
    vec![
        ZygoteReply::Hello {
            protocol: 1,
            python_version: "3.11.7".into(),
            executable: "/p".into(),
            prefix: "/".into(),
            base_prefix: "/b".into(),
            sys_path: vec!["/l".into()],
            threads: 1,
            imported: vec![],
        },
        ZygoteReply::Forked { pid: 77 },
        ZygoteReply::Reaped {
            pid: 77,
            status: 9,
            user_micros: 1,
            system_micros: 2,
            max_rss_kib: 3,
        },
        ZygoteReply::Error { message: "no".into() },
    ]
}

/// Readable bytes: text stays text, a number between bars is a length or an integer.
fn shown(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for byte in bytes {
        match byte {
            0x21..=0x7e => shown.push(char::from(*byte)),
            byte => shown.push_str(&format!("\\{byte:x}")),
        }
    }
    // Runs of zeros are most of every length and integer.
    for zeros in (2..=8).rev() {
        shown = shown.replace(&"\\0".repeat(zeros), &format!("<{zeros}>"));
    }
    shown
}

fn frame(encode: impl Fn(&mut Vec<u8>) -> Result<(), WireError>) -> Vec<u8> {
    let mut bytes = vec![b'#'];
    encode(&mut bytes).expect("short enough");
    assert_eq!(bytes.remove(0), b'#', "what was there stays");
    bytes
}

fn lines(frames: Vec<Vec<u8>>) -> String {
    frames.iter().map(|bytes| shown(bytes)).collect::<Vec<_>>().join("\n")
}

#[test]
fn requests_have_these_bytes() {
    let all = requests().iter().map(|message| frame(|out| message.encode(out))).collect();
    insta::assert_snapshot!(lines(all), @r#"
    R<3>\1\8<3>\1<7>\8<3>\1<7>\3<3>1+1\1<3>f\2<3>/w\a<3>\1<3>K\1<3>v\9<3>\1<3>a<4>\8<3>\1<7>
    \12<3>\2\8<3>\ff\ff\ff\ff\ff\ff\ff\ff\1<3>x
    \13<3>\3\8<3>\ff\ff\ff\ff\ff\ff\ff\7f\2<3>{}
    \d<3>\4\8<3>\7<7>
    ,<3>\5\8<3>\1<7>\8<3>\2<7>\8<3>\1<7>\3<3>[1]
    +<3>\5\8<3>\1<7>\8<3>\3<7>\8<8><3>\2<3>no
    \d<3>\6\8<3>\1<7>
    \d<3>\7\8<3>\1<7>
    \d<3>\8\8<3>\1<7>
    "#);
}

#[test]
fn replies_have_these_bytes() {
    let all = replies().iter().map(|message| frame(|out| message.encode(out))).collect();
    insta::assert_snapshot!(lines(all), @r#"
    3<3>\10\8<3>\1<7>\8<3>\2<7>\6<3>3.11.7\c<3>NoNewPrivs=1
    \11<3>\11\6<3>limits\2<3>no
    \85<3>\12\8<3>\1<7>\8<3>\2<7>]<3>\a<3>text/plain\8<8><3>\2<3>\c3\a9\9<3>image/png\8<3>\1<7>\4<3>AA==\6<3>a/json\8<3>\2<7>\2<3>[]\2<3>{}\1<3>d
    %<3>\1d\8<3>\1<7>\8<3>\2<7>\8<8><3>
    \19<3>\13\8<3>\1<7>\8<3>\1<7>
    \1d<3>\14\8<3>\1<7>\1<3>E\1<3>v\2<3>t\a
    \19<3>\15\8<3>\1<7>\8<3>\ff\ff\ff\ff\ff\ff\ff\ff
    1<3>\16\8<3>\1<7>\8<3>\3<7>\8<8><3>\8<3>\2<7>
    \15<3>\17\8<3>\1<7>\4<3>null
    \1e<3>\18\8<3>\1<7>\8<3>\3<7>\1<3>m
    &<3>\19\8<3>\1<7>\8<3>\2<7>\3<3>add\2<3>{}
    \19<3>\1a\8<3>\1<7>\8<3>\3<7>
    \19<3>\1b\8<3>\1<7>\8<3>\2<7>
    \1b<3>\1c\8<3>\1<7>\1<3>p\5<3>\1<3>n
    "#);
}

#[test]
fn zygote_requests_have_these_bytes() {
    let all = zygote_requests().iter().map(|message| frame(|out| message.encode(out))).collect();
    insta::assert_snapshot!(lines(all), @r#"
    \1\9<3>\5<3>numpy\8<3>\1<7>\8<3>\4<3>wave\e<3>\2<3>-m\4<3>site
    \2\8<3>\1<7>\8<3>\e8\3<6>\8<3>\e9\3<6>\2<3>/w$<3>\8<3>\7<7>\8<3>\9<7>\8<3>\ff\ff\ff\ff\ff\ff\ff\ff\8<8><3>\8<3>\1<7>\8<3>\6<5>\ff\7f\6<3>\2<3>-f
    \3\8<3>M<7>
    "#);
}

/// Later workers could find what a zygote has read.
#[test]
fn an_environment_is_no_part_of_a_request() {
    let fork = Fork { env: vec![("KEY".into(), "hidden".into())], ..Fork::default() };
    assert_eq!(lines(vec![fork.environment()]), "\\11<3>\\3<3>KEY\\6<3>hidden");
    let request = ZygoteRequest::Fork(fork);
    let request = frame(|out| request.encode(out));
    assert!(!request.windows(6).any(|part| part == b"hidden"));
}

#[test]
fn zygote_replies_have_these_bytes() {
    let all = zygote_replies().iter().map(|message| frame(|out| message.encode(out))).collect();
    insta::assert_snapshot!(lines(all), @r#"
    \10\8<3>\1<7>\6<3>3.11.7\2<3>/p\1<3>/\2<3>/b\6<3>\2<3>/l\8<3>\1<8><3>
    \11\8<3>M<7>
    \12\8<3>M<7>\8<3>\9<7>\8<3>\1<7>\8<3>\2<7>\8<3>\3<7>
    \13\2<3>no
    "#);
}

/// All frames of a stream that arrives in chunks of this size.
fn decoded<T>(
    bytes: &[u8],
    chunk: usize,
    decode: impl Fn(Frame<'_>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    let mut reader = FrameReader::new();
    let mut all = Vec::new();
    for piece in bytes.chunks(chunk) {
        reader.push(piece);
        while let Some(frame) = reader.next_frame()? {
            all.push(decode(frame)?);
        }
    }
    assert_eq!(reader.pending(), 0);
    Ok(all)
}

#[test]
fn every_message_comes_back_in_any_chunks() {
    let mut bytes = Vec::new();
    requests().iter().for_each(|message| message.encode(&mut bytes).expect("encodes"));
    for chunk in [1, 2, 3, 5, 7, 64, 10_000] {
        assert_eq!(decoded(&bytes, chunk, Request::decode), Ok(requests()));
    }
    let mut bytes = Vec::new();
    replies().iter().for_each(|message| message.encode(&mut bytes).expect("encodes"));
    for chunk in [1, 2, 3, 5, 7, 64, 10_000] {
        assert_eq!(decoded(&bytes, chunk, Reply::decode), Ok(replies()));
    }
    for message in zygote_requests() {
        let bytes = frame(|out| message.encode(out));
        assert_eq!(ZygoteRequest::decode(&bytes), Ok(message));
    }
    for message in zygote_replies() {
        let bytes = frame(|out| message.encode(out));
        assert_eq!(ZygoteReply::decode(&bytes), Ok(message));
    }
}

/// Every prefix of a message is an error of its own, and so is every added byte.
#[test]
fn cut_and_padded_messages_are_refused() {
    for message in replies() {
        let bytes = frame(|out| message.encode(out));
        for end in 5..bytes.len() {
            let cut = Frame { kind: bytes[4], body: &bytes[5..end] };
            assert!(Reply::decode(cut).is_err(), "{message:?} cut at {end}");
        }
        let padded = [&bytes[5..], b"x"].concat();
        let frame = Frame { kind: bytes[4], body: &padded };
        assert_eq!(Reply::decode(frame), Err(WireError::Trailing(1)), "{message:?}");
    }
}

#[test]
fn lengths_are_claims() {
    for (prefix, error) in [
        ([0, 0, 0, 0], WireError::Empty),
        ([0xff; 4], WireError::TooLong { length: 0xffff_ffff, limit: MAX_FRAME as u64 }),
        (
            [1, 0, 0, 4],
            WireError::TooLong { length: MAX_FRAME as u64 + 1, limit: MAX_FRAME as u64 },
        ),
    ] {
        let mut reader = FrameReader::new();
        reader.push(&prefix);
        assert_eq!(reader.next_frame(), Err(error.clone()));
        // The first error is final.
        reader.push(&[2, 0, 0, 0, 16, 16]);
        assert_eq!(reader.next_frame(), Err(error));
    }
    let mut reader = FrameReader::new();
    reader.push(&[0, 0, 0, 4]);
    assert_eq!(reader.next_frame(), Ok(None));
    assert_eq!(reader.pending(), 4);
}

#[test]
fn wrong_fields_are_named() {
    let done = |fields: &[&[u8]]| {
        let mut body = Vec::new();
        for field in fields {
            body.extend_from_slice(&u32::try_from(field.len()).expect("short").to_le_bytes());
            body.extend_from_slice(field);
        }
        Reply::decode(Frame { kind: 22, body: &body })
    };
    let one = 1_i64.to_le_bytes();
    assert!(done(&[&one, &one, &one, &one]).is_ok());
    assert_eq!(done(&[&one, &one, &one]), Err(WireError::Truncated("background_threads")));
    assert_eq!(done(&[&one[..7], &one, &one, &one]), Err(WireError::Invalid("id")));
    assert_eq!(
        done(&[&one, &one, &2_i64.to_le_bytes(), &one]),
        Err(WireError::Invalid("interrupted"))
    );
    let negative = (-1_i64).to_le_bytes();
    assert_eq!(done(&[&one, &one, &one, &negative]), Err(WireError::Invalid("background_threads")));
    assert_eq!(Reply::decode(Frame { kind: 1, body: &[] }), Err(WireError::UnknownKind(1)));
    assert_eq!(Request::decode(Frame { kind: 16, body: &[] }), Err(WireError::UnknownKind(16)));
    let value = [&8_u32.to_le_bytes()[..], &one, &2_u32.to_le_bytes(), b"\xff\xfe"].concat();
    assert_eq!(Reply::decode(Frame { kind: 23, body: &value }), Err(WireError::NotText("json")));
    // A list that claims more than its field holds.
    let nested = [&4_u32.to_le_bytes()[..], &[0xff; 4], &8_u32.to_le_bytes(), &one].concat();
    assert_eq!(
        ZygoteRequest::decode(&[&[1], &nested[..]].concat()),
        Err(WireError::Truncated("name"))
    );
}

#[test]
fn lists_are_no_longer_than_is_meant() {
    let held = |notes: usize| {
        let field = |data: &[u8]| {
            let length = u32::try_from(data.len()).expect("short");
            [&length.to_le_bytes()[..], data].concat()
        };
        let body = [field(&1_i64.to_le_bytes()), field(b""), field(&vec![0; 4 * notes])].concat();
        Reply::decode(Frame { kind: 28, body: &body })
    };
    let Ok(Reply::Acknowledged { notes, .. }) = held(1 << 16) else {
        panic!("a list of that length")
    };
    assert_eq!(notes.len(), 1 << 16);
    let limit = 1 << 16;
    assert_eq!(held((1 << 16) + 1), Err(WireError::TooMany { field: "notes", limit }));
}

#[test]
fn what_is_too_long_is_not_sent() {
    let mut bytes = b"before".to_vec();
    let value = Reply::Value { id: 1, json: "x".repeat(MAX_FRAME) };
    assert!(matches!(value.encode(&mut bytes), Err(WireError::TooLong { .. })));
    let error = ZygoteReply::Error { message: "x".repeat(MAX_PACKET) };
    assert!(matches!(error.encode(&mut bytes), Err(WireError::TooLong { .. })));
    assert_eq!(bytes, b"before");
    let fits = Reply::Value { id: 1, json: "x".repeat(MAX_FRAME - 1 - 12 - 4) };
    fits.encode(&mut bytes).expect("exactly the limit");
    assert_eq!(decoded(&bytes[6..], 1 << 20, Reply::decode), Ok(vec![fits]));
}

fn any_run() -> impl Strategy<Value = Run> {
    let pairs = prop::collection::vec((any::<String>(), any::<String>()), 0..4);
    let words = prop::collection::vec(any::<String>(), 0..4);
    (
        any::<i64>(),
        any::<bool>(),
        any::<String>(),
        any::<String>(),
        any::<String>(),
        pairs,
        words,
        any::<bool>(),
    )
        .prop_map(|(id, script, code, filename, cwd, env, argv, has_stdin)| {
            let mode = if script { RunMode::Script } else { RunMode::Cell };
            Run { id, mode, code, filename, cwd, env, argv, has_stdin }
        })
}

fn any_display() -> impl Strategy<Value = Reply> {
    let item = (any::<String>(), 0..3_usize, any::<String>()).prop_map(|(mime, how, data)| {
        let encoding = [Encoding::Text, Encoding::Base64, Encoding::Json][how];
        MimeData { mime, encoding, data }
    });
    (any::<i64>(), 0..3_usize, prop::collection::vec(item, 0..5), any::<String>(), any::<String>())
        .prop_map(|(id, kind, bundle, metadata, display_id)| {
            let kind =
                [WireDisplayKind::Result, WireDisplayKind::Display, WireDisplayKind::Update][kind];
            Reply::Display { id, kind, bundle, metadata, display_id }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn runs_come_back(run in any_run(), chunk in 1..40_usize) {
        let message = Request::Run(run);
        let bytes = frame(|out| message.encode(out));
        prop_assert_eq!(decoded(&bytes, chunk, Request::decode), Ok(vec![message]));
    }

    #[test]
    fn displays_come_back(message in any_display(), chunk in 1..40_usize) {
        let bytes = frame(|out| message.encode(out));
        prop_assert_eq!(decoded(&bytes, chunk, Reply::decode), Ok(vec![message]));
    }

    /// What decodes at all is exactly what would be sent.
    #[test]
    fn arbitrary_bodies_never_panic(kind in 0..32_u8, body in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = Reply::decode(Frame { kind, body: &body }) {
            let bytes = frame(|out| message.encode(out));
            prop_assert_eq!(&bytes[5..], &body[..]);
        }
        let _ = Request::decode(Frame { kind, body: &body });
        let packet = [&[kind][..], &body].concat();
        let _ = ZygoteRequest::decode(&packet);
        let _ = ZygoteReply::decode(&packet);
    }

    /// Messages with bytes changed, which reach deeper than noise.
    #[test]
    fn changed_messages_never_panic(which in 0..12_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = frame(|out| replies()[which].encode(out));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let mut reader = FrameReader::new();
        reader.push(&bytes);
        while let Ok(Some(frame)) = reader.next_frame() {
            let _ = Reply::decode(frame);
        }
    }

    #[test]
    fn chunks_make_no_difference(bytes in prop::collection::vec(0..4_u8, 0..300), chunk in 1..20_usize) {
        let cut = |chunk| {
            let mut reader = FrameReader::new();
            let mut frames = Vec::new();
            for piece in bytes.chunks(chunk) {
                reader.push(piece);
                loop {
                    match reader.next_frame() {
                        Ok(Some(frame)) => frames.push((frame.kind, frame.body.to_vec())),
                        Ok(None) => break,
                        Err(error) => return (frames, Some(error)),
                    }
                }
            }
            (frames, None)
        };
        prop_assert_eq!(cut(chunk), cut(1000));
    }
}

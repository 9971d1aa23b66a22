//! Requests.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbox_core::{ByteStream, CallContext, CreateSpec, Secret, Stdin};
use serde::{Deserialize, Serialize};

use crate::verbs::Verb;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope<A> {
    #[serde(default)]
    pub(crate) call: WireCall,
    /// The stream on which the sandbox, or the command, of the request was made; 0 for the backend.
    #[serde(default)]
    pub(crate) on: u64,
    pub(crate) verb: Verb,
    /// The arguments of the verb, as a list.
    pub(crate) arguments: A,
}

/// [`CallContext`] with its deadline as the remaining time.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WireCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
}

impl From<&CallContext> for WireCall {
    fn from(call: &CallContext) -> Self {
        Self {
            remaining: call.deadline.map(|at| at.saturating_duration_since(Instant::now())),
            idempotency_key: call.idempotency_key.clone(),
            run_id: call.run_id.clone(),
            trace: call.trace.clone(),
        }
    }
}

impl From<WireCall> for CallContext {
    fn from(wire: WireCall) -> Self {
        let mut call = Self::new();
        call.deadline = wire.remaining.and_then(|left| Instant::now().checked_add(left));
        call.idempotency_key = wire.idempotency_key;
        call.run_id = wire.run_id;
        call.trace = wire.trace;
        call
    }
}

/// [`CreateSpec`] with its secrets, which its serialized form leaves out: a connection is as private as the process behind
/// it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WireSpec {
    spec: CreateSpec,
    secrets: BTreeMap<String, ExposedSecret>,
}

/// A secret on its way.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct ExposedSecret(String);

impl std::fmt::Debug for ExposedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl From<CreateSpec> for WireSpec {
    fn from(mut spec: CreateSpec) -> Self {
        let expose = |(name, secret): (_, Secret)| (name, ExposedSecret(secret.expose().into()));
        let secrets = std::mem::take(&mut spec.secrets).into_iter().map(expose).collect();
        Self { spec, secrets }
    }
}

impl From<WireSpec> for CreateSpec {
    fn from(WireSpec { mut spec, secrets }: WireSpec) -> Self {
        let hide = |(name, ExposedSecret(value))| (name, Secret::new(value));
        spec.secrets = secrets.into_iter().map(hide).collect();
        spec
    }
}

/// The source of standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireStdin {
    #[default]
    Empty,
    /// The tail of the message.
    Tail,
    /// The elements of the stream.
    Stream,
}

/// Bytes of a request beside its arguments: at once in the message, or as a stream.
#[derive(Default)]
pub(crate) struct Payload {
    pub(crate) tail: Bytes,
    pub(crate) body: Option<ByteStream>,
}

impl Payload {
    /// Makes the payload of standard input.
    pub(crate) fn from_stdin(stdin: Stdin) -> (WireStdin, Self) {
        match stdin {
            Stdin::Empty => (WireStdin::Empty, Self::default()),
            Stdin::Bytes(tail) => (WireStdin::Tail, Self { tail, body: None }),
            Stdin::Stream(body) => {
                (WireStdin::Stream, Self { tail: Bytes::new(), body: Some(body) })
            }
        }
    }
}

impl WireStdin {
    /// Makes standard input of the payload that arrived.
    pub(crate) fn into_stdin(self, tail: Bytes, body: impl FnOnce() -> ByteStream) -> Stdin {
        match self {
            Self::Empty => Stdin::Empty,
            Self::Tail => Stdin::Bytes(tail),
            Self::Stream => Stdin::Stream(body()),
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{
        ByteSize, CodeMode, Mount, NetworkPolicy, PtySize, RunCode, SingleUse, StartCommand,
    };
    use serde::de::DeserializeOwned;
    use serde_json::{Map, Value};

    use super::*;
    use crate::message::{json, parse};

    fn travelled<T: Serialize + DeserializeOwned>(value: &T) -> T {
        parse(&json(value)).unwrap()
    }

    #[test]
    fn runs_arrive_as_they_were_sent() {
        let mut run = RunCode::new("x\u{0}\n\"é");
        run.language = Some("py".into());
        run.context = Some("c".into());
        run.mode = CodeMode::Script { filename: "a b.py".into(), argv: vec![String::new()] };
        run.env = [("A".into(), "é=".into())].into();
        run.cwd = Some("/x".into());
        run.timeout = Some(Duration::from_nanos(1));
        run.cpu_time = Some(Duration::MAX);
        run.memory = Some(ByteSize::mib(17));
        run.output_limit = Some(ByteSize::kib(3));
        assert_eq!(format!("{:?}", travelled(&run)), format!("{run:?}"));
    }

    #[test]
    fn commands_arrive_as_they_were_sent() {
        let mut start = StartCommand::new(["a", "", "b c"]);
        start.cwd = Some("x".into());
        start.env = [("A".into(), String::new())].into();
        start.timeout = Some(Duration::from_millis(5));
        start.cpu_time = Some(Duration::from_nanos(7));
        start.output_limit = Some(ByteSize::bytes(9));
        start.interactive = true;
        start.pty = Some(PtySize { columns: 80, rows: 24 });
        start.background = true;
        assert_eq!(format!("{:?}", travelled(&start)), format!("{start:?}"));
    }

    #[test]
    fn standard_input_travels_beside_the_request() {
        let (kind, payload) = Payload::from_stdin(Stdin::Bytes(vec![0, 255].into()));
        let stdin = travelled(&kind).into_stdin(payload.tail, || unreachable!());
        assert!(matches!(&stdin, Stdin::Bytes(bytes) if bytes[..] == [0, 255]));
        let (kind, payload) = Payload::from_stdin(Stdin::Empty);
        assert!(payload.tail.is_empty() && payload.body.is_none());
        assert!(matches!(kind.into_stdin(payload.tail, || unreachable!()), Stdin::Empty));
    }

    #[test]
    fn specs_arrive_as_they_were_sent_with_their_secrets() {
        let mut spec = CreateSpec::default();
        spec.name = Some("n".into());
        spec.env = [("A".into(), "1".into())].into();
        spec.secrets = [("TOKEN".into(), Secret::new("hunter2"))].into();
        spec.memory = Some(ByteSize::mib(64));
        spec.cpu = Some(0.1);
        spec.network = NetworkPolicy::allowlist(["*.example.com:443"]).unwrap();
        spec.mounts = vec![Mount::new("/srv", "/data").writable()];
        spec.lifetime = Some(Duration::from_nanos(1_000_000_001));
        spec.single_use = Some(SingleUse::Code);
        spec.provider_options = Map::from_iter([("python".into(), Value::from("x"))]);
        let wire = WireSpec::from(spec.clone());
        assert!(!format!("{wire:?}").contains("hunter2"));
        assert_eq!(CreateSpec::from(travelled(&wire)), spec);
    }

    #[test]
    fn a_deadline_travels_as_the_remaining_time() {
        let call = CallContext::new()
            .with_deadline(Instant::now() + Duration::from_secs(60))
            .with_idempotency_key("k")
            .with_run_id("r")
            .with_trace("t");
        let found = CallContext::from(travelled(&WireCall::from(&call)));
        let left = found.deadline.unwrap().saturating_duration_since(Instant::now());
        assert!((55..=60).contains(&left.as_secs()), "{left:?}");
        assert_eq!(found.idempotency_key.as_deref(), Some("k"));
        assert_eq!((found.run_id.as_deref(), found.trace.as_deref()), (Some("r"), Some("t")));
    }
}

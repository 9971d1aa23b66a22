//! Calls the backend for a request, and makes the answer. The simple verbs are generated from the table of verbs.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_core::stream::BoxStream;
use futures_util::StreamExt as _;
use sandbox_core::{
    Backend, ByteRange, ByteStream, CallContext, Command, ContextSpec, CreateSpec, Error,
    ErrorKind, EventKind, FindFiles, InstallPackages, ListQuery, PtySize, Result, RunCode,
    SandboxId, StartCommand, Stdin, Tags, Tool, WriteOptions,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::session::Session;
use super::state::Published;
use crate::body;
use crate::frame::Violation;
use crate::link::RecvStream;
use crate::message::Message;
use crate::tool_calls;
use crate::verbs::{Verb, for_each_verb};
use crate::wire::error::WireError;
use crate::wire::request::{Envelope, WireSpec, WireStdin};
use crate::wire::{CommandReply, event};

/// The answer to a request.
pub(super) enum Answer {
    /// One reply.
    Value(Message),
    /// One reply, and elements.
    Stream(Message, BoxStream<'static, Message>, StreamStart),
}

/// When the first element of a stream is produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamStart {
    /// At once, within the window.
    AtOnce,
    /// When the client starts to read, because reading a background command holds the command back.
    WhenRead,
}

/// A request that is being answered.
struct Request<'a> {
    session: &'a Arc<Session>,
    /// The stream of the request.
    id: u64,
    recv: RecvStream,
    call: CallContext,
    verb: Verb,
    arguments: Value,
    tail: Bytes,
}

/// Answers a request.
pub(super) async fn answer(
    session: &Arc<Session>,
    id: u64,
    recv: RecvStream,
    message: Message,
) -> Result<Answer> {
    let Envelope { call, on, verb, arguments } = message.read().map_err(malformed)?;
    let call = CallContext::from(call);
    let request = Request { session, id, recv, call, verb, arguments, tail: message.tail };
    match verb {
        _ if on == 0 => request.answer_for_backend(&session.backend).await,
        Verb::write_stdin | Verb::close_stdin | Verb::resize | Verb::signal => {
            request.answer_for_command(on).await
        }
        _ => {
            let published = session.sandbox(on)?;
            let answer = request.answer_for_sandbox(&published).await;
            // Before the answer, so that a client with the answer knows the state that the request has changed.
            published.publish(&session.link);
            answer
        }
    }
}

fn malformed(violation: Violation) -> Error {
    Error::new(ErrorKind::Protocol, "request", violation.to_string())
}

fn reply(value: &impl Serialize) -> Message {
    Message::from_head(&Ok::<_, ()>(value))
}

fn value(value: impl Serialize) -> Result<Answer> {
    Ok(Answer::Value(reply(&value)))
}

fn done(outcome: Result<()>) -> Result<Answer> {
    outcome.and_then(value)
}

fn elements(elements: impl Stream<Item = Message> + Send + 'static) -> Result<Answer> {
    Ok(Answer::Stream(reply(&()), elements.boxed(), StreamStart::AtOnce))
}

fn bytes(chunks: ByteStream) -> Result<Answer> {
    elements(chunks.map(body::encode))
}

fn stream<T: Serialize + 'static>(
    items: Pin<Box<dyn Stream<Item = Result<T>> + Send>>,
) -> Result<Answer> {
    elements(items.map(|item| Message::from_head(&item.map_err(|error| WireError::from(&error)))))
}

/// An argument of a verb: received as an owned value, and passed to the method as the method takes it.
trait Argument<'a> {
    type Received: DeserializeOwned;

    fn from_received(received: &'a mut Self::Received) -> Self;
}

impl<'a> Argument<'a> for &'a str {
    type Received = String;

    fn from_received(received: &'a mut String) -> Self {
        received
    }
}

impl<'a> Argument<'a> for Option<&'a str> {
    type Received = Option<String>;

    fn from_received(received: &'a mut Option<String>) -> Self {
        received.as_deref()
    }
}

impl Argument<'_> for InstallPackages {
    type Received = Self;

    fn from_received(received: &mut Self) -> Self {
        received.clone()
    }
}

macro_rules! taken_arguments {
    ($($type:ty),*) => {
        $(impl Argument<'_> for $type {
            type Received = Self;

            fn from_received(received: &mut Self) -> Self {
                std::mem::take(received)
            }
        })*
    };
}

taken_arguments!(bool, u16, u32, Duration, Tags, Map<String, Value>);
taken_arguments!(ListQuery, ContextSpec, ByteRange, FindFiles);

/// Generates the methods of [`Request`] that answer for the backend and for a sandbox. A verb of the form `special` is
/// answered by the method of [`Request`] with its name.
macro_rules! answer {
    (
        Backend [] { $(
            $backend_form:ident $backend_verb:ident($($backend_argument:ident: $backend_type:ty),*)
                -> $backend_answer:ty;
        )* }
        $($facet:ident $access:tt { $(
            $form:ident $verb:ident($($argument:ident: $type:ty),*) -> $answer:ty;
        )* })*
    ) => {
        impl Request<'_> {
            async fn answer_for_backend(mut self, backend: &Arc<dyn Backend>) -> Result<Answer> {
                match self.verb {
                    $(Verb::$backend_verb => answer!(
                        @$backend_form self, backend, backend, [],
                        $backend_verb($($backend_argument: $backend_type),*)
                    ),)*
                    _ => Err(malformed(Violation("the verb is not one of a backend"))),
                }
            }

            async fn answer_for_sandbox(mut self, published: &Arc<Published>) -> Result<Answer> {
                match self.verb {
                    $($(Verb::$verb => answer!(
                        @$form self, published, published.instance, $access,
                        $verb($($argument: $type),*)
                    ),)*)*
                    _ => Err(malformed(Violation("the verb is not one of a sandbox"))),
                }
            }
        }
    };
    (@special $self:ident, $on:ident, $target:expr, $access:tt, $verb:ident($($rest:tt)*)) => {
        $self.$verb($on).await
    };
    (@end $($rest:tt)*) => { answer!(@value $($rest)*) };
    (
        @$form:ident $self:ident, $on:ident, $target:expr, [$($access:tt)*],
        $verb:ident($($argument:ident: $type:ty),*)
    ) => {{
        let ($(mut $argument,)*): ($(<$type as Argument<'_>>::Received,)*) = $self.arguments()?;
        let target = &$target;
        $form(
            target $($access)*
                .$verb(&$self.call, $(Argument::from_received(&mut $argument)),*)
                .await?,
        )
    }};
}

for_each_verb!(answer);

impl Request<'_> {
    /// Parses the arguments of a request without a body.
    fn arguments<A: DeserializeOwned>(&mut self) -> Result<A> {
        self.recv.finish();
        self.parse_arguments()
    }

    fn parse_arguments<A: DeserializeOwned>(&mut self) -> Result<A> {
        serde_json::from_value(self.arguments.take())
            .map_err(|_| malformed(Violation("arguments of another form than expected")))
    }

    /// Makes standard input of the payload of the request.
    fn stdin(mut self, kind: WireStdin) -> Stdin {
        if kind != WireStdin::Stream {
            self.recv.finish();
        }
        kind.into_stdin(self.tail, || body::receive(self.recv))
    }

    async fn create(mut self, backend: &Arc<dyn Backend>) -> Result<Answer> {
        let (spec,): (WireSpec,) = self.arguments()?;
        let instance = backend.create(&self.call, CreateSpec::from(spec)).await?;
        value(self.session.hand(self.id, instance).await?)
    }

    async fn attach(mut self, backend: &Arc<dyn Backend>) -> Result<Answer> {
        let (id,): (String,) = self.arguments()?;
        let id: SandboxId = id.parse()?;
        let instance = backend.attach(&self.call, &id).await?;
        value(self.session.hand(self.id, instance).await?)
    }

    async fn fork(mut self, published: &Arc<Published>) -> Result<Answer> {
        let () = self.arguments()?;
        let copy = published.instance.life().fork(&self.call).await?;
        value(self.session.hand(self.id, copy).await?)
    }

    async fn run_code(mut self, published: &Arc<Published>) -> Result<Answer> {
        let (mut run, stdin): (RunCode, WireStdin) = self.parse_arguments()?;
        published.follow(run.context.as_deref());
        let (link, call) = (Arc::clone(&self.session.link), self.call.clone());
        run.stdin = self.stdin(stdin);
        let events = published.instance.code()?.run_code(&call, run).await?;
        let published = Arc::clone(published);
        elements(events.map(move |event| {
            if matches!(event.kind, EventKind::Started { .. } | EventKind::Finished(_)) {
                published.publish(&link);
            }
            event::encode(event)
        }))
    }

    async fn register_tool(mut self, published: &Arc<Published>) -> Result<Answer> {
        let (name, description, parameters) = self.arguments()?;
        let call = tool_calls::remote_tool(Arc::downgrade(&self.session.link), self.id);
        let tool = Tool { name, description, parameters, call };
        done(published.instance.code()?.register_tool(&self.call, tool).await)
    }

    async fn start_command(mut self, published: &Arc<Published>) -> Result<Answer> {
        let (mut start, stdin): (StartCommand, WireStdin) = self.parse_arguments()?;
        let begin = if start.background { StreamStart::WhenRead } else { StreamStart::AtOnce };
        let (session, id, call) = (Arc::clone(self.session), self.id, self.call.clone());
        start.stdin = self.stdin(stdin);
        let command = published.instance.commands()?.start_command(&call, start).await?;
        Ok(started(&session, id, command, begin))
    }

    async fn connect_command(mut self, published: &Arc<Published>) -> Result<Answer> {
        let (command,): (String,) = self.arguments()?;
        let commands = published.instance.commands()?;
        let command = commands.connect_command(&self.call, &command).await?;
        Ok(started(self.session, self.id, command, StreamStart::WhenRead))
    }

    async fn write_file(mut self, published: &Arc<Published>) -> Result<Answer> {
        let (path, options): (String, WriteOptions) = self.parse_arguments()?;
        let files = published.instance.files()?;
        value(files.write_file(&self.call, &path, body::receive(self.recv), options).await?)
    }

    async fn write_archive(mut self, published: &Arc<Published>) -> Result<Answer> {
        let (path,): (String,) = self.parse_arguments()?;
        let files = published.instance.files()?;
        done(files.write_archive(&self.call, &path, body::receive(self.recv)).await)
    }

    async fn answer_for_command(mut self, on: u64) -> Result<Answer> {
        let control = self.session.control(on)?;
        done(match self.verb {
            Verb::resize => {
                let (size,): (PtySize,) = self.arguments()?;
                control.resize(size).await
            }
            Verb::signal => {
                let (signal, tree) = self.arguments()?;
                control.signal(signal, tree).await
            }
            verb => {
                let () = self.arguments()?;
                match verb {
                    Verb::write_stdin => control.write_stdin(self.tail).await,
                    _ => control.close_stdin().await,
                }
            }
        })
    }
}

/// Makes the answer for a command that runs: its id, and its events.
fn started(session: &Arc<Session>, id: u64, command: Command, start: StreamStart) -> Answer {
    let Command { id: name, pid, events, control } = command;
    session.hand_control(id, control);
    let reply = reply(&CommandReply { id: name, pid });
    Answer::Stream(reply, events.map(event::encode_command).boxed(), start)
}

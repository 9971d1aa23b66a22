//! From a request to the call of a backend, and from its outcome to a reply.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_core::Stream;
use futures_core::stream::BoxStream;
use futures_util::StreamExt as _;
use sandbox_core::{
    ByteRange, ByteStream, CallContext, Command, Error, ErrorKind, EventKind, InstallPackages,
    Instance, Result, SandboxId, Tool,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::session::{Session, reply};
use super::state::Published;
use crate::body::body;
use crate::frame::Violation;
use crate::link::Inlet;
use crate::message::{Message, json, parse};
use crate::tool;
use crate::wire::error::WireError;
use crate::wire::event;
use crate::wire::request::{Envelope, Verb};
use crate::wire::{Listed, Started};

/// What comes of a request.
pub(super) enum Answer {
    /// One reply.
    Value(Message),
    /// One reply, and what follows it.
    Stream(Message, BoxStream<'static, Message>, Begin),
}

/// When the elements of a stream are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// As far as they fit the window.
    AtOnce,
    /// Not before the client reads: who has begun to read a command in the background holds it back.
    WhenRead,
}

/// A request that is being answered.
struct Request<'a> {
    session: &'a Arc<Session>,
    /// The stream it came on.
    id: u64,
    inlet: Inlet,
    tail: Bytes,
    call: CallContext,
}

/// Carries out a request.
pub(super) async fn answer(
    session: &Arc<Session>,
    id: u64,
    inlet: Inlet,
    message: Message,
) -> Result<Answer> {
    let envelope: Envelope = message.read().map_err(unreadable)?;
    let call = envelope.call.into();
    let request = Request { session, id, inlet, tail: message.tail, call };
    if envelope.on == 0 {
        return request.of_backend(envelope.verb).await;
    }
    if is_about_a_command(&envelope.verb) {
        return request.of_command(envelope.on, envelope.verb).await;
    }
    let published = session.sandbox(envelope.on)?;
    let answer = request.of_sandbox(&published, envelope.verb).await;
    // Before the answer, so that whoever has it knows what it changed.
    published.publish(&session.link);
    answer
}

fn unreadable(violation: Violation) -> Error {
    Error::new(ErrorKind::Protocol, "request", violation.to_string())
}

fn is_about_a_command(verb: &Verb) -> bool {
    matches!(verb, Verb::WriteStdin | Verb::CloseStdin | Verb::Resize(_) | Verb::Signal { .. })
}

fn value(value: impl Serialize) -> Result<Answer> {
    Ok(Answer::Value(reply(&value)))
}

/// A value of the user's, which may be nested deeply, in the tail.
fn tail_value(value: &Value) -> Result<Answer> {
    Ok(Answer::Value(Message { tail: json(value), ..reply(&()) }))
}

fn done(outcome: Result<()>) -> Result<Answer> {
    outcome.and_then(value)
}

fn stream(elements: impl Stream<Item = Message> + Send + 'static) -> Result<Answer> {
    Ok(Answer::Stream(reply(&()), elements.boxed(), Begin::AtOnce))
}

fn bytes(stream_of: ByteStream) -> Result<Answer> {
    stream(stream_of.map(|chunk| match chunk {
        Ok(chunk) => Message::bytes(chunk),
        Err(error) => Message::of(&WireError::from(&error)),
    }))
}

fn fallible<T: Serialize + 'static>(
    stream_of: Pin<Box<dyn Stream<Item = Result<T>> + Send>>,
) -> Result<Answer> {
    stream(stream_of.map(|item| Message::of(&item.map_err(|error| WireError::from(&error)))))
}

impl Request<'_> {
    /// The request has no body.
    fn no_body(mut self) -> Self {
        self.inlet.finish();
        self
    }

    async fn of_backend(self, verb: Verb) -> Result<Answer> {
        let request = self.no_body();
        let (session, call) = (request.session, &request.call);
        let backend = &session.backend;
        match verb {
            Verb::Create(spec) => {
                let instance = backend.create(call, (*spec).into()).await?;
                session.hand(request.id, instance).await.map(Answer::Value)
            }
            Verb::Attach { id } => {
                let id: SandboxId = id.parse()?;
                let instance = backend.attach(call, &id).await?;
                session.hand(request.id, instance).await.map(Answer::Value)
            }
            Verb::List(query) => {
                let page = backend.list(call, query.into()).await?;
                value(Listed { items: page.items, next: page.next })
            }
            Verb::Environments => value(backend.environments(call).await?),
            Verb::Health => value(backend.health(call).await?),
            Verb::ListSnapshots => value(backend.list_snapshots(call).await?),
            Verb::DeleteSnapshot { name } => done(backend.delete_snapshot(call, &name).await),
            _ => Err(unreadable(Violation("the verb needs a sandbox"))),
        }
    }

    async fn of_command(self, on: u64, verb: Verb) -> Result<Answer> {
        let request = self.no_body();
        let control = request.session.control(on)?;
        done(match verb {
            Verb::WriteStdin => control.write_stdin(request.tail).await,
            Verb::Resize(size) => control.resize(size).await,
            Verb::Signal { signal, tree } => control.signal(signal, tree).await,
            _ => control.close_stdin().await,
        })
    }

    async fn of_sandbox(self, published: &Arc<Published>, verb: Verb) -> Result<Answer> {
        let instance = Arc::clone(&published.instance);
        match verb {
            Verb::RunCode(_) | Verb::StartCommand(_) | Verb::ConnectCommand { .. } => {
                self.of_program(published, verb).await
            }
            Verb::WriteFile { path, options } => {
                let content = body(self.inlet);
                value(
                    instance
                        .files()?
                        .write_file(&self.call, &path, content, options.into())
                        .await?,
                )
            }
            Verb::WriteArchive { path } => {
                let tar = body(self.inlet);
                done(instance.files()?.write_archive(&self.call, &path, tar).await)
            }
            verb if is_about_files(&verb) => {
                let request = self.no_body();
                of_files(&instance, &request.call, verb).await
            }
            verb => self.no_body().of_life(&instance, published, verb).await,
        }
    }

    async fn of_program(self, published: &Arc<Published>, verb: Verb) -> Result<Answer> {
        let Self { session, id, mut inlet, tail, call } = self;
        let instance = &published.instance;
        match verb {
            Verb::RunCode(run) => {
                let kind = run.stdin;
                published.follow(run.context.as_deref());
                let stdin = kind.of_inlet(tail, inlet);
                let events = instance.code()?.run_code(&call, run.unpack(stdin)).await?;
                let (published, link) = (Arc::clone(published), Arc::clone(&session.link));
                stream(events.map(move |event| {
                    let told =
                        matches!(event.kind, EventKind::Started { .. } | EventKind::Finished(_));
                    if told {
                        published.publish(&link);
                    }
                    event::encode(event)
                }))
            }
            Verb::StartCommand(start) => {
                let begin = if start.background { Begin::WhenRead } else { Begin::AtOnce };
                let stdin = start.stdin.of_inlet(tail, inlet);
                let command =
                    instance.commands()?.start_command(&call, start.unpack(stdin)).await?;
                Ok(started(session, id, command, begin))
            }
            Verb::ConnectCommand { id: command } => {
                inlet.finish();
                let command = instance.commands()?.connect_command(&call, &command).await?;
                Ok(started(session, id, command, Begin::WhenRead))
            }
            _ => Err(unreadable(Violation("not a program"))),
        }
    }

    async fn of_life(
        self,
        instance: &Arc<dyn Instance>,
        published: &Arc<Published>,
        verb: Verb,
    ) -> Result<Answer> {
        let Self { session, id, call, tail, .. } = self;
        let call = &call;
        match verb {
            Verb::CreateContext(spec) => {
                value(instance.code()?.create_context(call, spec.into()).await?)
            }
            Verb::ListContexts => value(instance.code()?.list_contexts(call).await?),
            Verb::RestartContext { id } => done(instance.code()?.restart_context(call, &id).await),
            Verb::DeleteContext { id } => done(instance.code()?.delete_context(call, &id).await),
            Verb::GetVariable { context, name } => {
                tail_value(&instance.code()?.get_variable(call, context.as_deref(), &name).await?)
            }
            Verb::SetVariables { context } => {
                let values: Map<String, Value> = parse(&tail).map_err(unreadable)?;
                done(instance.code()?.set_variables(call, context.as_deref(), values).await)
            }
            Verb::Interrupt { context } => {
                value(instance.code()?.interrupt(call, context.as_deref()).await?)
            }
            Verb::Reset => done(instance.life().reset(call).await),
            Verb::ListCommands => value(instance.commands()?.list_commands(call).await?),
            Verb::RegisterTool { name, description, parameters } => {
                let call_back = tool::of_client(Arc::downgrade(&session.link), id);
                let tool = Tool { name, description, parameters, call: call_back };
                done(instance.code()?.register_tool(call, tool).await)
            }
            Verb::InstallPackages { system, upgrade, names } => {
                let packages = match (system, upgrade) {
                    (true, _) => InstallPackages::System(names),
                    (false, true) => InstallPackages::Upgrade(names),
                    (false, false) => InstallPackages::Python(names),
                };
                done(instance.packages()?.install_packages(call, packages).await)
            }
            Verb::ExposePort { port } => value(instance.ports()?.expose_port(call, port).await?),
            Verb::SetTags { tags } => done(instance.life().set_tags(call, tags).await),
            Verb::SetLifetime { lifetime } => {
                done(instance.life().set_lifetime(call, lifetime).await)
            }
            Verb::Pause => done(instance.life().pause(call).await),
            Verb::Resume => done(instance.life().resume(call).await),
            Verb::CreateSnapshot { name, description } => {
                value(instance.snapshots()?.create_snapshot(call, &name, &description).await?)
            }
            Verb::RestoreSnapshot { name } => {
                value(instance.snapshots()?.restore_snapshot(call, &name).await?)
            }
            Verb::Fork => {
                let copy = instance.life().fork(call).await?;
                session.hand(id, copy).await.map(Answer::Value)
            }
            Verb::Metrics => value(instance.life().metrics(call).await?),
            Verb::Logs { follow } => fallible(instance.life().logs(call, follow).await?),
            Verb::Terminate => done(instance.life().terminate(call).await),
            Verb::Kill => done(instance.life().kill(call).await),
            _ => {
                published.publish(&session.link);
                Err(unreadable(Violation("the verb is not about a sandbox")))
            }
        }
    }
}

/// The reply for a command that runs, and its events.
fn started(session: &Arc<Session>, id: u64, command: Command, begin: Begin) -> Answer {
    let Command { id: name, pid, events, control } = command;
    session.hand_control(id, control);
    let reply = reply(&Started { id: name, pid });
    Answer::Stream(reply, events.map(event::encode_command).boxed(), begin)
}

fn is_about_files(verb: &Verb) -> bool {
    matches!(
        verb,
        Verb::ReadFile { .. }
            | Verb::ListFiles { .. }
            | Verb::StatFile { .. }
            | Verb::CreateDirectory { .. }
            | Verb::RemoveFile { .. }
            | Verb::RenameFile { .. }
            | Verb::CopyFile { .. }
            | Verb::SetFileMode { .. }
            | Verb::FindFiles(_)
            | Verb::ReadArchive { .. }
            | Verb::WatchFiles { .. }
    )
}

async fn of_files(i: &Arc<dyn Instance>, call: &CallContext, verb: Verb) -> Result<Answer> {
    match verb {
        Verb::ReadFile { path, offset, length } => {
            bytes(i.files()?.read_file(call, &path, ByteRange { offset, length }).await?)
        }
        Verb::ListFiles { path } => value(i.files()?.list_files(call, &path).await?),
        Verb::StatFile { path } => value(i.files()?.stat_file(call, &path).await?),
        Verb::CreateDirectory { path, parents } => {
            done(i.files()?.create_directory(call, &path, parents).await)
        }
        Verb::RemoveFile { path, recursive } => {
            done(i.files()?.remove_file(call, &path, recursive).await)
        }
        Verb::RenameFile { from, to } => done(i.files()?.rename_file(call, &from, &to).await),
        Verb::CopyFile { from, to } => done(i.files()?.copy_file(call, &from, &to).await),
        Verb::SetFileMode { path, mode } => done(i.files()?.set_file_mode(call, &path, mode).await),
        Verb::FindFiles(query) => value(i.files()?.find_files(call, query.into()).await?),
        Verb::ReadArchive { path } => bytes(i.files()?.read_archive(call, &path).await?),
        Verb::WatchFiles { path, recursive } => {
            fallible(i.files()?.watch_files(call, &path, recursive).await?)
        }
        _ => Err(unreadable(Violation("the verb is not about files"))),
    }
}

impl crate::wire::request::WireStdin {
    /// Standard input from what came along. Without a body none is waited for.
    fn of_inlet(self, tail: Bytes, mut inlet: Inlet) -> sandbox_core::Stdin {
        if self != Self::Stream {
            inlet.finish();
        }
        self.stdin(tail, || body(inlet))
    }
}

//! The commands of one sandbox: those of this handle, and those that other handles and processes have started.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use sandbox_core::{
    Command, CommandInfo, Error, ErrorKind, Result, StartCommand, Stdin, StreamTotals,
};
use sandbox_engine::commands::Commands;
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_engine::process::EndReason;

use super::Envd;
use super::process::{AGENT, BEFORE_COMMAND, EnvdProcesses, KIND, TAG, Words, connect};
use super::run::{InputKind, Listed};
use crate::error::no_code;

/// The ids of commands of other handles begin with this.
const OTHERS: &str = "pid-";

/// Maximum number of characters of a command in listings.
const MAX_SHOWN: usize = 1000;

/// The commands of one sandbox.
pub(crate) struct EnvdCommands {
    envd: Envd,
    ended: Arc<EndReason>,
    words: Arc<Words>,
    foreground: Commands,
    background: Commands,
    /// Commands of other handles that were connected to, by id.
    connected: Mutex<BTreeMap<String, Arc<Commands>>>,
}

impl fmt::Debug for EnvdCommands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvdCommands").field("envd", &self.envd).finish_non_exhaustive()
    }
}

impl EnvdCommands {
    pub(crate) fn new(envd: Envd) -> Self {
        let (ended, words) = (Arc::clone(envd.handle().end_reason()), Arc::<Words>::default());
        let commands = |outlives| {
            let (envd, words) = (envd.clone(), Arc::clone(&words));
            Commands::new(Arc::new(EnvdProcesses { envd, words, outlives }), Arc::clone(&ended))
        };
        let (foreground, background) = (commands(false), commands(true));
        Self { ended, foreground, background, connected: Mutex::default(), words, envd }
    }

    /// Starts a checked command relative to that directory.
    pub(crate) async fn start(&self, directory: &str, request: StartCommand) -> Result<Command> {
        let commands = if request.background { &self.background } else { &self.foreground };
        commands.start(BTreeMap::new(), directory, request, Box::new(())).await
    }

    /// Lists commands that run, and background ones of this handle that have ended.
    pub(crate) async fn list(&self) -> Result<Vec<CommandInfo>> {
        let mut all = self.background.list();
        all.extend(self.foreground.list());
        all.sort_by(|a, b| a.started_at.total_cmp(&b.started_at));
        all.extend(self.others("list_commands").await?.iter().map(describe));
        Ok(all)
    }

    /// Returns the processes that are not of this handle.
    async fn others(&self, operation: &'static str) -> Result<Vec<Listed>> {
        let mut all = self.envd.processes(operation).await?;
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|listed| match word(listed) {
            // Scripts, and programs that lead to an agent, have no word.
            Some(word) => !words.contains(word),
            None => !listed.tag.as_deref().is_some_and(|tag| tag.starts_with(TAG)),
        });
        all.retain(|listed| !is_script(listed));
        Ok(all)
    }

    /// Connects to a background command of this handle, or to a command of another one.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for a command in the foreground.
    pub(crate) async fn connect(&self, id: &str) -> Result<Command> {
        let Some(pid) = id.strip_prefix(OTHERS).and_then(|pid| pid.parse::<u32>().ok()) else {
            return match self.background.connect(id, Box::new(())) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.foreground.connect(id, Box::new(()))
                }
                connected => connected,
            };
        };
        let others = self.others("connect_command").await?;
        let Some(found) = others.iter().find(|listed| listed.pid == pid) else {
            self.connected.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
            let message = format!("command {id:?} not found");
            return Err(Error::new(ErrorKind::NotFound, "connect_command", message));
        };
        let host = OtherProcess { envd: self.envd.clone(), listed: found.clone() };
        let commands = Arc::new(Commands::new(Arc::new(host), Arc::clone(&self.ended)));
        let mut request = StartCommand::new(command_line(found));
        request.background = true;
        request.interactive = true;
        request.stdin = Stdin::Empty;
        let mut command = commands.start(BTreeMap::new(), "/", request, Box::new(())).await?;
        id.clone_into(&mut command.id);
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        connected.insert(id.to_owned(), commands);
        Ok(command)
    }

    /// Kills every command of this handle with everything that it started.
    pub(crate) async fn end_all(&self) -> Result<()> {
        let foreground = self.foreground.end_all().await;
        foreground.and(self.background.end_all().await)
    }
}

/// Returns the secret word of a command that this library has started.
fn word(listed: &Listed) -> Option<&str> {
    let is_command = listed.config.args.len() > BEFORE_COMMAND;
    let word = listed.tag.as_deref()?.strip_prefix(TAG)?;
    (is_command && !word.starts_with(AGENT)).then_some(word)
}

/// Returns true for a script of this library.
fn is_script(listed: &Listed) -> bool {
    let args = &listed.config.args;
    listed.tag.is_none() && args.get(1).is_some_and(|script| script == sandbox_shell::SIGNAL)
}

fn command_line(listed: &Listed) -> String {
    let args = &listed.config.args;
    let line = match word(listed) {
        Some(_) => match &args[BEFORE_COMMAND..] {
            [shell, option, line] if shell == "/bin/sh" && option == "-c" => line.clone(),
            argv => argv.join(" "),
        },
        None => [std::slice::from_ref(&listed.config.cmd), args].concat().join(" "),
    };
    line.chars().take(MAX_SHOWN).collect()
}

fn describe(listed: &Listed) -> CommandInfo {
    CommandInfo {
        id: format!("{OTHERS}{}", listed.pid),
        pid: Some(listed.pid),
        command: command_line(listed),
        // The daemon does not tell it.
        started_at: 0.0,
        exit_code: None,
        signal: None,
        failure: None,
        ended_at: None,
        background: true,
        stdout: StreamTotals::default(),
        stderr: StreamTotals::default(),
    }
}

/// "Starts" a command that runs already, by connecting to it.
#[derive(Debug)]
struct OtherProcess {
    envd: Envd,
    listed: Listed,
}

#[async_trait]
impl ProcessHost for OtherProcess {
    async fn spawn(&self, _spec: Spawn) -> Result<Spawned> {
        let args = &self.listed.config.args;
        // The kind of the streams is an argument of the script of this library.
        let is_terminal = word(&self.listed).is_some() && args[KIND] == "sized";
        let input = if is_terminal { InputKind::Terminal } else { InputKind::Pipe };
        connect(&self.envd, self.listed.pid, word(&self.listed), Some(input)).await
    }

    async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
        Err(no_code("run_code"))
    }

    fn kill(&self) {}

    async fn closed(&self) {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::ListedConfig;
    use super::*;

    fn listed(tag: Option<&str>, args: &[&str]) -> Listed {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let config = ListedConfig { cmd: "/bin/sh".into(), args };
        Listed { pid: 7, tag: tag.map(str::to_owned), config }
    }

    #[test]
    fn commands_are_shown_as_they_were_asked_for() {
        let before = ["-c", "script", "sh", "w", "w", "pipes", "/", "-", "-"];
        let ours = |argv: &[&str]| listed(Some("code-sandboxes.w"), &[&before[..], argv].concat());
        let line = ours(&["/bin/sh", "-c", "sleep 5; echo x"]);
        assert_eq!((word(&line), &*command_line(&line)), (Some("w"), "sleep 5; echo x"));
        assert_eq!(command_line(&ours(&["sleep", "5"])), "sleep 5");
        let agent = listed(Some("code-sandboxes.agent.w"), &[&before[..], &["-I", "-B"]].concat());
        assert_eq!(word(&agent), None);
        let theirs = listed(None, &["-l", "-c", "true"]);
        assert_eq!((word(&theirs), &*command_line(&theirs)), (None, "/bin/sh -l -c true"));
        assert_eq!(describe(&theirs).id, "pid-7");
    }
}

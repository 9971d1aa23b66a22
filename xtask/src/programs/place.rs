//! The two places where a program runs, and what is seen of it there.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::script::{self, Program};
use crate::command::{output, quietly};
use crate::setup::is_root;

/// Seconds for a program in each place.
const SECONDS: u64 = 120;

/// Time for a place that does not heed its own limit.
const TIMEOUT: Duration = Duration::from_secs(SECONDS + 30);

/// Runs a script, lists the files that it leaves, and ends as it did.
const WRAPPER: &str = r#"
bash "$1"
status=$?
export LC_ALL=C
printf '\n%s\n' "$2"
find . -mindepth 1 -printf '%M %P %l\n' | sort -k 2
find . -type f -print0 | sort -z | xargs -0 -r sha256sum
exit $status
"#;

/// Stands between what a script prints and the list of its files.
const MARK: &str = "=== files that it leaves ===";

/// The user that programs run as outside when root starts them: some refuse to run as root, as nothing does in a cell.
const USER: u32 = 65_534;

/// Makes folders reachable that are below closed ones, such as tools in root's home, as a cell has them too: in a mount
/// namespace of its own, the closed folders are empty but for these.
const OPEN: &str = r#"
mount -t tmpfs -o mode=755 tmpfs /mnt || exit
while [ "$1" != -- ]; do
  closed=$1 folder=$2; shift 2
  mkdir -p "/mnt$folder" && mount --rbind "$folder" "/mnt$folder" || exit
  folders+=("$folder"); all+=("$closed")
done
for closed in "${all[@]}"; do mountpoint -q "/mnt/own$closed" || {
  mkdir -p "/mnt/own$closed" && mount -t tmpfs -o mode=755 tmpfs "$closed" && mount --bind "$closed" "/mnt/own$closed" || exit
}; done
for folder in "${folders[@]}"; do mkdir -p "$folder" && mount --rbind "/mnt$folder" "$folder" || exit; done
cd . && shift && exec "$@"
"#;

/// Lines that say how a program ended, what it printed and which files it left.
pub(super) type Transcript = Vec<String>;

/// A sandbox for each program, and a shell beside it.
pub(super) struct Places {
    sandboxes: PathBuf,
    /// Folder with what was installed for the programs; both places see it at the same path.
    tools: PathBuf,
    variant: String,
    /// `PATH` of a sandbox.
    path: String,
    /// Folders that a sandbox sees and other users of this host cannot reach, after the closed folder above each.
    closed: Vec<(PathBuf, PathBuf)>,
}

impl Places {
    pub(super) fn new(sandboxes: PathBuf, tools: PathBuf, variant: String) -> Result<Self, String> {
        fs::create_dir_all(&tools).map_err(|error| format!("{tools:?}: {error}"))?;
        let ask = "echo $PATH; cut -d ' ' -f 2 /proc/self/mounts";
        let ask = ["run", "-q", "--variant", &variant, ask];
        let said = output(Command::new(&sandboxes).args(ask))?;
        let mut said = said.lines();
        let path = said.next().unwrap_or_default().to_owned();
        let seen = said.map(PathBuf::from).chain([tools.clone(), script::folder()]);
        let closed = seen.filter_map(|path| Some((closed_above(&path)?, path))).collect();
        Ok(Self { sandboxes, tools, variant, path, closed })
    }

    /// The virtual environment.
    pub(super) fn python(&self) -> PathBuf {
        self.tools.join("python")
    }

    /// The modules of node.
    pub(super) fn node(&self) -> PathBuf {
        self.tools.join("node/node_modules")
    }

    /// Names something that a program needs and this host, or another variant's sandbox, has not.
    pub(super) fn lacks(&self, program: &Program) -> Result<Option<String>, String> {
        if !program.pip.is_empty() && !self.python().join("packages.txt").exists() {
            return Ok(Some(program.pip.join(" ")));
        }
        if let Some(name) = program.npm.iter().find(|name| !self.node().join(name).exists()) {
            return Ok(Some(name.clone()));
        }
        let ask = r#"for name; do command -v "$name" >&2 || echo "$name"; done"#;
        let mut asked = vec![self.as_user("bash", program)];
        // A cell has the programs of its host, and what it has not is a difference. An image has its own.
        if !self.variant.contains("eval") && !self.variant.contains("jupyter") {
            asked.push(self.in_sandbox(program));
        }
        for mut command in asked {
            let missing = output(command.args(["-c", ask, "bash"]).args(&program.has))?;
            if let Some(name) = missing.lines().next() {
                return Ok(Some(name.to_owned()));
            }
        }
        Ok(None)
    }

    /// Runs a program in a sandbox of its own.
    pub(super) fn inside(&self, program: &Program) -> Result<Transcript, String> {
        let folder = Folder::new(program)?;
        let run = folder.run(self.in_sandbox(program), program, false)?;
        self.transcript(run, program, "/workspace", "/home/sandbox")
    }

    /// Runs a program in a directory of this host.
    pub(super) fn outside(&self, program: &Program) -> Result<Transcript, String> {
        let folder = Folder::new(program)?;
        let (work, home) = (folder.make("work")?, folder.make("home")?);
        let mut command = self.as_user("timeout", program);
        command.args(["--kill-after=5", &SECONDS.to_string(), "bash"]);
        command.current_dir(&work).env("HOME", &home).env("PWD", &work);
        let run = folder.run(command, program, true)?;
        self.transcript(run, program, &work.to_string_lossy(), &home.to_string_lossy())
    }

    /// A command of a sandbox, to which the words for `bash` are added.
    fn in_sandbox(&self, program: &Program) -> Command {
        let mut command = Command::new(&self.sandboxes);
        let seconds = SECONDS.to_string();
        command.args(["run", "-q", "--variant", &self.variant, "-t", &seconds]);
        for folder in [&self.tools, &script::folder()] {
            command.arg("--mount").arg(format!("{0}:{0}", folder.display()));
        }
        for (name, value) in self.variables(program) {
            command.args(["-e", &format!("{name}={value}")]);
        }
        command.args(&program.options).args(["--", "bash"]);
        command
    }

    /// A command of this host, run by a user without rights.
    fn as_user(&self, run: &str, program: &Program) -> Command {
        let mut command = Command::new(if is_root() { "unshare" } else { run });
        if is_root() {
            command.args(["--mount", "--propagation", "private", "--", "bash", "-c"]);
            command
                .args([if self.closed.is_empty() { "shift; exec \"$@\"" } else { OPEN }, "bash"]);
            command.args(self.closed.iter().flat_map(|(closed, folder)| [closed, folder]));
            command.args(["--", "setpriv", "--clear-groups"]);
            command.args([format!("--reuid={USER}"), format!("--regid={USER}")]);
            command.args(["--", run]);
        }
        command.env_clear();
        command.envs([("SHELL", "/bin/sh"), ("USER", "sandbox"), ("LOGNAME", "sandbox")]);
        command.env("LANG", "C.UTF-8").envs(self.variables(program));
        command
    }

    /// Variables of both places.
    fn variables(&self, program: &Program) -> Vec<(&'static str, String)> {
        let mut path = Vec::new();
        if !program.pip.is_empty() {
            path.push(self.python().join("bin").display().to_string());
        }
        if !program.npm.is_empty() {
            path.push(self.node().join(".bin").display().to_string());
        }
        path.push(self.path.clone());
        vec![("PATH", path.join(":")), ("TOOLS", self.tools.display().to_string())]
    }

    /// Puts together what was seen, without what may differ: paths of the place, and what the program says to hide.
    fn transcript(
        &self,
        run: Run,
        program: &Program,
        work: &str,
        home: &str,
    ) -> Result<Transcript, String> {
        let Run { status, stdout, stderr } = run;
        let (printed, files) =
            stdout.rsplit_once(&format!("\n{MARK}\n")).unwrap_or((&stdout, "no list of files"));
        let mut lines = vec![format!("status {status}")];
        for (kind, text) in [("out", printed), ("err", &stderr), ("file", files)] {
            lines.extend(text.lines().map(|line| format!("{kind} {line}")));
        }
        let text = lines.join("\n").replace(work, "/workspace").replace(home, "/home/sandbox");
        let text = text.replace(&*self.tools.to_string_lossy(), "$TOOLS");
        let text = text.replace(&*script::folder().to_string_lossy(), "programs");
        let text = if program.hide.is_empty() { text } else { edited(&text, &program.hide)? };
        Ok(text.lines().map(|line| line.trim_end().to_owned()).collect())
    }
}

/// The topmost folder above a path that other users cannot pass.
fn closed_above(path: &Path) -> Option<PathBuf> {
    let open = |folder: &Path| {
        let mode = folder.metadata().map_or(0o1, |meta| meta.permissions().mode());
        mode & 0o1 != 0
    };
    let mut above: Vec<_> = path.ancestors().skip(1).collect();
    above.reverse();
    above.into_iter().find(|folder| !open(folder)).map(Path::to_path_buf)
}

/// Text after `sed -E` has applied each expression.
fn edited(text: &str, expressions: &[String]) -> Result<String, String> {
    let input = std::env::temp_dir().join(format!("code-sandboxes-sed-{}", std::process::id()));
    fs::write(&input, text).map_err(|error| format!("{input:?}: {error}"))?;
    let mut sed = Command::new("sed");
    sed.arg("-E").args(expressions.iter().flat_map(|expression| ["-e", expression]));
    let edited = output(sed.arg(&input));
    let _ = fs::remove_file(&input);
    edited
}

/// How a run ended and what it printed.
struct Run {
    status: String,
    stdout: String,
    stderr: String,
}

/// A folder of this host for one run, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(program: &Program) -> Result<Self, String> {
        let name = format!("code-sandboxes-{}-{}", std::process::id(), program.name);
        let folder = Self(std::env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).map_err(|error| format!("{:?}: {error}", folder.0))?;
        Ok(folder)
    }

    /// Makes a folder in it that the user of the programs may write.
    fn make(&self, name: &str) -> Result<PathBuf, String> {
        let make = |folder: &Path| {
            fs::create_dir(folder)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
            if is_root() { chown(folder, Some(USER), Some(USER)) } else { Ok(()) }
        };
        let folder = self.0.join(name);
        make(&folder).map_err(|error| format!("{folder:?}: {error}"))?;
        Ok(folder)
    }

    /// Runs the program by a command that ends with `bash`; `sweep` ends what it left running.
    fn run(&self, mut command: Command, program: &Program, sweep: bool) -> Result<Run, String> {
        let (out, err) = (self.0.join("out"), self.0.join("err"));
        let file = |path: &Path| File::create(path).map_err(|error| format!("{path:?}: {error}"));
        command.args(["-c", WRAPPER, "bash"]).arg(&program.path).arg(MARK);
        command.stdin(Stdio::null()).stdout(file(&out)?).stderr(file(&err)?).process_group(0);
        let name = command.get_program().display().to_string();
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let group = format!("-{}", child.id());
        let end = || quietly(Command::new("kill").args(["-KILL", "--", &group]));
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                break status.code().map_or_else(|| status.to_string(), |code| code.to_string());
            }
            if began.elapsed() > TIMEOUT {
                end();
                let _ = child.wait();
                break format!("none after {} seconds", TIMEOUT.as_secs());
            }
            thread::sleep(Duration::from_millis(20));
        };
        if sweep {
            end();
        }
        let read = |path: &Path| {
            let bytes = fs::read(path).map_err(|error| format!("{path:?}: {error}"))?;
            Ok::<_, String>(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Run { status, stdout: read(&out)?, stderr: read(&err)? })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("warning: {} is left: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_closed_folder_is_found() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("open/closed/inner/folder");
        fs::create_dir_all(&path).expect("folders");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        mode(place.path(), 0o755);
        assert_eq!(closed_above(&path), None);
        let closed = place.path().join("open/closed");
        mode(&closed, 0o700);
        mode(&closed.join("inner"), 0o700);
        assert_eq!(closed_above(&path), Some(closed));
    }
}

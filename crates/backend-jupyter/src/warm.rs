//! Kernels of IPython that are forked from a warm interpreter, which has imported what they need.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use sandbox_cells::Start;
use sandbox_cells::cell::{CellHost, Zygote};
use sandbox_cells::interpreters::is_script;
use sandbox_cells::zygotes::{ZygoteKey, Zygotes};
use sandbox_core::{Error, ErrorKind, Mount, Result};
use sandbox_engine::host::{Spawn, Spawned, WorkerSpec};
use sandbox_isolation::CellLauncher;
use sandbox_kernel::launch::ForkServer;

use crate::installed::Installed;

/// What a kernel imports before it runs code. Left out is what looks around while it is imported: the part of `debugpy` for
/// its log starts a process to describe the machine, `psutil` keeps times.
const MODULES: [&str; 8] = [
    "debugpy.server",
    "ipykernel.kernelapp",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "tornado.platform.asyncio",
];

/// The interpreter of a kernel, as one that kernels are forked from.
#[derive(Clone, Debug)]
pub(crate) struct WarmInterpreter {
    zygotes: Zygotes,
    maker: CellLauncher,
    flavor: ZygoteKey,
    /// Where mounts of this sandbox are.
    mounts: Vec<PathBuf>,
}

impl WarmInterpreter {
    /// That of a kernel that is started as kernels of IPython usually are.
    pub(crate) fn find(
        installed: &Installed,
        mounts: &[Mount],
        maker: &CellLauncher,
        zygotes: &Zygotes,
    ) -> Option<Self> {
        let program = usual_program(&installed.command.argv)?.to_vec();
        let python = installed.python.as_ref()?;
        if is_script(&python.executable).ok()? {
            return None;
        }
        let changed = |path: &PathBuf| fs::metadata(path).and_then(|it| it.modified()).ok();
        let places = python.site_packages.iter();
        let flavor = ZygoteKey {
            executable: python.executable.clone(),
            start: Start {
                preimports: MODULES.map(str::to_owned).to_vec(),
                program,
                ..Start::default()
            },
            installed: places.map(|path| (path.clone(), changed(path))).collect(),
            privilege: maker.privilege(),
        };
        let mounts = mounts.iter().map(|mount| mount.target.clone().into()).collect();
        Some(Self { zygotes: zygotes.clone(), maker: maker.clone(), flavor, mounts })
    }

    /// The interpreter, started when it is not there.
    pub(crate) async fn zygote(&self) -> Result<Arc<Zygote>> {
        let zygote = self.zygotes.get(&self.maker, self.flavor.clone()).await?;
        let hello = zygote.hello();
        let places = [&hello.prefix, &hello.base_prefix].into_iter().chain(&hello.sys_path);
        if let Some(place) = places.map(Path::new).find(|place| self.is_mounted(place)) {
            let message = format!("a mount changes {}", place.display());
            return Err(Error::new(ErrorKind::Unavailable, "start_kernel", message));
        }
        Ok(zygote)
    }

    /// Whether a mount is there, above it or below it.
    fn is_mounted(&self, place: &Path) -> bool {
        self.mounts.iter().any(|mount| mount.starts_with(place) || place.starts_with(mount))
    }

    /// The kernels of that interpreter in a cell.
    pub(crate) fn in_cell(self, cell: &Arc<CellHost>) -> Box<dyn ForkServer> {
        Box::new(WarmKernels { interpreter: self, cell: Arc::clone(cell) })
    }
}

/// The arguments of the interpreter that make it a kernel of IPython, when these are the usual ones.
fn usual_program(argv: &[String]) -> Option<&[String]> {
    let (_python, arguments) = argv.split_first()?;
    let without = |option: &str| arguments.first().is_some_and(|first| first == option);
    let options = usize::from(without("-Xfrozen_modules=off"));
    let (program, rest) = arguments.split_at_checked(options + 2)?;
    let is_usual = program[options..] == ["-m", "ipykernel_launcher"] && rest.len() == 2;
    (is_usual && rest[0] == "-f").then_some(program)
}

#[derive(Debug)]
struct WarmKernels {
    interpreter: WarmInterpreter,
    cell: Arc<CellHost>,
}

#[async_trait]
impl ForkServer for WarmKernels {
    async fn fork(&self, program: &Spawn) -> Result<Spawned> {
        let zygote = self.interpreter.zygote().await?;
        let own = 1 + self.interpreter.flavor.start.program.len();
        let arguments = program.argv.get(own..).unwrap_or_default().to_vec();
        let spec = WorkerSpec { env: program.env.clone(), cwd: program.cwd.clone() };
        self.cell.fork_program(zygote, arguments, spec).await
    }
}

#[cfg(test)]
mod tests {
    use sandbox_kernel::launch::KernelCommand;

    use super::*;

    #[test]
    fn only_what_is_started_as_usual_is_forked() {
        let usual = |argv: &str| {
            let argv: Vec<_> = argv.split(' ').map(str::to_owned).collect();
            usual_program(&argv).map(|program| program.join(" "))
        };
        let file = KernelCommand::FILE;
        let plain = usual(&format!("/python -m ipykernel_launcher -f {file}"));
        assert_eq!(plain.as_deref(), Some("-m ipykernel_launcher"));
        let newer = usual(&format!("/python -Xfrozen_modules=off -m ipykernel_launcher -f {file}"));
        assert_eq!(newer.as_deref(), Some("-Xfrozen_modules=off -m ipykernel_launcher"));
        for other in [
            "/python",
            "/python -m ipykernel_launcher",
            "/python -m ipykernel -f /f",
            "/python -m bash_kernel -f /f",
            "/python -I -m ipykernel_launcher -f /f",
            "/python -m ipykernel_launcher -f /f --pylab",
            "/python -m ipykernel_launcher --f=/f",
            "/xpython -f /f",
        ] {
            assert_eq!(usual(other), None, "{other}");
        }
    }
}

//! Errors of this crate.

use std::fmt;
use std::io;

/// Error of an operation on cells.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Cells cannot be made on this machine as it is configured.
    #[error("isolation is not available: {missing}; {fix}")]
    Unavailable {
        /// The refused operation.
        missing: String,
        /// The necessary change, with the command where there is one.
        fix: String,
    },
    /// The kernel cannot redirect a cell's connections to a gate. Cells without a gate work.
    #[error(
        "a network gate is not available: the kernel refused its rules ({source}); load them with `modprobe -a nf_tables nft_tproxy`"
    )]
    NoGate {
        /// The kernel's reason.
        source: io::Error,
    },
    /// One step of setting up a cell failed. Nothing of the cell is left.
    #[error("cannot set up the cell: {step}: {source}")]
    Setup {
        /// The step, and the path or name it worked on.
        step: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A program did not start.
    #[error("cannot start {program:?}: {stage}: {source}")]
    Spawn {
        /// The first argument.
        program: String,
        /// The stage that failed.
        stage: SpawnStage,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The cell, the process or the launcher is gone.
    #[error("the cell is gone")]
    Closed,
    /// A helper process sent an invalid message. Its cell is killed.
    #[error("a helper process broke the protocol: {0}")]
    Protocol(String),
    /// An argument is invalid. Nothing was done.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// The host lacks resources: descriptors, memory, processes.
    #[error("{context}: {source}")]
    Io {
        /// The failed operation.
        context: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(context: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { context, source }
    }

    pub(crate) fn os(context: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Io { context, source: errno.into() }
    }

    /// Returns true when a program was not found: shells report status 127.
    #[must_use]
    pub fn is_program_not_found(&self) -> bool {
        self.refused_program().is_some_and(|source| {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        })
    }

    /// Returns true when a program exists but cannot be executed: shells report status 126.
    #[must_use]
    pub fn is_program_not_executable(&self) -> bool {
        const ENOEXEC: i32 = 8;
        self.refused_program().is_some_and(|source| {
            source.kind() == io::ErrorKind::PermissionDenied
                || source.kind() == io::ErrorKind::IsADirectory
                || source.raw_os_error() == Some(ENOEXEC)
        })
    }

    fn refused_program(&self) -> Option<&io::Error> {
        match self {
            Self::Spawn { stage: SpawnStage::Program, source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The stage at which starting a program failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpawnStage {
    /// Making the process.
    Fork,
    /// Preparing its descriptors, session and signals.
    Prepare,
    /// Applying a resource limit.
    Limit,
    /// Entering the working directory.
    Directory,
    /// Dropping privileges.
    Seal,
    /// Executing the program itself.
    Program,
}

impl SpawnStage {
    pub(crate) fn from_wire(stage: u32) -> Option<Self> {
        use crate::protocol::stage;
        Some(match stage {
            stage::FORK => Self::Fork,
            stage::PREPARE => Self::Prepare,
            stage::LIMIT => Self::Limit,
            stage::DIRECTORY => Self::Directory,
            stage::SEAL => Self::Seal,
            stage::PROGRAM => Self::Program,
            _ => return None,
        })
    }
}

impl fmt::Display for SpawnStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fork => "creating the process",
            Self::Prepare => "preparing the process",
            Self::Limit => "applying limits",
            Self::Directory => "entering the working directory",
            Self::Seal => "dropping privileges",
            Self::Program => "executing the program",
        })
    }
}

//! What a case is, and when it applies.

use std::fmt;
use std::ops::Deref;
use std::panic::Location;

use futures_util::future::LocalBoxFuture;
use sandbox_core::{Capabilities, Error};

use crate::fixture::Fixture;

/// What came of a case.
pub(crate) type Checked<T = ()> = Result<T, Failure>;

/// One behaviour.
pub(crate) struct Case {
    /// `conformance` or `hostile`.
    pub(crate) suite: &'static str,
    pub(crate) group: &'static str,
    pub(crate) name: String,
    pub(crate) needs: Vec<Need>,
    /// Whether nothing else may run at the same time, because it counts or measures.
    pub(crate) alone: bool,
    pub(crate) run: Box<dyn FnOnce(Fixture) -> LocalBoxFuture<'static, Checked> + Send>,
}

impl Case {
    pub(crate) fn new(
        group: &'static str,
        name: impl Into<String>,
        needs: Vec<Need>,
        run: impl FnOnce(Fixture) -> LocalBoxFuture<'static, Checked> + Send + 'static,
    ) -> Self {
        Self {
            suite: "conformance",
            group,
            name: name.into(),
            needs,
            alone: false,
            run: Box::new(run),
        }
    }

    /// The same case with nothing beside it.
    pub(crate) fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// The same case in the hostile suite.
    pub(crate) fn hostile(self) -> Self {
        Self { suite: "hostile", ..self }
    }

    pub(crate) fn full_name(&self) -> String {
        format!("{}::{}::{}", self.suite, self.group, self.name)
    }

    /// Why the case does not apply, if it does not.
    pub(crate) fn not_applicable(&self, conditions: &Conditions) -> Option<String> {
        self.needs.iter().find(|need| !(need.met)(conditions)).map(|need| reason(need.name))
    }
}

/// What a case presupposes.
pub(crate) struct Need {
    pub(crate) name: &'static str,
    pub(crate) met: fn(&Conditions) -> bool,
}

/// What a target offers: its capabilities, and what is not a capability.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) capabilities: Capabilities,
    /// Sandboxes are made with strict isolation.
    pub(crate) strict: bool,
    /// Code is kept from the host, with strict isolation or as well as it can be had.
    pub(crate) contained: bool,
    /// Sandboxes run on this host.
    pub(crate) local: bool,
    /// Sandboxes end with their last handle, and with their process.
    pub(crate) attached: bool,
    /// The interpreter is said to have pandas, matplotlib and pillow.
    pub(crate) packages: bool,
}

impl Deref for Conditions {
    type Target = Capabilities;

    fn deref(&self) -> &Capabilities {
        &self.capabilities
    }
}

fn reason(need: &str) -> String {
    match need {
        "strict" => "not applicable: isolation is not strict here".to_owned(),
        "contained" => "not applicable: code is not kept from the host here".to_owned(),
        "local" => "not applicable: sandboxes do not run on this host".to_owned(),
        "attached" => "not applicable: sandboxes outlive their handles here".to_owned(),
        "a verb" => "not applicable: it describes output, and there is no verb to call".to_owned(),
        "packages" => {
            "SANDBOX_TEST_PYTHON does not name a Python with pandas, matplotlib and pillow"
                .to_owned()
        }
        capability => format!("capability `{capability}` is not declared"),
    }
}

/// Why a case failed, and where.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    message: String,
    at: &'static Location<'static>,
}

/// What a failure begins with that no second try takes back: the host was touched, or something stayed on it. A case
/// that passes alone proves nothing then, because what escaped may have won a race, or have come from a case beside it.
/// `cargo xtask` hears it.
pub(crate) const FINAL: &str = "final: ";

impl Failure {
    #[track_caller]
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), at: Location::caller() }
    }

    /// The same failure as one that is final.
    pub(crate) fn finally(mut self) -> Self {
        if !self.message.starts_with(FINAL) {
            self.message.insert_str(0, FINAL);
        }
        self
    }

    /// This failure, and what else was found.
    pub(crate) fn beside(mut self, other: Checked) -> Self {
        if let Err(other) = other {
            self.message = format!("{}; and {other}", self.message);
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at {}:{})", self.message, self.at.file(), self.at.line())
    }
}

impl From<Error> for Failure {
    #[track_caller]
    fn from(error: Error) -> Self {
        let hint = error.hint().map(|hint| format!("; hint: {hint}")).unwrap_or_default();
        Self::new(format!("{} error in {}: {error}{hint}", error.kind(), error.operation()))
    }
}

macro_rules! from_display {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Failure {
            #[track_caller]
            fn from(error: $kind) -> Self {
                Self::new(error.to_string())
            }
        }
    )*};
}

from_display!(String, std::io::Error, serde_json::Error, tokio::task::JoinError);

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        match $condition {
            true => {}
            false => return Err($crate::case::Failure::new(format!($($message)+))),
        }
    };
}

/// Fails the case unless both are equal. A third argument says what they are.
macro_rules! ensure_eq {
    ($left:expr, $right:expr) => { ensure_eq!($left, $right, "{}", stringify!($left)) };
    ($left:expr, $right:expr, $($what:tt)+) => {
        match (&$left, &$right) {
            (left, right) if *left == *right => {}
            (left, right) => return Err($crate::case::Failure::new(format!(
                "{}: got {left:?}, expected {right:?}",
                format_args!($($what)+),
            ))),
        }
    };
}

macro_rules! need {
    ($name:ident) => {
        $crate::case::Need { name: stringify!($name), met: |conditions| conditions.$name }
    };
}

/// The cases of a group: async functions, each with what it needs beside what all of them need.
macro_rules! cases {
    ($group:literal, [$($all:ident),*], { $($name:ident $(needs $($need:ident),+)?;)+ }) => {
        {
            let mut all = vec![$($crate::case::Case::new(
                $group,
                stringify!($name),
                vec![$($($crate::case::need!($need)),+)?],
                |fixture| Box::pin($name(fixture)),
            )),+];
            for case in &mut all {
                case.needs.splice(0..0, [$($crate::case::need!($all)),*]);
            }
            all
        }
    };
}

pub(crate) use {cases, ensure, ensure_eq, need};

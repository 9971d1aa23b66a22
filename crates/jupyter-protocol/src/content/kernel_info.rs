//! What a kernel is.

use serde_json::Value;

use super::structs::content_struct;

content_struct! {
    /// Asks what the kernel is. Answered on shell and on control.
    #[derive(Default)]
    pub struct KernelInfoRequest {}
}

content_struct! {
    /// What the kernel is.
    #[derive(Default)]
    pub reply KernelInfoReply {
        /// The protocol version it claims. Do not rely on it: ask [`KernelInfoReply::supports`].
        pub protocol_version: String,
        /// Its name, such as `ipython`.
        pub implementation: String,
        /// Its version.
        pub implementation_version: String,
        /// The language it runs.
        pub language_info: LanguageInfo,
        /// Text to greet with.
        pub banner: String,
        /// Whether it can debug. Replaced by [`KernelInfoReply::supported_features`] in protocol 5.5.
        pub debugger: bool,
        /// Links to documentation.
        pub help_links: Vec<HelpLink>,
        /// What it can do beyond the basics. Protocol 5.5.
        pub supported_features: Vec<String>,
    }
}

impl KernelInfoReply {
    /// The feature of kernels that run requests of subshells in parallel.
    pub const SUBSHELLS: &'static str = "kernel subshells";
    /// The feature of kernels that can debug.
    pub const DEBUGGER: &'static str = "debugger";
    /// The feature of kernels that send [`IopubWelcome`](super::IopubWelcome), as some call it.
    pub const IOPUB_WELCOME: &'static str = "iopub_welcome";

    /// Whether the kernel says it can do this.
    #[must_use]
    pub fn supports(&self, feature: &str) -> bool {
        self.supported_features.iter().any(|name| name == feature)
            || (feature == Self::DEBUGGER && self.debugger)
    }

    /// Whether the kernel is known to publish output of code after it has said that there is no more. Deno's does, from a task
    /// of its own. An [`Execution`](crate::execution::Execution::with_barrier) needs a barrier there; `Client::ready` of a
    /// client sees to that.
    #[must_use]
    pub fn publishes_late(&self) -> bool {
        self.implementation == "Deno kernel"
    }
}

content_struct! {
    /// The language of a kernel.
    #[derive(Default)]
    pub struct LanguageInfo {
        /// Its name, such as `python`.
        pub name: String,
        /// Its version.
        pub version: String,
        /// The MIME type of its source code.
        pub mimetype: String,
        /// The file name extension of its source code, with the dot.
        pub file_extension: String,
        /// How Pygments highlights it, when not by its name.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub pygments_lexer: Option<String>,
        /// How CodeMirror highlights it: a name, or an object with options.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub codemirror_mode: Option<Value>,
        /// How nbconvert exports it, when not as a script.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub nbconvert_exporter: Option<String>,
    }
}

content_struct! {
    /// A link to documentation.
    #[derive(Default)]
    pub struct HelpLink {
        /// What to show.
        pub text: String,
        /// Where it leads.
        pub url: String,
    }
}

content_struct! {
    /// Asks for the ports. Deprecated since protocol 5.1.
    #[derive(Default)]
    pub struct ConnectRequest {}
}

content_struct! {
    /// The ports of the kernel.
    #[derive(Default)]
    pub reply ConnectReply {
        /// The port of the shell channel.
        pub shell_port: u16,
        /// The port of the IOPub channel.
        pub iopub_port: u16,
        /// The port of the stdin channel.
        pub stdin_port: u16,
        /// The port of the heartbeat channel.
        pub hb_port: u16,
        /// The port of the control channel.
        pub control_port: u16,
    }
}

//! The description of a kernel.

use serde_json::Value;

use super::structs::content_struct;

content_struct! {
    /// Asks for the description of the kernel. Answered on shell and on control.
    #[derive(Default)]
    pub struct KernelInfoRequest {}
}

content_struct! {
    /// The description of a kernel.
    #[derive(Default)]
    pub reply KernelInfoReply {
        /// The protocol version that the kernel claims, which is not reliable: use [`KernelInfoReply::supports`].
        pub protocol_version: String,
        /// The name of the kernel, such as `ipython`.
        pub implementation: String,
        /// The version of the kernel.
        pub implementation_version: String,
        /// The language of the kernel.
        pub language_info: LanguageInfo,
        /// The greeting of the kernel.
        pub banner: String,
        /// True if the kernel has a debugger. Replaced by [`KernelInfoReply::supported_features`] in protocol 5.5.
        pub debugger: bool,
        /// Links to documentation.
        pub help_links: Vec<HelpLink>,
        /// The optional features of the kernel. Protocol 5.5.
        pub supported_features: Vec<String>,
    }
}

impl KernelInfoReply {
    /// Feature: subshells, whose requests run in parallel.
    pub const SUBSHELLS: &'static str = "kernel subshells";
    /// Feature: debugging.
    pub const DEBUGGER: &'static str = "debugger";
    /// Feature: [`IopubWelcome`](super::IopubWelcome) messages, as some kernels name it.
    pub const IOPUB_WELCOME: &'static str = "iopub_welcome";

    /// Returns true if the kernel claims to support a feature.
    #[must_use]
    pub fn supports(&self, feature: &str) -> bool {
        self.supported_features.iter().any(|name| name == feature)
            || (feature == Self::DEBUGGER && self.debugger)
    }

    /// Returns true if the kernel is known to publish output after it has announced the end of the output, as Deno's
    /// does from a separate task. An [`Execution`](crate::execution::Execution::with_barrier) of such a kernel needs a
    /// barrier; a client creates one after `Client::ready`.
    #[must_use]
    pub fn publishes_late(&self) -> bool {
        self.implementation == "Deno kernel"
    }
}

content_struct! {
    /// The language of a kernel.
    #[derive(Default)]
    pub struct LanguageInfo {
        /// The name of the language, such as `python`.
        pub name: String,
        /// The version of the language.
        pub version: String,
        /// The MIME type of source code.
        pub mimetype: String,
        /// The extension of source files, with the dot.
        pub file_extension: String,
        /// The lexer for Pygments, if it differs from the name.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub pygments_lexer: Option<String>,
        /// The mode for CodeMirror: a name, or an object with options.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub codemirror_mode: Option<Value>,
        /// The exporter for nbconvert, if it is not the one for scripts.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub nbconvert_exporter: Option<String>,
    }
}

content_struct! {
    /// A link to documentation.
    #[derive(Default)]
    pub struct HelpLink {
        /// The title of the link.
        pub text: String,
        /// The target of the link.
        pub url: String,
    }
}

content_struct! {
    /// Asks for the ports of the kernel. Deprecated since protocol 5.1.
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

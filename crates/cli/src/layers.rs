//! Puts layers around sandboxes, as the flags say.

use std::sync::{Arc, OnceLock};

use code_sandboxes::{
    Backend, CallContext, Error, ErrorKind, Finding, Layer as _, Registry, Sandbox, SandboxBuilder,
};
use sandbox_layers::{
    AuditLayer, AuditLog, AuditPolicy, BreakerLayer, BreakerPolicy, CircuitBreaker, MaskLayer,
    ScanLanguage, ScanLayer, ScanMode, ScanPolicy, scan,
};

use crate::args::LayerArgs;
use crate::error::CliError;
use crate::printer::Printer;

/// The log of this command, which is written to its end before the process ends.
static LOG: OnceLock<AuditLog> = OnceLock::new();

/// The layers of a command.
#[derive(Debug, Default)]
struct Layers {
    mask: Option<MaskLayer>,
    scan: Option<ScanLayer>,
    audit: Option<AuditLayer>,
}

impl Layers {
    fn from_args(args: &LayerArgs) -> Result<Self, CliError> {
        let audit = args.audit.as_ref().map(|directory| {
            let log = AuditLog::open(directory, AuditPolicy::default())?;
            Ok::<_, Error>(AuditLayer::new(LOG.get_or_init(|| log).clone()))
        });
        Ok(Self {
            mask: args.mask_secrets.then_some(MaskLayer),
            scan: policy(args)?.map(ScanLayer::new),
            audit: audit.transpose()?,
        })
    }

    fn is_empty(&self) -> bool {
        self.mask.is_none() && self.scan.is_none() && self.audit.is_none()
    }
}

/// Returns the rules of the scan, unless it is off.
fn policy(args: &LayerArgs) -> Result<Option<ScanPolicy>, CliError> {
    let has_lists = !args.allow_import.is_empty() || !args.deny_import.is_empty();
    match args.scan {
        None | Some(ScanMode::Off) if has_lists => Err(CliError::usage(
            "--allow-import and --deny-import are rules of the scan, which is off",
            "add --scan warn or --scan refuse",
        )),
        None | Some(ScanMode::Off) => Ok(None),
        Some(mode) => {
            let mut policy = ScanPolicy::new(mode).deny_imports(args.deny_import.iter().cloned());
            if !args.allow_import.is_empty() {
                policy = policy.allow_imports(args.allow_import.iter().cloned());
            }
            Ok(Some(policy))
        }
    }
}

/// Returns a circuit breaker for one place of a process that serves others. Code in a sandbox cannot open it.
pub(crate) fn breaker() -> BreakerLayer {
    BreakerLayer::new(CircuitBreaker::new(BreakerPolicy::default())).backend_only()
}

/// Puts the layers around the sandbox that a builder makes. The audit is the outermost, so that refusals are in it.
pub(crate) fn add(
    mut builder: SandboxBuilder<Registry>,
    args: &LayerArgs,
) -> Result<SandboxBuilder<Registry>, CliError> {
    let Layers { mask, scan, audit } = Layers::from_args(args)?;
    if let Some(mask) = mask {
        builder = builder.layer(mask);
    }
    if let Some(scan) = scan {
        builder = builder.layer(scan);
    }
    if let Some(audit) = audit {
        builder = builder.layer(audit);
    }
    Ok(builder)
}

/// Puts the layers around a sandbox that there is.
pub(crate) async fn around(sandbox: Sandbox, args: &LayerArgs) -> Result<Sandbox, CliError> {
    let layers = Layers::from_args(args)?;
    if layers.is_empty() {
        return Ok(sandbox);
    }
    let id = sandbox.id().parse()?;
    let mut backend: Arc<dyn Backend> = Registry::new().backend(sandbox.variant())?;
    if let Some(mask) = &layers.mask {
        backend = mask.layer(backend);
    }
    if let Some(scan) = &layers.scan {
        backend = scan.layer(backend);
    }
    if let Some(audit) = &layers.audit {
        backend = audit.layer(backend);
    }
    let instance = backend.attach(&CallContext::new(), &id).await?;
    Ok(Sandbox::from_instance(backend, instance))
}

/// Scans the text of a program that a tool in the sandbox runs, which the layer cannot see. Prints what was found.
///
/// # Errors
/// `PermissionDenied` for a program with findings that are refused.
pub(crate) fn check_program(
    text: &[u8],
    language: &str,
    args: &LayerArgs,
    printer: &Printer,
) -> Result<(), CliError> {
    let Some(policy) = policy(args)? else { return Ok(()) };
    let findings = match (std::str::from_utf8(text), ScanLanguage::find(language)) {
        (Ok(text), Some(language)) => scan(text, language, &policy),
        (text, _) => {
            let what = if text.is_ok() { language } else { "another encoding than UTF-8" };
            let reason = format!("a program in {what} is not looked at");
            vec![Finding { rule: "unread".to_owned(), line: 1, reason }]
        }
    };
    if policy.mode() == ScanMode::Refuse && !findings.is_empty() {
        let named: Vec<_> = findings.iter().take(3).map(ToString::to_string).collect();
        let message = format!("the scan refuses the program: {}", named.join("; "));
        return Err(Error::new(ErrorKind::PermissionDenied, "run", message)
            .with_context("cause", "scan")
            .with_hint("change the program, or use --scan warn; nothing was run")
            .into());
    }
    show(&findings, printer);
    Ok(())
}

/// Prints findings as warnings.
pub(crate) fn show(findings: &[Finding], printer: &Printer) {
    for finding in findings {
        printer.warning(&format!("scan: {finding}"));
    }
}

/// Waits until everything is in the audit log.
pub(crate) async fn flush() {
    if let Some(log) = LOG.get() {
        log.flush().await;
    }
}

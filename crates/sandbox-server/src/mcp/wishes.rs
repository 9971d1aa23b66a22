//! Sandboxes that a client asks for: never more than the ceiling of the server.

use sandbox_core::{CreateSpec, Error, ErrorKind, NetworkPolicy, Result, seconds};

use super::tools::CreateSandbox;
use crate::Ceiling;

/// Applies the wishes of a client to the settings of the server.
///
/// # Errors
/// `InvalidArgument` for a wish that is no value, `PermissionDenied` for one above the ceiling.
pub(super) fn narrow(ceiling: &Ceiling, wished: &CreateSandbox) -> Result<CreateSpec> {
    let mut spec = ceiling.base.clone();
    spec.name = wished.name.clone().or(spec.name);
    spec.snapshot = wished.snapshot.clone().or(spec.snapshot);
    spec.env.extend(wished.env.clone().unwrap_or_default());
    spec.memory = ceiling.memory(wished.memory.as_deref().map(str::parse).transpose()?)?;
    if let Some(cpu) = wished.cpu {
        spec.cpu = Some(cpu);
        if ceiling.base.cpu.is_some_and(|most| cpu > most) {
            let message =
                format!("{cpu} CPU cores were asked for, which is more than this server gives");
            return Err(Error::new(ErrorKind::PermissionDenied, "create", message)
                .with_hint("ask for fewer, or leave `cpu` out"));
        }
    }
    if let Some(lifetime) = wished.lifetime {
        let wish = seconds("lifetime", lifetime)?;
        let most = ceiling.base.lifetime.unwrap_or(ceiling.max_lifetime);
        if wish > most {
            let message = format!(
                "a lifetime of {lifetime} seconds was asked for, and this server gives {}",
                most.as_secs()
            );
            return Err(Error::new(ErrorKind::PermissionDenied, "create", message));
        }
        spec.lifetime = Some(ceiling.lifetime(wish)?);
    }
    if let Some(hosts) = &wished.network {
        let wish = match hosts.is_empty() {
            true => NetworkPolicy::none(),
            false => NetworkPolicy::allowlist(hosts)?,
        };
        spec.network = ceiling.network(Some(wish))?;
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbox_core::{ByteSize, NetworkMode};

    use super::*;

    fn ceiling() -> Ceiling {
        let mut base = CreateSpec::default();
        base.memory = Some(ByteSize::mib(512));
        base.cpu = Some(1.0);
        base.lifetime = Some(Duration::from_secs(600));
        base.network = NetworkPolicy::allowlist(["pypi.org", "10.0.0.1"]).unwrap();
        Ceiling::new(base)
    }

    fn wish(change: impl FnOnce(&mut CreateSandbox)) -> CreateSandbox {
        let mut wish = CreateSandbox::default();
        change(&mut wish);
        wish
    }

    #[test]
    fn less_is_given() {
        let wished = wish(|wish| {
            wish.memory = Some("256m".into());
            wish.cpu = Some(0.5);
            wish.lifetime = Some(60.0);
            wish.network = Some(vec!["pypi.org".into()]);
        });
        let spec = narrow(&ceiling(), &wished).unwrap();
        assert_eq!(spec.memory, Some(ByteSize::mib(256)));
        assert_eq!((spec.cpu, spec.lifetime), (Some(0.5), Some(Duration::from_secs(60))));
        assert_eq!(spec.network.allow.len(), 1);
        let nothing = wish(|wish| wish.network = Some(vec![]));
        assert_eq!(narrow(&ceiling(), &nothing).unwrap().network.mode, NetworkMode::None);
        assert_eq!(narrow(&ceiling(), &CreateSandbox::default()).unwrap(), ceiling().base);
    }

    #[test]
    fn more_is_refused() {
        for wished in [
            wish(|wish| wish.memory = Some("1g".into())),
            wish(|wish| wish.cpu = Some(2.0)),
            wish(|wish| wish.lifetime = Some(601.0)),
            wish(|wish| wish.network = Some(vec!["example.com".into()])),
            wish(|wish| wish.network = Some(vec!["*.pypi.org".into()])),
        ] {
            let error = narrow(&ceiling(), &wished).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{wished:?}: {error}");
        }
        narrow(&ceiling(), &wish(|wish| wish.memory = Some("much".into()))).unwrap_err();
    }
}

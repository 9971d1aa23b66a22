//! The key that `datalayer login` left in the keyring of this user, read with the system's own program.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use reqwest::Url;
use sandbox_core::Secret;
use tokio::process::Command;

use crate::access::Look;

/// A locked keyring may ask its user, who may not be there.
const PATIENCE: Duration = Duration::from_secs(5);

/// The key of that service, if there is a keyring and it has one.
pub(crate) async fn find(service: &Url, look: Look<'_>) -> Option<Secret> {
    let service = service.as_str().trim_end_matches('/');
    let (program, arguments): (_, Vec<&str>) = if cfg!(target_os = "macos") {
        let arguments = vec!["find-generic-password", "-w", "-s", service, "-a", "access_token"];
        ("security", arguments)
    } else {
        // Without a bus there is nobody to ask.
        look("DBUS_SESSION_BUS_ADDRESS")?;
        ("secret-tool", vec!["lookup", "service", service, "username", "access_token"])
    };
    let path = look("PATH")?;
    let program = std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())?;
    ask(program, &arguments).await
}

async fn ask(program: PathBuf, arguments: &[&str]) -> Option<Secret> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| Secret::new(text))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn a_keyring_is_asked_by_service_and_user() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("secret-tool");
        let text = "#!/bin/sh\n[ \"$*\" = 'lookup service https://x.example username access_token' ] && echo kept\n";
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        let with_bus = move |name: &str| match name {
            "PATH" => Some(path.clone()),
            "DBUS_SESSION_BUS_ADDRESS" => Some("unix:".to_owned()),
            _ => None,
        };
        let own = Url::parse("https://x.example/").unwrap();
        let other = Url::parse("https://y.example/").unwrap();
        assert_eq!(find(&own, &with_bus).await.unwrap().expose(), "kept");
        assert!(find(&other, &with_bus).await.is_none());
        let without = |name: &str| with_bus(name).filter(|_| name == "PATH");
        assert!(find(&own, &without).await.is_none());
    }
}

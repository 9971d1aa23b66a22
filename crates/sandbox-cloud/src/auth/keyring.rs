//! Keys in the keyring of this user, read with the system's own program.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use sandbox_core::Secret;
use tokio::process::Command;

use super::key::EnvLookup;

/// Time for a keyring to answer. A locked one may ask a user who is not there.
const KEYRING_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the secret of a user of a service, if there is a keyring and it has one.
pub async fn find_in_keyring(service: &str, user: &str, env: EnvLookup<'_>) -> Option<Secret> {
    let (program, arguments): (_, Vec<&str>) = if cfg!(target_os = "macos") {
        ("security", vec!["find-generic-password", "-w", "-s", service, "-a", user])
    } else {
        // A keyring answers over the bus of the session, or not at all.
        env("DBUS_SESSION_BUS_ADDRESS")?;
        ("secret-tool", vec!["lookup", "service", service, "username", user])
    };
    let path = env("PATH")?;
    let program = std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())?;
    run(program, &arguments).await
}

async fn run(program: PathBuf, arguments: &[&str]) -> Option<Secret> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(KEYRING_TIMEOUT, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| Secret::new(text))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::auth::KeyLookup;

    #[tokio::test]
    async fn a_keyring_is_asked_by_service_and_user() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("secret-tool");
        let text = "#!/bin/sh\n[ \"$*\" = 'lookup service https://x.example username token' ] && echo kept\n";
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        let with_bus = move |name: &str| match name {
            "PATH" => Some(path.clone()),
            "DBUS_SESSION_BUS_ADDRESS" => Some("unix:".to_owned()),
            _ => None,
        };
        let found = KeyLookup::new(&with_bus).keyring("https://x.example", "token").await.key();
        let found = found.unwrap();
        assert_eq!((found.secret.expose(), &*found.source), ("kept", "the keyring of this user"));
        assert!(find_in_keyring("https://y.example", "token", &with_bus).await.is_none());
        let without = |name: &str| with_bus(name).filter(|_| name == "PATH");
        assert!(find_in_keyring("https://x.example", "token", &without).await.is_none());
    }
}

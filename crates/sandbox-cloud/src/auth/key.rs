//! The order in which a key is looked for.

use std::path::PathBuf;

use sandbox_core::Secret;

use super::keyring::find_in_keyring;

/// A lookup of environment variables, so that tests need not change those of the process.
pub type EnvLookup<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// Looks a variable of this process up, as [`sandbox_core::variable`] does. One that is blank counts as unset.
pub fn process_env(name: &str) -> Option<String> {
    sandbox_core::variable(name)
}

/// Returns the home directory that the environment names.
pub fn home_directory(env: EnvLookup<'_>) -> Option<PathBuf> {
    env("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
}

/// A key, and where it came from.
#[derive(Clone, Debug)]
pub struct Key {
    /// The key itself.
    pub secret: Secret,
    /// Names the source for users: a variable, a file.
    pub source: String,
}

/// Looks for a key, source after source: the configuration, the environment, files, the keyring. The first key that is
/// found counts, and nothing is read after it.
///
/// ```
/// use sandbox_cloud::auth::KeyLookup;
///
/// let env = |name: &str| (name == "EXAMPLE_API_KEY").then(|| "from the environment".to_owned());
/// let found = KeyLookup::new(&env)
///     .configured(None)
///     .variables(&["EXAMPLE_API_KEY", "EXAMPLE_TOKEN"])
///     .file("~/.example/config.json", || unreachable!("there is a key already"))
///     .key();
/// assert_eq!(found.unwrap().source, "EXAMPLE_API_KEY");
/// ```
#[derive(Clone)]
pub struct KeyLookup<'a> {
    env: EnvLookup<'a>,
    found: Option<Key>,
}

impl<'a> KeyLookup<'a> {
    /// Starts a lookup that has found nothing.
    pub fn new(env: EnvLookup<'a>) -> Self {
        Self { env, found: None }
    }

    /// Looks into the configuration of the backend or the create.
    #[must_use]
    pub fn configured(self, key: Option<&Secret>) -> Self {
        self.or_else("the configuration", || key.cloned())
    }

    /// Looks into these environment variables, in this order.
    #[must_use]
    pub fn variables(self, names: &[&str]) -> Self {
        let env = self.env;
        names.iter().fold(self, |lookup, name| lookup.or_else(name, || env(name).map(Secret::new)))
    }

    /// Looks into a file of the provider. `source` is its name for users; `read` gives the key in it.
    #[must_use]
    pub fn file(self, source: &str, read: impl FnOnce() -> Option<Secret>) -> Self {
        self.or_else(source, read)
    }

    /// Looks into the keyring of this user.
    #[must_use]
    pub async fn keyring(self, service: &str, user: &str) -> Self {
        if self.found.is_some() {
            return self;
        }
        let secret = find_in_keyring(service, user, self.env).await;
        self.or_else("the keyring of this user", || secret)
    }

    /// Returns the key that was found.
    pub fn key(self) -> Option<Key> {
        self.found
    }

    fn or_else(mut self, source: &str, find: impl FnOnce() -> Option<Secret>) -> Self {
        if self.found.is_none() {
            let secret = find().map(|secret| Secret::new(secret.expose().trim()));
            let secret = secret.filter(|secret| !secret.expose().is_empty());
            self.found = secret.map(|secret| Key { secret, source: source.to_owned() });
        }
        self
    }
}

impl std::fmt::Debug for KeyLookup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyLookup").field("found", &self.found).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_counts() {
        let env = |name: &str| match name {
            "B_KEY" => Some(" b\n".to_owned()),
            "C_KEY" => Some("c".to_owned()),
            "EMPTY" => Some(" ".to_owned()),
            _ => None,
        };
        let found = |configured: Option<&str>, names: &[&str]| {
            let configured = configured.map(Secret::new);
            let lookup = KeyLookup::new(&env).configured(configured.as_ref()).variables(names);
            let key = lookup.file("~/.x", || Some("f".into())).key().unwrap();
            (key.secret.expose().to_owned(), key.source)
        };
        let names = ["A_KEY", "EMPTY", "B_KEY", "C_KEY"];
        assert_eq!(found(Some("own"), &names), ("own".into(), "the configuration".into()));
        assert_eq!(found(Some(" "), &names), ("b".into(), "B_KEY".into()));
        assert_eq!(found(None, &names[..2]), ("f".into(), "~/.x".into()));
        assert!(KeyLookup::new(&env).variables(&["A_KEY"]).key().is_none());
    }
}

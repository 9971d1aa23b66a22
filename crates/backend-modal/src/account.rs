//! The account: token, address and environment, looked up for each call as the provider's own client does.

use std::fs;

use sandbox_cloud::auth::{EnvLookup, home_directory};
use sandbox_cloud::http::{Url, parse_endpoint};
use sandbox_core::{Error, ErrorKind, Result, Secret};
use toml::{Table, Value};

use crate::config::ModalConfig;

const SERVER: &str = "https://api.modal.com";

/// An account of the provider.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Account {
    pub(crate) server: Url,
    /// Empty for the environment that is the workspace's default.
    pub(crate) environment: String,
    /// The version of the image builder that the user asks for.
    pub(crate) builder_version: Option<String>,
    token: Option<Token>,
    /// Where the token was looked for last.
    source: String,
}

#[derive(Clone, Debug, PartialEq)]
struct Token {
    id: Secret,
    secret: Secret,
}

impl Account {
    /// Looks everything up: in the configuration, the environment, the profile of the user's file.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none, and for a profile that does not exist.
    pub(crate) fn resolve(config: &ModalConfig, env: EnvLookup<'_>) -> Result<Self> {
        let (profile, file) = profile(env)?;
        let text = |key: &str| {
            let text = profile.get(key).and_then(Value::as_str).map(str::trim);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let setting = |own: Option<&str>, variable: &str, key: &str| {
            own.map(str::to_owned).or_else(|| env(variable)).or_else(|| text(key))
        };
        let own =
            |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.expose().to_owned());
        let (own_id, own_secret) = (own(&config.token_id), own(&config.token_secret));
        let id = setting(own_id.as_deref(), "MODAL_TOKEN_ID", "token_id");
        let secret = setting(own_secret.as_deref(), "MODAL_TOKEN_SECRET", "token_secret");
        let source = match (&own_id, env("MODAL_TOKEN_ID")) {
            (Some(_), _) => "the configuration".to_owned(),
            (None, Some(_)) => "MODAL_TOKEN_ID".to_owned(),
            (None, None) => file,
        };
        let token = id.zip(secret).map(|(id, secret)| Token {
            id: Secret::new(id.trim()),
            secret: Secret::new(secret.trim()),
        });
        let server = setting(config.server_url.as_deref(), "MODAL_SERVER_URL", "server_url");
        let is_variable = config.server_url.is_none() && env("MODAL_SERVER_URL").is_some();
        let field = if is_variable { "MODAL_SERVER_URL" } else { "server_url" };
        let server = parse_endpoint(field, server.as_deref().unwrap_or(SERVER))?;
        let environment =
            setting(config.environment.as_deref(), "MODAL_ENVIRONMENT", "environment");
        let builder_version = setting(None, "MODAL_IMAGE_BUILDER_VERSION", "image_builder_version");
        let environment = environment.unwrap_or_default();
        Ok(Self { server, environment, builder_version, token, source })
    }

    /// Returns the id and the secret of the token.
    ///
    /// # Errors
    /// `Unauthenticated`, with the ways to set a token.
    pub(crate) fn token(&self, operation: &'static str) -> Result<(&Secret, &Secret)> {
        let missing = || {
            Error::new(ErrorKind::Unauthenticated, operation, "there is no token for Modal")
                .with_context("credentials", "none")
                .with_hint(
                    "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or write ~/.modal.toml with `modal token set`; tokens are made \
                     at https://modal.com/settings/tokens",
                )
        };
        self.token.as_ref().map(|token| (&token.id, &token.secret)).ok_or_else(missing)
    }

    /// Returns where the token came from.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}

/// Returns the profile of the user's file, and a name for it.
fn profile(env: EnvLookup<'_>) -> Result<(Table, String)> {
    let named = env("MODAL_CONFIG_PATH");
    let shown = named.clone().unwrap_or_else(|| "~/.modal.toml".to_owned());
    let path = named.map(Into::into).or_else(|| Some(home_directory(env)?.join(".modal.toml")));
    let text = path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let table: Table = text.parse().map_err(|_| {
        // The parser's message would show a line, which may be the secret.
        Error::invalid("profile", format!("cannot be read: {shown} is not valid TOML"))
    })?;
    let is_active = |profile: &Value| profile.get("active").and_then(Value::as_bool) == Some(true);
    let wanted = env("MODAL_PROFILE");
    let active = table.iter().find(|(_, profile)| is_active(profile)).map(|(name, _)| name.clone());
    let name = wanted.clone().or(active).unwrap_or_else(|| "default".to_owned());
    match (table.get(&name).and_then(Value::as_table), wanted) {
        (Some(profile), _) => Ok((profile.clone(), format!("profile {name:?} of {shown}"))),
        (None, None) => Ok((Table::new(), shown)),
        (None, Some(wanted)) => {
            let known: Vec<_> = table.keys().cloned().collect();
            let message = format!(
                "{wanted:?} of MODAL_PROFILE is not in {shown} (there: {})",
                known.join(", ")
            );
            Err(Error::invalid("profile", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const FILE: &str = "[work]\ntoken_id = \"ak-w\"\ntoken_secret = \"as-w\"\nactive = true\nenvironment = \"dev\"\n\
                        [home]\ntoken_id = \"ak-h\"\ntoken_secret = \"as-h\"\nserver_url = \"https://modal.example\"\n";

    fn resolve(file: &str, variables: &[(&str, &str)]) -> Result<Account> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".modal.toml");
        std::fs::write(&path, file).unwrap();
        let home = folder.path().to_owned();
        let env = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            let value = found.map(|(_, value)| (*value).to_owned());
            value.or_else(|| (name == "HOME").then(|| Path::new(&home).display().to_string()))
        };
        Account::resolve(&ModalConfig::default(), &env)
    }

    fn id(account: &Account) -> String {
        account.token("test").unwrap().0.expose().to_owned()
    }

    #[test]
    fn the_environment_counts_more_than_a_profile() {
        let account = resolve(FILE, &[]).unwrap();
        assert_eq!((id(&account), account.environment.as_str()), ("ak-w".to_owned(), "dev"));
        assert_eq!(account.server.as_str(), "https://api.modal.com/");
        assert!(account.source().contains("\"work\""), "{}", account.source());
        let account = resolve(FILE, &[("MODAL_PROFILE", "home")]).unwrap();
        assert_eq!((id(&account), account.environment.as_str()), ("ak-h".to_owned(), ""));
        assert_eq!(account.server.as_str(), "https://modal.example/");
        let variables = [("MODAL_TOKEN_ID", "ak-e"), ("MODAL_TOKEN_SECRET", "as-e")];
        let account = resolve(FILE, &variables).unwrap();
        assert_eq!((id(&account), account.source()), ("ak-e".to_owned(), "MODAL_TOKEN_ID"));
    }

    #[test]
    fn what_is_missing_is_an_error_with_a_remedy() {
        let error = resolve("", &[]).unwrap().token("list").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert!(error.hint().unwrap().contains("MODAL_TOKEN_ID"));
        let error = resolve(FILE, &[("MODAL_PROFILE", "other")]).unwrap_err();
        assert!(error.message().contains("work"), "{error}");
        let error = resolve("token_secret = hunter2", &[]).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}

//! Whether a file of configuration has a credential in it, by what its lines look like. It errs on the side of hiding.

use std::fs;
use std::io;
use std::path::Path;

use memchr::memmem;

/// Larger files are not looked through, and so not shown.
const MAX_BYTES: u64 = 1 << 20;

/// Parts of names of settings whose values are private.
const SECRETS: [&str; 17] = [
    "accesskey",
    "apikey",
    "api-key",
    "authtoken",
    "credential",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "secret",
    "token",
    "_auth",
    "_dsn",
    "_key",
    "_pass",
    "_pw",
    "bearer",
];

/// Beginnings of the tokens of well-known services.
const TOKENS: [&str; 8] =
    ["ghp_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "akia", "npm_", "sk-"];

/// Values that only say whether and how, or stand for nothing.
const HARMLESS: [&str; 14] =
    ["", "0", "1", "false", "no", "none", "null", "off", "on", "prompt", "true", "yes", "{}", "[]"];

/// Tells whether any line of it looks like a credential. What is too large to be looked through counts as such.
pub(super) fn has_credentials(path: &Path, size: u64) -> io::Result<bool> {
    if size > MAX_BYTES {
        return Ok(true);
    }
    let mut text = fs::read(path)?;
    text.make_ascii_lowercase();
    Ok(text_has_credentials(&text))
}

fn text_has_credentials(text: &[u8]) -> bool {
    if memmem::find(text, b"private key-----").is_some() {
        return true;
    }
    // Of most files nothing has to be looked at line by line.
    let logins = memchr::memchr(b'@', text).map(|_| "://");
    let suspect = |needle: &&str| memmem::find(text, needle.as_bytes()).is_some();
    let found: Vec<&str> =
        SECRETS.into_iter().chain(TOKENS).chain(logins).filter(|needle| suspect(needle)).collect();
    if found.is_empty() {
        return false;
    }
    let text = String::from_utf8_lossy(text);
    without_markup_comments(&text)
        .lines()
        .any(|line| found.iter().any(|needle| line.contains(needle)) && is_credential(line))
}

/// A text without what stands between `<!--` and `-->`, where examples of passwords are.
fn without_markup_comments(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("<!--") {
        kept.push_str(&rest[..start]);
        rest = rest[start..].find("-->").map_or("", |end| &rest[start + end + 3..]);
    }
    kept + rest
}

fn is_credential(line: &str) -> bool {
    let line = line.trim_start();
    // npm's own settings begin like comments of other programs.
    if names_a_login(line) || line.contains(":_auth") || line.contains(":_pass") {
        return true;
    }
    let comment = ["#", ";", "//", "*", "/*", "!", "%", "--"];
    if comment.iter().any(|start| line.starts_with(start)) {
        return false;
    }
    let in_markup =
        SECRETS.iter().any(|name| line.contains(&format!("{name}>")) && line.contains("</"));
    in_markup || is_setting(line)
}

/// An address such as `https://user:password@host`, also in a comment, where an attempt was kept.
fn names_a_login(line: &str) -> bool {
    line.match_indices("://").any(|(at, _)| {
        let ends = |c: char| c.is_whitespace() || "/\"'<>)".contains(c);
        let host = line[at + 3..].split(ends).next().unwrap_or_default();
        let login = host.rsplit_once('@').and_then(|(login, _)| login.split_once(':'));
        login.is_some_and(|(_, password)| !password.is_empty())
    })
}

/// A setting, as `name = value`, `name: value` or `name value`, or several words of a `.netrc`.
fn is_setting(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.windows(2).any(|pair| pair[0] == "password" && !"=:".contains(pair[1]))
        && words.len() < 9
    {
        return true;
    }
    let (name, value) = match line.split_once(['=', ':']) {
        Some((name, value)) => (name, value),
        None => line.split_once(char::is_whitespace).unwrap_or((line, "")),
    };
    let trim = |c: char| c.is_whitespace() || "\"';,=:>".contains(c);
    let value = value.trim_matches(trim);
    if TOKENS.iter().any(|token| value.starts_with(token)) {
        return true;
    }
    SECRETS.iter().any(|secret| name.contains(secret)) && !HARMLESS.contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_credentials_are_found() {
        for line in [
            "password = hunter2",
            "  Password: \"hunter2\"",
            "export API_KEY=abc",
            "machine h login me password p",
            "index-url = https://me:secret@pypi.example.org/simple",
            "# was https://me:secret@pypi.example.org/simple",
            "//registry.npmjs.org/:_authToken=npm_x",
            "-----BEGIN PRIVATE KEY-----",
            "<password>repopwd</password>",
            "aws_secret_access_key = x",
            "GITHUB_TOKEN=ghp_x",
            "GITHUB=ghp_x",
            "options(github = 'ghp_x')",
            "DB_PWD=x",
            "ENCRYPTION_KEY: abc",
        ] {
            assert!(text_has_credentials(line.to_ascii_lowercase().as_bytes()), "{line}");
        }
    }

    #[test]
    fn what_packages_say_about_passwords_is_no_credential() {
        for line in [
            "# password = hunter2",
            "; mysqli.default_pw = x",
            "mysqli.default_pw =",
            "use_token = yes",
            "password =",
            "keystore.type=pkcs12",
            "session.cookie_path = /",
            "url = https://user@host/path",
            "http://www.w3.org/1999/xhtml",
            "<!-- <password>\n repopwd</password> -->",
            "R_LIBS_SITE=${R_LIBS_SITE-'/usr/local/lib/R'}",
        ] {
            assert!(!text_has_credentials(line.to_ascii_lowercase().as_bytes()), "{line}");
        }
    }
}

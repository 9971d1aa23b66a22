//! Detects credentials in configuration files by the look of their lines. Doubtful files count as having one.

use std::fs;
use std::io;
use std::path::Path;

use memchr::memmem;

/// Larger files are not scanned, and so not shown.
const MAX_BYTES: u64 = 1 << 20;

/// Parts of names of private settings.
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

/// Prefixes of the tokens of well-known services.
const TOKENS: [&str; 8] =
    ["ghp_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "akia", "npm_", "sk-"];

/// Values that are flags or placeholders.
const HARMLESS: [&str; 14] =
    ["", "0", "1", "false", "no", "none", "null", "off", "on", "prompt", "true", "yes", "{}", "[]"];

/// Returns true when any line looks like a credential, or the file is too large to scan.
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
    // Most files contain no suspicious word, and need no scan by lines.
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

/// Removes the text between `<!--` and `-->`, where example passwords are.
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
    // Some npm settings begin like comments of other programs.
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

/// Finds a URL such as `https://user:password@host`, also in a comment, which may keep an old setting.
fn names_a_login(line: &str) -> bool {
    line.match_indices("://").any(|(at, _)| {
        let ends = |c: char| c.is_whitespace() || "/\"'<>)".contains(c);
        let host = line[at + 3..].split(ends).next().unwrap_or_default();
        let login = host.rsplit_once('@').and_then(|(login, _)| login.split_once(':'));
        login.is_some_and(|(_, password)| !password.is_empty())
    })
}

/// Recognizes a private setting: `name = value`, `name: value`, `name value`, or several words of a `.netrc`.
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
    fn comments_of_packages_about_passwords_are_no_credentials() {
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

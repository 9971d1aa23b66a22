//! Keys, passwords and tokens in a text.

use super::ScanRule;
use super::findings::Findings;

/// The beginning of a key, how long it is at least, and whose it is.
const KEYS: [(&str, usize, &str); 21] = [
    ("AKIA", 20, "an access key of AWS"),
    ("ASIA", 20, "an access key of AWS"),
    ("ghp_", 36, "a token of GitHub"),
    ("gho_", 36, "a token of GitHub"),
    ("ghs_", 36, "a token of GitHub"),
    ("github_pat_", 40, "a token of GitHub"),
    ("glpat-", 20, "a token of GitLab"),
    ("sk-ant-", 32, "a key of Anthropic"),
    ("sk-proj-", 32, "a key of OpenAI"),
    ("sk-", 40, "a key of OpenAI"),
    ("sk_live_", 24, "a key of Stripe"),
    ("rk_live_", 24, "a key of Stripe"),
    ("xoxb-", 20, "a token of Slack"),
    ("xoxp-", 20, "a token of Slack"),
    ("AIza", 39, "a key of Google"),
    ("hf_", 34, "a token of Hugging Face"),
    ("npm_", 36, "a token of npm"),
    ("pypi-", 50, "a token of PyPI"),
    ("e2b_", 24, "a key of E2B"),
    ("dtn_", 32, "a key of Daytona"),
    ("eyJ", 60, "a JSON web token"),
];

/// Parts of names whose values are secret.
const NAMES: [&str; 8] =
    ["password", "passwd", "secret", "token", "api_key", "apikey", "private_key", "access_key"];

/// Minimum length of a secret that is given to such a name.
const MIN_VALUE: usize = 8;

/// Looks for known forms of keys in every line.
pub(super) fn look(text: &str, findings: &mut Findings<'_>) {
    for (row, line) in text.lines().enumerate() {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            findings.add(ScanRule::Secret, row, "the text has a private key");
        }
        for word in line.split(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c))) {
            let known = KEYS
                .iter()
                .find(|(begin, least, _)| word.len() >= *least && word.starts_with(begin));
            if let Some((_, _, whose)) = known.filter(|_| is_varied(word)) {
                findings.add(ScanRule::Secret, row, format!("the text has {whose}"));
            }
        }
        if has_login(line) {
            findings.add(ScanRule::Secret, row, "an address has a password in it");
        }
    }
}

/// Adds a finding when a value looks like the secret that its name promises.
pub(super) fn check_named(name: &str, value: &str, row: usize, findings: &mut Findings<'_>) {
    let lower = name.to_ascii_lowercase();
    let is_secret_name = NAMES.iter().any(|part| lower.contains(part));
    let is_placeholder = value.contains(char::is_whitespace)
        || ["xxx", "your", "example", "changeme", "<", "${", "..."]
            .iter()
            .any(|part| value.to_ascii_lowercase().contains(part));
    if is_secret_name && value.len() >= MIN_VALUE && !is_placeholder {
        findings.add(ScanRule::Secret, row, format!("`{name}` is given its value in the text"));
    }
}

/// Returns true unless the word is a placeholder, such as one letter again and again.
fn is_varied(word: &str) -> bool {
    let mut seen: Vec<u8> = word.bytes().collect();
    seen.sort_unstable();
    seen.dedup();
    seen.len() >= 8
}

/// Returns true for a line with an address such as `https://user:password@host`.
fn has_login(line: &str) -> bool {
    line.match_indices("://").any(|(at, found)| {
        let rest = &line[at + found.len()..];
        let end =
            rest.find(|c: char| c.is_whitespace() || "/'\"`".contains(c)).unwrap_or(rest.len());
        let login = rest[..end].rsplit_once('@').map(|(login, _)| login);
        let password = login.and_then(|login| login.split_once(':')).map(|(_, password)| password);
        password.is_some_and(|password| password.len() >= 3 && !password.contains(['{', '$', '<']))
    })
}

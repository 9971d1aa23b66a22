//! Addresses of services: which may be given a key, and the resources below them.

use std::net::Ipv4Addr;

use reqwest::Url;
use sandbox_core::{Error, Result};

/// Parses the address of a service, which keys are sent to: encrypted, or of this computer. Query and fragment are
/// dropped, and a path has no slash at its end.
///
/// # Errors
/// `InvalidArgument`, naming `field`.
pub fn parse_endpoint(field: &'static str, text: &str) -> Result<Url> {
    let invalid = |why: &str| {
        Error::invalid(field, format!("must be an address such as https://api.example.com; {why}"))
    };
    if !text.contains("://") {
        return Err(invalid("it begins with https://"));
    }
    let mut url = Url::parse(text.trim()).map_err(|error| invalid(&error.to_string()))?;
    if url.host_str().is_none() {
        return Err(invalid("it names no host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("a user and a password do not belong there"));
    }
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&url) => {}
        "http" => return Err(invalid("keys are not sent unencrypted, so it begins with https://")),
        _ => return Err(invalid("it begins with https://")),
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// Returns true for an address of this computer, by its text: names other than `localhost` are not resolved.
pub fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback()),
        None => false,
    }
}

/// Returns the resource with these path segments below `base`. Each segment is escaped.
pub fn join(base: &Url, segments: &[&str]) -> Url {
    let mut url = base.clone();
    // An address with a host can have a path.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_only_where_that_is_safe() {
        for good in
            ["https://x.example/", "http://127.0.0.1:80", "http://localhost:1/a", "http://[::1]:1"]
        {
            parse_endpoint("api_url", good).unwrap();
        }
        for bad in
            ["http://x.example", "ftp://x", "x.example", "https://a:b@x.example", "http://10.0.0.1"]
        {
            let error = parse_endpoint("api_url", bad).unwrap_err();
            assert!(error.to_string().contains("`api_url`"), "{error}");
        }
    }

    #[test]
    fn resources_are_below_the_path_of_their_service() {
        let base = parse_endpoint("api_url", "https://x.example/api/?a=b#c").unwrap();
        assert_eq!(
            join(&base, &["sandbox", "a/b ?"]).as_str(),
            "https://x.example/api/sandbox/a%2Fb%20%3F"
        );
        let base = parse_endpoint("api_url", "https://x.example").unwrap();
        assert_eq!(join(&base, &["v1"]).as_str(), "https://x.example/v1");
    }
}

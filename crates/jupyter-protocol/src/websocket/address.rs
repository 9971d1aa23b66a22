//! URLs of a server's resources.

use reqwest::Url;

use super::Token;
use super::error::ServerError;

/// The base URL of a server.
#[derive(Clone, Debug)]
pub(super) struct Address {
    base: Url,
}

/// Path segments of pages in a browser. The URL of the server ends before them.
const PAGES: [&str; 8] =
    ["lab", "tree", "notebooks", "edit", "doc", "retro", "consoles", "terminals"];

impl Address {
    /// Parses the URL of a server, such as `https://host:8888/user/me/`.
    pub(super) fn parse(text: &str) -> Result<Self, ServerError> {
        let mut base = parse(text)?;
        if base.query().is_some() || base.fragment().is_some() {
            let why = "must not contain a query; pass the token separately".to_owned();
            return Err(ServerError::Address { why });
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        Ok(Self { base })
    }

    /// Parses the URL of a page in a browser, which may contain a token.
    pub(super) fn parse_page(text: &str) -> Result<(Self, Token), ServerError> {
        let mut url = parse(text)?;
        let token = url.query_pairs().find(|(key, _)| key == "token");
        let token = Token::new(token.map(|(_, token)| token.into_owned()).unwrap_or_default());
        let segments: Vec<&str> = url.path().split('/').collect();
        // A user of JupyterHub may have the name of a page.
        let is_page = |at: &usize| {
            PAGES.contains(&segments[*at]) && (*at == 0 || segments[*at - 1] != "user")
        };
        let page = (0..segments.len()).find(is_page);
        let path = format!(
            "{}/",
            segments[..page.unwrap_or(segments.len())].join("/").trim_end_matches('/')
        );
        url.set_path(&path);
        url.set_query(None);
        url.set_fragment(None);
        Ok((Self { base: url }, token))
    }

    /// Returns the URL of a resource. Segments are escaped.
    pub(super) fn resource<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// Returns the URL of a kernel's WebSocket.
    pub(super) fn channels(&self, kernel_id: &str, session_id: &str) -> Url {
        let mut url = self.resource(["api", "kernels", kernel_id, "channels"]);
        let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
        // Switching between schemes of the same kind cannot fail.
        let _ = url.set_scheme(scheme);
        url.query_pairs_mut().append_pair("session_id", session_id);
        url
    }

    /// Returns the base URL as text.
    pub(super) fn as_str(&self) -> &str {
        self.base.as_str()
    }
}

fn parse(text: &str) -> Result<Url, ServerError> {
    let invalid = |why: String| ServerError::Address { why };
    let needs = || invalid("must start with http:// or https:// and a host".to_owned());
    let mut url = Url::parse(text).map_err(|_| needs())?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(needs());
    }
    if !url.username().is_empty() || url.password().is_some() {
        // Errors would show them.
        let _ = (url.set_username(""), url.set_password(None));
        return Err(invalid(
            "must not contain a user name or a password; pass the token separately".to_owned(),
        ));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(text: &str) -> String {
        Address::parse(text).unwrap().as_str().to_owned()
    }

    #[test]
    fn resources_are_below_the_base() {
        assert_eq!(base("http://h:1"), "http://h:1/");
        assert_eq!(base("https://http.example/user/http"), "https://http.example/user/http/");
        let address = Address::parse("https://http.example/user/http").unwrap();
        let url = address.resource(["api", "contents", "a b/c", "é?#"]);
        assert_eq!(
            url.as_str(),
            "https://http.example/user/http/api/contents/a%20b%2Fc/%C3%A9%3F%23"
        );
        let url = address.channels("id", "s&x=1");
        assert_eq!(
            url.as_str(),
            "wss://http.example/user/http/api/kernels/id/channels?session_id=s%26x%3D1"
        );
        let dots = address.resource(["api", "kernels", ".."]);
        assert!(dots.as_str().starts_with("https://http.example/user/http/api/"), "{dots}");
    }

    #[test]
    fn urls_of_pages_are_understood() {
        for (text, expected, token) in [
            ("http://h:1/lab?token=abc", "http://h:1/", "abc"),
            ("http://h:1/?token=abc", "http://h:1/", "abc"),
            ("http://h:1/user/me/lab/tree/a.ipynb#x", "http://h:1/user/me/", ""),
            ("http://h:1/user/me", "http://h:1/user/me/", ""),
            ("http://h:1/user/lab/lab?token=a%2Bb", "http://h:1/user/lab/", "a+b"),
            ("http://h:1/tree?x=1&token=abc", "http://h:1/", "abc"),
            ("http://h:1/lab/tree/my%20notes.ipynb", "http://h:1/", ""),
            ("http://h:1/consoles/a.ipynb?token=abc", "http://h:1/", "abc"),
            ("http://h:1/user/me/terminals/1", "http://h:1/user/me/", ""),
            ("http://h:1/user/consoles/terminals/1", "http://h:1/user/consoles/", ""),
        ] {
            let (address, found) = Address::parse_page(text).unwrap();
            assert_eq!((address.as_str(), found.expose()), (expected, token));
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        for text in
            ["h:1", "ws://h:1", "file:///x", "http://me:secret@h", "http://h/?token=x", "http://"]
        {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}

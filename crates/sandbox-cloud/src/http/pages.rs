//! Lists that come in pages.

use std::collections::HashSet;
use std::future::Future;

use sandbox_core::{Error, ErrorKind, Page, Result};

/// Pages of a list that are read at most.
pub const MAX_PAGES: usize = 100;

/// Reads all pages of a list. `page` gets the cursor of the page, which the first one has none of.
///
/// # Errors
/// Those of `page`; `Protocol` for a list that repeats a cursor or has more than [`MAX_PAGES`] pages.
pub async fn all_pages<T, F>(
    operation: &'static str,
    mut page: impl FnMut(Option<String>) -> F,
) -> Result<Vec<T>>
where
    F: Future<Output = Result<Page<T>>>,
{
    let mut all = Vec::new();
    let mut seen = HashSet::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let Page { items, next, .. } = page(cursor).await?;
        all.extend(items);
        cursor = next.filter(|next| !next.is_empty());
        match &cursor {
            None => return Ok(all),
            Some(next) if !seen.insert(next.clone()) => break,
            Some(_) => {}
        }
    }
    Err(Error::new(ErrorKind::Protocol, operation, "the list of the service has no end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_are_read_to_the_end_and_circles_are_not() {
        let page = |cursor: Option<String>| async move {
            Ok(match cursor.as_deref() {
                None => Page { items: vec![1, 2], next: Some("b".into()) },
                Some("b") => Page { items: vec![], next: Some("c".into()) },
                _ => Page { items: vec![3], next: Some(String::new()) },
            })
        };
        assert_eq!(all_pages("list", page).await.unwrap(), [1, 2, 3]);
        let mut asked = 0;
        let circle = |_: Option<String>| {
            asked += 1;
            async { Ok(Page { items: vec![1], next: Some("a".into()) }) }
        };
        let error = all_pages("list", circle).await.unwrap_err();
        assert_eq!((error.kind(), asked), (ErrorKind::Protocol, 2));
    }
}

//! Sandboxes in a list of their provider: one that a user names, and a page of them.

use sandbox_core::{Error, ErrorKind, ListQuery, Page, Result, SandboxInfo, Variant};

/// Entries of a page whose request names no number.
const PAGE_SIZE: usize = 100;

/// The words that users have for a sandbox.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity<'a> {
    /// The id without the variant.
    pub id: &'a str,
    /// Another unique name, of the provider.
    pub unique_name: Option<&'a str>,
    /// The name that the user gave, which need not be unique.
    pub name: Option<&'a str>,
}

/// Finds a sandbox by its id, its unique name, its name, or a unique prefix of its id, in this order.
///
/// # Errors
/// `NotFound`; `InvalidArgument` where several match.
pub fn find_one<'a, T>(
    variant: Variant,
    wanted: &str,
    all: &'a [T],
    identity: impl Fn(&'a T) -> Identity<'a>,
) -> Result<&'a T> {
    let matching = |fits: &dyn Fn(Identity<'a>) -> bool| -> Vec<&'a T> {
        all.iter().filter(|one| fits(identity(one))).collect()
    };
    let exact = matching(&|own| own.id == wanted || own.unique_name == Some(wanted));
    if let Some(found) = exact.first() {
        return Ok(found);
    }
    let mut found = matching(&|own| own.name == Some(wanted));
    if found.is_empty() {
        found = matching(&|own| own.id.starts_with(wanted));
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let message = format!("no sandbox of {variant} has the id or the name {wanted:?}");
            Err(Error::new(ErrorKind::NotFound, "attach", message)
                .with_hint("`Sandbox::list()` lists them"))
        }
        several => {
            let ids: Vec<_> = several.iter().map(|one| identity(one).id).collect();
            let matches = ids.join(", ");
            Err(Error::invalid("id", format!("{wanted:?} is ambiguous; it matches {matches}")))
        }
    }
}

/// Returns the page that a query asks for, of sandboxes with its tags. The cursor is the id of the last sandbox before the
/// page.
pub fn page(mut all: Vec<SandboxInfo>, query: &ListQuery) -> Page<SandboxInfo> {
    let has_tags = |info: &SandboxInfo| {
        query.tags.iter().all(|(key, value)| info.tags.get(key) == Some(value))
    };
    let after = query.cursor.as_deref().unwrap_or_default();
    all.retain(|info| info.id.as_str() > after && has_tags(info));
    all.sort_by(|a, b| a.id.cmp(&b.id));
    let limit = query.limit.unwrap_or(PAGE_SIZE).max(1);
    let has_more = all.len() > limit;
    all.truncate(limit);
    let next = all.last().filter(|_| has_more).map(|info| info.id.clone());
    Page { items: all, next }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CLOUD: Variant = Variant::E2B;

    fn find(wanted: &str) -> Result<&'static str> {
        const ALL: [Identity<'static>; 4] = [
            Identity { id: "abc1", unique_name: Some("runtime-1"), name: Some("mine") },
            Identity { id: "abd2", unique_name: None, name: Some("twice") },
            Identity { id: "mine", unique_name: None, name: Some("twice") },
            Identity { id: "x", unique_name: None, name: Some("abc") },
        ];
        find_one(CLOUD, wanted, &ALL, |one| *one).map(|one| one.id)
    }

    #[test]
    fn ids_count_more_than_names_and_names_more_than_prefixes() {
        for (wanted, id) in [
            ("abc1", "abc1"),
            ("runtime-1", "abc1"),
            ("mine", "mine"),
            ("abc", "x"),
            ("abd", "abd2"),
        ] {
            assert_eq!(find(wanted).unwrap(), id, "{wanted}");
        }
        let error = find("twice").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("it matches abd2, mine"), "{error}");
        let error = find("zz").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.hint().unwrap().contains("`Sandbox::list()`"), "{error:?}");
    }

    #[test]
    fn pages_have_all_that_match_once() {
        let info = |id: &str, tag: &str| -> SandboxInfo {
            serde_json::from_value(json!({
                "id": format!("e2b/{id}"), "variant": "e2b", "status": "running", "created_at": 0.0, "tags": {"t": tag},
            }))
            .unwrap()
        };
        let all = || vec![info("c", "1"), info("a", "1"), info("b", "2"), info("d", "1")];
        let ids = |page: &Page<SandboxInfo>| {
            page.items.iter().map(|info| info.id.clone()).collect::<Vec<_>>()
        };
        let mut query = ListQuery::default();
        assert_eq!(ids(&page(all(), &query)), ["e2b/a", "e2b/b", "e2b/c", "e2b/d"]);
        query.tags.insert("t".into(), "1".into());
        query.limit = Some(2);
        let first = page(all(), &query);
        assert_eq!(ids(&first), ["e2b/a", "e2b/c"]);
        query.cursor = first.next;
        let second = page(all(), &query);
        assert_eq!((ids(&second), second.next), (vec!["e2b/d".to_owned()], None));
    }
}

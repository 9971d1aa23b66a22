//! What all handles of this process for one sandbox share.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Values by key, each as long as one handle holds it.
#[derive(Debug)]
pub struct SharedByKey<K, V>(Mutex<HashMap<K, Weak<V>>>);

impl<K, V> Default for SharedByKey<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V> SharedByKey<K, V> {
    /// Returns the value of a key where a handle holds one that `is_usable`, or the one that `make` makes.
    pub fn get_or_make(
        &self,
        key: K,
        is_usable: impl FnOnce(&V) -> bool,
        make: impl FnOnce() -> V,
    ) -> Arc<V> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, value| value.strong_count() > 0);
        let known = all.get(&key).and_then(Weak::upgrade);
        if let Some(value) = known.filter(|value| is_usable(value)) {
            return value;
        }
        let value = Arc::new(make());
        all.insert(key, Arc::downgrade(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shared_while_it_is_held_and_usable() {
        let all = SharedByKey::default();
        let one = all.get_or_make("a", |_| true, || 1);
        assert_eq!(*all.get_or_make("a", |_| true, || 2), 1);
        assert_eq!(*all.get_or_make("a", |_| false, || 3), 3);
        drop(one);
        assert_eq!(*all.get_or_make("a", |_| true, || 4), 4);
    }
}

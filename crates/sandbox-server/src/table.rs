//! The sandboxes of a server, at most as many as its ceiling allows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_core::{Error, ErrorKind, Result};

/// The sandboxes that a server has made, by their ids.
#[derive(Debug)]
pub struct SandboxTable<T> {
    state: Mutex<State<T>>,
    max: usize,
}

#[derive(Debug)]
struct State<T> {
    entries: BTreeMap<String, Arc<T>>,
    /// Sandboxes that are being made.
    reserved: usize,
}

/// Room for one sandbox that is being made. Dropping it gives the room back.
#[derive(Debug)]
pub struct Reservation<'a, T> {
    table: &'a SandboxTable<T>,
}

impl<T> SandboxTable<T> {
    /// Makes a table for at most `max` sandboxes.
    pub fn new(max: usize) -> Self {
        Self { state: Mutex::new(State { entries: BTreeMap::new(), reserved: 0 }), max }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for one more sandbox.
    ///
    /// # Errors
    /// `ResourceExhausted` when there are as many as the ceiling allows.
    pub fn reserve(&self) -> Result<Reservation<'_, T>> {
        let mut state = self.state();
        if state.entries.len() + state.reserved >= self.max {
            let message = format!("this server has {} sandboxes, the most that it makes", self.max);
            return Err(Error::new(ErrorKind::ResourceExhausted, "create", message)
                .with_hint("kill one, or start the server with a higher --max-sandboxes"));
        }
        state.reserved += 1;
        Ok(Reservation { table: self })
    }

    /// Returns a sandbox.
    pub fn get(&self, id: &str) -> Option<Arc<T>> {
        self.state().entries.get(id).cloned()
    }

    /// Takes a sandbox out.
    pub fn remove(&self, id: &str) -> Option<Arc<T>> {
        self.state().entries.remove(id)
    }

    /// Returns every sandbox, in the order of their ids.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.state().entries.values().cloned().collect()
    }

    /// Takes every sandbox out.
    pub fn take_all(&self) -> Vec<Arc<T>> {
        std::mem::take(&mut self.state().entries).into_values().collect()
    }
}

impl<T> Reservation<'_, T> {
    /// Puts the sandbox into the room that was reserved for it.
    pub fn insert(self, id: impl Into<String>, sandbox: Arc<T>) {
        self.table.state().entries.insert(id.into(), sandbox);
    }
}

impl<T> Drop for Reservation<'_, T> {
    fn drop(&mut self) {
        self.table.state().reserved -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_than_the_ceiling_allows() {
        let table = SandboxTable::new(2);
        let (first, second) = (table.reserve().unwrap(), table.reserve().unwrap());
        assert_eq!(table.reserve().unwrap_err().kind(), ErrorKind::ResourceExhausted);
        first.insert("a", Arc::new(1));
        table.reserve().unwrap_err();
        drop(second);
        table.reserve().unwrap().insert("b", Arc::new(2));
        table.reserve().unwrap_err();
        assert_eq!(table.remove("a").as_deref(), Some(&1));
        table.reserve().unwrap();
        assert_eq!(table.take_all().len(), 1);
        assert!(table.all().is_empty() && table.get("b").is_none());
    }
}

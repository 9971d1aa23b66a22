//! The sandboxes of this process. They end with the process, so that there are no others to list.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sandbox_core::{Instance, ListQuery, Page, SandboxInfo, SandboxStatus};

/// The instances of a backend that are still in use.
#[derive(Debug)]
pub struct InstanceRegistry<I>(Mutex<Vec<Weak<I>>>);

impl<I> Default for InstanceRegistry<I> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<I: Instance> InstanceRegistry<I> {
    fn made(&self) -> MutexGuard<'_, Vec<Weak<I>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an instance.
    pub fn add(&self, instance: &Arc<I>) {
        let mut made = self.made();
        made.retain(|other| other.strong_count() > 0);
        made.push(Arc::downgrade(instance));
    }

    /// Returns all instances that are still in use.
    pub fn instances(&self) -> Vec<Arc<I>> {
        self.made().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the sandboxes that have not ended and have the tags, on one page.
    pub fn list(&self, query: &ListQuery) -> Page<SandboxInfo> {
        let wanted = |info: &SandboxInfo| {
            let has = |(key, value): (&String, &String)| info.tags.get(key) == Some(value);
            info.status != SandboxStatus::Terminated && query.tags.iter().all(has)
        };
        let infos = self.instances().into_iter().map(|instance| instance.info());
        Page::last(infos.filter(wanted).collect())
    }
}

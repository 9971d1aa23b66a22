//! Keys: where they come from, and how requests carry them.
//!
//! Nothing is kept between calls: a backend looks its key up at every call, in the order of [`KeyLookup`], so that a key
//! that was changed counts at the next call.

mod credentials;
mod key;
mod keyring;

pub use credentials::{Auth, Credentials, KeyAuth, Scheme};
pub use key::{EnvLookup, Key, KeyLookup, home_directory, process_env};
pub use keyring::find_in_keyring;

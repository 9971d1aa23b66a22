//! Policies as text.

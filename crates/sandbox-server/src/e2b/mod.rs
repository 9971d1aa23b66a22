//! The E2B protocol over any backend.

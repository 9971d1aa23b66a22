//! Tests of the backend.

fn main() {}

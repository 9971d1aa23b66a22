//! Behaviour of real cells. Every test needs working isolation and fails without it.
mod adopt;
mod life;
mod off;
mod spawn;
mod support;
mod trees;
mod view;

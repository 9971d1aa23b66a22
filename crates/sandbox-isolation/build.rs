//! Builds the helper program: a small static executable without libc.
//!
//! The same `rustc` as for the crate compiles it, straight from `helper/`, and the library embeds it. It needs only
//! cargo and the linker of the C toolchain.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const FLAGS: [&str; 11] = [
    "--crate-name=sandbox_helper",
    "--crate-type=bin",
    "--edition=2024",
    "-Cpanic=abort",
    "-Copt-level=s",
    "-Cstrip=symbols",
    "-Crelocation-model=static",
    "-Ccodegen-units=1",
    "-Clink-arg=-nostdlib",
    "-Clink-arg=-nostartfiles",
    "-Clink-arg=-static",
];

fn main() {
    println!("cargo::rerun-if-changed=helper");
    println!("cargo::rerun-if-changed=src/protocol.rs");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let output = PathBuf::from(variable("OUT_DIR")).join("sandbox-helper");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(FLAGS).arg("--target").arg(variable("TARGET"));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    if variable("CARGO_CFG_TARGET_ENV") == "musl" {
        // The start files of the target's own C library would define `_start` a second time.
        rustc.arg("-Clink-self-contained=no");
    }
    rustc.arg("-o").arg(&output).arg("helper/main.rs");
    let status = rustc.status().expect("rustc starts");
    assert!(status.success(), "the helper program did not compile: {rustc:?}");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

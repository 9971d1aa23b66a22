//! The helper: one small static program that makes cells.
//!
//! Started once per host process as the *launcher*. The launcher forks the first process of each cell
//! and the few trusted programs that live beside them. It holds none of the host's memory, reads
//! nothing but its socket, and takes everything with it when that socket closes.
#![no_std]
#![no_main]
// The memory functions are ours; the compiler must not turn them into calls of themselves.
#![no_builtins]

#[cfg_attr(target_arch = "x86_64", path = "arch_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch_aarch64.rs")]
mod arch;
mod cell;
mod confine;
mod gate;
mod identity;
mod subreaper;
mod launcher;
mod memory;
mod mounts;
mod namespaces;
mod idmap;
mod plan;
mod processes;
#[path = "../src/protocol.rs"]
mod protocol;
mod remove_dir;
mod roots;
mod spawn;
mod pause;
mod sys;
mod fmt;
mod kill_tree;
mod exit_events;
mod wire;

use core::ffi::CStr;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // A bug must end the process: the cell with it, never half a cell.
    sys::exit(70)
}

/// Entered from the first instruction with the stack the kernel prepared: the argument count, then
/// the arguments.
extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: the kernel put that many pointers to texts there.
    let second = unsafe {
        let count = stack.read();
        if count < 2 { c"" } else { CStr::from_ptr(stack.add(2).read() as *const _) }
    };
    launcher::run(second)
}

//! The helper: one small static program that makes cells.
//!
//! It is started once per host process as the *launcher*. The launcher forks the first process of each cell, and the
//! few trusted programs beside the cells. It has none of the host's memory, reads only from its socket, and ends with
//! all its children when that socket closes.
#![no_std]
#![no_main]
// The memory functions are defined here; the compiler must not turn them into calls of themselves.
#![no_builtins]

#[cfg_attr(target_arch = "x86_64", path = "arch_x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch_aarch64.rs")]
mod arch;
mod cell;
mod confine;
mod exit_events;
mod fmt;
mod gate;
mod identity;
mod idmap;
mod kill_tree;
mod launcher;
mod memory;
mod mounts;
mod namespaces;
mod pause;
mod plan;
mod processes;
#[path = "../src/protocol.rs"]
mod protocol;
mod remove_dir;
mod roots;
mod spawn;
mod subreaper;
mod sys;
mod wire;

use core::ffi::CStr;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // A bug must end the process, and its cell with it, rather than leave half a cell.
    sys::exit(70)
}

/// Entry point after the first instruction. The kernel has prepared the stack: the argument count, then the arguments.
extern "C" fn start(stack: *const usize) -> ! {
    // SAFETY: the kernel put that many pointers to texts there.
    let second = unsafe {
        let count = stack.read();
        if count < 2 { c"" } else { CStr::from_ptr(stack.add(2).read() as *const _) }
    };
    launcher::run(second)
}

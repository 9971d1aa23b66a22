//! Every case, by group.

mod archives;
mod background;
mod cancellation;
mod cells;
mod cleanup;
mod command_cpu_time;
mod command_faults;
mod command_input;
mod command_root;
mod commands;
mod commands_outlived;
mod concurrency;
mod config;
mod contexts;
mod detached;
mod driver;
mod driver_fork;
mod errors;
mod exec;
mod fidelity;
mod files;
mod files_faults;
mod files_hostile;
mod forged;
mod interrupt;
mod isolation;
mod isolation_network;
mod isolation_process;
mod lifecycle;
mod limits;
mod limits_memory;
mod limits_output;
mod lost_directory;
mod metrics;
mod models;
mod mounts;
mod network;
mod network_closed;
mod orphans;
mod packages;
mod pause;
mod ports;
mod reference;
mod reference_state;
mod rich;
mod rich_packages;
mod rich_protocols;
mod slow_reader;
mod snapshots;
mod stdlib_smoke;
mod streams;
mod terminal;
mod timeout;
mod timeout_hard;
mod tools;
mod tools_cancel;
mod tools_hostile;
mod tools_time;
mod transfer;
pub(crate) mod unsupported;
mod variables;
mod watch;

use crate::case::Case;

/// Every case that does not depend on the target. Those that must be alone come last.
pub(crate) fn all() -> Vec<Case> {
    let groups = [
        models::cases(),
        lifecycle::cases(),
        exec::cases(),
        streams::cases(),
        errors::cases(),
        timeout::cases(),
        timeout_hard::cases(),
        slow_reader::cases(),
        orphans::cases(),
        lost_directory::cases(),
        interrupt::cases(),
        cancellation::cases(),
        contexts::cases(),
        detached::cases(),
        variables::cases(),
        rich::cases(),
        rich_packages::cases(),
        rich_protocols::cases(),
        cells::cases(),
        driver::cases(),
        driver_fork::cases(),
        forged::cases(),
        fidelity::cases(),
        files::cases(),
        files_faults::cases(),
        mounts::cases(),
        stdlib_smoke::cases(),
        limits_output::cases(),
        files_hostile::cases(),
        archives::cases(),
        transfer::cases(),
        watch::cases(),
        snapshots::cases(),
        isolation::cases(),
        isolation_network::cases(),
        network::cases(),
        network_closed::cases(),
        isolation_process::cases(),
        limits::cases(),
        limits_memory::cases(),
        config::cases(),
        concurrency::cases(),
        cleanup::cases(),
        commands::cases(),
        commands_outlived::cases(),
        command_cpu_time::cases(),
        command_faults::cases(),
        command_root::cases(),
        command_input::cases(),
        terminal::cases(),
        background::cases(),
        packages::cases(),
        metrics::cases(),
        pause::cases(),
        ports::cases(),
        tools::cases(),
        tools_time::cases(),
        tools_cancel::cases(),
        tools_hostile::cases(),
        reference::cases(),
        reference_state::cases(),
    ];
    let mut all: Vec<_> = groups.into_iter().flatten().collect();
    all.sort_by_key(|case| case.alone);
    all
}
